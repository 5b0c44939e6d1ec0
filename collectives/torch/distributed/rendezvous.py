"""The rendezvous of the ranks of a group, through their launcher, without an address.

``torch.distributed.init_process_group`` needs a store that all ranks share, this rank, and the
number of ranks. If the environment does not name them (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``,
``MASTER_PORT``), and a launcher of MPI or of this library has started the process, they come from
the default communicator: rank 0 opens a store at a free port and broadcasts its address. The
backend itself needs no store, but other groups of the program (``new_group(backend="gloo")``) and
parts of torch may need one.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout

from collectives import _core, default
from collectives.communicator import Communicator
from collectives.errors import CommunicatorError
from collectives.process import binding, environment, hosted
from collectives.process.environment import ADDRESS
from collectives.process.meeting import Meeting
from collectives.process.rendezvous import Keyed, Rendezvous
from collectives.process.settings import Settings
from collectives.torch.distributed import nccl
from collectives.torch.distributed.group import CollectivesProcessGroup, bits_of
from collectives.torch.distributed.mixed import MixedProcessGroup, group_of, others_of

NAME = "collectives"
VARIABLES = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
LOOPBACK = "127.0.0.1"

Found = tuple[Any, int, int]  # store, rank, size

# The ranks of torch's default group, in its order, as a communicator of MPI or its stand-in.
_world: Any = None

# The number of attempts to make a group in this process, by members; the default group names none.
_made: Counter[tuple[int, ...]] = Counter()

_store: Any = None  # rank 0 serves it to the others until the program ends


def register() -> None:
    """Register the backend ``"collectives"`` of `torch.distributed`.
    Local. Importing `collectives.torch` does it.
    """
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    dist.register_rendezvous_handler(NAME, _meet)
    # ``init_process_group("collectives")`` uses the handler of ``env://``, and a backend has no
    # other way to change the rendezvous.
    handlers: dict[str, Any] = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    by_environment = handlers["env"]

    def by_launcher(url: str, **options: Any) -> Iterator[Found]:
        is_told = "?" in url or (_is_told() and not _is_told_by_launcher())
        is_known = _is_started_by_mpi() or ADDRESS in os.environ
        return (by_environment if is_told or not is_known else _meet)(url, **options)

    handlers["env"] = by_launcher


def init_process_group(
    timeout: timedelta | None = None, *, bits: str | None = None, **options: Any
) -> None:
    """Make the ranks of the job the default group of `torch.distributed`.
    Collective.

    It is ``torch.distributed.init_process_group("collectives", init_method="collectives://")``,
    with ``pg_options={"bits": bits}`` if `bits` is given.

    Parameters
    ----------
    timeout : timedelta, optional
        The timeout of a call; half an hour, or ``COLLECTIVES_TIMEOUT``, by default.
    bits : str, optional
        The quantities that the bits of reductions may depend on, as for `Communicator`. For groups
        of ``new_group``, the environment or their ``pg_options`` set them.
    **options : object
        Other arguments of torch's function.

    Raises
    ------
    CollectivesError
        As for `Communicator`.
    """
    options.setdefault("backend", NAME)
    options.setdefault("init_method", f"{NAME}://")
    if bits is not None:
        options["pg_options"] = {"bits": bits}
    dist.init_process_group(timeout=timeout, **options)


def _create(options: Any, own: Any) -> CollectivesProcessGroup:
    """Make a process group; torch calls this as the backend's constructor. Collective."""
    others = others_of(sys._getframe().f_back, NAME)
    bits = bits_of(own)
    comm = _communicator(
        options.store,
        options.group_rank,
        options.group_size,
        options.global_ranks_in_group,
        options.timeout.total_seconds(),
        bits,
    )
    refusal = None
    if not others and nccl.is_asked_for(comm):
        refusal, others = nccl.refusal(comm), {nccl.DEVICE: nccl.BACKEND}
    if not others:
        return CollectivesProcessGroup(comm)
    own = None if isinstance(own, Mapping) else own
    made = group_of(options, own, others) if refusal is None else nccl.Refused(refusal)
    return MixedProcessGroup(comm, made, list(others))


def _meet(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[Found]:
    """Yield a store, this rank and the number of ranks: a handler of torch. Collective."""
    global _store
    comm = default.world()
    if _store is None:
        _store = shared_store(comm, timeout)
        # Frameworks look for these, and would believe to be alone: MPI does not set them.
        os.environ.setdefault("LOCAL_RANK", str(comm.local_rank))
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(comm.local_size))
    # Each default group has keys of its own.
    _meet.number = number = getattr(_meet, "number", 0) + 1  # type: ignore[attr-defined]
    yield dist.PrefixStore(f"meeting {number}", _store), comm.rank, comm.size


def shared_store(comm: Any, timeout: timedelta) -> Any:
    """Open a store on rank 0 and connect to it on the others. Collective."""
    if comm.size == 1:
        return dist.HashStore()
    host = LOOPBACK if comm.nodes == 1 else socket.getfqdn()
    options = {"timeout": timeout, "multi_tenant": True}
    problem: Exception | None = None
    place: tuple[str, int] | None = None
    store = None
    if comm.rank == 0:
        try:
            store = dist.TCPStore(host, 0, comm.size, True, wait_for_workers=False, **options)
            place = host, store.port
        except Exception as error:  # the others must not wait
            problem = error
    tell = comm.broadcast_object
    if environment.IS_TRACED:  # the address is another one in each run
        from collectives.records import checksums

        tell = checksums.unrecorded(tell)
    place = tell(place)
    if problem is not None:
        raise problem
    if place is None:
        raise RuntimeError("rank 0 could not open a store of torch.distributed")
    if store is None:
        store = dist.TCPStore(*place, comm.size, False, wait_for_workers=False, **options)
    return store


def _is_told() -> bool:
    """Return whether the environment says where the ranks meet. Local."""
    return any(name in os.environ for name in VARIABLES)


def _is_told_by_launcher() -> bool:
    """Return whether the launcher of this library has said so, which other ranks of it meet by.
    Local.
    """
    pairs = ("RANK", environment.RANK), ("WORLD_SIZE", environment.SIZE)
    return ADDRESS in os.environ and all(
        os.environ.get(name) == os.environ.get(ours) for name, ours in pairs
    )


def _is_started_by_mpi() -> bool:
    """Return whether a launcher of MPI has started this process. Local."""
    return any(size in os.environ for _, size in environment.LAUNCHERS)


def _communicator(
    store: Any,
    rank: int,
    size: int,
    members: Sequence[int],
    timeout: float,
    bits: str | None,
) -> Communicator:
    """Return a new communicator for a process group.
    Collective over the members.
    """
    # Torch's name of a group counts the groups that this rank is in, and ranks may differ in that.
    _made[tuple(members)] += 1
    attempt = _made[tuple(members)]
    # A store keeps the entries of earlier groups.
    made = f"{tuple(members)}/{attempt}"
    meeting = Keyed(store, rank, size, f"collectives/{made}")
    limit = None if timeout == default_pg_timeout.total_seconds() else timeout
    if not members:
        mpi = _ordered(meeting)
    elif dist.get_backend() == "collectives":
        group = Meeting("new_group()", _world, Settings.read(limit))
        mpi = group.part(members, attempt)
    else:
        mpi = _apart(meeting, made, Settings.read(limit))
    try:
        return Communicator(mpi, timeout=limit, bits=bits)
    finally:
        if members:
            mpi.Free()


def _apart(meeting: Rendezvous, name: str, settings: Settings) -> Any:
    """Return a communicator of ranks whose default group is of another backend. Collective."""
    if not _is_started_by_mpi():
        return _without_mpi(meeting)
    world = Meeting("new_group()", binding.load().COMM_WORLD, settings)
    ranks = meeting.allgather(world.rank)
    world.awaited = [world.members[rank] for rank in ranks]
    return world.in_thread(lambda: binding.part_of(world.mpi, ranks, name))


def _ordered(meeting: Rendezvous) -> Any:
    """Return a communicator whose ranks are those of torch's default group. Collective."""
    global _world
    rank, size = meeting.rank, meeting.size
    if not _is_started_by_mpi() and not (size == 1 and _core.uses_mpi()):
        _world = _without_mpi(meeting)
        return _world
    MPI = binding.load()
    there = MPI.COMM_WORLD.Get_size()
    if size not in (1, there):
        raise CommunicatorError(
            f"torch says that there are {size} ranks, and MPI that there "
            f"{'is 1' if there == 1 else f'are {there}'}: start the program with mpirun -n "
            f"{size} python ..., or all ranks of one host without MPI, with torchrun"
        )
    if _world is not None:  # of a default group that was destroyed
        _world.Free()
        _world = None
    base = MPI.COMM_SELF if size == 1 else MPI.COMM_WORLD
    _world = base.Split(0, rank)
    return _world


def _without_mpi(meeting: Rendezvous) -> hosted.HostedRanks:
    """Return the ranks of a rendezvous: those of their job, if there is one.
    Collective.
    """
    job = hosted.job()
    place = None if job is None else (job.COMM_WORLD.size, job.COMM_WORLD.rank)
    places = meeting.allgather(place)
    known = [rank for size, rank in filter(None, places) if size == meeting.size]
    if job is None or len(known) < meeting.size:
        return hosted.join(meeting).COMM_WORLD
    return job.COMM_WORLD.part(known)
