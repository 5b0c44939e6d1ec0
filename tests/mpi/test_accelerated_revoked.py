"""Revoked communicators: MPI's error in every collective, on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accelerated import Pair
from mpi4py import MPI

from collectives.mpi4py import Intracomm, accelerate


def _is_able() -> bool:
    comm = MPI.COMM_SELF.Dup()
    try:
        comm.Revoke()
    except (AttributeError, NotImplementedError):
        return False
    finally:
        comm.Free()
    return True


pytestmark = [
    pytest.mark.several,
    pytest.mark.skipif(not _is_able(), reason="this MPI does not revoke communicators"),
]


def _persistent(comm: Intracomm) -> Any:
    request = comm.Allreduce_init(np.ones(3), np.zeros(3))
    return lambda: (request.Start(), request.Wait())


# Collectives in which a rank waits for rank 0, prepared on all ranks.
CALLS: dict[str, Callable[[Intracomm], Any]] = {
    "Barrier": lambda comm: comm.Barrier,
    "Allreduce": lambda comm: lambda: comm.Allreduce(np.ones(3), np.zeros(3)),
    "Allgatherv": lambda comm: lambda: comm.Allgatherv(np.ones(1), np.zeros(comm.size)),
    "allreduce": lambda comm: lambda: comm.allreduce(1),
    "Iallreduce": lambda comm: lambda: comm.Iallreduce(np.ones(3), np.zeros(3)).Wait(),
    "Allreduce_init": _persistent,
}


def _revoked(call: Callable[[], object]) -> None:
    with pytest.raises(MPI.Exception) as told:
        call()
    assert told.value.Get_error_class() == MPI.ERR_REVOKED


@pytest.mark.parametrize("late", [False, True], ids=["waits", "comes later"])
@pytest.mark.parametrize("name", CALLS)
def test_every_rank_has_the_error(pair: Pair, name: str, late: bool) -> None:
    comm = accelerate(pair.theirs.Dup())
    comm.Barrier()
    call = CALLS[name](comm)
    if comm.rank == 0:
        time.sleep(0.0 if late else 0.1)  # the others wait, if they come in time
        comm.Revoke()
    if late:
        pair.theirs.Barrier()
    _revoked(call)
    _revoked(comm.Barrier)
    _revoked(lambda: comm.bcast(1))
    pair.theirs.Barrier()
    comm.Free()


def test_a_communicator_without_a_collective_yet(pair: Pair) -> None:
    """A duplication of a revoked communicator never ends in Open MPI."""
    comm = accelerate(pair.theirs.Dup())
    comm.Revoke()
    _revoked(comm.Barrier)
    _revoked(lambda: comm.Allreduce(np.ones(3), np.zeros(3)))
    _revoked(lambda: comm.bcast(1))
    pair.theirs.Barrier()
    comm.Free()
