"""``COLLECTIVES_VALIDATE=1``: the ranks agree on each call before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from collectives._core import Engine, Turn
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    MismatchError,
    MPIError,
    StallError,
    UnsupportedTypeError,
)
from collectives.process import binding
from collectives.process.meeting import completed
from collectives.process.roll import Roll
from collectives.text.words import error_text, ranks

__all__ = ["Agreement", "refusing"]

REFUSED = ArgumentError, UnsupportedTypeError
RECORD = 512  # bytes that each rank sends to the others


class Agreement:
    """One small exchange before each call, on a communicator of its own."""

    def __init__(self, mpi: Any, engine: Engine) -> None:
        self.mpi = mpi
        self.engine = engine
        self._roll = None if engine.hosts is None else Roll(mpi, engine.hosts)
        self._timeout = engine.timeout  # of the exchange that is under way

    def __call__(
        self, collective: str, text: str, valid: bool, timeout: float | None = None
    ) -> None:
        """Tell the other ranks what this rank calls, and compare. Collective."""
        mine = f"{'called' if valid else 'refused'} {collective}({text})"
        try:
            said = self.exchange(mine, self.engine.timeout if timeout is None else timeout)
        except binding.load().Exception as error:
            self.engine.broken = (
                f"the communicator is broken: rank {self.engine.rank} failed to agree"
            )
            raise MPIError(f"while the ranks agree on {collective}: MPI says: {error}") from error
        if not valid or len(set(said)) == 1:  # as they were sent: escaped, and cut off
            return
        groups: dict[str, int] = {}
        for rank, other in enumerate(said):
            groups[other] = groups.get(other, 0) | 1 << rank
        told = "; ".join(f"{ranks(mask)} {other}" for other, mask in groups.items())
        raise MismatchError(f"the ranks do not agree: {told}")

    def exchange(self, mine: str, timeout: float) -> list[str]:
        """Send `mine` to all ranks; return the texts of all within `timeout` seconds."""
        size = self.mpi.Get_size()
        record = bytearray(mine.encode(errors="backslashreplace")[:RECORD].ljust(RECORD, b"\0"))
        records = bytearray(RECORD * size)
        if self._roll is not None:
            self._roll.begin()
        self._timeout = timeout
        with Turn():
            request = self.mpi.Iallgather(record, records)
        if not completed(request, timeout, self._check_host, record, records):
            rank = self.engine.rank
            self.engine.broken = f"the communicator is broken: rank {rank} stalled in {mine}"
            silent = [] if self._roll is None else self._roll.absent()
            whom = ", ".join(silent) or "the other ranks"
            raise StallError(
                f"rank {rank} {mine} and timed out after {timeout:g} s of waiting for {whom} to "
                f"call anything"
            )
        parts = (records[i * RECORD : (i + 1) * RECORD] for i in range(size))
        return [bytes(part).rstrip(b"\0").decode(errors="replace") for part in parts]

    def _check_host(self, waited: float) -> None:
        """Raise an error if a rank of this host has ended. Local."""
        if self._roll is not None:
            self._roll.look(waited, self._timeout)
        try:
            self.engine.check_host()
        except CollectivesError:
            self.engine.broken = (
                f"the communicator is broken: rank {self.engine.rank} failed to agree"
            )
            raise


@contextmanager
def refusing(
    engine: Engine, collective: str, errors: tuple[type[Exception], ...] = REFUSED
) -> Iterator[None]:
    """Tell the other ranks of an error in the arguments that is found outside the engine.
    Collective, if there is such an error.
    """
    try:
        yield
    except errors as error:
        if engine.agree is not None and engine.broken is None:
            with engine:
                engine.agree(collective, error_text(error), False)
        raise
