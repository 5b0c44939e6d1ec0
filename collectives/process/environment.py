"""All environment variables, with their valid values; `collectives doctor` checks them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from collectives.errors import ArgumentError
from collectives.text.words import SIZE_FORMS, parse_size

SECONDS = r"\d*\.?\d+([eE][+-]?\d+)?"
COUNT = r"0*[1-9][0-9]*"
NO, FLAG = r"(?i:0|no|off|false)", r"(?i:0|no|off|false|1|yes|on|true)"
FLAGS = "0 (no, off, false) or 1 (yes, on, true)"
SIZE = r"(?i:0*[1-9]\d* ?[KMG]?(I?B)?)"
MOST_BYTES = (1 << 62) - 1  # the core computes with 64 bits

SHARED_ARRAYS = "COLLECTIVES_SHARED_ARRAYS"
REPORT = "COLLECTIVES_REPORT"

# Set in every rank without MPI: the address of the rendezvous, and between hosts the secret.
ADDRESS, SECRET = "COLLECTIVES_RENDEZVOUS", "COLLECTIVES_SECRET"
ABORT = "COLLECTIVES_ABORT"
FLIGHT = "COLLECTIVES_FLIGHT"
LOG = "COLLECTIVES_LOG"
TRACE = "COLLECTIVES_TRACE"

# For each variable, the pattern of its values, and a description of the values.
VARIABLES = {
    "COLLECTIVES_TIMEOUT": (SECONDS, "a positive number of seconds"),
    "COLLECTIVES_VALIDATE": (FLAG, FLAGS),
    "COLLECTIVES_SEGMENT": (rf"0|{SIZE}", f"0, or a number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_BITS": (r"any|size", "any or size"),
    "COLLECTIVES_TUNE": (
        r"0|probe|online|probe,online|online,probe",
        "0, probe, online, or both with a comma",
    ),
    "COLLECTIVES_SHM": (r"auto|memfd|file|0", "auto, memfd, file or 0"),
    "COLLECTIVES_SHM_LIMIT": (SIZE, f"a positive number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_SHM_LANE": (SIZE, f"a positive number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_SHM_READS": (r"auto|1|0", "auto, 1 or 0"),
    "COLLECTIVES_SHM_SPINS": (COUNT, "a positive number of polls"),
    SHARED_ARRAYS: (FLAG, FLAGS),
    "COLLECTIVES_SHM_STORES": (r"auto|cached|streamed", "auto, cached or streamed"),
    "COLLECTIVES_DEVICE_CHUNK": (SIZE, f"a positive number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_DEVICE_TRANSPORT": (
        r"auto|ipc|mpi|nccl|staging",
        "auto, ipc, mpi, nccl or staging",
    ),
    "COLLECTIVES_MESSAGES": (r"mpi|ucx", "mpi or ucx"),
    "COLLECTIVES_PROGRESS": (r"thread|0", "thread or 0"),
    "COLLECTIVES_FUSION_THRESHOLD": (rf"0|{SIZE}", f"0, or a number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_TRACEBACK": (r"full", "full"),
    REPORT: (FLAG, FLAGS),
    LOG: (r"(?i:debug|info|warning|error)", "debug, info, warning or error"),
    "COLLECTIVES_STALL_WARNING": (SECONDS, "a positive number of seconds"),
    ABORT: (FLAG, FLAGS),
    FLIGHT: (r".+", "a folder, or 0"),
    "COLLECTIVES_HOST": (r".+", "any text"),
    ADDRESS: (
        r"(unix:|/).+|(tcp|first|lobby|loopback):.+:\d+",
        "unix:NAME, tcp:HOST:PORT, first:HOST:PORT, lobby:HOST:PORT, loopback:HOST:PORT, or the "
        "path of a folder",
    ),
    "COLLECTIVES_UCX": (r".+", "a file or a folder"),
    SECRET: (r".{16,}", "a text of 16 characters or more"),
    "COLLECTIVES_RANK": (r"\d+", "the number of a rank"),
    "COLLECTIVES_SIZE": (COUNT, "a positive number of ranks"),
    "COLLECTIVES_RESTART": (r"\d+", "how often the job was started before"),
    "COLLECTIVES_TIMELINE": (r".+", "a file"),
    TRACE: (r".+", "a folder"),
    "COLLECTIVES_TIMELINE_LIMIT": (SIZE, f"a positive number of bytes {SIZE_FORMS}"),
    "COLLECTIVES_KERAS_COMPAT": (FLAG, FLAGS),
}

# Set in every rank that a launcher has started: the rank and the number of ranks; first those of
# this library.
RANK, SIZE = "COLLECTIVES_RANK", "COLLECTIVES_SIZE"
LAUNCHERS = {
    ("PMI_RANK", "PMI_SIZE"): "the mpiexec of MPICH or Intel MPI",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"): "the mpiexec of Open MPI",
}
PLACES = (*LAUNCHERS, (RANK, SIZE))
SET_BY_LAUNCHERS = "PMI_", "PMIX_", "PRTE_", "OMPI_COMM_", "HYDI_", "MPI_LOCAL"

# Further variables that the library, its build and its tests read.
FURTHER = ("COLLECTIVES_PROFILE", "COLLECTIVES_STRESS", "COLLECTIVES_TEST_")


def unknown() -> list[str]:
    """Return the set variables that begin with ``COLLECTIVES_``, but have no meaning. Local."""
    return [
        name
        for name in sorted(os.environ)
        if name.startswith("COLLECTIVES_")
        and name not in VARIABLES
        and not name.startswith(FURTHER)
    ]


def is_rank() -> bool:
    """Return whether a launcher, or srun by PMI or PMIx, has started this process. Local."""
    return "PMIX_RANK" in os.environ or any(each in os.environ for pair in PLACES for each in pair)


def identity() -> str:
    """Return the values of the variables that make this process a rank of one job. Local."""
    names = [each for pair in PLACES for each in pair]
    names += ["PMIX_NAMESPACE", "PMIX_RANK", "PMI_FD", "PMI_PORT", ADDRESS]
    names += ["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_PORT"]
    return " ".join(os.environ.get(each, "-") for each in names)


def place() -> str:
    """Return the rank of this process and the number of ranks, as in ``rank 1 of 2``. Local."""
    for rank, size in (*PLACES, ("RANK", "WORLD_SIZE")):
        if rank in os.environ:
            return f"rank {os.environ[rank]} of {os.environ.get(size, '?')}"
    return f"rank {os.environ.get('PMIX_RANK', '?')}"


def is_first_rank() -> bool:
    """Return whether a launcher has started this process as rank 0. Local."""
    return "0" in [os.environ.get(rank) for rank, _ in PLACES]


def is_of_torchrun() -> bool:
    """Return whether torchrun has started this process, which does not use MPI if it is the only
    rank. Local.
    """
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" not in environ or "WORLD_SIZE" not in environ:
        return False
    return environ["WORLD_SIZE"] != "1" or "mpi4py.MPI" not in sys.modules


def is_of_srun() -> bool:
    """Return whether srun started this process as one of several tasks, without PMI, for a program
    that does not load MPI itself. Local.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    return (
        tasks.isdecimal()
        and int(tasks) > 1
        and "SLURM_PROCID" in os.environ
        and not is_rank()
        and "mpi4py.MPI" not in sys.modules
    )


def has_rendezvous() -> bool:
    """Return whether this process is a rank of a job without MPI. Local."""
    return ADDRESS in os.environ or is_of_torchrun() or is_of_srun()


def text(name: str) -> str | None:
    """Return the value of the variable `name`; None if it is not set, or is empty. Local."""
    return os.environ.get(name) or None


# True if the calls of the program are recorded, which is decided before any call is defined.
IS_TRACED = text(TRACE) is not None


def seconds(name: str, default: float) -> float:
    """Return the seconds that the variable `name` sets, or `default`. Local."""
    found = text(name)
    if found is None:
        return default
    try:
        value = float(found)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ArgumentError(f"{name} is {found!r}, and must be a positive number of seconds")
    return value


def number(name: str, default: int, unit: str) -> int:
    """Return the positive number of a `unit` that the variable `name` sets, or `default`. Local."""
    found = text(name)
    if found is None:
        return default
    if not re.fullmatch(COUNT, found):
        raise ArgumentError(f"{name} is {found!r}, and must be a positive number of {unit}")
    return int(found)


def size(name: str, default: int, *, least: int = 1) -> int:
    """Return the bytes that the variable `name` sets, `least` or more, or `default`. Local."""
    found = text(name)
    if found is None:
        return default
    nbytes = parse_size(found)
    if nbytes is None or not least <= nbytes <= MOST_BYTES:
        wanted = "a positive number of bytes" if least else "0, or a number of bytes"
        raise ArgumentError(f"{name} is {found!r}, and must be {wanted} {SIZE_FORMS}")
    return nbytes


def flag(name: str, default: bool = False) -> bool:
    """Return whether the variable `name` is a yes, or `default` if it is not set. Local."""
    found = text(name)
    if found is not None and not re.fullmatch(FLAG, found):
        raise ArgumentError(f"{name} is {found!r}, and must be {FLAGS}")
    return default if found is None else not is_no(found)


def is_no(value: str) -> bool:
    """Return whether a variable's value is a no. Local."""
    return re.fullmatch(NO, value) is not None


@contextmanager
def having(**wanted: str | None) -> Iterator[None]:
    """Set environment variables in a context, except for values of None. Local."""
    values = {name: value for name, value in wanted.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
