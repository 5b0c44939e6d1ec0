"""Ranks of several hosts, without MPI: a supervisor on each host, which ssh starts.

A supervisor reads its task and signals from its standard input, and ends its ranks at the end of
this input. So no rank remains after the loss of this process, ssh, or the network between them. The
output of the ranks comes back in frames (`supervisor`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectives._version import __version__
from collectives.errors import CommunicatorError
from collectives.launch.host_list import Host
from collectives.launch.job import PIECE, Job, Lines, Rank, say
from collectives.launch.supervisor import (
    ENDED,
    ERR,
    FRAME,
    GREETING,
    LEAVES,
    OUT,
    PROBLEM,
    RUNS,
    STOPPED,
)
from collectives.process.channel import SILENCE
from collectives.process.rendezvous_server import Server
from collectives.process.settings import patience

SSH = ["ssh", "-T", "-oBatchMode=yes", "-oConnectTimeout=10"]
SSH += [f"-oServerAliveInterval={SILENCE // 3}", "-oServerAliveCountMax=2"]

GRACE = 5.0  # seconds that supervisors have to end their ranks
LAST_WORDS = 1.0  # seconds that ssh has to end after it has closed its output
MOST_NOISE = 1 << 16  # bytes that the start-up files of a shell may write

HOME = str(Path(__file__).resolve().parents[2])
BOOT = f"import sys; sys.path.insert(0, {HOME!r}); from collectives.launch import supervisor as s; "
BOOT += "s.main()"

# Messages of ssh, and their meaning.
REASONS = {
    "Could not resolve": "the name of this host does not resolve",
    "Permission denied": "ssh asks for a password there: let it log in by a key (ssh-copy-id)",
    "IDENTIFICATION HAS CHANGED": "the key of this host has changed: log in once by hand",
    "Host key verification failed": "ssh does not know the key of this host: log in once by hand",
    "Connection refused": "no program listens there for ssh, or a firewall refuses connections",
    "No route to host": "it cannot be reached: it is down, or a firewall refuses connections",
    "Network is unreachable": "this host has no route to it, or a firewall refuses connections",
    "timed out": "it does not answer: it is down, or a firewall drops data that is sent there",
    "No module named 'collectives'": f"the library is not in {HOME} there, as it is here",
}


def meaning(text: str) -> str:
    """Return the meaning of messages of ssh, or an empty text. Local."""
    return next((each for mark, each in REASONS.items() if mark in text), "")


class Supervisor:
    """The supervisor of a host, in its launcher."""

    name: str
    ranks: list[Rank]
    errors: bytes
    # The place for the store of torch if rank 0 is there; without an address, that of the launcher.
    address: str
    port: str

    def __init__(self, host: Host, ranks: list[Rank]) -> None:
        self.name, self.ranks, self.is_here = host.name, ranks, host.is_here
        command = [sys.executable, "-c", BOOT]
        if not self.is_here:
            command = [*SSH, host.name.strip("[]"), f"exec {shlex.join(command)}"]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes to the launcher alone
            bufsize=0,
        )
        self.is_there = False
        self.said = b""  # bytes not read yet, of frames, or of errors before it is there
        self.errors = b""

    def is_at(self, name: str) -> bool:
        """Return whether it is the supervisor of the host `name`, and has not ended. Local."""
        return self.name == name and self.process.poll() is None

    def tell(self, line: str) -> None:
        """Send a line. Local."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended; other code detects that
            self.process.stdin.write(line.encode("ascii") + b"\n")

    def problem(self) -> str:
        """Return the reason why it has not started. Local."""
        assert self.process.stderr is not None
        try:
            status = self.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.process.stderr.fileno(), PIECE):
                self.errors += data
        text = self.errors.decode(errors="replace").strip()
        why = meaning(text)
        if not why and status in (126, 127):
            why = f"{sys.executable} cannot be run there: install Python and the library as here"
        why = why or f"its supervisor has ended with exit status {status}"
        return f"no ranks on {self.name}: {why}" + (f" ({text.splitlines()[-1]})" if text else "")


class Several(Job):
    """Ranks of several hosts."""

    _grows = False

    def __init__(
        self,
        hosts: Sequence[Host],
        serve: Callable[[bytes], Server] | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self._hosts = hosts
        self._is_plain = plain or self._grows  # whether ranks get no variables of torchrun
        self._is_ending = False  # whether supervisors end because this process wants it
        self._has_to_look = False  # whether supervisors look for stopped ranks
        self._secret = secrets.token_hex(32)
        size = sum(host.slots for host in hosts)
        serve = serve or (lambda secret: Server(size, 0, secret))
        self._server = serve(self._secret.encode())
        self._supervisors: list[Supervisor] = []
        self._feeds: dict[tuple[int, int], Callable[[bytes], None]] = {}

    def start(self, words: Sequence[str], environment: Mapping[str, str], *, lines: bool) -> None:
        self._describe(words, environment, lines)
        for host in self._hosts:
            self._listen(Supervisor(host, self._numbered(host.name, host.slots)))
        limit = time.monotonic() + patience()
        while waiting := [each for each in self._supervisors if not each.is_there]:
            if self.signals:
                self._is_ending = True
                return
            if time.monotonic() > limit:
                names = ", ".join(each.name for each in waiting)
                raise CommunicatorError(f"no answer from {names} in {patience():g} s")
            for key, _ in self._selector.select(limit - time.monotonic()):
                key.data()
        for each in self._supervisors:
            self._assign(each)

    def _describe(self, words: Sequence[str], environment: Mapping[str, str], lines: bool) -> None:
        """Store the part of the task that is equal for all supervisors."""
        self._lines = lines
        self._task = {
            "words": ["lines", *words[1:]],
            "environment": dict(environment),
            "folder": os.getcwd(),
            "secret": self._secret,
            "port": self._server.port,
            "grows": self._grows,
        }

    def _numbered(self, host: str, n: int) -> list[Rank]:
        """Return `n` more ranks of a host."""
        first = len(self.ranks)
        made = [Rank(number, where=f" on {host}") for number in range(first, first + n)]
        for rank in made:
            prefix = f"[{rank.number}] " if self._lines else ""
            self._feeds[OUT, rank.number] = Lines(prefix, "stdout").feed
            self._feeds[ERR, rank.number] = Lines(prefix, "stderr").feed
        self.ranks += made
        return made

    def _assign(self, made: Supervisor) -> None:
        """Give a supervisor its task."""
        numbers = [rank.number for rank in made.ranks]
        size, addresses = len(self.ranks), _addresses(made.name)
        task: dict[str, Any] = {
            **self._task,
            "size": size,
            "numbers": numbers,
            "addresses": addresses,
        }
        if not self._is_plain:
            first = self._supervisors[0]
            task["first"] = first.address, first.port
            task["group"] = self._supervisors.index(made)
        made.tell(json.dumps(task))
        if self._has_to_look:
            made.tell("look")

    def send(self, number: int) -> None:
        for each in self._supervisors:
            each.tell(f"signal {number:d}")

    def end(self) -> None:
        self._is_ending = True
        for each in self._supervisors:
            assert each.process.stdin is not None
            with contextlib.suppress(OSError):
                each.process.stdin.close()
            if not each.is_there:
                each.process.kill()
        limit = time.monotonic() + GRACE
        while any(each.process.poll() is None for each in self._supervisors):
            left = limit - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(min(left, 0.02)):
                with contextlib.suppress(CommunicatorError):  # it was told already
                    key.data()
        for each in self._supervisors:
            each.process.kill()
            each.process.wait()

    def _close(self) -> None:
        self._selector.close()
        self._server.close()
        for each in self._supervisors:
            for pipe in (each.process.stdout, each.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _listen(self, made: Supervisor) -> None:
        self._supervisors.append(made)
        for pipe, take in (
            (made.process.stdout, self._take),
            (made.process.stderr, self._take_error),
        ):
            assert pipe is not None
            file = pipe.fileno()
            os.set_blocking(file, False)
            self.follow(file, functools.partial(self._read, made, file, take))

    def _read(self, made: Supervisor, file: int, take: Callable[[Supervisor, bytes], None]) -> None:
        try:
            data = os.read(file, PIECE)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(file)
        take(made, data)

    def _take_error(self, made: Supervisor, data: bytes) -> None:
        made.errors = (made.errors + data)[-PIECE:]
        if made.is_there and sys.stderr is not None:
            sys.stderr.write(data.decode(errors="replace"))

    def _take(self, made: Supervisor, data: bytes) -> None:
        """Take the bytes from a supervisor; no bytes mean its end."""
        made.said += data
        if not data:
            self._lose(made)
        elif made.is_there or self._greet(made):
            self._unpack(made)

    def _greet(self, made: Supervisor) -> bool:
        """Return whether a supervisor has sent its greeting, perhaps after other texts."""
        noise, mark, rest = made.said.partition(GREETING)
        greeting, end, rest = rest.partition(b"\n")
        if len(noise) > MOST_NOISE:
            self._refuse(made, f"no ranks on {made.name}: its shell writes without an end")
        if not mark or not end:
            return False
        version, *place = greeting.decode(errors="replace").split(" ")
        if version != __version__:
            self._refuse(
                made,
                f"no ranks on {made.name}: it has version {version} of the library, and this host "
                f"has {__version__}",
            )
            return False
        made.port, made.address = place
        if made.is_here:
            made.address = ""
        made.is_there, made.said = True, rest
        return True

    def _unpack(self, made: Supervisor) -> None:
        while len(made.said) >= FRAME.size:
            kind, number, nbytes = FRAME.unpack_from(made.said)
            if len(made.said) < FRAME.size + nbytes:
                return
            data = made.said[FRAME.size : FRAME.size + nbytes]
            made.said = made.said[FRAME.size + nbytes :]
            if kind in (OUT, ERR):
                self._feeds[kind, number](data)
            elif kind == ENDED:
                self._ended(self.ranks[number], int(data))
            elif kind in (STOPPED, RUNS):
                self.ranks[number].is_stopped = kind == STOPPED
            elif kind == LEAVES:
                self.ranks[number].ends_itself = True
            elif kind == PROBLEM:
                self._refuse(made, f"no ranks on {made.name}: {data.decode()}")

    def _refuse(self, made: Supervisor, problem: str) -> None:
        """Handle a problem because of which a host has no ranks."""
        raise CommunicatorError(problem)

    def _ended(self, rank: Rank, status: int) -> None:
        for kind in (OUT, ERR):
            self._feeds[kind, rank.number](b"")
        rank.status, rank.answer = status, b""
        self._server.lose(rank.number)
        if not self._has_to_look:
            self._has_to_look = True
            for made in self._supervisors:
                if made.is_there:
                    made.tell("look")

    def _lose(self, made: Supervisor) -> None:
        """Record the end of a supervisor and of its ranks."""
        if not made.is_there:
            self._refuse(made, made.problem())
        left = [rank for rank in made.ranks if rank.status is None]
        if left and not self._is_ending:
            say(f"the connection to {made.name} is lost")
        for rank in left:
            self._ended(rank, 1)


def _addresses(host: str) -> list[str]:
    """Return names of this host, by one of which another host may reach it."""
    # One lookup for all families, as in ssh: one for IPv6 alone goes to the name server even if the
    # file of hosts has an address of IPv4, and takes seconds if the server is out of reach.
    name, found = host.rpartition("@")[2].strip("[]"), []
    with contextlib.suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as asked:
                asked.connect(place)  # sends nothing
                found.append(asked.getsockname()[0])
    return list(dict.fromkeys([*found, platform.node()]))
