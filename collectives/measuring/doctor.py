"""The findings of ``collectives doctor``: the installed parts, and whether they work together."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np

from collectives import MIN, Communicator, __version__, _core, world
from collectives.choice import profile
from collectives.devices import runtime
from collectives.errors import CollectivesError, SharedMemoryWarning
from collectives.horovod import gpu_operations
from collectives.launch import launcher, session
from collectives.measuring import coverage, doctor_hosts, state, survey
from collectives.measuring.doctor_hosts import Finding
from collectives.process import binding, environment, hosted, segment, shared_arrays
from collectives.process.settings import STORES
from collectives.text.words import count, size_text

PROBE_SECONDS = 60

# The program of the two ranks, and the prefix of the lines that rank 0 prints, in JSON.
PROGRAM = "from collectives.measuring import doctor; doctor.probed()"
TOLD = "doctor: "
COPIED, COPIES = 64 << 20, 5  # bytes, more than most caches hold; number of copies

# Variables whose values are reported with the two ranks.
TOLD_LATER = ("COLLECTIVES_SHM", "COLLECTIVES_STALL")


def examine(mpiexec: str | None = None, mpiexec_args: str = "") -> Iterator[Finding]:
    """Check the installation, and run two ranks; yield findings one by one. Local.

    In a job of several ranks, check their hosts instead of running two. Then it is collective, and
    rank 0 yields the findings.
    """
    job = survey.job()
    if job is not None and job.Get_rank() > 0:
        survey.answer(job)
    if not survey.is_first():
        return
    yield from _software()
    yield from _host()
    yield _gpus()
    yield from _variables()
    yield from _profile()
    if not isinstance(job, hosted.HostedRanks):
        yield from _mpi(mpiexec, mpiexec_args)
    if job is not None:
        yield from doctor_hosts.findings(survey.survey(job))


def _software() -> Iterator[Finding]:
    yield Finding("collectives", f"{__version__}, kernels for {_core.kernels_isa()}")
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    for name in ("numpy", "mpi4py"):
        try:
            yield Finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "is not installed", f"pip install {name}")


def _host() -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    text = f"{usable} usable of {os.cpu_count()}, {launcher.physical_cores()} without hyper-threads"
    yield Finding("cores", text)
    try:
        disk = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield Finding("/dev/shm", str(error), "mount a tmpfs there; MPI uses it within a host")
        return
    mib = disk.free / 2**20
    text = f"{mib:.0f} MiB free of {disk.total / 2**20:.0f}"
    if mib < 32:
        yield Finding(
            "/dev/shm",
            f"{text}, and MPI may die in it",
            "delete old files; docker run --shm-size=1g",
        )
    else:
        yield Finding("/dev/shm", text)


def _gpus() -> Finding:
    """Return the number of GPUs that this process sees, or the reason for none."""
    driver = runtime.found()
    if isinstance(driver, str):
        return Finding("GPU", f"none: {driver}")
    return Finding("GPU", f"{count(driver.devices(), 'device')}, by CuPy")


def _variables() -> Iterator[Finding]:
    unset: list[str] = []
    for name, (pattern, wanted) in environment.VARIABLES.items():
        value = environment.text(name)
        shown = "(not shown)" if name == environment.SECRET else value
        if value is None:
            if not name.startswith(TOLD_LATER):
                unset.append(name.removeprefix("COLLECTIVES_"))
        elif not re.fullmatch(pattern, value) or (
            pattern == environment.SECONDS and float(value) <= 0
        ):
            yield Finding(
                name.removeprefix("COLLECTIVES_").lower(),
                f"{name} is {shown!r}",
                f"set it to {wanted}, or unset it",
            )
        else:
            yield Finding(name.removeprefix("COLLECTIVES_").lower(), f"{name}={shown}")
    if unset:
        yield Finding("not set", f"COLLECTIVES_{', _'.join(unset)}")
    for name in environment.unknown():
        known = [each.removeprefix("COLLECTIVES_") for each in environment.VARIABLES]
        close = difflib.get_close_matches(name.removeprefix("COLLECTIVES_"), known, 1)
        remedy = f"did you mean COLLECTIVES_{close[0]}?" if close else "unset it"
        yield Finding("environment", f"{name} is set, and no variable has this name", remedy)
    for name, value in gpu_operations.variables().items():
        is_nccl = gpu_operations.asks_for_nccl(value)
        text = gpu_operations.outlook() if is_nccl else gpu_operations.BY_HOST
        yield Finding("horovod", f"{name}={value}: {text}")


def _profile() -> Iterator[Finding]:
    """Yield the profile in use, and whether it can be read."""
    file = profile.path()
    if file is None:
        yield Finding("profile", "none: COLLECTIVES_PROFILE switches it off")
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        known = profile.read(file)
    if known is not None:
        yield Finding("profile", f"{file}, of {known.cpu}, {count(known.cores, 'core')}")
        for section in known.sections:
            yield Finding("profile", f"{coverage.title(section)}: {coverage.summary(section)}")
    elif caught:
        text, _, remedy = str(caught[0].message).partition(". ")
        yield Finding("profile", text, remedy)
    else:
        yield Finding("profile", f"none in {file}; `collectives tune` writes it")


def _mpi(mpiexec: str | None, mpiexec_args: str) -> Iterator[Finding]:
    """Check the library and its launcher, and run two ranks; stop if something is missing."""
    try:
        lib = launcher.library()
    except CollectivesError as error:
        text, _, remedy = str(error).rpartition("; ")
        yield Finding("MPI", text, remedy)
        return
    chosen = [
        f"{k}={os.environ[k]}" for k in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI") if os.environ.get(k)
    ]
    how = f"by {', '.join(chosen)}" if chosen else "by mpi4py's search"
    yield Finding("MPI", f"{lib.name}, {lib.path or 'file unknown'}, found {how}")
    if environment.is_rank():
        yield from _inside()
        return
    try:
        starter = launcher.find(lib, mpiexec)
    except CollectivesError as error:
        text, _, remedy = str(error).rpartition(". ")
        yield Finding("launcher", text or str(error), remedy)
        return
    yield Finding("launcher", f"{starter.path}, of the same family")
    yield from _first_on_path(starter)
    yield from _probe(starter, mpiexec_args)


def _inside() -> Iterator[Finding]:
    """Check that the launcher which started this process is that of its MPI."""
    MPI = sys.modules["mpi4py.MPI"]
    problem = binding.launcher_problem(MPI) if MPI.Is_initialized() else None
    if problem is not None:
        text, _, remedy = problem.rpartition(": ")
        yield Finding("launcher", text, remedy)
    elif not MPI.Is_initialized() or MPI.COMM_WORLD.Get_size() == 1:
        yield Finding("launcher", "this is a rank already: call doctor outside mpiexec for a probe")


def _first_on_path(starter: launcher.Launcher) -> Iterator[Finding]:
    """Warn if the first ``mpiexec`` in PATH belongs to another MPI."""
    typed = shutil.which("mpiexec")
    if typed is None or os.path.realpath(typed) == os.path.realpath(starter.path):
        return
    family = launcher.family_of(typed)
    if family != starter.library.family:
        yield Finding(
            "PATH",
            f"mpiexec is {typed}, that of {launcher.NAMES[family]}, which cannot start ranks of "
            f"{starter.library.name}",
            f"use `collectives run`, or put {os.path.dirname(starter.path)} first on PATH",
        )


def _probe(starter: launcher.Launcher, extra: str) -> Iterator[Finding]:
    """Run two ranks, and yield their findings."""
    program = launcher.rank_program(PROGRAM)
    status, output = session.capture(starter.command(2, program, extra), PROBE_SECONDS)
    told: dict[str, Any] = {"ranks": []}
    for line in output.splitlines():
        if line.startswith(TOLD):
            told |= json.loads(line.removeprefix(TOLD))
    for line in told["ranks"]:
        yield Finding("probe", line)
    if "memory" in told:
        yield from _memory(told["memory"])
    for line in told.get("gpus", ()):
        yield Finding("GPU", line)
    wrong = [line for line in told["ranks"] if not line.endswith("right")]
    if status == 0 and len(told["ranks"]) == 2 and not wrong and "gpus" in told:
        return
    if status == 124:
        text = f"two ranks did not end within {PROBE_SECONDS} s"
        remedy = "look for a firewall on the loopback interface, or a launcher that waits for input"
    elif wrong:
        text, remedy = "an allreduce was wrong", "report it, with this output"
    else:
        said = output.strip().splitlines() or ["no output"]
        errors = [line for line in said if re.match(r"[\w.]*(Error|Exception): ", line)]
        text = f"two ranks failed with exit status {status}: {(errors or said)[-1]}"
        remedy = (
            "correct this, then try: collectives run -n 2 -c 'import collectives as c; c.size()'"
        )
        if session.HYDRA.search(output.encode()):
            remedy = "mpiexec itself failed, as MPICH's does under load: try again"
    yield Finding("probe", text, remedy)


def _shared_arrays(facts: dict[str, Any]) -> Finding:
    """Return whether NumPy's arrays can be in shared memory."""
    if "heap" not in facts:
        return Finding("shared arrays", f"none: {facts['reason']}")
    reserved, _, _, limit = facts["heap"]
    text = f"at most {size_text(limit)} for each rank, in {size_text(reserved)} of addresses"
    how = "reads those of the other in place"
    if not facts["lends"]:
        how = "cannot map those of the other, and they are copied"
    return Finding("shared arrays", f"{text}; each {how}")


def _memory(facts: dict[str, Any]) -> Iterator[Finding]:
    """Yield the shared memory of the two ranks, its speed, and the resulting settings."""
    settings = facts["settings"]
    if facts["warning"]:
        remedy = "docker run --shm-size=1g; start all ranks of a host in one container"
        if "COLLECTIVES_" in facts["warning"]:
            remedy = "set that variable to something else, or unset it"
        yield Finding("shared memory", facts["warning"], remedy)
    elif "kind" not in facts:
        off = settings["kind"] == "0"
        why = "COLLECTIVES_SHM is 0" if off else "the two ranks are on different hosts"
        yield Finding("shared memory", f"none: {why}")
    else:
        yield Finding(
            "shared memory",
            f"{facts['ranks']} ranks share {size_text(facts['nbytes'])} ({facts['kind']}), "
            f"a ring of {size_text(facts['lanes'] * facts['lane_bytes'])} for each",
        )
        why = facts["unread"]
        how = f"are copied into shared memory: {why}" if why else "are read in place"
        yield Finding("arrays", f"long private arrays {how}")
        yield Finding("flags", state.text([facts["round_trip"]]))
        alone, at_once = (facts["copied"] / facts[f"copy_{how}"] for how in ("alone", "at_once"))
        yield Finding(
            "copies",
            f"past the cache: {alone / 1e9:.1f} GB/s by one rank, {at_once / 1e9:.1f} GB/s by each "
            f"of two at once",
        )
        yield _shared_arrays(facts["arrays"])
        yield Finding("affinity", f"{facts['cores']} cores for {facts['ranks']} ranks")
    for name, value, variable in (
        ("memory", settings["kind"], "SHM"),
        ("lane", size_text(settings["lane_bytes"]), "SHM_LANE"),
        ("limit", f"{size_text(settings['limit_bytes'])} for each process", "SHM_LIMIT"),
        ("stores", settings["stores"], "SHM_STORES"),
        ("reads", settings["reads"], "SHM_READS"),
        ("a wait", f"yields after {settings['spins']} polls", "SHM_SPINS"),
        ("a wait", f"is reported after {settings['stall_warning']:g} s", "STALL_WARNING"),
        ("a wait", f"is an error after {settings['timeout']:g} s", "TIMEOUT"),
    ):
        yield Finding("setting", f"{name:7} {value:30} COLLECTIVES_{variable}")


# -- the two ranks -------------------------------------------------------------------------------


def probed() -> None:
    """Print facts about the ranks, their shared memory and the transports of GPUs on rank 0.
    Collective.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SharedMemoryWarning)
        comm = world()
    from mpi4py import MPI

    total = comm.allreduce(np.full(1000, comm.rank + 1.0))
    right = bool((total == comm.size * (comm.size + 1) / 2).all())
    line = (
        f"rank {comm.rank} of {comm.size} on {platform.node()}, "
        f"{count(len(os.sched_getaffinity(0)), 'core')}, local rank {comm.local_rank} of "
        f"{comm.local_size}, thread level {state.thread_level(MPI)}, "
        f"allreduce {'right' if right else 'WRONG'}"
    )
    _tell(comm, ranks=comm.mpi.allgather(line))
    facts = memory(comm, comm.mpi.Dup())
    told = [str(each.message) for each in caught if each.category is SharedMemoryWarning]
    facts["warning"] = told[0] if told else None
    _tell(comm, memory=facts)
    _tell(comm, gpus=transports(comm))


def _tell(comm: Communicator, **facts: Any) -> None:
    """Print facts on rank 0, in one write, so that they do not mix with other lines."""
    if comm.rank == 0:
        os.write(1, f"{TOLD}{json.dumps(facts)}\n".encode())


def memory(comm: Communicator, mpi: Any) -> dict[str, Any]:
    """Return the shared memory of the ranks of this host, its speed, and the resulting settings.
    Collective.
    """
    engine, shared = comm._engine, comm._segment
    facts: dict[str, Any] = {
        "settings": {
            **segment.settings(),
            "spins": engine.spins,
            "stores": STORES[engine.stores],
            "stall_warning": engine.warning,
            "timeout": engine.timeout,
        }
    }
    if shared is None:
        return facts
    one = state.alone(mpi, 0, COPIED, COPIES)
    mpi.Barrier()
    all_at_once = mpi.allgather(state.copy_seconds(COPIED, COPIES))
    return {
        **facts,
        "ranks": comm.local_size,
        "cores": comm._hosts.cores,
        "kind": shared.kind,
        "nbytes": shared.nbytes,
        "unread": segment.unread(shared),
        "lanes": shared.lanes,
        "lane_bytes": shared.lane_bytes,
        "round_trip": state.round_trip(comm, mpi),
        "copy_alone": one,
        "copy_at_once": max(all_at_once),
        "copied": COPIED,
        "arrays": _arrays(comm),
    }


def _arrays(comm: Communicator) -> dict[str, Any]:
    """Return whether ranks lend shared arrays, the limits of their bytes and addresses; or the
    reason why there are none.
    Collective.
    """
    reason = shared_arrays.why_not()
    with contextlib.nullcontext() if reason else shared_arrays.shared_arrays():
        x = np.ones(1 << 16)
    for _ in range(3):
        comm.allreduce(x)
        comm.barrier()
    heap = _core.heap_state()
    if reason or heap is None:
        return {"reason": reason}
    return {"lends": comm._segment is not None and comm._segment.lends, "heap": heap}


def transports(comm: Communicator) -> list[str]:
    """Return the transports of arrays in GPU memory between the ranks, line by line; no lines if a
    rank has no GPU.
    Collective.
    """
    driver = runtime.found()
    if not comm.allreduce(np.array([not isinstance(driver, str)]), op=MIN)[0]:
        return []
    assert not isinstance(driver, str)
    device = comm.local_rank % driver.devices()
    return str(comm._devices().transports.survey(comm._engine, driver, device)).splitlines()
