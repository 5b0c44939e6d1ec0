"""Ranks of this host as children of this process, without MPI: their start, output and end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.launch.job import PIECE, Job, Lines, Rank, ended, say
from collectives.process import abort, as_torchrun, stopping
from collectives.process.environment import ABORT, SET_BY_LAUNCHERS
from collectives.process.rendezvous_server import Server
from collectives.process.settings import patience
from collectives.process.waiting import Wait

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FAREWELL", "Children", "Rank", "call", "command", "ended"]

PROGRAM = Path(__file__).with_name("rank.py")

# Seconds in which the other ranks may fail and report it, after the function of a rank has failed;
# and seconds from the signal that they can handle to the one that they cannot.
FAREWELL, GRACE = 0.5, 2.0

LOOK_STOPPED = 0.5  # seconds between two checks whether the remaining ranks are stopped
LOOK = 0.05  # seconds between two checks whether a rank has ended, if the kernel does not report it
HELD = 16  # pieces that a pipe may hold


class Children(Job):
    """Ranks of this host, as children of this process.

    They are all `n` ranks of a job, or those whose `numbers` are given. In the second case, `place`
    has the variables by which each meets the others. `feed` returns a function that takes the
    output of a rank. If all ranks are here, they also get the variables of torchrun, unless it is
    `plain`.
    """

    def __init__(
        self,
        n: int,
        numbers: Sequence[int] | None = None,
        place: Callable[[int], Mapping[str, str]] | None = None,
        feed: Callable[[int, str], Callable[[bytes], None]] | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self._numbers = range(n) if numbers is None else numbers
        self._server = Server(n) if place is None else None
        self._port = None if place or plain else as_torchrun.Port()
        self._place = place or self._placed
        self._feed = feed or (lambda number, stream: Lines(f"[{number}] ", stream).feed)
        self._ignores = False

    def _placed(self, number: int) -> dict[str, str]:
        """Return the variables of a rank of a job of this host."""
        assert self._server is not None
        found = self._server.environment(number)
        if self._port is not None:
            n = self._server.size
            address = as_torchrun.LOOPBACK, self._port.number
            found |= as_torchrun.variables(number, n, (number, n), 0, *address)
        return found

    def __enter__(self) -> Self:
        # A process that ignores the ends of its children does not get their exit statuses.
        if threading.current_thread() is threading.main_thread():
            self._ignores = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
            if self._ignores:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            if self._ignores:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        task: int | None = None,
        lines: bool = True,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Start all ranks, or those of these numbers. Local."""
        with _uninterrupted():
            for number in self._numbers if numbers is None else numbers:
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
                env={**environment, **self._place(number)},
                stdin=None if number == 0 and not lines else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=files,
                # Ctrl-C reaches this process alone, and signals reach the children of a rank.
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
                self._listen(rank, os.dup(pipe.fileno()), self._feed(number, name))
                pipe.close()
        try:
            rank.end = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # an old kernel, or a sandbox
            self._look_after = LOOK
        else:
            self._selector.register(rank.end, selectors.EVENT_READ, lambda: None)

    def _listen(self, rank: Rank, pipe: int, feed: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        rank.pipes.append((pipe, feed))
        self._selector.register(pipe, selectors.EVENT_READ, lambda: self._read(rank, pipe, feed))

    def _hear(self, rank: Rank, data: bytes) -> None:
        rank.heard += data
        if not data:
            rank.answer, rank.heard = bytes(rank.heard), bytearray()

    def _look(self) -> None:
        for rank in self.running:
            self._reap(rank)

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
        """Record the end of a rank, after all of its output.

        Processes that a rank has started may still have its pipes.
        """
        self._end_what_it_started(rank)
        assert rank.process is not None
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
        if self._server is not None:
            self._server.lose(rank.number)
        if rank.end is not None:
            self._selector.unregister(rank.end)
            os.close(rank.end)

    def _end_what_it_started(self, rank: Rank) -> None:
        """End the children of a rank that has failed: its group, which exists until the rank is
        reaped.
        """
        assert rank.process is not None
        try:
            ended = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is not None and (ended.si_code != os.CLD_EXITED or ended.si_status):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGTERM)

    def send(self, number: int) -> None:
        for rank in self.running:
            assert rank.process is not None
            listens = stopping.listens(rank.process.pid, number)
            rank.ends_itself |= listens
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if listens else os.killpg)(rank.process.pid, number)

    def _send_groups(self, number: int) -> None:
        """Send a signal to all ranks that run, and to their child processes."""
        self.kill([rank.number for rank in self.running], number)

    def has_stopped(self, rank: Rank) -> bool:
        return rank.process is not None and _core.is_stopped(rank.process.pid)

    def kill(self, numbers: Sequence[int], signal_number: int = signal.SIGKILL) -> None:
        """End some ranks, and their child processes, by a signal. Local."""
        for rank in self.running:
            if rank.number in numbers and rank.process is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.process.pid, signal_number)

    def end(self) -> None:
        try:
            self._send_groups(signal.SIGTERM)
            limit = time.monotonic() + GRACE
            while self.running and time.monotonic() < limit and not self.signals:
                self.turn(limit)
        finally:
            self._send_groups(signal.SIGKILL)
            for rank in self.running:
                assert rank.process is not None
                rank.process.wait()
                self._reap(rank)

    def _close(self) -> None:
        for rank in self.ranks:
            for pipe, feed in list(rank.pipes):
                self._hang_up(rank, pipe, feed)
        self._selector.close()
        if self._server is not None:
            self._server.close()
        if self._port is not None:
            self._port.close()


class Halted:
    """The check for ranks that are stopped after all others have ended, so that no rank waits for
    them.
    """

    def __init__(self) -> None:
        self._wait: Wait | None = None

    def next_look(self, job: Job) -> float | None:
        """Return the time of the next check, by `time.monotonic`; None if ranks wait for each
        other.
        """
        if len(job.running) == len(job.ranks):
            return None
        return time.monotonic() + LOOK_STOPPED

    def for_long(self, job: Job) -> bool:
        """Return whether all remaining ranks have been stopped until the deadline, and print it.
        Local.
        """
        left = job.running
        halted = len(left) < len(job.ranks) and all(map(job.has_stopped, left))
        if not halted or not left:
            self._wait = None
            return False
        self._wait = self._wait or Wait()
        waited = self._wait.passed()
        if waited < patience():
            return False
        for rank in left:
            where = rank.where if rank.process is None else f" (process {rank.process.pid})"
            say(
                f"rank {rank.number} of {len(job.ranks)}{where} has been stopped for {waited:.0f} "
                f"s, and the others have ended"
            )
        return True


def apart(file: int) -> int:
    """Return an open file under a number that is none of the standard ones; close its old number.
    Local.

    A rank gets its standard files under these numbers, even if this process has closed its own.
    """
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def command(words: Sequence[str]) -> list[str]:
    """Return the command of a rank with the arguments `words` of `rank.py`. Local."""
    return [sys.executable, str(PROGRAM), str(os.getpid()), *words]


def variables() -> dict[str, str]:
    """Return the environment of this process, without the variables of a launcher that has started
    it as its only rank, because ranks without MPI do not belong to that job. Local.
    """
    others = *SET_BY_LAUNCHERS, "TORCHELASTIC_"
    return {k: v for k, v in os.environ.items() if not k.startswith(others)}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until a started child is in the list."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # signals are handled in the main thread only, or are not Python's
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


def call(
    n: int,
    program: Sequence[str],
    lines: bool = False,
    is_elastic: bool = False,
    several: Job | None = None,
    *,
    plain: bool = False,
) -> int:
    """Run a program on `n` ranks, here or on `several` hosts; return the exit status of the first
    that fails. Local.

    Ranks of this host get no variables of torchrun if they are `plain`.
    The others are ended then, unless ``COLLECTIVES_ABORT=0`` and it was not a signal that
    ended the rank. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on. After one of the first three,
    ranks that do not stop together have little time to end.
    """
    first, limit, environment = 0, None, variables()
    came = 0  # the number of the last signal
    halted = Halted()
    if is_elastic:
        environment[ABORT] = "0"
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
    with several or Children(n, plain=plain) as job, job.catching(*numbers):
        job.start(["lines" if lines else "run", *program], environment, lines=lines)
        while not job.is_over:
            for rank in job.turn(halted.next_look(job) if limit is None else limit):
                status = 0 if rank.is_dismissed else rank.status or 0
                if status and (not first or is_elastic):
                    first = first or (128 - status if status < 0 else status)
                    # A rank with status 1 has printed the reason: an exception or sys.exit's text.
                    is_told = status == 1 or job.signals or came
                    if not is_told:
                        say(f"rank {rank.number} of {len(job.ranks)}{rank.where} {ended(status)}")
                if is_elastic:
                    continue
                if limit is None and (status < 0 or (status and abort.wished())):
                    limit = time.monotonic()  # the report of that rank is enough
            if halted.for_long(job) and limit is None:
                first, limit = first or 1, time.monotonic()
            if job.signals:
                number = job.signals[-1]
                if came == number:
                    break  # the second signal: `end` does not wait
                job.send(number)
                job.signals.clear()
                if number != signal.SIGUSR1:  # which the program handles, or which ends it
                    came, limit = number, time.monotonic() + GRACE
            if limit is not None and time.monotonic() >= limit:
                if first or not any(rank.ends_itself for rank in job.running):
                    break
                limit = None
    if came and not all(rank.status == 0 or rank.is_dismissed for rank in job.ranks):
        return 128 + came
    return 0 if is_elastic and job.has_ended_well else first
