"""The communicator as the choice sees it: what the probe and the trials call."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Ranks"]


class Ranks(Protocol):
    """What trials, and the probe of the model, ask of a communicator."""

    size: int

    @property
    def mpi(self) -> Any: ...

    def barrier(self, *args: Any, **options: Any) -> None: ...
    def allreduce(self, *args: Any, **options: Any) -> Any: ...
    def allgather(self, *args: Any, **options: Any) -> Any: ...
    def reduce_scatter(self, *args: Any, **options: Any) -> Any: ...
