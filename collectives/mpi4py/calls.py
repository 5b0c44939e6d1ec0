"""The collectives of mpi4py's communicators, run by this library.

A blocking call on arrays that can be used in place goes straight to the core
(`Engine.call_plain`). The others read their buffer specifications first (`tasks.py`). As in MPI,
the calls move bytes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from collectives import _core
from collectives._core import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
)
from collectives.communicator import Communicator
from collectives.mpi4py import objects
from collectives.mpi4py.datatypes import FOLDS, OPERATIONS, PLACES, learn
from collectives.mpi4py.requests import Prequest, Request, install
from collectives.mpi4py.tasks import TASKS, Task, nothing
from collectives.process import binding
from collectives.records import totals
from collectives.reductions import MIN

# The calls that the core runs on plain arrays, in the order of their kinds.
PLAIN = (
    *("Allreduce", "Reduce", "Bcast", "Barrier", "Allgather", "Reduce_scatter_block"),
    *("Alltoall", "Gather", "Scatter", "Scan", "Exscan"),
)
# The names of their vector forms.
VECTORS = {
    ALLGATHER: "Allgatherv",
    REDUCE_SCATTER: "Reduce_scatter",
    ALLTOALL: "Alltoallv",
    GATHER: "Gatherv",
    SCATTER: "Scatterv",
}
FOLDING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan")

# Collectives that MPI always runs, because it copies from one datatype with gaps to another without
# packing; `served` counts them.
LEFT = ("Alltoallw", "Ialltoallw", "Alltoallw_init")
# The blocking collectives of objects.
OBJECTS = (
    *("barrier", "bcast", "gather", "scatter", "allgather", "alltoall"),
    *("reduce", "allreduce", "scan", "exscan"),
)
# The operations of this library for those of MPI, by the addresses of their objects, which live as
# long as the process: reading and looking up their handles takes longer.
SUM, IN_PLACE = MPI.SUM, MPI.IN_PLACE
REDUCTIONS = {
    id(op): FOLDS[op.handle].reduction
    for op in (getattr(MPI, name) for name in (*OPERATIONS, *PLACES))
}
ADD = REDUCTIONS[id(SUM)]
T = TypeVar("T")
LANES = 64  # the most of one communicator
REVOKED = "the communicator is revoked"  # the words by which the other ranks hear of it


class Made(Generic[T]):
    """An attribute that is made when it is first used. Before Python 3.12, `cached_property` lets
    one thread wait for another one that makes the same attribute of another object.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __get__(self, owner: Any, kind: type) -> T:
        made = owner.__dict__[self._make.__name__] = self._make(owner)
        return made


class Served(NamedTuple):
    """The number of calls of a collective: those that ran `here`, and those that went to `mpi`."""

    here: int
    mpi: int


class _State:
    """The state that all objects of one MPI communicator share."""

    def __init__(self) -> None:
        self.comm: Communicator | None = None
        self.size = 0  # of `comm`, also when it is freed
        self.threads = False  # whether a thread may advance requests, on all ranks
        self.moves = False  # whether it is known that requests can run here
        self.lanes: list[Communicator] = []  # of persistent collectives, each of one at a time
        self.unused: list[bool] = []  # whether each of them is unused
        self.near: dict[int | None, Any] = {}  # the known neighbours, by lane
        self.first = 0  # the number of the next blocking calls that MPI runs
        self.is_revoked = False  # whether this rank has heard of it
        self.here: Counter[str] = Counter()
        self.mpi: Counter[str] = Counter()

    def served(self) -> dict[str, Served]:
        """Return the numbers of calls of each collective that ran here and in MPI. Local."""
        self.collect()
        names = sorted(self.here | self.mpi)
        return {name: Served(self.here[name], self.mpi[name]) for name in names}

    def collect(self) -> None:
        """Add the calls that the core has counted, and reset its counts. Local."""
        if self.comm is None:
            return
        plain = self.comm._engine.plain_calls
        for kind in np.flatnonzero(plain).tolist():
            calls = int(plain[kind])
            plain[kind] -= calls  # other threads may be adding to it
            more = kind - len(PLAIN)
            self.here[PLAIN[kind] if more < 0 else VECTORS[more]] += calls

    def made_ours(self) -> list[Communicator]:
        """Return the communicators of this library. Local."""
        return [] if self.comm is None else [*self.lanes, self.comm]

    def revoke(self) -> None:
        """Have the collectives of all ranks end with MPI's error. Local."""
        for comm in self.made_ours():
            comm._engine.give_up(REVOKED)
            comm._engine.broken = comm._engine.broken or REVOKED

    def converted(self, error: Exception) -> Exception:
        """Return MPI's error instead of one of this library if a rank has revoked the communicator.
        Local.
        """
        if REVOKED in str(error) and not self.is_revoked:
            self.is_revoked = True
            self.revoke()
        return MPI.Exception(MPI.ERR_REVOKED) if self.is_revoked else error

    def end(self) -> None:
        """Drop all but the counts of a communicator that is freed. Local."""
        self.collect()
        self.comm = None
        self.lanes.clear()
        self.near.clear()


@functools.cache
def _key() -> int:
    """Return the key under which MPI keeps the state with its communicator."""
    return MPI.Comm.Create_keyval()


class Calls(MPI.Intracomm):
    """The collectives of a communicator, and the counts of their calls."""

    @functools.cached_property
    def _state(self) -> _State:
        state = self.Get_attr(_key())
        if state is None:
            state = _State()
            self.Set_attr(_key(), state)
        assert isinstance(state, _State)
        return state

    @Made
    def _comm(self) -> Communicator:
        """The communicator of this library, made by the first call that is served. Collective."""
        state = self._state
        if state.comm is None:
            if self._is_revoked():  # then a duplication of Open MPI never ends
                raise MPI.Exception(MPI.ERR_REVOKED)
            state.comm = comm = Communicator(MPI.Intracomm(self))
            comm._engine.converts = state.converted
            totals.leave_out(comm)
            state.size = comm.size
            learn()
            threads = np.array([MPI.Query_thread() == MPI.THREAD_MULTIPLE], np.int32)
            state.threads = bool(comm.allreduce(threads, op=MIN)[0])
        return state.comm

    def _is_revoked(self) -> bool:
        """Return whether this rank has revoked the communicator, or heard of it. Local."""
        try:
            return bool(self.Is_revoked())
        except (AttributeError, NotImplementedError):  # before mpi4py 4.1, or of this MPI
            return False

    @Made
    def _plain(self) -> Callable[..., Any]:
        return self._comm._engine.call_plain

    @Made
    def _plain_parts(self) -> Callable[..., Any]:
        return self._comm._engine.vector_plain

    def served(self) -> dict[str, Served]:
        """Return the collectives that were called, and the numbers of calls here and in MPI.
        Local.

        Returns
        -------
        dict of str to Served
            By the names of mpi4py's methods; those that were never called are left out.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from collectives.mpi4py import accelerate
        >>> comm = accelerate(MPI.COMM_WORLD).Dup()
        >>> comm.Allreduce(MPI.IN_PLACE, np.ones(3))
        >>> comm.served()
        {'Allreduce': Served(here=1, mpi=0)}
        >>> comm.Free()
        """
        return self._state.served()

    # -- collectives: plain arrays first, then other arguments -----------------------------------

    def Barrier(self) -> None:
        self._plain(BARRIER, None, None, None, 0)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if not self._plain(BROADCAST, buf, buf, None, root):
            self._run("Bcast", buf, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if not self._plain(GATHER, sendbuf, recvbuf, None, root):
            self._run("Gather", sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if not self._plain_parts(GATHER, sendbuf, recvbuf, root):
            self._run("Gatherv", sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if not self._plain(SCATTER, sendbuf, recvbuf, None, root):
            self._run("Scatter", sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if not self._plain_parts(SCATTER, sendbuf, recvbuf, root):
            self._run("Scatterv", sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        if not self._plain(ALLGATHER, sendbuf, recvbuf, None, 0):
            self._run("Allgather", sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        if not self._plain_parts(ALLGATHER, sendbuf, recvbuf):
            self._run("Allgatherv", sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        if not self._plain(ALLTOALL, sendbuf, recvbuf, None, 0):
            self._run("Alltoall", sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        if not self._plain_parts(ALLTOALL, sendbuf, recvbuf):
            self._run("Alltoallv", sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        x = recvbuf if sendbuf is IN_PLACE else sendbuf
        if fold is None or not self._plain(REDUCE, x, recvbuf, fold, root):
            self._run("Reduce", sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        x = recvbuf if sendbuf is IN_PLACE else sendbuf
        if fold is None or not self._plain(ALLREDUCE, x, recvbuf, fold, 0):
            self._run("Allreduce", sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        x = recvbuf if sendbuf is IN_PLACE else sendbuf
        if fold is None or not self._plain(SCAN, x, recvbuf, fold, 0):
            self._run("Scan", sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        x = recvbuf if sendbuf is IN_PLACE else sendbuf
        if fold is None or not self._plain(EXSCAN, x, recvbuf, fold, 0):
            self._run("Exscan", sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        if fold is None or not self._plain(REDUCE_SCATTER, sendbuf, recvbuf, fold, 0):
            self._run("Reduce_scatter_block", sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        fold = ADD if op is SUM else REDUCTIONS.get(id(op))
        if fold is None or not self._plain_parts(
            REDUCE_SCATTER, sendbuf, recvbuf, 0, recvcounts, fold
        ):
            self._run("Reduce_scatter", sendbuf, recvbuf, recvcounts, op)

    # -- objects ---------------------------------------------------------------------------------

    def barrier(self) -> None:
        self._objects("barrier").barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        if self._has(root):
            return objects.bcast(self._objects("bcast"), obj, root)
        return self._by_mpi("bcast", obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        if self._has(root):
            return objects.gather(self._objects("gather"), sendobj, root)
        return self._by_mpi("gather", sendobj, root)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        if self._has(root):
            return objects.scatter(self._objects("scatter"), sendobj, root)
        return self._by_mpi("scatter", sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        return objects.allgather(self._objects("allgather"), sendobj)

    def alltoall(self, sendobj: Any) -> list[Any]:
        return objects.alltoall(self._objects("alltoall"), sendobj)

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        if self._has(root):
            return objects.reduce(self._objects("reduce"), sendobj, op, root)
        return self._by_mpi("reduce", sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        return objects.allreduce(self._objects("allreduce"), sendobj, op)

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        return objects.scan(self._objects("scan"), sendobj, op)

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        return objects.exscan(self._objects("exscan"), sendobj, op)

    def _objects(self, name: str) -> Communicator:
        """Return the communicator that runs a collective of objects, and count it."""
        self._state.here[name] += 1
        return self._comm

    def _has(self, root: int) -> bool:
        """Return whether there is such a root; otherwise MPI has to raise its error."""
        return 0 <= root < self._comm.size

    # -- the run of calls ------------------------------------------------------------------------

    def _by_mpi(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of mpi4py's."""
        self._state.mpi[name] += 1
        return getattr(super(), name)(*args, **options)

    def _run(self, name: str, *args: Any) -> None:
        """Run a collective whose arguments have to be read first, or have MPI run it."""
        task = TASKS[name](self._comm, *args)
        if task is None:
            self._by_mpi(name, *args)
            return
        self._state.here[name] += 1
        task.start(True)
        task.finish()

    def _moves_requests(self) -> bool:
        """Return whether requests can run here: the ranks have met, so that none has to wait for
        the others, and a thread advances them while the program is in MPI.
        """
        state = self._state
        if state.comm is None or not state.threads:
            return False
        _begin_requests()
        state.moves = True
        return True

    def _lane(self) -> int | None:
        """Return the number of a communicator for one persistent collective: ranks may start such
        collectives in different orders. None if too many are in use. Collective.
        """
        state, comm = self._state, self._comm
        if not state.threads:
            return None
        _begin_requests()
        unused = np.array([*state.unused, len(state.lanes) < LANES], np.int32)
        free: list[int] = np.flatnonzero(comm.allreduce(unused, op=MIN)).tolist()
        if not free:
            return None
        if free[0] == len(state.lanes):
            state.lanes.append(comm.dup())
            state.lanes[-1]._engine.converts = state.converted
            totals.leave_out(state.lanes[-1])
            state.unused.append(True)
        state.unused[free[0]] = False
        return free[0]

    def _prepared(
        self, name: str, make: Callable[[int], Task | None], *args: Any, **options: Any
    ) -> Any:
        """Return the request of a persistent collective: of the task that `make` returns for a
        lane, or MPI's own. Collective.
        """
        lane = self._lane()
        if lane is not None:
            free = functools.partial(self._state.unused.__setitem__, lane, True)
            try:
                task = make(lane)
            except BaseException:
                free()
                raise
            if task is not None:
                self._state.here[name] += 1
                return Prequest(task, free)
            free()
        return self._by_mpi(name, *args, **options)


@functools.cache
def _begin_requests() -> None:
    """Have a thread advance requests of collectives, and let mpi4py's functions wait for them."""
    binding.allow_progress("collectives that do not block run in an accelerated communicator")
    _core.want_progress()
    install()


def nonblocking(name: str) -> Any:
    """Return the method that starts a collective and returns at once.

    It calls the core itself: to find the line of the program, the core looks at each frame of this
    library below it, which takes 0.1 us.
    """
    theirs, make = f"I{name.lower()}", TASKS[name]
    kind = PLAIN.index(name) if name in PLAIN else None

    def reading(self: Calls, *args: Any, **options: Any) -> Any:
        if not (self._state.moves or self._moves_requests()):
            return self._by_mpi(theirs, *args, **options)
        task = make(self._comm, *args, **options)
        if task is None:
            return self._by_mpi(theirs, *args, **options)
        started = task.start(False)
        self._state.here[theirs] += 1
        return Request(started, task.finish)

    def folding(
        self: Calls, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int | None = None
    ) -> Any:
        if root is not None and name != "Reduce":
            return self._by_mpi(theirs, sendbuf, recvbuf, op, root)  # which raises its error
        state, fold = self._state, ADD if op is SUM else REDUCTIONS.get(id(op))
        if fold is not None and (state.moves or self._moves_requests()):
            x = recvbuf if sendbuf is IN_PLACE else sendbuf
            started = self._plain(kind, x, recvbuf, fold, root or 0, False)
            if started:
                state.here[theirs] += 1
                return Request(started, nothing)
        return reading(self, sendbuf, recvbuf, op, *(() if root is None else (root,)))

    def moving(self: Calls, *args: Any, **options: Any) -> Any:
        state = self._state
        if state.moves or self._moves_requests():
            sendbuf, recvbuf, root = read(*args, **options)
            started = self._plain(kind, sendbuf, recvbuf, None, root, False)
            if started:
                state.here[theirs] += 1
                return Request(started, nothing)
        return reading(self, *args, **options)

    read: Callable[..., Any] = _READ.get(name, _arrays_and_root)
    method = reading if kind is None else folding if name in FOLDING else moving
    return functools.wraps(getattr(MPI.Intracomm, theirs))(method)


def persistent(name: str) -> Any:
    """Return the method that prepares a collective."""
    theirs, make = f"{name}_init", TASKS[name]

    def method(self: Calls, *args: Any, **options: Any) -> Any:
        info = options.pop("info", MPI.INFO_NULL)
        if args and isinstance(args[-1], MPI.Info):
            args, info = args[:-1], args[-1]

        def made(lane: int) -> Task | None:
            return make(self._state.lanes[lane], *args, **options)

        return self._prepared(theirs, made, *args, **options, info=info)

    return functools.wraps(getattr(MPI.Intracomm, theirs))(method)


def _arrays(sendbuf: Any, recvbuf: Any) -> Any:
    return sendbuf, recvbuf, 0


def _arrays_and_root(sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
    return sendbuf, recvbuf, root


# The buffers and the root of a call that moves, if not `_arrays_and_root`.
_READ: dict[str, Callable[..., Any]] = {
    "Barrier": lambda: (None, None, 0),
    "Bcast": lambda buf, root=0: (buf, buf, root),
    "Allgather": _arrays,
    "Alltoall": _arrays,
}


def left(name: str) -> Any:
    """Return a method that counts a call of MPI's."""

    def method(self: Calls, *args: Any, **options: Any) -> Any:
        return self._by_mpi(name, *args, **options)

    return functools.wraps(getattr(MPI.Intracomm, name))(method)


for _name in LEFT:
    if hasattr(MPI.Intracomm, _name):
        setattr(Calls, _name, left(_name))

for _name in TASKS:
    setattr(Calls, f"I{_name.lower()}", nonblocking(_name))
    if hasattr(MPI.Intracomm, f"{_name}_init"):
        setattr(Calls, f"{_name}_init", persistent(_name))
