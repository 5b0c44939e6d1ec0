"""The agreement of ranks on each call, under ``COLLECTIVES_VALIDATE=1``."""

from __future__ import annotations

from typing import Any

from collectives._core import Engine
from collectives.errors import CollectivesError, StallError
from collectives.process.agreement import RECORD, compare
from collectives.process.meeting import Meeting
from collectives.process.settings import Settings
from collectives.text.words import from_record, to_record


class Agreement(Meeting):
    """One small exchange before each call, on a communicator of its own."""

    engine: Engine

    def __init__(self, mpi: Any, engine: Engine) -> None:
        super().__init__("", mpi, Settings())
        self.engine, self.hosts = engine, engine.hosts
        self._said = ""

    def __call__(
        self, collective: str, text: str, valid: bool, timeout: float | None = None
    ) -> None:
        """Compare the calls of all ranks. Collective."""
        self.call: str = f"while the ranks agree on {collective}"
        self.timeout: float = self.engine.timeout if timeout is None else timeout
        self._said = f"{'called' if valid else 'refused'} {collective}({text})"
        try:
            records = self.records(to_record(self._said, RECORD))
        except CollectivesError as error:
            how = f"stalled in {self._said}" if isinstance(error, StallError) else "failed to agree"
            self.engine.broken = f"the communicator is broken: rank {self.engine.rank} {how}"
            self.engine.name_file(error)
            if self.engine.converts is not None:
                raise self.engine.converts(error) from error
            raise
        if valid:
            try:
                compare(map(from_record, records))  # escaped and cut off, as they were sent
            except CollectivesError as error:
                self.engine.name_file(error)
                raise

    def _look(self, waited: float) -> None:
        """Raise an error if a rank of this host has ended. Local."""
        if self._attendance is not None:
            self._attendance.look(waited, self.timeout)
        self.engine.check_host()

    def _stalled(self) -> StallError:
        silent = [] if self._attendance is None else self._attendance.absent()
        whom = ", ".join(silent) or "the other ranks"
        return StallError(
            f"rank {self.engine.rank} {self._said} and timed out after {self.timeout:g} s of "
            f"waiting for {whom} to call anything"
        )
