"""The course from a local process, which also checks the texts that a reader writes.

The server listens on the loopback address only, and answers requests whose ``Host`` is that
address. It checks a text only if the request has the ``Origin`` of its own page, and the token,
which follows ``#`` in the address of the page.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from collectives.explorer.catalogue import RANKS
from collectives.explorer.verdict import LONGEST, judged

HOST = "127.0.0.1"
MOST = 8 * LONGEST  # bytes of a request
RULES = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:"
)


class Server(ThreadingHTTPServer):
    """A folder and the check of texts, on a free port of the loopback address."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.token: str = secrets.token_urlsafe(24)
        self.turn: Lock = Lock()  # one check at a time
        super().__init__((HOST, 0), partial(Handler, directory=str(folder)))

    @property
    def origin(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The address of the course, with the token."""
        return f"{self.origin}/course.html#token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a tab that was closed before its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(SimpleHTTPRequestHandler):
    """One request: a file of the page, or a text to check."""

    server: Server
    timeout = 60  # seconds for the next bytes of a request

    def parse_request(self) -> bool:
        """Refuse a request for another host name, which a foreign page may send."""
        if not super().parse_request():
            return False
        if f"http://{self.headers.get('Host', '')}" == self.server.origin:
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "the request names another host")
        return False

    def do_POST(self) -> None:
        """Check a text, only for the page of this server."""
        token = self.headers.get("X-Token", "").encode()
        known = hmac.compare_digest(token, self.server.token.encode())
        if self.path != "/check" or self.headers.get("Origin") != self.server.origin or not known:
            self.send_error(HTTPStatus.FORBIDDEN, "the token or the origin is wrong")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            asked = json.loads(self.rfile.read(int(length)))
            text, ranks = str(asked["text"]), [int(p) for p in asked["ranks"]]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        with self.server.turn:
            found = judged(text, [p for p in ranks if 1 <= p <= RANKS])
        answer = json.dumps(found).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def end_headers(self) -> None:
        """Forbid the page to load anything from other hosts, and caches to keep it."""
        self.send_header("Content-Security-Policy", RULES)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
