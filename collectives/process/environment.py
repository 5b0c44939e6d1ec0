"""The environment variables that `collectives doctor` checks, and their valid values."""

from __future__ import annotations

import os

from collectives.errors import ArgumentError

__all__ = ["SECONDS", "VARIABLES", "flag", "number", "seconds", "text", "unknown"]

SECONDS = r"\d*\.?\d+([eE][+-]?\d+)?"

# For each variable, the pattern of its values, and a description of the values.
VARIABLES = {
    "COLLECTIVES_TIMEOUT": (SECONDS, "a positive number of seconds"),
    "COLLECTIVES_VALIDATE": (r"[01]", "0 or 1"),
    "COLLECTIVES_SEGMENT": (r"\d+", "a number of bytes"),
    "COLLECTIVES_TUNE": (
        r"0|probe|online|probe,online|online,probe",
        "0, probe, online, or both with a comma",
    ),
    "COLLECTIVES_SHM": (r"auto|memfd|file|0", "auto, memfd, file or 0"),
    "COLLECTIVES_SHM_LIMIT": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_SHM_LANE": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_SHM_SPINS": (r"0*[1-9]\d*", "a positive number of looks"),
    "COLLECTIVES_SHM_STORES": (r"auto|cached|streamed", "auto, cached or streamed"),
    "COLLECTIVES_DEVICE_CHUNK": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_DEVICE_TRANSPORT": (
        r"auto|ipc|mpi|nccl|staging",
        "auto, ipc, mpi, nccl or staging",
    ),
    "COLLECTIVES_PROGRESS": (r"thread|0", "thread or 0"),
    "COLLECTIVES_FUSION_THRESHOLD": (r"\d+", "a number of bytes"),
    "COLLECTIVES_TRACEBACK": (r"full", "full"),
    "COLLECTIVES_STALL_WARNING": (SECONDS, "a positive number of seconds"),
    "COLLECTIVES_ABORT": (r"[01]", "0 or 1"),
    "COLLECTIVES_HOST": (r".+", "any text"),
    "COLLECTIVES_RENDEZVOUS": (r"(unix:|/).+", "unix:NAME, or the path of a folder"),
    "COLLECTIVES_RANK": (r"\d+", "the number of a rank"),
    "COLLECTIVES_SIZE": (r"0*[1-9]\d*", "a positive number of ranks"),
    "COLLECTIVES_RESTART": (r"\d+", "how often the job was started before"),
    "COLLECTIVES_TIMELINE": (r".+", "a file"),
    "COLLECTIVES_TIMELINE_LIMIT": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_KERAS_COMPAT": (r"[01]", "0 or 1"),
}

# Others that the library, its build and its tests read.
FURTHER = ("COLLECTIVES_PROFILE", "COLLECTIVES_STRESS", "COLLECTIVES_TEST_")


def unknown() -> list[str]:
    """Return the variables that are set, begin with ``COLLECTIVES_``, and are read by nobody.
    Local.
    """
    return [
        name
        for name in sorted(os.environ)
        if name.startswith("COLLECTIVES_")
        and name not in VARIABLES
        and not name.startswith(FURTHER)
    ]


def text(name: str) -> str | None:
    """Return the value of the variable `name`; None if it is not set, or is empty. Local."""
    return os.environ.get(name) or None


def seconds(name: str, default: float) -> float:
    """Return the seconds that a variable sets. Local.

    Parameters
    ----------
    name : str
    default : float
        The result if the variable is not set.

    Raises
    ------
    ArgumentError
        If the value is not a positive number.
    """
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


def number(name: str, default: int, unit: str = "bytes") -> int:
    """Return the whole number that a variable sets. Local.

    Parameters
    ----------
    name : str
    default : int
        The result if the variable is not set.
    unit : str
        The unit, for the error message.

    Raises
    ------
    ArgumentError
        If the value is not a positive number.
    """
    found = text(name)
    if found is None:
        return default
    if not found.isdigit() or int(found) == 0:
        raise ArgumentError(f"{name} is {found!r}, and must be a positive number of {unit}")
    return int(found)


def flag(name: str, default: bool = False) -> bool:
    """Return whether the variable `name` is something other than 0, or `default`. Local."""
    return (text(name) or str(int(default))) != "0"
