"""Round trips of a flag between two ranks, and the locks that a new segment finds."""

import time

import pytest

import collectives as cc
from collectives.errors import PeerLostError, StallError
from collectives.process import segment
from collectives.process.meeting import Meeting
from collectives.process.settings import Settings


@pytest.fixture
def shared():
    """A communicator whose ranks share memory."""
    comm = cc.Communicator()
    if comm.size < 2 or comm.transport != "shm":
        comm.free()
        pytest.skip("needs two ranks that share memory")
    yield comm
    comm.free()


def test_all_pairs_in_turn(shared):
    """A flag of one round trip is not taken for the flag of another."""
    for _ in range(3):
        for low in range(shared.size):
            for high in range(low + 1, shared.size):
                if shared.rank in (low, high):
                    other = low + high - shared.rank
                    assert 0 < shared._segment.round_trip(other, 2) < 60


def test_with_itself_or_never_is_refused(shared):
    with pytest.raises(ValueError, match="between two ranks"):
        shared._segment.round_trip(shared.rank, 1)
    with pytest.raises(ValueError, match="once at least"):
        shared._segment.round_trip((shared.rank + 1) % shared.size, 0)


def test_who_does_not_come_is_waited_for_in_vain(shared):
    if shared.rank == 0:
        with pytest.raises(StallError, match=r"rank 0 waited 0\.1 s for the flag of rank 1"):
            shared._segment.round_trip(1, 1, 0.1)
    shared.barrier()


def test_who_has_left_is_not_waited_for():
    comm = cc.Communicator()
    if comm.size < 2 or comm.transport != "shm":
        pytest.skip("needs two ranks that share memory")
    if comm.rank == 1:
        comm._segment.leave()
    elif comm.rank == 0:
        with pytest.raises(PeerLostError, match=r"rank 1 .* has ended while rank 0 waits"):
            comm._segment.round_trip(1, 1)


class Slow(Meeting):
    """A meeting that rank 0 is late to leave."""

    def allgather(self, obj):
        everybody = super().allgather(obj)
        if self.rank == 0:
            time.sleep(0.1)
        return everybody


def test_nobody_is_missed_who_is_late(shared):
    """A rank that has its segment finds the locks of all others."""
    late = Slow("bootstrap", shared.mpi, Settings())
    made = segment.bootstrap(late, shared._hosts.local, {"auto"})
    assert made.lost() == []
    shared.barrier()
    made.leave()
