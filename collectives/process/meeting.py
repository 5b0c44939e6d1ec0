"""Meetings: ranks that make an object together, and wait for each other by the library's rules.

MPI waits for ever for a rank that does not join. So nothing here blocks inside MPI: exchanges are
nonblocking, and a wait ends with an error if its deadline passes or a rank of this host has ended.
"""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from collectives import _core
from collectives.errors import MPIError, PeerLostError, StallError, StallWarning
from collectives.process import binding, hosted, living
from collectives.process.settings import Settings
from collectives.process.waiting import MESSAGES, SLICE, Wait, until
from collectives.text import logs
from collectives.text.origin import levels
from collectives.text.words import named

T = TypeVar("T")

# Bytes that each rank sends in the first part of an exchange; the rest of longer objects follows.
HEAD = 512
LENGTH = struct.Struct("q")
ATTEMPT = struct.Struct("qq")  # the number of an attempt, and a digest of those of all its ranks

# Seconds for messages that a rank had sent when it ended, or at its deadline; and for those of a
# dead rank without MPI, which are in shared memory, or in flight from another host.
GRACE, HOSTED_GRACE = 0.5, 0.1

TAG = 32768  # the first tag after those of the library's messages; MPI need not have it
NAP = 0.005  # seconds between two checks for ranks that have come

# Memory that MPI may still write to, of exchanges that were given up.
_abandoned: list[Any] = []

# The threads inside MPI, and the names of their calls.
_inside: dict[threading.Thread, str] = {}


def members(mpi: Any) -> list[int]:
    """Return the ranks of an MPI communicator in ``COMM_WORLD``; negative numbers for those of
    another job. Local.
    """
    if isinstance(mpi, hosted.HostedRanks):
        return mpi.members
    group, world = mpi.Get_group(), binding.load().COMM_WORLD.Get_group()
    ranks = [rank if rank >= 0 else -1 for rank in group.Translate_ranks(range(group.size), world)]
    group.Free()
    world.Free()
    return ranks


def inside() -> list[str]:
    """Return the calls that were given up and are still inside MPI. Local."""
    return [call for thread, call in _inside.items() if thread.is_alive()]


def come(mpi: Any, rank: int, tag: int, layout: struct.Struct) -> list[tuple[int, ...]]:
    """Receive the records that have come from a rank. Local."""
    found = []
    while mpi.Iprobe(rank, tag):
        record = bytearray(layout.size)
        mpi.Recv(record, rank, tag)
        found.append(layout.unpack(record))
    return found


def completed(request: Any, timeout: float, look: Callable[[float], None], *buffers: Any) -> bool:
    """Wait for a request of mpi4py; return whether it is complete. Collective."""

    def is_complete() -> bool:
        with _core.Turn():
            return bool(request.Test())

    done = False
    try:
        done = until(is_complete, Wait(MESSAGES, look, timeout))
        return done
    finally:
        if not done:
            _abandoned.append((request, buffers))


class _Call(threading.Thread):
    """A call of MPI that may block, in a separate thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="collectives-mpi", daemon=True)
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error


class _Attendance:
    """The ranks that have come to a wait inside MPI, which does not report them.

    On one host, shared memory has the call of each rank. Between hosts, a rank that has waited for
    half of its deadline sends a message to all others. At their deadlines, they know the ranks that
    have sent none.
    """

    def __init__(self, mpi: Any, hosts: list[str]) -> None:
        self._mpi, self._hosts = mpi, hosts
        self._rank = mpi.Get_rank()
        self._number = 0
        self._has_told = False
        self._sent: list[Any] = []  # with their memory, which MPI may still read
        MPI = binding.load()
        is_able = MPI.Query_thread() == MPI.THREAD_MULTIPLE  # another thread may be inside
        self._works = is_able and MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) >= TAG

    def begin(self) -> None:
        """Begin a wait. Local, but all ranks must do it in the same order."""
        self._number += 1
        self._has_told = False

    def look(self, waited: float, timeout: float) -> None:
        """Tell the others that this rank has come, if it has waited long. Local."""
        if self._has_told or waited < timeout / 2 or not self._works:
            return
        self._has_told = True
        _Call(self._tell).join(GRACE)

    def absent(self) -> list[str]:
        """Return the ranks that have sent no message of their arrival, with their hosts; none if
        that is not known. Local, at the deadline.
        """
        if not self._works:
            return []
        call = _Call(self._missing)  # MPICH may block this thread while another is inside
        call.join(2 * GRACE)
        missing: set[int] = call.result or set()
        return [f"rank {rank} on {self._hosts[rank]}" for rank in sorted(missing)]

    def _tell(self) -> None:
        record = bytearray(LENGTH.pack(self._number))
        with contextlib.suppress(binding.load().Exception):
            for rank in self._others():
                self._sent.append((self._mpi.Isend(record, rank, TAG), record))

    def _missing(self) -> set[int]:
        missing = set(self._others())
        limit = time.monotonic() + GRACE
        with contextlib.suppress(binding.load().Exception):
            while missing and time.monotonic() < limit:
                for rank in sorted(missing):
                    if (self._number,) in come(self._mpi, rank, TAG, LENGTH):
                        missing.discard(rank)
                _core.advance_all()
                time.sleep(NAP)
        return missing

    def _others(self) -> list[int]:
        return [rank for rank in range(len(self._hosts)) if rank != self._rank]


class Meeting:
    """The ranks of an MPI communicator, while they make an object together.

    Attributes
    ----------
    members : list of int
        Their ranks in ``COMM_WORLD``.
    """

    timeout: float
    warning: float
    rank: Any
    size: Any

    def __init__(self, call: str, mpi: Any, settings: Settings) -> None:
        self.call = call
        self.mpi = mpi
        self.timeout, self.warning = settings.timeout, settings.warning
        self.hosts: list[str] | None = None  # the name of each rank's host, if there are several
        if isinstance(mpi, hosted.HostedRanks):
            self.hosts = mpi.hosts
        self.engine: _core.Engine | None = None
        self.rank, self.size = mpi.Get_rank(), mpi.Get_size()
        self.members: list[int] = members(mpi)
        self.awaited = self.members  # those of which none may end
        # The first rank that was found to have ended, and the seconds waited until then.
        self._seen_ended: tuple[living.Ended, float] | None = None
        self._has_warned = False
        self._attendance: _Attendance | None = None

    def duplicate(self) -> Any:
        """Return a new MPI communicator of the same ranks. Collective.

        MPICH blocks in the last ``MPI_Test`` of a duplication, in internal messages. So another
        thread makes it, if several threads may call MPI.
        """
        MPI = binding.load()
        if isinstance(self.mpi, hosted.HostedRanks) or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            self._begin()
            with self._errors(), _core.Turn():
                new, request = self.mpi.Idup()
            self._wait(request, new)
            return new
        is_given_up = False

        def look(waited: float) -> None:
            if is_given_up:
                raise StallError(f"{self.call} was given up")

        def duplicated() -> Any:
            new, request = self.mpi.Idup()
            completed(request, math.inf, look, new)
            return new

        try:
            return self.in_thread(duplicated)
        finally:
            is_given_up = True

    def split(self, pairs: Sequence[tuple[int | None, int]]) -> Any:
        """Return the new MPI communicator of the ranks with the same color, ordered by their keys;
        None if the color is None. Collective.
        """
        color, key = pairs[self.rank]
        if isinstance(self.mpi, hosted.HostedRanks):
            alike = [rank for rank, (other, _) in enumerate(pairs) if other == color]
            alike.sort(key=lambda rank: pairs[rank][1])
            return None if color is None else self.mpi.part(alike)
        MPI = binding.load()
        number = MPI.UNDEFINED if color is None else color
        part = self.in_thread(lambda: self.mpi.Split(number, key))
        return None if part == MPI.COMM_NULL else part

    def bcast(self, obj: T) -> T:
        """Return the object `obj` of rank 0. Collective."""
        given: T = self.allgather(obj if self.rank == 0 else None)[0]
        return given

    def allgather(self, obj: Any) -> list[Any]:
        """Return the object `obj` of each rank. Collective."""
        text = pickle.dumps(obj)
        room = HEAD - LENGTH.size
        heads = self.records(LENGTH.pack(len(text)) + text[:room].ljust(room, b"\0"))
        lengths = [LENGTH.unpack_from(head)[0] for head in heads]
        rests = self._gathered(text[room:], [max(0, length - room) for length in lengths])
        return [
            pickle.loads(head[LENGTH.size : LENGTH.size + length] + rest)
            for head, length, rest in zip(heads, lengths, rests, strict=True)
        ]

    def records(self, record: bytes) -> list[bytes]:
        """Return the `record` of each rank, all of the same length. Collective."""
        return self._gathered(record, [len(record)] * self.size)

    def _gathered(self, mine: bytes, lengths: list[int]) -> list[bytes]:
        """Return the bytes of each rank, with `lengths` that all ranks know. Collective."""
        ends = list(accumulate(lengths))
        everybody = bytearray(ends[-1])
        if not everybody:
            return [b""] * self.size
        self._begin()
        with self._errors(), _core.Turn():
            if min(lengths) == max(lengths):
                request = self.mpi.Iallgather(mine, everybody)
            else:
                request = self.mpi.Iallgatherv(mine, (everybody, lengths))
        self._wait(request, mine, everybody)
        return [bytes(everybody[e - n : e]) for n, e in zip(lengths, ends, strict=True)]

    def part(self, ranks: Sequence[int], attempt: int) -> Any:
        """Return an MPI communicator of some `ranks`, or its stand-in. Collective, among them.

        MPI would wait for ever for a rank that is missing, or gave up and came again. So the ranks
        first agree on the number of each one's `attempt`, from 1: all are in these ones.
        """
        meeting = copy.copy(self)
        meeting.awaited = [self.members[rank] for rank in ranks]
        others = [rank for rank in ranks if rank != self.rank]
        heard: dict[int, tuple[int, ...]] = dict.fromkeys(others, (0, -1))
        tag = binding.tag_of(f"{ranks}")
        sent: list[Any] = []
        name, agreed = "", -1

        def tell() -> None:
            record = bytearray(ATTEMPT.pack(attempt, agreed))
            sent.extend((self.start_send(record, rank, tag), record) for rank in others)

        def is_agreed() -> bool:
            nonlocal name, agreed
            for rank in others:
                with self._errors(), _core.Turn():
                    heard[rank] = [heard[rank], *come(self.mpi, rank, tag, ATTEMPT)][-1]
            numbers = [attempt if rank == self.rank else heard[rank][0] for rank in ranks]
            if all(numbers) and name != f"{ranks} {numbers}":
                name = f"{ranks} {numbers}"
                agreed = zlib.crc32(name.encode())
                tell()
            return bool(name) and all(number == agreed for _, number in heard.values())

        tell()
        if not until(is_agreed, Wait(MESSAGES, meeting._look, self.timeout)):
            _abandoned.append(sent)
            missing, why = [rank for rank in others if not heard[rank][0]], "not called it"
            if not missing:
                missing = [rank for rank in others if heard[rank][1] != agreed]
                why = "given it up"
            raise StallError(
                f"{self.call} timed out: rank {self.rank} has waited {self.timeout:.3g} s, and "
                f"{named(missing)} {'has' if len(missing) == 1 else 'have'} {why}"
            )
        for request, record in sent:
            meeting._wait(request, record)
        return meeting.in_thread(lambda: binding.part_of(self.mpi, ranks, name))

    def apart(self) -> Meeting:
        """Return a meeting of the same ranks, on a new MPI communicator. Collective."""
        meeting = copy.copy(self)
        meeting.mpi = self.duplicate()
        meeting._attendance = None
        return meeting

    def send(self, number: int, dest: int) -> None:
        """Send a `number` of 64 bits to rank `dest`. Local."""
        record = bytearray(LENGTH.pack(number))
        self._wait(self.start_send(record, dest), record)

    def recv(self, source: int) -> int:
        """Return the number that rank `source` has sent. Local."""
        record = bytearray(LENGTH.size)
        self._wait(self.start_recv(record, source), record)
        return int(LENGTH.unpack(record)[0])

    def start_send(self, data: Any, dest: int, tag: int = 0) -> Any:
        """Start to send bytes to a rank; return the request. Local."""
        with self._errors(), _core.Turn():
            return self.mpi.Isend(data, dest, tag)

    def start_recv(self, data: Any, source: int, tag: int = 0) -> Any:
        """Start to receive bytes from a rank; return the request. Local."""
        with self._errors(), _core.Turn():
            return self.mpi.Irecv(data, source, tag)

    def has_ended(self, request: Any) -> bool:
        """Return whether a request of `start_send` or `start_recv` is complete. Local."""
        with self._errors(), _core.Turn():
            return bool(request.Test())

    def sender(self, tag: int) -> int | None:
        """Return a rank from which a message with a `tag` has come, or None. Local."""
        if isinstance(self.mpi, hosted.HostedRanks):
            source: int = self.mpi.sender(tag)
            return None if source < 0 else source
        from mpi4py import MPI  # it is loaded; `binding.load` would look at too much for a poll

        status = MPI.Status()
        with self._errors(), _core.Turn():
            found = self.mpi.Iprobe(MPI.ANY_SOURCE, tag, status)
        return status.Get_source() if found else None

    def _wait(self, request: Any, *buffers: Any) -> None:
        self._seen_ended = None
        with self._errors():
            if not completed(request, self.timeout, self._look, *buffers):
                raise self._stalled()

    def in_thread(self, call: Callable[[], T], look: Callable[[float], None] | None = None) -> T:
        """Run a `call` of MPI that may block; return its result. Collective.

        It runs in a thread, so that this one can check the deadline and the other ranks. If only
        one thread may call MPI, it runs in this one and may block. A function `look` replaces the
        check of other ranks; it gets the seconds that have passed.
        """
        MPI = binding.load()
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            with self._errors():
                return call()
        self._begin()
        self._seen_ended = None

        def in_turn() -> T:
            with _core.Turn():
                return call()

        thread = _Call(in_turn)
        _inside[thread] = self.call
        wait = Wait()
        while True:
            thread.join(SLICE)
            if not thread.is_alive():
                break
            _core.move_mails()  # others may wait for messages of this rank
            waited = wait.passed()
            (look or self._look)(waited)
            if waited > self.timeout:
                raise self._stalled()
        del _inside[thread]
        with self._errors():
            if thread.error is not None:
                raise thread.error
        made: T = thread.result
        return made

    def _begin(self) -> None:
        """Begin to wait for all ranks. Local."""
        if self._attendance is None and self.hosts is not None:
            self._attendance = _Attendance(self.mpi, self.hosts)
        if self._attendance is not None:
            self._attendance.begin()

    def _look(self, waited: float) -> None:
        """Raise an error if the wait cannot end; warn once if it is long. Local."""
        if self._attendance is not None:
            self._attendance.look(waited, self.timeout)
        gone = living.ended(self.awaited)
        if gone and self._seen_ended is None:
            self._seen_ended = gone[0], waited
        if self._seen_ended is not None:
            first, since = self._seen_ended
            is_hosted = isinstance(self.mpi, hosted.HostedRanks)
            if waited - since > (HOSTED_GRACE if is_hosted and not first.in_order else GRACE):
                raise PeerLostError(
                    f"{self.call}: rank {first.rank % hosted.APART} of COMM_WORLD {first.how} "
                    f"while rank {self.rank} of {self.size} waits for it"
                )
        if self.engine is not None:
            self.engine.check_host(f"waits for it in {self.call}")
        if not self._has_warned and waited > self.warning:
            self._has_warned = True
            text = f"{self.call}: {self._where(waited)}"
            logs.note("WARNING", text)
            warnings.warn(text, StallWarning, stacklevel=levels())

    def _where(self, waited: float) -> str:
        number = self.members[self.rank] % hosted.APART
        world = "" if number == self.rank else f" (rank {number} of COMM_WORLD)"
        return (
            f"rank {self.rank} of {self.size}{world} has waited {waited:.3g} s; some of the other "
            f"ranks have not called it, or have ended{self._halted()}"
        )

    def _halted(self) -> str:
        """Return the stopped ranks in words, or an empty text."""
        found = [each for each in living.stopped().items() if each[0] in self.members]
        told = [
            f"rank {rank % hosted.APART} of COMM_WORLD (process {process})"
            for rank, process in found
        ]
        verb = "is" if len(told) == 1 else "are"
        return f": {', '.join(told)} {verb} stopped" if told else ""

    def _stalled(self) -> StallError:
        unheard = self.mpi.unheard() if isinstance(self.mpi, hosted.HostedRanks) else []
        absent = [] if self._attendance is None else self._attendance.absent()
        silent = ", ".join(unheard or absent)
        told = f"; nothing was heard from {silent}" if silent else ""
        if unheard:
            told += ": firewalls must allow TCP between all hosts, at any port"
        return StallError(f"{self.call} timed out: {self._where(self.timeout)}{told}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise MPI's errors as those of the library."""
        try:
            yield
        except binding.load().Exception as error:
            raise MPIError(f"{self.call}: MPI says: {error}") from error
