"""The methods of a communicator that the probe and the trials call, as a protocol."""

from __future__ import annotations

from typing import Any, Protocol

from collectives.process.meeting import Meeting


class Ranks(Protocol):
    """The methods of a communicator that trials and the probe of the model call."""

    size: int

    _meeting: Meeting

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator; None after it was freed."""

    def barrier(self, *args: Any, **options: Any) -> None:
        """Run `Communicator.barrier`. Collective."""

    def allreduce(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.allreduce`. Collective."""

    def allgather(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.allgather`. Collective."""

    def reduce_scatter(self, *args: Any, **options: Any) -> Any:
        """Run `Communicator.reduce_scatter`. Collective."""
