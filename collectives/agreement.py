"""``COLLECTIVES_VALIDATE=1``: the ranks agree on each call before any of it starts."""

from __future__ import annotations

import time
from typing import Any

from collectives.check import ranks
from collectives.errors import MismatchError, StallError

__all__ = ["Agreement"]

RECORD = 512  # bytes that each rank tells the others


class Agreement:
    """One small exchange before each call, on a communicator of its own.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
        A communicator that nobody else uses.
    timeout : float
        Seconds to wait for the other ranks.
    """

    def __init__(self, mpi: Any, timeout: float) -> None:
        self.mpi = mpi
        self.timeout = timeout

    def __call__(self, collective: str, text: str, valid: bool) -> None:
        """Tell the other ranks what this one calls. Collective.

        Parameters
        ----------
        collective : str
            The collective that this rank calls.
        text : str
            Its arguments, or why they were refused.
        valid : bool
            Whether they were accepted; if not, the caller raises its own error afterwards.

        Raises
        ------
        MismatchError
            On every rank whose own call is valid, if the calls differ or one was refused.
        StallError
            If a rank does not come within the deadline.
        """
        mine = f"{'called' if valid else 'refused'} {collective}({text})"
        said = self.exchange(mine)
        if not valid or all(other == mine for other in said):
            return
        groups: dict[str, int] = {}
        for rank, other in enumerate(said):
            groups[other] = groups.get(other, 0) | 1 << rank
        told = "; ".join(f"{ranks(mask)} {other}" for other, mask in groups.items())
        raise MismatchError(f"the ranks do not agree: {told}")

    def exchange(self, mine: str) -> list[str]:
        """Return what all ranks say. Collective."""
        size = self.mpi.Get_size()
        record = bytearray(mine.encode()[:RECORD].ljust(RECORD, b"\0"))
        records = bytearray(RECORD * size)
        request = self.mpi.Iallgather(record, records)
        limit = time.monotonic() + self.timeout
        polls = 0
        while not request.Test():
            polls += 1
            if polls > 100:
                time.sleep(0)
            if polls % 1024 == 0 and time.monotonic() > limit:
                raise StallError(
                    f"rank {self.mpi.Get_rank()} {mine} and waited {self.timeout:g} s for the "
                    f"other ranks to call anything"
                )
        parts = (records[i * RECORD : (i + 1) * RECORD] for i in range(size))
        return [bytes(part).rstrip(b"\0").decode(errors="replace") for part in parts]
