"""The start and the end, the numbers of ranks, and the features of the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from collectives import default, growth
from collectives.algorithms.bits import BITS
from collectives.communicator import Communicator
from collectives.errors import ArgumentError
from collectives.horovod import gpu_operations, state
from collectives.horovod import process_sets as sets
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.horovod.process_sets import ProcessSet
from collectives.process import binding, environment
from collectives.process.agreement import agreed_terms
from collectives.process.meeting import Meeting
from collectives.process.settings import Settings
from collectives.text.words import shown


class Waits(NamedTuple):
    """Deadlines for waits between ranks; None if Horovod's variables do not set them.

    Other variables are read elsewhere: ``HOROVOD_FUSION_THRESHOLD`` by `collectives.background`,
    and ``HOROVOD_TIMELINE`` by `collectives.Communicator`.
    """

    warning: float | None = None  # seconds until a warning
    timeout: float | None = None  # seconds until an error

    @classmethod
    def read(cls) -> Waits:
        """Read the deadlines from the environment. Local."""
        warning = _seconds("HOROVOD_STALL_CHECK_TIME_SECONDS")
        if environment.flag("HOROVOD_STALL_CHECK_DISABLE"):
            warning = float("inf")
        return cls(warning, _seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))


def _seconds(name: str) -> float | None:
    """Return a variable's number of seconds, or None; 0 selects Horovod's default."""
    if environment.text(name) in (None, "0"):
        return None
    return environment.seconds(name, 0.0)


Own = tuple[Waits, str]
_own: dict[Own, Communicator] = {}  # with deadlines or bits of their own, kept for the next init()


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    *,
    bits: str | None = None,
) -> None:
    """Start. A second call without `shutdown` in between adds process sets, if there are none.
    Collective.

    Parameters
    ----------
    comm : list of int, or mpi4py.MPI.Intracomm, optional
        The ranks that take part, by their numbers in the job; only these may call it. By default,
        all ranks.
    process_sets : sequence of ProcessSet, optional
        Groups of ranks, the same on all ranks. Horovod's ``"dynamic"`` is accepted, but not needed.
    bits : str, optional
        The quantities that the bits of reductions may depend on, in all calls, process sets and
        optimizers, as for `collectives.Communicator`; Horovod has no such argument. With
        ``"size"``, a gradient has the same bits alone and in any bucket. By default, what
        ``COLLECTIVES_BITS`` says.

    Raises
    ------
    HorovodArgumentError
        If an argument, or one of Horovod's variables, has an invalid value, or if `bits` are not
        those of an earlier call. After wrong process sets, all ranks can be used, and a second call
        may pass others.
    MismatchError
        If the ranks have different `bits`, or ask for NCCL differently; raised on all of them.
    CollectivesError
        As for `collectives.Communicator`.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise HorovodArgumentError(
                f"process_sets is {shown(process_sets)}, and must be a list of process sets, or "
                f"'dynamic'"
            )
        process_sets = ()
    if bits is not None and not (isinstance(bits, str) and bits in BITS):
        raise HorovodArgumentError(f"bits is {shown(bits)}, and must be one of {', '.join(BITS)}")
    if not isinstance(comm, Iterable):
        sets.global_process_set.mpi_comm = comm
    now = state.current()
    if now is not None:
        if bits is not None and bits != now.comm.bits:
            raise HorovodArgumentError(
                f"bits is {bits!r}, and init() was called before with {now.comm.bits!r}: pass the "
                f"same, or call shutdown() first"
            )
        if process_sets and not now.sets:
            sets.attach_all(process_sets)
        return
    shutdown()  # a job that has ended before this process
    try:
        waits = Waits.read()
    except ArgumentError as error:
        raise HorovodArgumentError(str(error)) from error
    _begin(_communicator(comm, waits, bits), process_sets or ())


def _begin(ranks: Communicator, process_sets: Sequence[ProcessSet]) -> None:
    choice = gpu_operations.agreed(ranks)
    choice.attach(ranks)
    state.enter(state.State(ranks, state.Places.find(ranks), choice))
    sets.attach_all(process_sets)


def _communicator(comm: Any, waits: Waits, bits: str | None) -> Communicator:
    """Return the communicator of the ranks that take part. Collective."""
    if comm is None or (isinstance(comm, Iterable) and not list(comm)):
        world = default.world()
        bits = bits or world.bits
        agreed_terms(world.allgather_object, "init", None, {"bits": bits})
        if not any(waits) and bits == world.bits:
            return world
        own = waits, bits
        if own not in _own or state.has_ended(_own[own]):
            _own[own] = world.dup(bits=bits)
        ranks = _own[own]
    elif isinstance(comm, Iterable):
        MPI = binding.load()
        world = MPI.COMM_WORLD
        given = list(comm)
        if world.Get_rank() not in given:
            raise HorovodArgumentError(
                f"this is rank {world.Get_rank()}, and only the ranks in comm, {given}, call init"
            )
        meeting = Meeting("init()", world, Settings.read(waits.timeout))
        meeting.awaited = [each for rank, each in enumerate(meeting.members) if rank in given]
        part = meeting.in_thread(partial(binding.part_of, world, given, "init()"))
        ranks = Communicator(part, timeout=waits.timeout, bits=bits)
        part.Free()
    else:
        try:
            ranks = Communicator(comm, bits=bits)
        except ArgumentError as error:
            raise HorovodArgumentError(
                f"comm is {shown(comm)}, and must be a list of ranks, or an mpi4py communicator"
            ) from error
    if waits.timeout is not None:
        ranks.timeout = waits.timeout
    if waits.warning is not None:
        ranks._engine.warning = waits.warning
    return ranks


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of each process set by its number; Horovod's name."""
    now = state.initialised()
    return {0: list(range(now.comm.size))} | {
        each.process_set_id: list(ranks) for ranks, each in now.sets.items()
    }


def shutdown() -> None:
    """End. Nothing can be submitted until the next `init`.
    Local.

    Earlier submissions continue, and their handles remain valid.
    """
    now = state.latest()
    if now is not None:
        sets.detach_all(now)
        state.enter(None)


def recover() -> bool:
    """Continue with the remaining ranks; return whether any was lost.
    Collective, among the ranks that have not ended. Process sets are gone, as after `shutdown`.
    """
    before = state.initialised().comm
    warning = before._engine.warning
    ranks = before.shrink()
    ranks.timeout, ranks._engine.warning = before.timeout, warning
    shutdown()
    for own, comm in list(_own.items()):
        if comm is before:
            _own[own] = ranks
    default.replace_world(before, ranks)
    _begin(ranks, ())
    return ranks.size < before.size


def settle(is_wished: bool, meet: Callable[[], object]) -> bool:
    """Run `growth.settle`, and `meet` after each change of the ranks. Collective."""

    def change() -> Communicator:
        begin_again()
        meet()
        return state.initialised().comm

    return grows() and growth.settle(state.initialised().comm, is_wished, change)


def grows() -> bool:
    """Return whether ranks may join. Local."""
    now = state.current()
    return now is not None and growth.is_possible(now.comm)


def begin_again() -> None:
    """End, and start with the current ranks. Collective."""
    now = state.latest()
    shutdown()
    init(bits=None if now is None else now.comm.bits)


def is_initialized() -> bool:
    """Return whether `init` was called, and not `shutdown` after it. Local."""
    return state.current() is not None


def rank() -> int:
    """Return the number of this rank. Local.

    Raises
    ------
    HorovodArgumentError
        If `init` has not been called; the same for the calls below.
    """
    return state.initialised().comm.rank


def size() -> int:
    """Return the number of ranks. Local."""
    return state.initialised().comm.size


def local_rank() -> int:
    """Return the number of this rank among those of its host. Local."""
    return state.initialised().places.local_rank


def local_size() -> int:
    """Return the number of ranks of this host. Local."""
    return state.initialised().places.local_size


def cross_rank() -> int:
    """Return the number of this host among those that have a rank with this `local_rank`. Local."""
    return state.initialised().places.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank with this `local_rank`. Local."""
    return state.initialised().places.cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks. Local."""
    return state.initialised().places.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start to record the activity of the ranks in a file.
    Collective.

    Parameters
    ----------
    file_path : str
        As for `Communicator.timeline`.
    mark_cycles : bool
        Accepted for compatibility. There are no cycles; the file shows the times at which the ranks
        compare their submissions.

    Raises
    ------
    HorovodArgumentError
        If `init` has not been called, a timeline is on, or the file cannot be written.
    """
    now = state.initialised()
    if now.timeline is not None:
        raise HorovodArgumentError(f"there is a timeline already: {now.timeline}")
    with translated():
        timeline = now.comm.timeline(os.fspath(file_path))
        timeline.start()
    now.timeline = timeline


def stop_timeline() -> None:
    """End the timeline of `start_timeline`, if there is one.
    Collective.

    Raises
    ------
    HorovodArgumentError
        If `init` has not been called.
    """
    now = state.initialised()
    timeline, now.timeline = now.timeline, None
    if timeline is not None:
        with translated():
            timeline.stop()


def mpi_threads_supported() -> bool:
    """Return whether any thread may call MPI at any time. Local.

    Raises
    ------
    HorovodArgumentError
        If `init` has not been called.
    """
    state.initialised()
    MPI = binding.load()
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Return whether MPI is in use, which is True. Local."""
    return True


def mpi_built() -> bool:
    """Return whether there is MPI, which is True. Local."""
    return True


def gloo_enabled() -> bool:
    """Return whether Gloo is in use, which is False. Local."""
    return False


def gloo_built() -> bool:
    """Return whether there is Gloo, which is False. Local."""
    return False


def nccl_built() -> int:
    """Return the version of NCCL that carries tensors on CUDA since `init`, such as 22703, or 0.
    Local.

    It is not 0 if ``HOROVOD_GPU_OPERATIONS`` or a similar variable is ``NCCL`` on all ranks, these
    have imported `collectives.torch`, and each has a GPU. `Adasum` is still that of the CPU.
    """
    now = state.current()
    return 0 if now is None else now.choice.version


def ddl_built() -> bool:
    """Return whether there is IBM's DDL, which is False. Local."""
    return False


def ccl_built() -> bool:
    """Return whether there is oneCCL, which is False. Local."""
    return False


def cuda_built() -> bool:
    """Return whether submissions accept tensors of CUDA devices: True if torch is loaded, and built
    for CUDA. TensorFlow and JAX copy their tensors themselves. Local.
    """
    return _is_torch_built_for("cuda")


def rocm_built() -> bool:
    """Return whether submissions accept tensors of ROCm devices; see `cuda_built`. Local."""
    return _is_torch_built_for("hip")


def _is_torch_built_for(name: str) -> bool:
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, name, None) is not None
