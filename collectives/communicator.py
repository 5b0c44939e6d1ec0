"""The communicator: the collectives as methods."""

from __future__ import annotations

import os
import sys
import warnings
from math import prod
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import _core
from collectives.algorithms import registry
from collectives.calls.folding import FoldingCalls
from collectives.calls.grouped import GroupedCalls
from collectives.calls.objects import ObjectCalls
from collectives.calls.planned import PlannedCalls
from collectives.choice import profile
from collectives.choice.chooser import Chooser, Lane
from collectives.choice.probe import probe
from collectives.choice.select import Decision
from collectives.errors import ArgumentError, CommunicatorError
from collectives.process import binding, environment, segment
from collectives.process.agreement import Agreement
from collectives.process.place import locate
from collectives.text.origin import Origin

if TYPE_CHECKING:  # few programs need them
    from collectives.records.timeline import Timeline
    from collectives.records.trace import Trace

__all__ = ["Communicator"]

# Polls before a wait gives way to other processes. With fewer cores than ranks, not to do so at
# once costs a time slice, and nobody knows of other processes, or of ranks on "hosts" that are
# containers of one machine. With a core for each rank the number does not matter: an allreduce of 8
# bytes on 2 ranks takes 1.9 to 2.0 us under MPICH and 1.6 to 1.7 under Open MPI with any. On 8
# ranks and 2 cores: MPICH 48 us with 5 polls, 64 with 20, 389 with 400; Open MPI 45, 35, 33. On 4
# network namespaces and 2 cores MPICH takes 60 us with 5 polls, 71 with 20, 1711 with 4000
# (COLLECTIVES_SHM=0 mpiexec -n N python benchmarks/measure_patience.py; EPYC, 2026-11-22).
PATIENCE = 20
PATIENCE_OVERSUBSCRIBED = 5

# Looks at shared memory before a wait gives way to other processes.
SPINS = 2000
SPINS_OVERSUBSCRIBED = 2

# How payloads are written: as it turns out best, to the cache, or past it.
STORES = ("auto", "cached", "streamed")


class Communicator(FoldingCalls, PlannedCalls, GroupedCalls, ObjectCalls):
    """A group of ranks that run collectives together. Collective.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm, optional
        The group; ``MPI.COMM_WORLD`` by default. It is duplicated, so that messages of the library
        and of the program never meet.
    timeout : float, optional
        Seconds after which a wait raises `StallError`; ``COLLECTIVES_TIMEOUT``, or half an hour,
        by default. Every call takes a `timeout` of its own.

    Attributes
    ----------
    rank, size : int
        This rank's number, and how many there are.
    local_rank, local_size : int
        The same among the ranks of this host.
    node, nodes : int
        This host's number, and how many hosts there are.

    Raises
    ------
    ArgumentError
        If `mpi` is not an intracommunicator, or `timeout` not a positive number.
    BindingError
        If there is no usable MPI.
    CommunicatorError
        In a forked child, and in a thread that MPI's thread level shuts out.

    Notes
    -----
    *Order.* All ranks call the collectives of a communicator in the same order; the i-forms, too.

    *Threads.* Any thread may use any communicator. Threads on one communicator queue up, first come
    first served: a collective has it until it is complete, the start of an i-form while it starts;
    ``test`` and ``wait`` of a request do not queue, nor do messages (`send`, `recv`), as one thread
    may send what another waits for. Threads on communicators of their own run side
    by side. Which thread comes first is up to the operating system and may differ between ranks, so
    a program whose threads call different things on one communicator breaks the rule of order:
    give each thread its own (`dup`, before the threads start), or let the threads take turns in a
    way that is the same on all ranks. A call from inside a call on the same communicator (a signal
    handler, a finalizer) raises `CommunicatorError`. mpi4py starts MPI for any number of threads;
    if the program asks for less, then under ``serialized`` one thread at a time enters MPI, for a
    moment, and communicators must be made and freed while no other thread communicates; under
    ``funneled`` and ``single`` all threads but the main one get a `CommunicatorError`.

    *Processes.* MPI does not survive `os.fork`: the child of a rank gets a `CommunicatorError` from
    every call, and ends without disturbing its parent. Its exit status is the one given to
    `sys.exit` or `os._exit`. Start children that communicate with the launcher.

    *Memory.* A communicator holds one of MPI's, of which there are some thousands, until `free` or
    the end of the program: freeing is collective, so the garbage collector cannot do it. If it is
    collected with operations in flight, a `ResourceWarning` says where they were started; what MPI
    may still write to stays alive.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> comm = cc.world()
    >>> float(comm.allreduce(np.ones(3)).sum()) == 3 * comm.size
    True
    """

    def __init__(self, mpi: Any = None, *, timeout: float | None = None) -> None:
        MPI = binding.load()
        if mpi is None:
            mpi = MPI.COMM_WORLD
        if not isinstance(mpi, MPI.Intracomm) or mpi == MPI.COMM_NULL:
            raise ArgumentError(f"mpi is {mpi!r}, and must be an mpi4py intracommunicator")
        if timeout is None:
            timeout = environment.seconds("COLLECTIVES_TIMEOUT", 1800.0)
        timeout = _core.seconds(timeout)
        self._mpi = mpi.Dup()
        self._mpi.Set_errhandler(MPI.ERRORS_RETURN)
        offer = profile.offer(self._mpi.Get_rank())
        self._place, offers = locate(self._mpi, offer)
        known, self._tune = profile.agreed(self._mpi, offers)
        place = self._place
        self.node, self.nodes = place.node, place.nodes
        self.rank, self.size = self._mpi.Get_rank(), self._mpi.Get_size()
        self.local_rank, self.local_size = place.local.index(self.rank), len(place.local)
        self._chooser = Chooser(self, self.rank, place.local, self._tune)
        patience = PATIENCE_OVERSUBSCRIBED if place.is_crowded else PATIENCE
        choose = self._chooser.weakly()
        self._engine = _core.Engine(MPI, self._mpi, choose, timeout, patience)
        self._engine.messages_by = self._chooser.family = binding.family(MPI)
        self._share()
        self._engine.label = self._label()
        self._call = self._engine.call
        self._exchange_plans: dict[tuple[int | None, int | None], _core.Plan] = {}
        self._control: Any = None
        self._origin = Origin()
        registry.watch(self)
        if environment.flag("COLLECTIVES_VALIDATE"):
            self._control = self._mpi.Dup()
            self._engine.agree = Agreement(self._control, self._engine)
        if known is not None:
            library = binding.library_name(MPI)
            self._chooser.use(known.section(self.transport, library, self.nodes))
        if "probe" in self._tune and self.size > 1:
            self._chooser.parameters = probe(self)
        if self.size == MPI.COMM_WORLD.Get_size():
            self._start_timeline()

    def _label(self) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
        """Return what tells the communicator from others on timelines, the same on all ranks.

        A name, the size, the ranks in ``COMM_WORLD``, and those that share this one's memory.
        """
        ranks = tuple(rank for rank, _ in self._place.ranks)
        return "{}.{}".format(*self._place.ranks[0]), len(ranks), ranks, tuple(self._place.local)

    def _share(self) -> None:
        """Make the memory that the ranks of a host share. Collective."""
        self._segment = segment.bootstrap(self._mpi, self._place.local)
        mine: Lane | None = None
        if self._segment is not None:
            mine = tuple(self._place.local), self._segment.lane_bytes, self._segment.lines
        everybody = self._mpi.allgather(mine) if self.nodes > 1 else [mine]
        self._chooser.lanes = [each for each in dict.fromkeys(everybody) if each is not None]
        self._engine.warning = environment.seconds("COLLECTIVES_STALL_WARNING", 60.0)
        if self._segment is None:
            return
        spins = SPINS_OVERSUBSCRIBED if self._place.is_crowded else SPINS
        spins = environment.number("COLLECTIVES_SHM_SPINS", spins, "looks")
        self._engine.share(self._segment, spins)
        stores = os.environ.get("COLLECTIVES_SHM_STORES", "") or "auto"
        if stores not in STORES:
            raise ArgumentError(
                f"COLLECTIVES_SHM_STORES is {stores!r}, and must be one of {', '.join(STORES)}"
            )
        self._engine.stores = STORES.index(stores)
        if self.nodes == 1:
            self._chooser.family = "shm"

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator that carries the messages; use a duplicate of it."""
        return self._mpi

    @property
    def transport(self) -> str:
        """How the ranks talk: ``"shm"``, or the family of the MPI where hosts are between them."""
        return self._chooser.family

    @property
    def timeout(self) -> float:
        """Seconds after which a wait raises `StallError`, unless the call has its own."""
        return self._engine.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._engine.timeout = _core.seconds(seconds)

    def __repr__(self) -> str:
        if self._mpi is None:
            return "<collectives.Communicator, freed>"
        return f"<collectives.Communicator, rank {self.rank} of {self.size}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error the other ranks may be anywhere: freeing, which is collective, could hang.
        if error is None:
            self.free()
        else:
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, text: str) -> None:
        """Tell the ranks of this host that this one will not go on. Local."""
        if self._segment is not None:
            self._segment.give_up(text)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is None or engine.broken is not None or _core.is_forked():
            return
        requests = _core.forsaken(engine)
        if requests and not sys.is_finalizing():  # _at_exit() speaks then
            warnings.warn(_forsaken(self, requests), ResourceWarning, stacklevel=2, source=self)

    # -- groups ------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Split into groups of equal `color`, ordered by `key`, then by rank.
        Collective.

        Returns
        -------
        Communicator or None
            This rank's group; None where `color` is None.

        Raises
        ------
        CommunicatorError
            If the communicator is freed or broken.
        """
        MPI = binding.load()
        self.barrier()  # see dup()
        with self._engine:
            part = self._alive().Split(MPI.UNDEFINED if color is None else color, key)
        if part == MPI.COMM_NULL:
            return None
        try:
            return Communicator(part, timeout=self.timeout)
        finally:
            part.Free()

    def dup(self) -> Communicator:
        """Return a communicator with the same ranks, whose messages never meet those of this one.
        Collective.

        Raises
        ------
        CommunicatorError
            If the communicator is freed or broken.
        """
        # Inside MPI nothing of ours moves on, and the others may wait for that before they come.
        self.barrier()
        with self._engine:
            return Communicator(self._alive(), timeout=self.timeout)

    def free(self) -> None:
        """Give the communicator back; it cannot be used afterwards.
        Collective.

        Raises
        ------
        CommunicatorError
            If operations are in flight; the text lists them.
        """
        with self._engine:
            if self._mpi is None:
                return
            pending = _core.pending(self._engine)
            if pending:
                raise CommunicatorError(
                    f"operations are in flight: {'; '.join(pending)}; wait for them"
                )
            self._engine.broken = "the communicator was freed"
            if self._segment is not None:
                self._engine.share(None, SPINS)
                segment.release(self._segment)
                self._segment = None
            for mpi in (self._control, self._mpi):
                if mpi is not None:
                    mpi.Free()
            self._mpi = self._control = None

    def _alive(self) -> Any:
        if self._engine.broken is not None:
            raise CommunicatorError(self._engine.broken)
        return self._mpi

    # -- memory ------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float64) -> Any:
        """Return a new array in memory that the ranks of the host share.
        Collective.

        The collectives of this communicator read it, and write it, where it lies: nothing is copied
        into the segment first. That holds for its views, too, and for what shares its memory in
        other libraries (``torch.from_numpy``).

        Parameters
        ----------
        shape : int or tuple of int
            May differ between ranks.
        dtype : dtype, optional

        Returns
        -------
        numpy.ndarray
            Its contents are arbitrary. It outlives the communicator; its memory is given back when
            it and all its views are gone. Where ranks share no memory it is an ordinary array.

        Raises
        ------
        ArgumentError
            If a dimension is negative.
        CommunicatorError
            If the communicator is freed or broken, or there is no memory.

        Notes
        -----
        A call returns when no other rank reads the array any more, so it may be changed at once.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> x = comm.empty((2, 3), np.float32)
        >>> x[:] = 1
        >>> comm.allreduce(x, out=x).shape
        (2, 3)
        """
        dims = (shape,) if isinstance(shape, int) else tuple(map(index, shape))
        if min(dims, default=0) < 0:
            raise ArgumentError(f"shape is {shape!r}, and must have no negative dimension")
        nbytes = prod(dims) * np.dtype(dtype).itemsize
        self.barrier()  # see dup()
        with self._engine:
            self._alive()
            if not self._chooser.lanes:
                return np.empty(shape, dtype)
            first = self._segment is not None and self._segment.windows == 0
            array = segment.window(self._mpi, self._segment, nbytes)
            if array is None:
                return np.empty(shape, dtype)
            if first:  # programs lend nothing yet
                self._chooser.lends = True
                self._chooser.forget_plans()
                self.forget()
        return array.view(dtype).reshape(dims)

    # -- what ran ----------------------------------------------------------------------------

    def timeline(self, path: str | os.PathLike[str]) -> Timeline:
        """Record what the ranks do in their calls, and when, in a file that trace viewers open.
        Collective, the begin and the end of the ``with`` statement, too.

        Parameters
        ----------
        path : str or path
            The file, in JSON. That of rank 0 counts; it is overwritten. Ranks of hosts that do not
            see it write another of that name there.

        Returns
        -------
        Timeline
            A context manager. All that this process calls inside is recorded, on other
            communicators, too; it is in the file when the ``with`` statement has ended.

        Raises
        ------
        ArgumentError
            If the file cannot be written; on all ranks, at the begin.
        CommunicatorError
            If the communicator is freed or broken.

        Notes
        -----
        ``COLLECTIVES_TIMELINE=out.json`` records a whole program. :doc:`/howto/timeline` says how
        to read it.

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
        """Take down which calls ran on this communicator, with which algorithm, and why.
        Local.

        Returns
        -------
        Trace
            A context manager, and a sequence of `TracedCall`; printed, it is a table.

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

    def _start_timeline(self) -> None:
        """Start the timeline that the environment wishes for, if it does. Collective."""
        path = os.environ.get("COLLECTIVES_TIMELINE")
        if path is None:
            # With that word, Horovod starts later, by a call of its own.
            path = os.environ.get("HOROVOD_TIMELINE", "")
            path = "" if path == "DYNAMIC" else path
        if path:
            from collectives.records import timeline

            timeline.from_environment(self, path)

    # -- choice ------------------------------------------------------------------------------

    def explain(
        self, collective: str, nbytes: int = 0, *, algorithm: str | None = None
    ) -> Decision:
        """Say which algorithm a call would run, and why.
        Local.

        Parameters
        ----------
        collective : str
            One of ``collectives.algorithms.COLLECTIVES``.
        nbytes : int
            Bytes of the whole array: the larger side, where input and output differ.
        algorithm : str, optional
            What the call would pass.

        Returns
        -------
        Decision
            Printed, it tells the algorithm, the reason, rounds, bytes per rank, the time that the
            cost formulas predict, and the time that was measured, if the profile has one. What was
            settled by ``COLLECTIVES_TUNE=online`` is that of root 0 and commutative operations.

        Raises
        ------
        ArgumentError
            If there is no such collective or algorithm, or `nbytes` is no number of bytes.
        """
        try:
            nbytes = index(nbytes)
        except TypeError:
            raise ArgumentError(
                f"nbytes is a {type(nbytes).__name__}, and must be a number of bytes: x.nbytes"
            ) from None
        if nbytes < 0:
            raise ArgumentError(f"nbytes is {nbytes}, and cannot be below 0")
        return self._chooser.explain(collective, algorithm, nbytes)

    def forget(self) -> None:
        """Decide again, on the next call of each class: after a change of the registry or of
        ``COLLECTIVES_SEGMENT``. Local.
        """
        self._engine.forget_choices()


def _forsaken(comm: Communicator, requests: list[_core.Request]) -> str:
    """Say what was in flight on a communicator that was collected, and where it comes from."""
    lines = [f"{comm!r} was garbage-collected with operations in flight; wait for every request"]
    for request in requests:
        lines.append(f"{request.state()}, started at {request.where()}")
        if request.origin is not None:
            lines.append(str(request.origin))
    if not any(request.origin for request in requests):
        lines.append("(python -X dev shows the whole tracebacks of the starts)")
    lines += ["the communicator was made at (most recent call last):", str(comm._origin)]
    return "\n".join(lines)
