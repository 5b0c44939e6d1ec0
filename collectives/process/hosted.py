"""Jobs without MPI: ranks that a rendezvous of any kind has brought together.

Shared memory carries everything between the ranks of a host, and UCX the messages between hosts.
`HostedJob` and `HostedRanks` stand in for the module ``mpi4py.MPI`` and its intracommunicators:
they have the functions that the library uses, under the same names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, NoReturn

from collectives import _core
from collectives.errors import CommunicatorError, PeerLostError, StallError
from collectives.process import advice, environment, host, mails, segment
from collectives.process.settings import patience
from collectives.process.waiting import MESSAGES, Wait, until

if TYPE_CHECKING:  # programs with MPI need none of it
    from collectives.process import rendezvous

# The distance between the numbers of ranks of two jobs of one process.
APART = 1 << 20

LARGEST_TAG = 2**31 - 1

_jobs: list[HostedJob] = []
_numbers = count()  # of the jobs of this process
advice.joined.append(lambda: bool(_jobs))


class HostedRanks(_core.Context):
    """Ranks of a job, with the methods of ``mpi4py.MPI.Intracomm`` that the library uses."""

    def __new__(cls, job: HostedJob, id: int, ranks: Sequence[int]) -> HostedRanks:
        return super().__new__(cls, job.mail, id, ranks)

    def __init__(self, job: HostedJob, id: int, ranks: Sequence[int]) -> None:
        self.job = job
        self.members: list[int] = [job.first + rank for rank in self.ranks]
        self._aside = _core.Context(job.mail, id + 1, ranks)
        self._children: dict[object, int] = {}

    def Get_rank(self) -> int:
        """Return this rank's number. Local."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks. Local."""
        return self.size

    def Abort(self, status: int) -> NoReturn:
        """End this rank with an exit `status`; its launcher ends the others. Local."""
        os._exit(status)

    def Set_errhandler(self, handler: object) -> None:
        """Ignore `handler`: errors are raised. Local."""

    def Free(self) -> None:
        """Do nothing: all memory is freed when the job ends. Local."""

    def Idup(self) -> tuple[HostedRanks, MailRequest]:
        """Return the same ranks, with separate messages. Collective."""
        return self.again("dup"), MailRequest([])

    def Isend(self, data: Any, dest: int, tag: int = 0) -> MailRequest:
        """Start to send the bytes `data` to rank `dest`, with a `tag`. Local."""
        return MailRequest([self.isend(data, dest, tag)])

    def Irecv(self, data: Any, source: int, tag: int = 0) -> MailRequest:
        """Start to receive `data` from rank `source`, with a `tag`. Local."""
        return MailRequest([self.irecv(data, source, tag)])

    def Iprobe(self, source: int, tag: int) -> bool:
        """Return whether a message with a `tag` has come from rank `source`. Local."""
        return self.has_come(source, tag)

    def Recv(self, data: Any, source: int, tag: int) -> None:
        """Receive a message that has come. Local."""
        letter = self.irecv(data, source, tag)
        timeout = patience()
        if not until(letter.test, Wait(MESSAGES, timeout=timeout)):
            raise StallError(
                f"rank {self.rank} of {self.size} has waited {timeout:.3g} s for the rest of a "
                f"message of rank {source}"
            )

    def Get_attr(self, key: object) -> int:
        """Return the largest tag, the only attribute that the library needs. Local."""
        return LARGEST_TAG

    def Iallgather(self, mine: bytes, everybody: bytearray) -> MailRequest:
        """Start to gather `mine`, of equal length, from all ranks in `everybody`. Collective."""
        return self.Iallgatherv(mine, (everybody, [len(mine)] * self.size))

    def Iallgatherv(self, mine: bytes, everybody: tuple[bytearray, Sequence[int]]) -> MailRequest:
        """Start to gather `mine` from all ranks in `everybody`: a buffer, and the bytes of each
        rank. Collective.
        """
        buffer, lengths = everybody
        ends = list(accumulate(lengths))
        view = memoryview(buffer)
        letters = []
        for rank, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            place = view[end - length : end]
            if rank == self.rank:
                place[:] = mine
                continue
            letters.append(self._aside.irecv(place, rank))
            letters.append(self._aside.isend(mine, rank))
        return MailRequest(letters)

    @property
    def hosts(self) -> list[str] | None:
        """The name of each rank's host, or None if there is only one."""
        names = [self.job.hosts[rank] for rank in self.ranks]
        return names if len(set(names)) > 1 else None

    def unheard(self) -> list[str]:
        """Return the ranks of other hosts from which no message has ever come, with their hosts.
        Local.
        """
        return [f"rank {rank} on {self.job.hosts[self.ranks[rank]]}" for rank in self.silent()]

    def again(self, what: str) -> HostedRanks:
        """Return the same ranks, with separate messages, for a purpose `what`. Local, and on all
        remaining ranks.
        """
        return self._child(what, self.ranks)

    def part(self, ranks: Sequence[int], name: str = "") -> HostedRanks:
        """Return a group of some `ranks`, including this one; all give the same `name`.
        Collective, among them.
        """
        members = tuple(self.ranks[rank] for rank in ranks)
        return self._child((members, name), members)

    def _child(self, what: object, members: Sequence[int]) -> HostedRanks:
        """Return ranks with an id that they derive without communication: from their parent, and
        the number of its earlier children of this kind.
        """
        number = self._children[what] = self._children.get(what, 0) + 1
        return HostedRanks(self.job, mails.child_id(self.id, what, number), members)


class MailRequest:
    """Messages that were started together, with the methods of ``mpi4py.MPI.Request`` in use."""

    def __init__(self, letters: list[_core.Letter]) -> None:
        self._letters = letters

    def Test(self) -> bool:
        """Return whether all have arrived. Local."""
        self._letters = [each for each in self._letters if not each.test()]
        return not self._letters


class HostedJob:
    """A job without MPI, with the names of the module ``mpi4py.MPI`` that the library uses.

    Attributes
    ----------
    COMM_WORLD : Ranks
        All ranks.
    """

    Intracomm = HostedRanks
    Exception = CommunicatorError
    COMM_NULL = None
    ERRORS_RETURN = None
    PROC_NULL = -1
    TAG_UB = 0
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)

    def __init__(self, meeting: rendezvous.Rendezvous) -> None:
        rank, size = meeting.rank, meeting.size
        self._meeting = meeting  # a rank that stays there has its number for itself
        self.first: int = APART * next(_numbers)
        meeting.members = [self.first + each for each in range(size)]
        wish: str = segment.settings()["kind"]
        told = meeting.allgather((host.name(), "auto" if wish == "0" else wish))
        names = [name for name, _ in told]
        self.hosts: list[str] = host.shown(names)
        self.ucx: str | None = None  # its version, if there are several hosts
        self.is_joined_late = False  # whether others ran before
        local = [each for each in range(size) if names[each] == names[rank]]
        found, failed = segment.tried(
            meeting, local, {wish for _, wish in told}, segment.SMALLEST_LANE
        )
        if found is None and len(local) == size > 1:
            problems = "; ".join(f"rank {each}: {why}" for each, why in failed.items())
            raise CommunicatorError(f"the ranks cannot share memory, and have no MPI: {problems}")
        self.segment = found  # its locks show which ranks are there
        if found is None:
            local = [rank]
        _core.bind_mail(f"rank {rank} of {size}")
        self.mail: _core.Mail = mails.opened(meeting, found, local)
        if len(local) < size:
            self._connect(meeting)
        self.COMM_WORLD = HostedRanks(self, 0, range(size))

    def _connect(self, meeting: rendezvous.Rendezvous) -> None:
        """Exchange addresses with the ranks of other hosts; all must have UCX. Collective."""
        try:
            self.ucx = mails.connect(meeting, self.mail, meeting.members, self.hosts).version
        except mails.NoUCX as problem:
            other = next(each for each in self.hosts if each != self.hosts[0])
            raise CommunicatorError(
                f"the ranks are on several hosts ({self.hosts[0]}, {other}), which without MPI "
                f"use UCX, but {problem}"
            ) from None

    def Query_thread(self) -> int:
        """Return the thread level: any thread may communicate at any time. Local."""
        return self.THREAD_MULTIPLE

    def Is_initialized(self) -> bool:
        """Return True: messages can be sent. Local."""
        return True

    def Is_finalized(self) -> bool:
        """Return False: messages can be sent. Local."""
        return False

    def Finalize(self) -> None:
        """Leave the ranks of other hosts; memory is freed when the process ends. Local."""
        self.mail.leave(mails.FAREWELL)


def job() -> HostedJob | None:
    """Return the job without MPI of which this process is a rank, or None.
    Collective on the first call, if the environment has a rendezvous.
    """
    if not _jobs and environment.has_rendezvous():
        from collectives.process import lobby, rendezvous

        _core.guard()
        if lobby.is_given():
            _enter()
        else:
            meeting = rendezvous.from_environment(patience())
            if meeting is not None:
                join(meeting)
    return joined()


def _enter() -> None:
    """Join a job by its lobby, by a plan of the launcher and the running ranks. Collective."""
    from collectives.process import lobby

    while not _jobs:
        place = lobby.enter()
        made = None
        try:
            made = HostedJob(place)
            place.confirm()
        except (PeerLostError, StallError):
            if not place.joins:
                raise
            place.close()
            if made is None or not place.is_made():
                continue  # others continue without this rank, and the launcher ends it
        made.is_joined_late = place.joins
        _jobs.append(made)


def joined() -> HostedJob | None:
    """Return the job without MPI that this process has joined, or None. Local."""
    return _jobs[0] if _jobs else None


def join(meeting: rendezvous.Rendezvous) -> HostedJob:
    """Make a job without MPI. Collective."""
    _core.guard()
    try:
        made = HostedJob(meeting)
    except BaseException:
        meeting.close()
        raise
    _jobs.append(made)
    return made


def replace(made: HostedJob) -> None:
    """Leave the job that this process has joined for another one. Local."""
    before, _jobs[0] = _jobs[0], made
    before.Finalize()


def leave(made: HostedJob) -> None:
    """Leave a job, in a process that continues. Local."""
    _jobs.remove(made)
    made.Finalize()


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Forget the jobs that the body makes, in a process that continues. Local."""
    before = list(_jobs)
    try:
        yield
    finally:
        for each in _jobs[len(before) :]:
            leave(each)
