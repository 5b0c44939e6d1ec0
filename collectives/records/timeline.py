"""Timelines: the steps of the ranks in their calls, with times, in one file for trace viewers.

While a timeline is on, the core writes its records to a tape (`tape`). At the end every rank adds
its events to the file. All times are converted to the clock of rank 0's host. At the start, the
hosts measure the offsets of their clocks by round trips of messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
import warnings
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from collectives import _core
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    TimelineWarning,
)
from collectives.process import abort, environment, processes
from collectives.process.meeting import Meeting
from collectives.records import parts, tape, tracefile
from collectives.records.parts import Parts
from collectives.text.origin import levels
from collectives.text.words import shown

LIMIT = 32 << 20  # bytes of a tape: a million records; a call has at least 4
TRIPS = 16  # round trips to measure the offset of a clock


class RecordedRanks(Protocol):
    """The parts of a communicator that a timeline uses."""

    rank: int
    size: int
    node: int
    nodes: int
    local_rank: int
    _engine: _core.Engine
    _meeting: Meeting

    def barrier(self, *args: Any, **options: Any) -> None: ...
    def _together(self, making: str) -> AbstractContextManager[Any]: ...


class _Recording:
    """The tape of this process, for all timelines that are on."""

    def __init__(self, path: str, facts: dict[str, Any]) -> None:
        self.parts = Parts(path)
        self.rank: int = facts["rank"]
        self.users = 1
        self.lock = threading.Lock()
        self.file = self.parts.create(f"{self.rank}.records", os.O_RDWR)
        tape.is_held(self.file)  # it is new: this locks it
        self.lines = self.parts.create(f"{self.rank}.json", os.O_RDWR | os.O_APPEND)
        self.is_in_folder = True
        self.say(facts)
        limit = environment.size("COLLECTIVES_TIMELINE_LIMIT", LIMIT)
        _core.start_tape(self.file, limit, _core.has_even_counter(), self.tell)

    def say(self, row: dict[str, Any]) -> None:
        """Record a line, unless another thread has closed the tape."""
        with self.lock:
            if self.lines >= 0:
                os.write(self.lines, (json.dumps(row) + "\n").encode())

    def tell(self, number: int, label: tuple[Any, ...]) -> None:
        """Record the description of the calls with a label number."""
        (name, size, ranks, local), collective, algorithm, segment, transport, reason = label
        self.say(
            {
                "label": number,
                "communicator": name,
                "size": size,
                "ranks": ranks,
                "local": local,
                "collective": collective,
                "algorithm": algorithm,
                "segment": segment,
                "transport": transport,
                "reason": reason,
            }
        )

    def read(self) -> tape.Tape:
        """Return the records on the tape so far."""
        return tape.Tape.parsed(self.said, self.file, f"{self.rank}.records")

    def said(self) -> str:
        """Return the lines so far. Other threads may be about to record one."""
        text = b""
        with self.lock:
            while piece := os.pread(self.lines, 1 << 20, len(text)):
                text += piece
        return text.decode()

    def stop(self) -> None:
        if not _core.stop_tape():
            warnings.warn(
                f"the timeline of this rank ends early: {self.rank}.records was full "
                f"(COLLECTIVES_TIMELINE_LIMIT)",
                TimelineWarning,
                stacklevel=levels(),
            )

    def leave_folder(self) -> None:
        """Remove the tape from the folder of its timeline, whose events are in the file. The tape
        stays open, because other timelines may use it.
        """
        if self.is_in_folder:
            self.is_in_folder = False
            self.parts.remove(self.rank)

    def let_go(self, done: bool) -> None:
        """Close the tape; delete it if its events are in the file (`done`)."""
        with self.lock:
            os.close(self.lines)
            self.lines = -1
        if done:
            self.leave_folder()
        os.close(self.file)  # this releases the lock
        self.parts.close()


# The recording of this process, which all active timelines share, and the lock for changes and
# reads.
_recording: _Recording | None = None
_lock = threading.RLock()
_of_environment: Timeline | None = None


class Timeline:
    """A timeline of the calls of all ranks, made by `Communicator.timeline`.

    Parameters
    ----------
    comm : Ranks
    path : str or path

    Attributes
    ----------
    path : str
        The file; as soon as the timeline is on, the path given on rank 0.
    """

    def __init__(self, comm: RecordedRanks, path: str | os.PathLike[str]) -> None:
        try:
            self.path: str = os.path.abspath(os.fsdecode(path))
        except Exception as error:  # also of a user's type
            raise ArgumentError(f"path is {shown(path)}, and must be a path") from error
        if "\0" in self.path:
            raise ArgumentError(f"path is {shown(path)}, and must have no null character")
        self._comm: RecordedRanks | None = comm
        self._facts: dict[str, Any] = {}
        self._since = 0
        self._is_on = False

    def __repr__(self) -> str:
        return f"<Timeline {self.path}, {'on' if self._is_on else 'off'}>"

    def __enter__(self) -> Timeline:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        comm = self._comm
        # After an error, the other ranks may be in any call.
        together = comm is not None and error is None and comm._engine.broken is None
        try:
            if comm is not None and together:
                comm.barrier()  # no rank is in a call of the with block any more
        finally:
            self.stop()
        if comm is not None and together:
            comm.barrier()

    def start(self) -> None:
        """Start recording. Collective.

        Raises
        ------
        ArgumentError
            If the file cannot be written.
        CommunicatorError
            If the communicator is broken, or the timeline is already on.
        """
        comm = self._comm
        if self._is_on or comm is None:
            raise CommunicatorError(f"the timeline {self.path} is on already")
        with comm._together("timeline"):
            meeting = comm._meeting
            # The path of rank 0 is used on all ranks.
            self.path = meeting.bcast(self.path)
            host = platform.node()
            hosts = meeting.allgather(host)
            mark = uuid.uuid4().hex if comm.rank == 0 else None
            problem = ""
            if comm.rank == 0:
                problem = self._create(str(mark), hosts)
            mark, problem, epoch = meeting.bcast((mark, problem, time.monotonic_ns()))
            # On hosts that do not see the file, the first rank creates another one.
            is_seen = problem != "" or tracefile.token(self.path) == mark
            sees = meeting.allgather((comm.node, is_seen))
            if not all(seen for node, seen in sees if node == comm.node) and comm.local_rank == 0:
                problem = self._create(str(mark), hosts)
            offset = _offset(comm)
            self._facts = {
                "rank": comm.rank,
                "size": comm.size,
                "host": host,
                "node": comm.node,
                "process": os.getpid(),
                "ranks": list(comm._engine.label[2]),
                "epoch": epoch,
                "offset": offset,
            }
            problems = meeting.allgather(problem)  # after this, the files exist on all hosts
            if not any(problems):
                problem = self._record()
            problems = meeting.allgather(problem)
            for rank, each in enumerate(problems):
                if each:
                    self._end_recording()
                    parts.discard(parts.folder(self.path))
                    raise ArgumentError(f"rank {rank}: {each}")
        _core.set_clock()
        self._since = _core.monotonic_ticks()

    def _record(self) -> str:
        """Begin to use the recording of this process; return the problem, if any."""
        global _recording
        with _lock:
            try:
                if _recording is None:
                    _recording = _Recording(self.path, self._facts)
                else:
                    _recording.users += 1
            except (OSError, CollectivesError) as error:
                return f"the timeline {self.path} cannot be recorded: {error}"
            self._is_on = True
        return ""

    def _end_recording(self) -> None:
        """Stop a timeline that has hardly begun, without a message."""
        global _recording
        with _lock:
            if not self._is_on or _recording is None:
                return
            self._is_on = False
            _recording.users -= 1
            if _recording.users == 0:
                _core.stop_tape()
                _recording.let_go(True)
                _recording = None

    def _create(self, mark: str, hosts: list[str]) -> str:
        """Create the file; return the problem, if any."""
        try:
            tracefile.create(self.path, mark, hosts)
        except ArgumentError as error:
            return str(error)
        return ""

    def stop(self) -> None:
        """Stop recording; add the events of this rank, and of ranks that have died, to the file.
        Local.
        """
        with _lock:
            if self._is_on and _recording is not None:  # None in a forked child
                self._is_on = False
                self._stop(_recording)

    def _stop(self, recording: _Recording) -> None:
        global _recording
        recording.users -= 1
        if recording.users == 0:
            _recording = None
            recording.stop()
        added = False
        mine = recording.parts.path == parts.folder(self.path)
        try:
            if mine and recording.users == 0:
                recording.say({"adding": True})
            _core.set_clock()
            tracefile.add(self.path, tape.events(recording.read(), self._facts, self._since))
            added = True
        except OSError as error:
            warnings.warn(
                f"the timeline {self.path} lacks rank {self._facts['rank']}, whose tape stays "
                f"beside it: {error}",
                TimelineWarning,
                stacklevel=levels(),
            )
        if recording.users == 0:
            recording.let_go(added)
        elif mine and added:
            recording.leave_folder()
        with contextlib.suppress(OSError):
            tracefile.complete(self.path)


def _offset(comm: RecordedRanks) -> int:
    """Return the ns by which rank 0's clock is ahead of this host's. Collective."""
    if comm.nodes == 1:
        return 0
    meeting = comm._meeting.apart()
    first = comm.local_rank == 0
    leaders = [rank for rank, leads in enumerate(meeting.allgather(first)) if leads]
    offset = 0
    if comm.rank == 0:
        for rank in leaders[1:]:
            for _ in range(TRIPS):
                meeting.recv(rank)
                meeting.send(time.monotonic_ns(), rank)
    elif first:
        best = None
        for _ in range(TRIPS):
            before = time.monotonic_ns()
            meeting.send(0, 0)
            there = meeting.recv(0)
            after = time.monotonic_ns()
            if best is None or after - before < best:
                best = after - before
                offset = there - (before + after) // 2
    offsets = meeting.allgather((comm.node, offset if first else None))
    meeting.mpi.Free()
    return int(next(each for node, each in offsets if node == comm.node and each is not None))


def from_environment(comm: RecordedRanks, path: str) -> None:
    """Start the timeline of the whole program, in `path`, with all ranks in `comm`. Collective."""
    global _of_environment
    if _of_environment is not None:
        return
    timeline = Timeline(comm, path)
    _of_environment = timeline
    timeline.start()
    timeline._comm = None  # the communicator may be collected before the program ends
    abort.before_end(finish)


def finish() -> None:
    """End the timeline of the whole program. Local."""
    if _of_environment is not None and not _core.is_forked():
        _of_environment.stop()


def _forget() -> None:
    global _lock, _recording
    _recording, _lock = None, threading.RLock()


processes.after_fork(_forget)
