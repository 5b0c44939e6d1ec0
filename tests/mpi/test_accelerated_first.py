"""The first collectives on a communicator that a program has split off, which MPI runs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from collectives.mpi4py import Intracomm, Served, accelerate, communicators


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Intracomm]:
    monkeypatch.setattr(communicators, "FIRST", 3)
    comm = accelerate(MPI.COMM_WORLD.Dup())
    yield comm
    comm.Free()


def test_they_are_counted_and_the_next_ones_run_here(world: Intracomm) -> None:
    comm = world.Split(0, -world.rank)
    assert isinstance(comm, Intracomm)
    total = np.zeros(1)
    for _ in range(2):
        comm.Allreduce(np.ones(1), total)
        assert total[0] == comm.size
    assert comm.bcast(comm.rank, root=0) == 0
    assert comm._state.comm is None
    assert comm.served() == {"Allreduce": Served(0, 2), "bcast": Served(0, 1)}
    comm.Allreduce(np.ones(1), total)
    assert comm.bcast(comm.rank, root=0) == 0
    assert comm.served() == {"Allreduce": Served(1, 2), "bcast": Served(1, 1)}
    assert type(comm) is Intracomm
    comm.Free()


def test_all_objects_of_a_communicator_agree(world: Intracomm) -> None:
    """Ranks that call a collective by different objects run it in the same place."""
    comm = world.Split()
    other = accelerate(MPI.Intracomm(comm))
    mine, total = (comm, other)[world.rank % 2], np.zeros(1)
    for _ in range(6):
        mine.Allreduce(np.ones(1), total)
        assert total[0] == comm.size
    assert comm.served() == other.served() == {"Allreduce": Served(3, 3)}
    (other, comm)[world.rank % 2].Barrier()
    assert comm.served()["Barrier"] == Served(1, 0)
    comm.Free()


@pytest.mark.skipif(
    MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="persistent collectives are MPI's then"
)
def test_a_persistent_collective_ends_them(world: Intracomm) -> None:
    comm = world.Split()
    total = np.zeros(1)
    request = comm.Allreduce_init(np.ones(1), total)
    request.Start()
    request.Wait()
    assert total[0] == comm.size
    request.Free()
    comm.Barrier()
    assert comm.served() == {"Allreduce_init": Served(1, 0), "Barrier": Served(1, 0)}
    comm.Free()


def test_what_else_is_made_of_them(world: Intracomm) -> None:
    comm: Any = world.Split()
    with pytest.raises(MPI.Exception):
        comm.Bcast(np.ones(1), root=comm.size)
    copy, parts = comm.Dup(), comm.Split(world.rank)
    for each in (copy, parts):
        each.Barrier()
        assert isinstance(each, Intracomm)
    assert copy.served() == {"Barrier": Served(1, 0)}
    assert parts.served() == {"Barrier": Served(0, 1)}
    assert comm.Iallreduce(MPI.IN_PLACE, np.ones(1)).Wait()
    for each in (copy, parts, comm):
        each.Free()
    with pytest.raises(MPI.Exception):
        comm.Barrier()
    assert pickle.loads(pickle.dumps(accelerate(MPI.COMM_WORLD))) == MPI.COMM_WORLD
