"""The ranks that measure: the library's communicator, MPI's own if there is one, and peers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives import Communicator
from collectives.measuring.gloo import GLOO_LABEL, Gloo, Prepared
from collectives.measuring.operations import Arrays
from collectives.process import abort, binding, hosted, living
from collectives.process.waiting import Wait

MPI_LABEL = "MPI"
PEERS = (MPI_LABEL, GLOO_LABEL)  # the labels of contestants that are not the library's algorithms


LINE = 128  # the alignment of arrays in shared memory, in bytes
LOOK = 0.5  # seconds between two checks; at this interval they do not disturb the measurement
GRACE = 2.0  # seconds for launchers to end a job after the death of a rank


class WithoutMPI:
    """Ranks of a job without MPI, with the methods of MPI's communicator that measurements use."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def Get_rank(self) -> int:
        return self._comm.rank

    def Get_size(self) -> int:
        return self._comm.size

    def Barrier(self) -> None:
        self._comm.barrier()

    def Ibarrier(self) -> Any:
        return self._comm.mpi.Iallgather(b"", bytearray())

    def allgather(self, value: Any) -> list[Any]:
        return self._comm._meeting.allgather(value)

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def allreduce(self, value: int) -> int:
        return sum(self.allgather(value))


def mpi_of(comm: Communicator) -> Any:
    """Return MPI's communicator of the ranks of `comm`, or a `WithoutMPI`. Collective."""
    if isinstance(comm.mpi, hosted.HostedRanks):
        return WithoutMPI(comm.dup())
    mpi = comm.mpi.Dup()
    mpi.Set_errhandler(binding.load().ERRORS_RETURN)
    return mpi


class Bench:
    """The ranks that measure, with `mpi` as `mpi_of` returns it. Collective."""

    comm: Communicator
    mpi: Any
    progress: Callable[[str], None]

    def __init__(
        self,
        comm: Communicator,
        mpi: Any,
        progress: Callable[[str], None] = lambda text: None,
        gloo: Gloo | None = None,
    ) -> None:
        self.comm, self.mpi, self.progress, self.MPI = comm, mpi, progress, binding.load()
        self.has_mpi: bool = not isinstance(mpi, WithoutMPI)
        self.gloo = gloo
        self.watch: Watchdog = Watchdog(comm)
        self._others: dict[tuple[int | None, str | None], Communicator] = {(None, None): comm}
        self._rooms: dict[int | None, Room] = {}

    def communicator(self, segment: int | None, bits: str | None = None) -> Communicator:
        """Return a communicator that uses a `segment` of this size, or of its choice, and these
        `bits`, if any. Collective.

        A communicator keeps its choices, so each segment size has a communicator of its own.
        """
        if (segment, bits) not in self._others:
            self._others[segment, bits] = self.comm.dup(bits=bits)
        return self._others[segment, bits]

    def room(self, segment: int | None) -> Room:
        """Return the shared memory of the communicator for this `segment`. Collective."""
        if segment not in self._rooms:
            self._rooms[segment] = Room(self.communicator(segment))
        return self._rooms[segment]

    def peers(self, arrays: Arrays) -> dict[str, Prepared]:
        """Prepare the calls of all peers that have the operation, with `arrays`. Collective."""
        theirs = arrays.theirs(self.mpi, self.MPI) if self.has_mpi else None
        found = {} if theirs is None else {MPI_LABEL: Prepared(theirs)}
        prepared = None if self.gloo is None else self.gloo.prepare(arrays)
        if prepared is not None:
            found[GLOO_LABEL] = prepared
        return found


class Room:
    """Shared memory of the ranks of a communicator, for the arrays of one size after another with
    ``--buffers shared``. Collective.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def clear(self, arrays: int, nbytes: int) -> None:
        """Discard all arrays, and make room for new ones. Collective."""
        wanted = arrays * (nbytes + LINE)
        self._used = 0
        if wanted > len(self._bytes):
            self._bytes = self.comm.empty(wanted, np.uint8)

    def empty(self, n: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of n elements. Local."""
        nbytes = n * np.dtype(dtype).itemsize
        array = self._bytes[self._used : self._used + nbytes].view(dtype)
        assert len(array) == n, "there is room for all arrays of a size"
        self._used += -(-nbytes // LINE) * LINE
        return array


class Watchdog:
    """End the job if a measurement, a ``with`` statement, takes longer than the deadline of its
    communicator, or a rank is dead. A thread checks this, because ranks may wait inside MPI.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._wait: Wait | None = None  # in a measurement
        if comm.size > 1:
            run = partial(_run, weakref.ref(self))
            threading.Thread(target=run, name="collectives-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._wait = Wait()

    def __exit__(self, *_: object) -> None:
        self._wait = None

    def look(self) -> None:
        """End the job if the current measurement cannot end. Local."""
        wait = self._wait
        waited = 0.0 if wait is None else wait.passed()
        if waited > GRACE:
            for each in living.ended(range(self._comm.size)):
                if not each.in_order:
                    abort.end_job(f"ends the job: rank {each.rank} {each.how}")
        if waited > self._comm.timeout:
            found = living.stopped().items()
            told = "".join(f"; rank {rank} (process {pid}) is stopped" for rank, pid in found)
            abort.end_job(
                f"has waited {self._comm.timeout:g} s for other ranks while it measures{told}"
            )


def _run(reference: weakref.ref[Watchdog]) -> None:
    ended = threading.Event()
    abort.before_end(ended.set)
    while not ended.wait(LOOK) and (watch := reference()) is not None:
        watch.look()
        del watch
