"""Requests to stop: the ranks of a communicator get one answer at the same call."""

import threading

import numpy as np
import pytest

import collectives as cc
from collectives.process import stopping


@pytest.fixture
def wanted(monkeypatch):
    """The byte that the handlers of signals set, without handlers; other tests have another one."""
    monkeypatch.setattr(stopping, "watch", lambda: None)
    monkeypatch.setattr(stopping, "_reason", "")
    monkeypatch.setattr(stopping, "wanted", np.zeros(1, np.uint8))
    return stopping.wanted


def answers(comm, wanted, *, every=1, calls=6, asked=0, before=3):
    """Ask one rank before its call number `before`; return the answers of the calls."""
    found = []
    for k in range(calls):
        if k == before and comm.rank == asked:
            wanted[0] = True
        found.append(comm.stop_requested(every))
    return found


def test_all_ranks_stop_at_the_same_call(group, wanted):
    comm = group.comm.dup()
    for asked in {0, comm.size - 1}:
        wanted[0] = False
        each = comm.dup()
        assert answers(each, wanted, asked=asked) == [False] * 3 + [True] * 3
        other = comm.dup()
        assert other.stop_requested()  # the request is one to the process
        other.free()
        each.free()
    comm.free()


@pytest.mark.parametrize("every", [2, 5])
def test_only_one_of_so_many_calls_asks_the_ranks(either, wanted, every):
    comm = either.comm.dup()
    found = answers(comm, wanted, every=every, calls=12, asked=comm.size - 1)
    first = {2: 4, 5: 5}[every]
    assert found == [False] * first + [True] * (12 - first)
    comm.free()


def test_without_shared_memory(wanted, environ):
    with environ(COLLECTIVES_SHM="0"):
        comm = cc.Communicator()
    assert answers(comm, wanted, asked=comm.size - 1) == [False] * 3 + [True] * 3
    comm.free()


def test_threads_make_as_many_calls_on_all_ranks(world, wanted):
    """Whichever thread makes a call: each rank has the same number of answers that are false."""
    comm = world.comm.dup()
    counts = [0, 0]

    def run(number):
        while not comm.stop_requested():
            counts[number] += 1
            if comm.rank == 0 and sum(counts) >= 20:
                wanted[0] = True

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (comm.allgather(np.array([sum(counts)])) == sum(counts)).all()
    assert sum(counts) >= 20
    comm.free()


def test_a_communicator_that_was_freed(world, wanted):
    comm = world.comm.dup()
    assert not comm.stop_requested()
    comm.free()
    with pytest.raises(cc.errors.CommunicatorError, match="freed"):
        comm.stop_requested()
