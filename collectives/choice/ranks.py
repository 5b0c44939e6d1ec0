"""The communicator as the choice sees it: what the probe and the trials call."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Ranks"]


class Ranks(Protocol):
    """What trials, and the probe of the model, ask of a communicator."""

    size: int

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator; None when it was freed."""

    def barrier(self, *args: Any, **options: Any) -> None:
        """Run `Communicator.barrier`. Collective."""

    def allreduce(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.allreduce`. Collective."""

    def allgather(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.allgather`. Collective."""

    def reduce_scatter(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.reduce_scatter`. Collective."""
