"""Scopes: they wait for the requests that were started inside, and name the forgotten ones."""

import threading

import numpy as np
import pytest

import collectives as cc


@pytest.fixture
def comm(either):
    return either.comm


def test_a_scope_waits_for_all_requests(comm):
    x = np.arange(1000.0)
    outs = [np.zeros_like(x) for _ in range(3)]
    gathered = np.zeros((comm.size, 3))
    with comm.requests() as scope:
        for out in outs:
            comm.iallreduce(x, out=out)
        comm.iallgather(np.full(3, float(comm.rank)), out=gathered)
    for out in outs:
        np.testing.assert_array_equal(out, x * comm.size)
    np.testing.assert_array_equal(gathered[:, 0], np.arange(comm.size))
    assert len(scope.forgotten) == 4
    assert all("test_scopes.py:" in line for line in scope.forgotten)
    assert "allreduce" in scope.forgotten[0]


def test_waited_requests_are_not_forgotten(comm):
    with comm.requests() as scope:
        first = comm.iallreduce(np.ones(4))
        second = comm.ibarrier()
        assert first.wait()[0] == comm.size
        while not second.test():
            pass
    assert scope.forgotten == []


def test_results_that_are_copied_at_the_end(comm):
    out = np.zeros((4, 3), order="F")
    small = [np.zeros(2) for _ in range(3)]
    with comm.requests() as scope:
        comm.iallreduce(np.ones((4, 3)), out=out)
        comm.iallreduce_many([np.ones(2)] * 3, out=small)
    assert (out == comm.size).all()
    assert all((each == comm.size).all() for each in small)
    assert len(scope.forgotten) == 2


def test_messages_and_planned_calls(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, total, ones = np.zeros(5), np.zeros(5), np.ones(5)
    planned = comm.plan("allreduce", ones, out=total)
    with comm.requests():
        comm.irecv(got, left)
        comm.isend(np.full(5, float(comm.rank)), right)
        planned.start()
    assert got[0] == left
    assert total[0] == comm.size


def test_nested_scopes_and_other_communicators(comm):
    other = comm.dup()
    with comm.requests() as outer:
        comm.ibarrier()
        with comm.requests() as inner:
            comm.ibarrier()
        request = other.ibarrier()
    assert len(inner.forgotten) == 1
    assert len(outer.forgotten) == 1
    request.wait()
    other.free()


def test_requests_of_other_threads_do_not_count(comm):
    requests = []
    with comm.requests() as scope:
        thread = threading.Thread(target=lambda: requests.append(comm.ibarrier()))
        thread.start()
        thread.join()
    assert scope.forgotten == []
    requests[0].wait()


def test_an_exception_is_not_replaced(comm):
    requests = []

    def program(scope):
        with scope:
            requests.append(comm.iallreduce(np.ones(3)))
            raise LookupError("of the program")

    scope = comm.requests()
    with pytest.raises(LookupError) as caught:
        program(scope)
    assert len(scope.forgotten) == 1
    assert all("test_scopes.py" in note for note in getattr(caught.value, "__notes__", []))
    assert requests[0].wait()[0] == comm.size


def test_calls_of_the_default_communicator_count():
    x = np.ones(3)
    with cc.world().requests() as scope:
        cc.iallreduce(x, out=x)
    assert len(scope.forgotten) == 1
    assert x[0] == cc.size()
