"""Ranks of this host as children of this process, without MPI: their start, output and end."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectives import _core
from collectives.launch.session import handling
from collectives.process import abort
from collectives.process.environment import ABORT, SET_BY_LAUNCHERS
from collectives.process.rendezvous_server import Server
from collectives.process.settings import patience
from collectives.process.waiting import Wait

__all__ = ["FAREWELL", "Children", "Rank", "call", "command"]

PROGRAM = Path(__file__).with_name("rank.py")

# Seconds that others have after the function of a rank has failed: to fail, too, and to say so; and
# seconds from the signal that they can handle to the one that they cannot.
FAREWELL, GRACE = 0.5, 2.0

LOOK_STOPPED = 0.5  # seconds between two looks whether the ranks that are left are stopped
LOOK = 0.05  # seconds between two looks whether a rank has ended, where the kernel does not tell
PIECE = 1 << 16  # bytes of one read, and the longest part of a line that is held back
HELD = 16  # pieces that a pipe may hold


class Rank:
    """One child.

    Attributes
    ----------
    answer : bytes or None
        What it has written to the file for its answer, as soon as that is complete.
    status : int or None
        Its exit status when it has ended; the negative number of a signal that has ended it.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number, self.process = number, process
        self.answer: bytes | None = None
        self.status: int | None = None
        self.heard = bytearray()
        self.pipes: list[tuple[int, Callable[[bytes], None]]] = []


class Lines:
    """The output of a rank, which is passed on in whole lines, with the number of the rank."""

    def __init__(self, number: int, stream: str) -> None:
        self._prefix, self._stream = f"[{number}] ", stream
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


class Children:
    """Ranks that this process has started; used in a ``with`` statement, which ends them all."""

    def __init__(self, n: int) -> None:
        self.ranks: list[Rank] = []
        self.signals: list[int] = []
        self._n = n
        self._selector = selectors.DefaultSelector()
        self._server = Server(n)
        self._is_told_of_ends = True
        self._ignores = False

    def __enter__(self) -> Children:
        # A process that ignores the ends of its children does not learn how they have ended.
        if threading.current_thread() is threading.main_thread():
            self._ignores = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
            if self._ignores:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._close()
            if self._ignores:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    @property
    def running(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        task: int | None = None,
        lines: bool = True,
    ) -> None:
        """Start all ranks. Local."""
        with _uninterrupted():
            for number in range(self._n):
                self._start(number, words, environment, task, lines)

    def _start(
        self,
        number: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        task: int | None,
        lines: bool,
    ) -> None:
        output = subprocess.PIPE if lines else None
        files: tuple[int, ...] = ()
        if task is not None:
            heard, answer = map(apart, os.pipe())
            files = task, answer
        try:
            process = subprocess.Popen(
                [*command(words), *map(str, files)],
                env={**environment, **self._server.environment(number)},
                stdin=None if number == 0 and not lines else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=files,
                # Ctrl-C comes to this process alone, and signals reach what a rank has started.
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            if task is not None:
                os.close(heard)
            raise
        finally:
            if task is not None:
                os.close(answer)
        rank = Rank(number, process)
        self.ranks.append(rank)
        if task is not None:
            self._listen(rank, heard, lambda data: self._hear(rank, data))
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            if pipe is not None:
                self._listen(rank, os.dup(pipe.fileno()), Lines(number, name).feed)
                pipe.close()
        try:
            end = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # an old kernel, or a sandbox
            self._is_told_of_ends = False
        else:
            self._selector.register(end, selectors.EVENT_READ, (rank, None))

    def _listen(self, rank: Rank, pipe: int, feed: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        rank.pipes.append((pipe, feed))
        self._selector.register(pipe, selectors.EVENT_READ, (rank, feed))

    def _hear(self, rank: Rank, data: bytes) -> None:
        rank.heard += data
        if not data:
            rank.answer, rank.heard = bytes(rank.heard), bytearray()

    def turn(self, limit: float | None) -> list[Rank]:
        """Take what ranks write, until one answers or ends, a signal comes, or time is up."""
        while True:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            if not self._is_told_of_ends:
                left = LOOK if left is None else min(left, LOOK)
            before = [(rank.answer, rank.status) for rank in self.ranks]
            for key, _ in self._selector.select(left):
                rank, feed = key.data
                if rank is None:
                    self.signals += key.fileobj.recv(64)  # type: ignore[union-attr]
                elif feed is not None:
                    self._read(rank, key.fd, feed)
            for rank in self.running:
                self._reap(rank)
            news = [
                rank
                for rank, said in zip(self.ranks, before, strict=True)
                if said != (rank.answer, rank.status)
            ]
            if news or self.signals or (limit is not None and time.monotonic() >= limit):
                return news

    def _read(self, rank: Rank, pipe: int, feed: Callable[[bytes], None]) -> bool:
        """Pass on one piece from a pipe; return whether there was one."""
        try:
            data = os.read(pipe, PIECE)
        except BlockingIOError:
            return False
        if not data:
            self._hang_up(rank, pipe, feed)
        else:
            feed(data)
        return bool(data)

    def _hang_up(self, rank: Rank, pipe: int, feed: Callable[[bytes], None]) -> None:
        self._selector.unregister(pipe)
        rank.pipes.remove((pipe, feed))
        os.close(pipe)
        feed(b"")

    def _reap(self, rank: Rank) -> None:
        """Take down that a rank has ended, after all that it has written.

        What a rank has started may still have its pipes.
        """
        self._end_what_it_started(rank)
        status = rank.process.poll()
        if status is None:
            return
        for pipe, feed in list(rank.pipes):
            for _ in range(HELD):
                if not self._read(rank, pipe, feed):
                    break
        rank.status = status
        if rank.answer is None:
            rank.answer = bytes(rank.heard)
        self._server.lose(rank.number)
        for key in list(self._selector.get_map().values()):
            if key.data == (rank, None):
                self._selector.unregister(key.fd)
                os.close(key.fd)

    def _end_what_it_started(self, rank: Rank) -> None:
        """End what a rank that has failed has started: its group, which is there until the rank is
        reaped.
        """
        try:
            ended = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is not None and (ended.si_code != os.CLD_EXITED or ended.si_status):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send the signal `number` to all ranks that run, and to what they have started. Local."""
        for rank in self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, number)

    def end(self) -> None:
        """End all ranks that run: by a signal that they can handle, then by one that they cannot.
        Local.
        """
        try:
            self.send(signal.SIGTERM)
            limit = time.monotonic() + GRACE
            while self.running and time.monotonic() < limit and not self.signals:
                self.turn(limit)
        finally:
            self.send(signal.SIGKILL)
            for rank in self.running:
                rank.process.wait()
                self._reap(rank)

    def _close(self) -> None:
        for rank in self.ranks:
            for pipe, feed in list(rank.pipes):
                self._hang_up(rank, pipe, feed)
        self._selector.close()
        self._server.close()

    @contextlib.contextmanager
    def catching(self, *numbers: int) -> Iterator[None]:
        """Have signals of these `numbers` end up in `signals`, and do nothing else. Local."""

        woken, wake = socket.socketpair()
        with woken, wake:
            wake.setblocking(False)
            earlier = signal.set_wakeup_fd(wake.fileno())
            self._selector.register(woken, selectors.EVENT_READ, (None, None))
            try:
                with handling(numbers, lambda number, frame: None):
                    yield
            finally:
                self._selector.unregister(woken)
                signal.set_wakeup_fd(earlier)


class Halted:
    """A look at ranks that are stopped when all others have ended: nobody else would miss them."""

    def __init__(self) -> None:
        self._wait: Wait | None = None

    def next_look(self, job: Children) -> float | None:
        """Return when to look again, by `time.monotonic`; None if ranks wait for each other."""
        if len(job.running) == len(job.ranks):
            return None
        return time.monotonic() + LOOK_STOPPED

    def for_long(self, job: Children) -> bool:
        """Return whether all ranks that are left have been stopped until the deadline, and say so.
        Local.
        """
        left = job.running
        halted = len(left) < len(job.ranks) and all(
            _core.is_stopped(rank.process.pid) for rank in left
        )
        if not halted or not left:
            self._wait = None
            return False
        self._wait = self._wait or Wait()
        waited = self._wait.passed()
        if waited < patience():
            return False
        if sys.stderr is not None:
            for rank in left:
                text = f"rank {rank.number} of {len(job.ranks)} (process {rank.process.pid})"
                text += f" has been stopped for {waited:.0f} s, and the others have ended"
                print(f"collectives: {text}", file=sys.stderr, flush=True)
        return True


def apart(file: int) -> int:
    """Return an open file under a number that is none of the standard ones; close it under its own.
    Local.

    A rank gets its standard files under their numbers, whatever this process has there.
    """
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def command(words: Sequence[str]) -> list[str]:
    """Return the command of a rank that shall do what `words` say. Local."""
    return [sys.executable, str(PROGRAM), str(os.getpid()), *words]


def ended(status: int) -> str:
    """Return how a process with an exit `status` has ended, in words. Local."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (the kernel sends it when memory runs out)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def variables() -> dict[str, str]:
    """Return the environment of this process, without what a launcher has set that has started it
    as its only rank: ranks without MPI are not its. Local.
    """
    return {k: v for k, v in os.environ.items() if not k.startswith(SET_BY_LAUNCHERS)}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off, as it would lose a child that is not in the list yet."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # signals come to the main thread, or are none of Python's
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


def call(n: int, program: Sequence[str], lines: bool = False, is_elastic: bool = False) -> int:
    """Run a program on `n` ranks; return the exit status of the first that fails. Local.

    The others are ended then, unless ``COLLECTIVES_ABORT=0`` and it was not a signal that
    ended the rank. SIGINT, SIGTERM and SIGHUP are passed on.
    """
    first, limit, environment = 0, None, variables()
    came = 0  # the number of the last signal
    halted = Halted()
    if is_elastic:
        environment[ABORT] = "0"
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with Children(n) as job, job.catching(*numbers):
        job.start(["lines" if lines else "run", *program], environment, lines=lines)
        while job.running:
            for rank in job.turn(halted.next_look(job) if limit is None else limit):
                status = rank.status or 0
                if status and (not first or is_elastic):
                    first = first or (128 - status if status < 0 else status)
                    # A rank with status 1 has said why: an exception, or the text of sys.exit.
                    is_told = status == 1 or job.signals or came
                    if not is_told and sys.stderr is not None:
                        text = f"collectives: rank {rank.number} of {n} {ended(status)}"
                        print(text, file=sys.stderr, flush=True)
                if is_elastic:
                    continue
                if limit is None and (status < 0 or (status and abort.wished())):
                    limit = time.monotonic()  # that rank has said all, and others shall not
            if halted.for_long(job) and limit is None:
                first, limit = first or 1, time.monotonic()
            if job.signals:
                if came == job.signals[-1]:
                    break  # it has come twice, and `end` waits no longer
                came = job.signals[-1]
                job.send(came)
                job.signals.clear()
                limit = time.monotonic() + GRACE
            if limit is not None and time.monotonic() >= limit:
                break
    if came:
        return 128 + came
    return 0 if is_elastic and any(rank.status == 0 for rank in job.ranks) else first
