"""The report of an uncaught error: a short traceback, printed once for the ranks of a host.

The first rank that fails waits a moment for others that fail in the same way, and prints one report
that names all of them. Ranks that fail in another way print their own. The ranks find each other by
an abstract Unix socket, whose name contains the launcher's process: it leaves no file, and vanishes
with the rank that has made it. A rank that cannot reach another one prints its own report.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from collectives.process import environment, processes

if TYPE_CHECKING:
    import socket

# Seconds to wait for others with the same error, for an answer of the printing rank, and until it
# listens.
WINDOW, ANSWER, LISTENS = 0.2, 2.0, 0.1
NAP = 0.005  # seconds between two checks whether it listens

PRINTED = b"printed"
MOST = 1 << 16  # bytes of a text that ranks compare; a longer one is printed by each

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# Files whose frames do not help the author of a program begin with these. Those of Cython are
# relative.
INSIDE = (PACKAGE, "collectives/_core", "<frozen runpy>", "src/mpi4py/", "mpi4py/MPI")


def shortened(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    """Return the text of a traceback, without the frames of the library and of runners. Local.

    With ``COLLECTIVES_TRACEBACK=full``, or if an error of another package comes from inside the
    library, all frames are kept.
    """
    whole = traceback.TracebackException(kind, error, trace)
    if environment.text("COLLECTIVES_TRACEBACK") != "full":
        hidden = _hidden()
        ours = kind.__module__.partition(".")[0] == "collectives"
        if ours or not issubclass(kind, Exception) or not _ends_inside(whole):
            _shorten(whole, hidden)
    return "".join(whole.format())


def _hidden() -> tuple[str, ...]:
    """Return the beginnings of the files of hidden frames."""
    runner = getattr(sys.modules.get("runpy"), "__file__", None)
    spec = getattr(sys.modules.get("mpi4py"), "__spec__", None)
    folders = [os.path.join(each, "") for each in (spec and spec.submodule_search_locations) or ()]
    return (*INSIDE, *([runner] if runner else []), *folders)


def _ends_inside(whole: traceback.TracebackException) -> bool:
    """Return whether an error comes from inside the library, except for a missing name."""
    last = whole.stack[-1] if whole.stack else None
    return last is not None and last.name != "__getattr__" and last.filename.startswith(INSIDE[:2])


def _shorten(whole: traceback.TracebackException | None, hidden: tuple[str, ...]) -> None:
    """Remove frames from a traceback and from those of its causes.

    All frames of one are removed only if the error has its own place, as a SyntaxError has.
    """
    seen = set()
    while whole is not None and id(whole) not in seen:
        seen.add(id(whole))
        kept = [frame for frame in whole.stack if not frame.filename.startswith(hidden)]
        if kept or hasattr(whole, "lineno"):
            whole.stack = traceback.StackSummary.from_list(kept)
        whole = whole.__cause__ or (None if whole.__suppress_context__ else whole.__context__)


class Report:
    """The text that a rank prints before it ends, and the socket that tells other ranks of it."""

    text: str
    rank: int
    size: int

    def __init__(self, text: str, rank: int, size: int, said: str | None = None) -> None:
        self.text, self.rank, self.size = text, rank, size
        self.said: bytes = (text if said is None else said).encode("utf-8", "backslashreplace")
        self.ranks: set[int] = {rank}
        self.links: list[socket.socket] = []
        self.meeting: socket.socket | None = None

    def tell(self, closing: Callable[[Sequence[int]], str]) -> None:
        """Print the report, unless another rank of this host prints the same one. Local."""
        if self.size > 1 and len(self.said) <= MOST:
            with contextlib.suppress(Exception):  # then it prints its own report
                self.meeting = _bound()
                if self.meeting is None and self._is_printed_by_another():
                    return
            self._listen(WINDOW)
        write(f"{self.text}{closing(sorted(self.ranks))}\n")
        self._answer()

    def linger(self, seconds: float) -> None:
        """Wait, and tell ranks that fail later in the same way that it is printed. Local."""
        end = time.monotonic() + seconds
        while self.meeting is not None and len(self.ranks) < self.size and time.monotonic() < end:
            self._listen(min(0.05, end - time.monotonic()))
            self._answer()
        time.sleep(max(0.0, end - time.monotonic()))

    def _listen(self, seconds: float) -> None:
        """Accept other ranks with the same error, until all have it or the time is up."""
        end = time.monotonic() + seconds
        while self.meeting is not None and len(self.ranks) < self.size:
            left = end - time.monotonic()
            if left <= 0:
                return
            self.meeting.settimeout(left)
            try:
                link, _ = self.meeting.accept()
                link.settimeout(ANSWER)
                said = link.recv(MOST + 8) if processes.peer(link)[1] == os.getuid() else b""
            except OSError:
                continue
            if said[8:] == self.said:
                self.ranks.add(int.from_bytes(said[:8], "little"))
                self.links.append(link)
            else:
                link.close()  # that rank prints its own

    def _answer(self) -> None:
        """Tell the accepted ranks that their error is printed."""
        while self.links:
            with contextlib.suppress(OSError), self.links.pop() as link:
                link.send(PRINTED)

    def _is_printed_by_another(self) -> bool:
        """Send this rank's error to the printing rank; return whether that has printed it."""
        with _socket() as link:
            link.settimeout(ANSWER)
            end = time.monotonic() + LISTENS
            while True:
                try:
                    link.connect(_name())
                    break
                except ConnectionRefusedError:
                    if time.monotonic() > end:
                        return False
                    time.sleep(NAP)
            if processes.peer(link)[1] != os.getuid():
                return False
            link.send(self.rank.to_bytes(8, "little") + self.said)
            return link.recv(64) == PRINTED


def _socket() -> socket.socket:
    import socket

    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _name() -> bytes:
    """Return the name at which the ranks of a host meet: that of their launcher's process."""
    launcher = os.getppid()
    started = processes.stat(launcher)[processes.STARTED]  # process IDs are used again
    return f"\0collectives-{os.getuid()}-{launcher}-{started}".encode()


def _bound() -> socket.socket | None:
    """Return the socket that the others find, or None if another rank has it."""
    meeting = _socket()
    try:
        meeting.bind(_name())
        meeting.listen(128)
    except OSError as error:
        meeting.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return meeting


def write(text: str) -> None:
    """Write a text to stderr at once, so that the texts of several ranks do not mix. Local."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.stderr.flush()
        data = text.encode(getattr(sys.stderr, "encoding", None) or "utf-8", "backslashreplace")
        try:
            file = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # it is not a file
            sys.stderr.write(text)
            return
        while data:
            data = data[os.write(file, data) :]
