"""A job without MPI, in its launcher: ranks, their output, signals, and their ends."""

from __future__ import annotations

import codecs
import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from collectives.launch.session import handling

if TYPE_CHECKING:
    from typing_extensions import Self

PIECE = 1 << 16  # bytes of one read, and of the longest part of a line that waits for the rest


class Rank:
    """One rank.

    Attributes
    ----------
    process : Popen or None
        Its process, if it is a child of this one.
    is_stopped : bool
        True if its process is stopped, as the supervisor of its host has reported.
    ends_itself : bool
        True if it was sent a signal after which it ends together with the other ranks.
    where : str
        The end of a sentence about it: its host, if there are several.
    answer : bytes or None
        The content of the file for its answer, as soon as that is complete.
    status : int or None
        Its exit status when it has ended; the negative number of a signal that has ended it.
    """

    number: int
    process: subprocess.Popen[bytes] | None
    where: str

    def __init__(
        self, number: int, process: subprocess.Popen[bytes] | None = None, where: str = ""
    ) -> None:
        self.number, self.process, self.where = number, process, where
        self.answer: bytes | None = None
        self.status: int | None = None
        self.heard: bytearray = bytearray()
        self.pipes: list[tuple[int, Callable[[bytes], None]]] = []
        self.end: int | None = None  # a file that becomes readable when the process ends
        self.is_stopped = self.ends_itself = False
        self.is_dismissed = False  # whether it has left the job, or the job has ended it


class Lines:
    """The output of a rank, which is passed on in whole lines, each after a `prefix`."""

    def __init__(self, prefix: str, stream: str) -> None:
        self._prefix, self._stream = prefix, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""

    def feed(self, data: bytes) -> None:
        """Pass on the lines that are complete; all, if `data` is empty: it is the end. Local."""
        self._held += self._decoder.decode(data, final=not data)
        lines = self._held.split("\n")
        self._held = lines.pop()
        if self._held and (not data or len(self._held) > PIECE):
            lines.append(self._held)
            self._held = ""
        stream = getattr(sys, self._stream)
        if lines and stream is not None:
            text = "".join(f"{self._prefix}{line}\n" for line in lines)
            try:
                stream.write(text)
            except UnicodeEncodeError as error:
                known = text.encode(error.encoding, "backslashreplace")
                stream.write(known.decode(error.encoding))
            stream.flush()


def say(text: str) -> None:
    """Print a line of this library on the standard error stream, if there is one. Local."""
    if sys.stderr is not None:
        print(f"collectives: {text}", file=sys.stderr, flush=True)


class Job:
    """Ranks that this process has started, here or elsewhere; used in a ``with`` statement, which
    ends them all.
    """

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.signals: list[int] = []
        self._selector = selectors.DefaultSelector()
        self.is_left: bool = False  # whether its owner is gone
        self._look_after: float | None = None  # seconds, if the kernel does not report ends

    def follow(self, file: int, take: Callable[[], object]) -> None:
        """Call `take` when there is data to read in an open `file`. Local."""
        self._selector.register(file, selectors.EVENT_READ, take)

    def leave(self) -> None:
        """Have `turn` end: the caller of this job is gone. Local."""
        self.is_left = True

    def start(self, words: Sequence[str], environment: Mapping[str, str], *, lines: bool) -> None:
        """Start all ranks. Local."""
        raise NotImplementedError

    def send(self, number: int) -> None:
        """Send the signal `number` to all ranks that run, and to their child processes; but to a
        rank alone if it then ends together with the others. Local.
        """
        raise NotImplementedError

    def has_stopped(self, rank: Rank) -> bool:
        """Return whether the process of a rank that runs is stopped. Local."""
        return rank.is_stopped

    def end(self) -> None:
        """End all ranks that run: by a signal that they can handle, then by one that they cannot.
        Local.
        """
        raise NotImplementedError

    def _close(self) -> None:
        """Free the resources of the ranks. Local."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._close()

    @property
    def is_over(self) -> bool:
        """True if all ranks have ended."""
        return not self.running

    @property
    def running(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    @property
    def has_ended_well(self) -> bool:
        """True if a rank has reached the end of the program."""
        return any(rank.status == 0 and not rank.is_dismissed for rank in self.ranks)

    def turn(self, limit: float | None) -> list[Rank]:
        """Read the output of ranks until one answers or ends, a signal comes, or time is up."""
        while True:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            if self._look_after is not None:
                left = self._look_after if left is None else min(left, self._look_after)
            if self.signals:  # one came before this turn
                left = 0.0
            before = {rank: (rank.answer, rank.status) for rank in self.ranks}
            for key, _ in self._selector.select(left):
                key.data()
            self._look()
            news = [
                rank
                for rank in self.ranks
                if before.get(rank, (None, None)) != (rank.answer, rank.status)
            ]
            if (
                news
                or self.signals
                or self.is_left
                or (limit is not None and time.monotonic() >= limit)
            ):
                return news

    def _look(self) -> None:
        """Find the ranks that have ended. Local."""

    @contextlib.contextmanager
    def catching(self, *numbers: int) -> Iterator[None]:
        """Append signals of these `numbers` to `signals`, without their usual effect. Local."""

        woken, wake = socket.socketpair()
        with woken, wake:
            wake.setblocking(False)
            earlier = signal.set_wakeup_fd(wake.fileno())
            self._selector.register(woken, selectors.EVENT_READ, lambda: self._note(woken))
            try:
                with handling(numbers, lambda number, frame: None):
                    yield
            finally:
                self._selector.unregister(woken)
                signal.set_wakeup_fd(earlier)

    def _note(self, woken: socket.socket) -> None:
        self.signals += woken.recv(64)


def ended(status: int) -> str:
    """Describe the end of a process with an exit `status`. Local."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (kill -9, or the kernel when memory runs out)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
