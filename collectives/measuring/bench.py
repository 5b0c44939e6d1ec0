"""The ranks that measure: the library's communicator, MPI's own, and other peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives import Communicator
from collectives.measuring.gloo import GLOO_LABEL, Gloo, Prepared
from collectives.measuring.operations import Arrays
from collectives.measuring.room import Room
from collectives.measuring.watch import Watch

MPI_LABEL = "MPI"
PEERS = (MPI_LABEL, GLOO_LABEL)  # the labels of contestants that are not the library's algorithms


class Bench:
    """The ranks that measure. Collective."""

    def __init__(
        self,
        comm: Communicator,
        mpi: Any,
        progress: Callable[[str], None] = lambda text: None,
        gloo: Gloo | None = None,
    ) -> None:
        from mpi4py import MPI

        self.comm, self.mpi, self.progress, self.MPI = comm, mpi, progress, MPI
        self.gloo = gloo
        self.watch = Watch(comm)
        self._segmented: dict[int | None, Communicator] = {None: comm}
        self._rooms: dict[int | None, Room] = {}

    def communicator(self, segment: int | None) -> Communicator:
        """Return a communicator that uses a `segment` of this size, or of its choice. Collective.

        A communicator keeps its choices, so each segment size has a communicator of its own.
        """
        if segment not in self._segmented:
            self._segmented[segment] = self.comm.dup()
        return self._segmented[segment]

    def room(self, segment: int | None) -> Room:
        """Return the shared memory of the communicator for this `segment`. Collective."""
        if segment not in self._rooms:
            self._rooms[segment] = Room(self.communicator(segment))
        return self._rooms[segment]

    def peers(self, arrays: Arrays) -> dict[str, Prepared]:
        """Prepare the calls of all peers that have the operation, with `arrays`. Collective."""
        theirs = arrays.theirs(self.mpi, self.MPI)
        found = {} if theirs is None else {MPI_LABEL: Prepared(theirs)}
        prepared = None if self.gloo is None else self.gloo.prepare(arrays)
        if prepared is not None:
            found[GLOO_LABEL] = prepared
        return found
