"""What the environment asks of a new communicator."""

from __future__ import annotations

from typing import NamedTuple

from collectives import _core
from collectives.errors import ArgumentError
from collectives.process import environment, segment

__all__ = ["STORES", "Settings"]

# How payloads are written: in the way that was measured to be faster, through the cache, or with
# stores that bypass it.
STORES = ("auto", "cached", "streamed")


class Settings(NamedTuple):
    """The settings of a communicator, checked.

    Attributes
    ----------
    timeout, warning : float
        Seconds after which a wait raises an error, and after which it warns.
    validates : bool
        Whether the ranks are to agree on each call before it starts.
    memory : str
        Which kind of shared memory is used, as in ``COLLECTIVES_SHM``.
    spins : int or None
        Number of polls of shared memory before a wait yields.
    stores : int
        How payloads are written: a place in `STORES`.
    device_chunk : int
        Bytes of a slot of pinned memory; there are four for each device.
    """

    timeout: float = 1800.0
    warning: float = 60.0
    validates: bool = False
    memory: str = "auto"
    spins: int | None = None
    stores: int = 0
    device_chunk: int = 4 << 20

    @classmethod
    def read(cls, timeout: float | None) -> Settings:
        """Return the settings of the environment; `timeout` takes precedence. Local.

        Raises
        ------
        ArgumentError
            If `timeout` or a variable has an invalid value.
        """
        if timeout is None:
            timeout = environment.seconds("COLLECTIVES_TIMEOUT", cls().timeout)
        stores = environment.text("COLLECTIVES_SHM_STORES") or "auto"
        if stores not in STORES:
            raise ArgumentError(
                f"COLLECTIVES_SHM_STORES is {stores!r}, and must be one of {', '.join(STORES)}"
            )
        return cls(
            timeout=_core.seconds(timeout),
            warning=environment.seconds("COLLECTIVES_STALL_WARNING", cls().warning),
            validates=environment.flag("COLLECTIVES_VALIDATE"),
            memory=segment.settings()["kind"],
            spins=environment.number("COLLECTIVES_SHM_SPINS", 0, "looks") or None,
            stores=STORES.index(stores),
            device_chunk=environment.number("COLLECTIVES_DEVICE_CHUNK", cls().device_chunk),
        )
