"""The communicator: its creation, groups and shared memory; the collectives are in `calls`."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from operator import index
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.calls import exact_sums
from collectives.calls.base import explain_names
from collectives.calls.comparing import ComparingCalls
from collectives.calls.explaining import ExplainingCalls
from collectives.calls.folding import FoldingCalls
from collectives.calls.grouped import GroupedCalls
from collectives.calls.making import MakingCalls
from collectives.calls.members import Members
from collectives.calls.object_folds import ObjectFoldingCalls
from collectives.calls.planned import PlannedCalls
from collectives.calls.recovering import RecoveringCalls
from collectives.calls.scopes import ScopedCalls
from collectives.calls.stopping import StoppingCalls
from collectives.calls.wishes import Wish, problem_of
from collectives.devices import Entry
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    MPIError,
)
from collectives.process import abort, binding, environment, flight, hosted, mails, segment
from collectives.process.advice import alone
from collectives.process.hosts import locate
from collectives.process.meeting import Meeting
from collectives.process.settings import Settings
from collectives.process.validation import Agreement
from collectives.text.origin import Origin
from collectives.text.words import shown

if TYPE_CHECKING:  # few programs need them
    from collections.abc import Callable

    from typing_extensions import Self

    from collectives.choice.chooser import Chooser, Lane
    from collectives.choice.profile import Profile
    from collectives.process.rendezvous import Store
    from collectives.records.timeline import Timeline
    from collectives.records.trace import Trace


class Communicator(
    ComparingCalls,
    StoppingCalls,
    Members,
    FoldingCalls,
    PlannedCalls,
    GroupedCalls,
    ObjectFoldingCalls,
    MakingCalls,
    RecoveringCalls,
    ScopedCalls,
    ExplainingCalls,
):
    """A group of ranks that run collectives together. Collective.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm, optional
        The ranks; ``MPI.COMM_WORLD`` by default. The communicator is duplicated, so that messages
        of the library are separate from those of the program.
    timeout : float, optional
        Seconds after which a wait raises `StallError`; ``COLLECTIVES_TIMEOUT``, or half an hour,
        by default. The `timeout` argument of a call takes precedence.
    bits : str, optional
        The quantities that the bits of results may depend on. ``"size"``: only the contribution of
        each rank to an element, not the size of arrays (:doc:`/research/same_bits`). ``"any"``:
        also the algorithm, which is chosen by size, and the place in the array.
        ``COLLECTIVES_BITS``, or ``"any"``, by default. The same on all ranks. The `bits` argument
        of a call takes precedence.

    Attributes
    ----------
    rank, size : int
        This rank's number, and the number of ranks.
    local_rank, local_size : int
        This rank's number among the ranks of its host, and the number of ranks of the host.
    node, nodes : int
        This host's number, and the number of hosts.

    Raises
    ------
    ArgumentError
        If `mpi` is not an intracommunicator, or `timeout` not a positive number, or `bits` no such
        word, or a variable of the environment has an invalid value. All ranks raise it for an error
        in `timeout`, in `bits` or in the environment of one rank.
    MismatchError
        If the ranks have different `bits`; raised on all of them.
    BindingError
        If there is no usable MPI.
    CommunicatorError
        If MPI is finalised, or this is a forked child process, or a thread that may not call MPI at
        the thread level that MPI was initialised with.
    StallError
        If another rank has not made the same call before the deadline.
    PeerLostError
        If another rank, which has shared memory with this one before, has ended.
    MPIError
        If MPI fails, for instance because it supports no more communicators.

    Notes
    -----
    *Order.* All ranks must call the collectives of a communicator in the same order. This holds for
    the nonblocking forms (`iallreduce` and others), too.

    *Threads.* Any thread may use any communicator. Collectives that several threads call on one
    communicator run one at a time, in the order of the calls: a blocking collective holds the
    communicator until it is complete, a nonblocking one only while it starts. ``test`` and ``wait``
    of a request do not have to wait for their turn. Neither do messages (`send`, `recv`), because
    one thread may send what another waits for. Threads that use different communicators run in
    parallel. The operating system decides which thread comes first, and the order may differ
    between ranks. A program whose threads call different collectives on one communicator therefore
    breaks the rule of order. Give each thread a communicator of its own (`dup`, before the threads
    start), or let the threads take turns in an order that is the same on all ranks. A call from
    inside a call on the same communicator (from a signal handler or a finalizer) raises
    `CommunicatorError`.

    mpi4py initialises MPI for any number of threads. If the program asks for a lower thread level,
    there are restrictions. Under ``serialized``, one thread at a time enters MPI, briefly, and
    communicators must be created and freed while no other thread communicates. Under ``funneled``
    and ``single``, all threads except the main one get a `CommunicatorError`.

    *Processes.* MPI cannot be used after `os.fork`. In the child of a rank, every call raises a
    `CommunicatorError`. The child exits without disturbing its parent, with the exit status that
    was given to `sys.exit` or `os._exit`. Use the launcher to start processes that communicate.

    *Memory.* A communicator holds an MPI communicator until `free` or the end of the program. An
    MPI library supports only a few thousand of them. The garbage collector cannot free one, because
    freeing is collective. If a communicator is garbage-collected with operations in flight, a
    `ResourceWarning` lists the lines that started them, and memory that MPI may still write to
    stays allocated.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> comm = cc.world()
    >>> float(comm.allreduce(np.ones(3)).sum()) == 3 * comm.size
    True
    """

    rank: int
    size: int
    node: int
    nodes: int
    local_rank: int
    local_size: int

    def __init__(
        self, mpi: Any = None, *, timeout: float | None = None, bits: str | None = None
    ) -> None:
        MPI = binding.load()
        mpi = MPI.COMM_WORLD if mpi is None else mpi
        if not isinstance(mpi, MPI.Intracomm) or mpi == MPI.COMM_NULL:
            if isinstance(MPI, hosted.HostedJob):
                raise ArgumentError(
                    f"mpi is {shown(mpi)}, and this process is a rank of a job without MPI: leave "
                    f"it out"
                )
            raise ArgumentError(f"mpi is {shown(mpi)}, and must be an mpi4py intracommunicator")
        if type(mpi) is not MPI.Intracomm:
            mpi = MPI.Intracomm(mpi)  # collectives of a subclass may be others than MPI's
        wish = Wish.read(timeout, mpi.Get_rank(), bits)
        meeting = Meeting("Communicator()", mpi, wish.settings)
        self._set_up(meeting.duplicate(), "Communicator()", wish)

    @classmethod
    def from_rendezvous(
        cls,
        where: str | os.PathLike[str] | Store,
        rank: int,
        size: int,
        *,
        timeout: float | None = None,
        bits: str | None = None,
    ) -> Self:
        """Return a communicator of ranks that no MPI launcher started.
        Collective.

        Parameters
        ----------
        where : str, path or store
            The rendezvous of the ranks: a folder that no other job uses, or an object whose
            ``set(key, value)`` and ``get(key)`` keep bytes by name, such as a
            ``torch.distributed.Store``. The second waits until there is a value.
        rank, size : int
            This rank's number, and the number of ranks.
        timeout : float, optional
            As for `Communicator`; also the limit of the wait for other ranks at the rendezvous, if
            that is a folder.
        bits : str, optional
            As for `Communicator`.

        Raises
        ------
        ArgumentError
            If an argument has an invalid value.
        StallError
            If another rank does not come to the rendezvous.
        CommunicatorError
            If the ranks are on several hosts and UCX cannot be loaded on all of them, or they are
            on one and cannot share memory, or this process communicates through MPI; then raised on
            all ranks that have come.

        Notes
        -----
        Shared memory carries everything between the ranks of a host, and UCX the messages between
        hosts; MPI is not asked. The ranks of the first rendezvous of a process are those of
        `collectives.world`. A process either communicates through MPI, or without it.
        """
        try:
            rank, size = index(rank), index(size)
        except TypeError as error:
            raise ArgumentError(f"rank and size must be whole numbers: {error}") from error
        if not 0 <= rank < size:
            raise ArgumentError(f"rank is {rank} of {size}, and must be from 0 to {size - 1}")
        from collectives.process.rendezvous import Folder, Keyed

        limit = Settings.read(timeout).timeout
        if isinstance(where, (str, os.PathLike)):
            where = Folder(os.fspath(where), limit)
        return cls(hosted.join(Keyed(where, rank, size)).COMM_WORLD, timeout=timeout, bits=bits)

    def _set_up(self, mpi: Any, call: str, wish: Wish) -> None:
        """Begin to communicate by an MPI communicator of this object alone. Collective."""
        from collectives.choice import profile

        MPI = binding.load()
        mpi.Set_errhandler(MPI.ERRORS_RETURN)
        self._mpi, settings = mpi, wish.settings
        self._meeting = meeting = Meeting(call, mpi, settings)
        self.rank, self.size = meeting.rank, meeting.size
        self._hosts, wishes = hosts, wishes = locate(meeting, wish)
        problem = problem_of(wishes, wish)
        if problem is not None:
            mpi.Free()
            raise problem
        self.node, self.nodes = hosts.node, hosts.nodes
        self.local_rank, self.local_size = hosts.local.index(self.rank), len(hosts.local)
        meeting.hosts = hosts.names if hosts.nodes > 1 else None
        lanes = self._share({each.settings.memory for each in wishes})
        known, tune = profile.agreed(meeting, [each.profile for each in wishes])
        carrier, family, self._library = self._make_carrier(settings.messages)
        self._chooser = self._make_chooser(wishes, family, lanes, known, tune)
        arguments = settings.device_chunk, self.size, settings.device_transport
        self._devices = Entry(*arguments, weakref.ref(self._chooser))
        self._engine = meeting.engine = _core.Engine(
            MPI,
            carrier,
            self._chooser.weakly(),
            self._devices,
            self._segment,
            meeting.hosts,
            self._label(),
            family,
            timeout=settings.timeout,
            warning=settings.warning,
            mpi_polls=hosts.mpi_polls,
            spins=settings.spins or hosts.spins,
            stores=settings.stores,
            bits=settings.bits,
        )
        flight.describe(self._engine, hosts)
        self._engine.exact, self._engine.alone = exact_sums, alone
        self._call = self._start = self._engine.call
        self._vector, self._barrier = self._engine.vector, self._engine.barrier
        self._exchanges: dict[tuple[int | None, int | None], _core.Choice] = {}
        self._control: Any = None
        self._background: Any = None  # the submissions in the background (background/group.py)
        self._origin = Origin()
        if any(each.settings.validates for each in wishes):
            self._control = meeting.duplicate()
            self._engine.agree = Agreement(self._control, self._engine)
        self._chooser.begin()
        hosts.log(call, self.rank, self._segment is not None, self._library)
        if self.size == MPI.COMM_WORLD.Get_size():
            abort.remove_mpich_files_once()
            self._start_records(settings.trace)
        if environment.flag(environment.REPORT):
            from collectives.records import totals

            totals.watch(self._engine)
            if MPI.COMM_WORLD.Get_rank() == 0:
                totals.print_at_end()

    def _make_carrier(self, word: str) -> tuple[Any, str, str]:
        """Return the carrier of messages, the family of its library, and the library's name: MPI,
        or between hosts UCX if the `word` of the environment says so. Collective.
        """
        MPI = binding.load()
        if word != "ucx" or self.nodes == 1 or isinstance(MPI, hosted.HostedJob):
            return self.mpi, binding.family(MPI), binding.library_name(MPI)
        try:
            context, mail = mails.context(
                self._meeting, self._segment, self._hosts.local, self._hosts.names
            )
        except mails.NoUCX as error:
            self._mpi.Free()
            raise CommunicatorError(f"COLLECTIVES_MESSAGES is ucx, and {error}") from None
        return context, "ucx", mail.library

    def _make_chooser(
        self,
        wishes: list[Wish],
        family: str,
        lanes: list[Lane],
        known: Profile | None,
        tune: str,
    ) -> Chooser:
        """Return the chooser of algorithms, with earlier measurements. Local."""
        from collectives.algorithms.groups import Groups
        from collectives.choice.chooser import Chooser
        from collectives.choice.sections import hosts_of

        groups = Groups.read(self._hosts.hosts)
        transport = "shm" if self._segment is not None and self.nodes == 1 else family
        measured = None
        if known is not None:
            measured = known.section(transport, self._library, hosts_of(groups))
        return Chooser(
            self,
            self.rank,
            groups,
            tune,
            transport,
            lanes,
            measured,
            any(each.settings.stores for each in wishes),
            self._segment is not None and self._segment.reads,
            wishes[self.rank].settings.bits,
        )

    def _label(self) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
        """Return the name, the size, the ranks in ``COMM_WORLD``, and the ranks that share memory
        with this one, which identify the communicator on timelines.
        """
        ranks = tuple(rank for rank, _ in self._hosts.ranks)
        return "{}.{}".format(*self._hosts.ranks[0]), len(ranks), ranks, tuple(self._hosts.local)

    def _share(self, wishes: set[str]) -> list[Lane]:
        """Create the memory that the ranks of a host share; return the lanes of all hosts."""
        self._segment = segment.bootstrap(self._meeting, self._hosts.local, wishes)
        mine: Lane | None = None
        if self._segment is not None:
            mine = tuple(self._hosts.local), self._segment.lane_bytes, self._segment.lines
        everybody = self._meeting.allgather(mine) if self.nodes > 1 else [mine]
        return [each for each in dict.fromkeys(everybody) if each is not None]

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator of the ranks, or its stand-in without MPI; duplicate it to use it
        yourself.
        """
        return self._mpi

    @property
    def transport(self) -> str:
        """The transport of the ranks: ``"shm"`` if all of them share memory; else the family of the
        MPI library (``"mpich"``, ``"openmpi"``, ``"intel"`` or ``"other"``) that carries their
        messages, or ``"ucx"``; without MPI, ``"ucx"`` between hosts and ``"host"`` on one.
        """
        return self._chooser.family

    @property
    def _proc_null(self) -> int:
        number: int = binding.load().PROC_NULL
        return number

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,  # at the end, modules are emptied
    ) -> None:
        engine = getattr(self, "_engine", None)
        if engine is None or engine.broken is not None or is_ending() or _core.is_forked():
            return  # at the end, _at_exit() speaks
        requests = _core.forsaken(engine)
        if requests:
            warnings.warn(_forsaken(self, requests), ResourceWarning, stacklevel=2, source=self)

    # -- groups ------------------------------------------------------------------------------

    def _grown(self, mpi: Any, call: str, bits: str | None = None) -> Self:
        """Return a communicator that this one has made, by a new MPI communicator. Collective."""
        grown = type(self).__new__(type(self))
        grown._set_up(mpi, call, Wish.read(self.timeout, mpi.Get_rank(), bits or self.bits))
        return grown

    def free(self) -> None:
        """Free the communicator; it cannot be used afterwards.
        Collective.

        Raises
        ------
        CommunicatorError
            If operations are in flight; the text lists them.
        CollectivesError
            The error of the first of its submissions in the background that has failed; the
            communicator is still freed.
        MPIError
            If MPI fails, for instance because the program has freed `mpi`. The communicator is
            still freed.
        """
        if _core.is_finalised():  # what MPI had of it is gone
            self._let_go()
            return
        problem = None
        if self._background is not None:
            try:
                self._background.stop()
            except CollectivesError as error:  # of a submission
                problem = error
        with self._engine:
            for mpi in self._let_go():
                try:
                    mpi.Free()
                except binding.load().Exception as error:
                    raise MPIError(f"free(): MPI says: {error}") from error
        if problem is not None:
            raise problem

    def _let_go(self) -> list[Any]:
        """Leave the shared memory; return the communicators of MPI to be freed. Local."""
        if self._mpi is None:
            return []
        pending = _core.pending(self._engine)
        if pending:
            raise CommunicatorError(
                f"operations are in flight: {'; '.join(pending)}; wait for them"
            )
        self._engine.broken = "the communicator was freed"
        self._engine.describe(b"")
        self._devices.close()
        if self._segment is not None:
            self._engine.leave_segment()
            self._segment.leave()
            self._segment = None
        left = [mpi for mpi in (self._control, self._mpi) if mpi is not None]
        self._mpi = self._control = None
        return left

    # -- records -----------------------------------------------------------------------------

    def timeline(self, path: str | os.PathLike[str]) -> Timeline:
        """Record the steps of the ranks in their calls, with times, in a file for trace viewers.
        Collective, and so are the beginning and the end of the ``with`` statement.

        Parameters
        ----------
        path : str or path
            The file to write, in JSON. An existing file is overwritten. The path given on rank 0 is
            used on all ranks. On a host that does not see rank 0's file, the ranks write a second
            file of that name.

        Returns
        -------
        Timeline
            A context manager. All calls of this process inside the ``with`` statement are recorded,
            those on other communicators, too. They are in the file when the statement has ended.

        Raises
        ------
        ArgumentError
            If the file cannot be written. Raised on all ranks, at the beginning.
        CommunicatorError
            If the communicator is freed or broken.

        Notes
        -----
        ``COLLECTIVES_TIMELINE=out.json`` records a whole program. :doc:`/fix/timeline` describes
        the file.

        Examples
        --------
        >>> import os, tempfile, numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> path = os.path.join(tempfile.gettempdir(), "timeline-of-a-docstring.json")
        >>> with comm.timeline(path):
        ...     total = comm.allreduce(np.ones(1000))
        >>> os.path.getsize(path) > 0
        True
        >>> os.remove(path)
        """
        from collectives.records.timeline import Timeline

        return Timeline(self, path)

    def trace(self) -> Trace:
        """Record the calls on this communicator, their algorithms, and the reasons for the choice.
        Local.

        Returns
        -------
        Trace
            A context manager, and a sequence of `TracedCall`. Print it to see a table.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> with comm.trace() as trace:
        ...     total = comm.allreduce(np.ones(1000), algorithm="ring")
        >>> call = trace[0]
        >>> call.collective, call.algorithm, call.nbytes, call.reason
        ('allreduce', 'ring', 8000, 'asked for by the caller')
        """
        from collectives.records.trace import Trace

        return Trace(self._engine)

    def _start_records(self, trace: str | None) -> None:
        """Start the timeline and the trace that the environment asks for, if any. Collective."""
        path = environment.text("COLLECTIVES_TIMELINE")
        if path is None:  # with DYNAMIC, Horovod starts its timeline later, by a call
            path = environment.text("HOROVOD_TIMELINE")
            path = None if path == "DYNAMIC" else path
        if path is not None:
            from collectives.records import timeline

            timeline.from_environment(self, path)
        if trace is not None:
            from collectives.records import checksums

            checksums.start(self, trace, environment.IS_TRACED)


explain_names(Communicator)
if environment.IS_TRACED:
    from collectives.records import checksums

    checksums.wrap(Communicator)


def _forsaken(comm: Communicator, requests: list[_core.Request]) -> str:
    """Return the warning of operations in flight on a garbage-collected communicator."""
    lines = [f"{comm!r} was garbage-collected with operations in flight; wait for every request"]
    for request in requests:
        lines.append(f"{request.state()}, started at {request.where()}")
        if request.origin is not None:
            lines.append(str(request.origin))
    if not any(request.origin for request in requests):
        lines.append("(python -X dev shows the whole tracebacks of the starts)")
    lines += ["the communicator was made at (most recent call last):", str(comm._origin)]
    return "\n".join(lines)
