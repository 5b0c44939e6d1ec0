"""The variables of Horovod that `init` follows.

Others have their effect elsewhere: ``HOROVOD_FUSION_THRESHOLD`` in `collectives.background`, and
``HOROVOD_TIMELINE`` in `collectives.Communicator`.
"""

from __future__ import annotations

from typing import NamedTuple

from collectives.process import environment


class Waits(NamedTuple):
    """How long ranks wait for each other.

    Attributes
    ----------
    warning : float or None
        Seconds until a warning; None if Horovod's variables do not say.
    timeout : float or None
        Seconds until an error; None if Horovod's variables do not say.
    """

    warning: float | None = None
    timeout: float | None = None

    @classmethod
    def read(cls) -> Waits:
        """Return what the environment says. Local."""
        warning = _seconds("HOROVOD_STALL_CHECK_TIME_SECONDS")
        if environment.flag("HOROVOD_STALL_CHECK_DISABLE"):
            warning = float("inf")
        return cls(warning, _seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))


def _seconds(name: str) -> float | None:
    """Return the seconds that a variable says, or None; 0 stands for Horovod's default."""
    if environment.text(name) in (None, "0"):
        return None
    return environment.seconds(name, 0.0)
