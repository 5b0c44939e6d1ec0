"""The settings of the environment for a new communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from collectives import _core
from collectives.algorithms.bits import ANY, BITS, checked
from collectives.errors import ArgumentError
from collectives.process import environment, segment
from collectives.text.words import grouped, ranks

# Ways to write payloads: the one that is measured to be faster, through the cache, or with stores
# that bypass it.
STORES = ("auto", "cached", "streamed")

# Transports of arrays of devices: the best one that needs no explicit choice, or one of
# `devices.transports`.
DEVICE_TRANSPORTS = ("auto", "ipc", "mpi", "nccl", "staging")

# Messages between hosts under MPI: those that were measured to be faster, or else MPI's; MPI's;
# those of UCX; the faster ones, which are measured if they are not known.
MESSAGES = ("mpi", "ucx")


class Settings(NamedTuple):
    """The checked settings of a communicator.

    Attributes
    ----------
    timeout, warning : float
        Seconds after which a wait raises an error, and after which it warns.
    validates : bool
        Whether the ranks agree on each call before it starts.
    memory : str
        The kind of shared memory, as in ``COLLECTIVES_SHM``.
    spins : int or None
        Number of polls of shared memory before a wait yields.
    stores : int
        The way to write payloads: a place in `STORES`.
    device_chunk : int
        Bytes of a slot of pinned memory; there are four for each device.
    device_transport : str
        The transport of arrays of devices: one of `DEVICE_TRANSPORTS`.
    bits : str
        The quantities that the bits of results may depend on: one of `BITS`.
    messages : str
        The messages between hosts: one of `MESSAGES`.
    trace : str or None
        The folder for the trace of the run.
    """

    timeout: float = 1800.0
    warning: float = 60.0
    validates: bool = False
    memory: str = "auto"
    spins: int | None = None
    stores: int = 0
    device_chunk: int = 4 << 20
    device_transport: str = "auto"
    bits: str = ANY
    messages: str = MESSAGES[0]
    trace: str | None = None

    @classmethod
    def read(cls, timeout: float | None, bits: str | None = None) -> Settings:
        """Return the settings of the environment; the arguments take precedence. Local."""
        if timeout is None:
            timeout = environment.seconds("COLLECTIVES_TIMEOUT", cls().timeout)
        environment.flag(environment.ABORT)  # an error when the variable is used would be too late
        stores = _word("COLLECTIVES_SHM_STORES", STORES)
        return cls(
            timeout=_core.seconds(timeout),
            warning=environment.seconds("COLLECTIVES_STALL_WARNING", cls().warning),
            validates=environment.flag("COLLECTIVES_VALIDATE"),
            memory=segment.settings()["kind"],
            spins=environment.number("COLLECTIVES_SHM_SPINS", 0, "looks") or None,
            stores=STORES.index(stores),
            device_chunk=environment.size("COLLECTIVES_DEVICE_CHUNK", cls().device_chunk),
            device_transport=_word("COLLECTIVES_DEVICE_TRANSPORT", DEVICE_TRANSPORTS),
            bits=_word("COLLECTIVES_BITS", BITS) if bits is None else checked(bits),
            messages=_word("COLLECTIVES_MESSAGES", MESSAGES),
            trace=environment.text(environment.TRACE),
        )


def patience() -> float:
    """Return the timeout of the environment, or the default if it is invalid, for which making a
    communicator raises an error. Local.
    """
    try:
        return environment.seconds("COLLECTIVES_TIMEOUT", Settings().timeout)
    except ArgumentError:
        return Settings().timeout


# Variables that must have the same value on all ranks.
COMMON = {
    "device_chunk": "COLLECTIVES_DEVICE_CHUNK",
    "device_transport": "COLLECTIVES_DEVICE_TRANSPORT",
    "messages": "COLLECTIVES_MESSAGES",
    "trace": environment.TRACE,
}


def difference(settings: Sequence[Settings], common: Mapping[str, str] = COMMON) -> str:
    """Return the `common` variable in which the ranks differ, as text, or "". Local."""
    for field, variable in common.items():
        groups = grouped(enumerate(getattr(each, field) for each in settings))
        if len(groups) > 1:
            told = " and ".join(f"{value} on {ranks(mask)}" for value, mask in groups.items())
            return f"{variable} is {told}; set it to one value on all ranks"
    return ""


def _word(name: str, words: tuple[str, ...]) -> str:
    """Return the word in a variable, or the first of `words` if it is not set."""
    found = environment.text(name) or words[0]
    if found not in words:
        raise ArgumentError(f"{name} is {found!r}, and must be one of {', '.join(words)}")
    return found
