"""background.when_complete: a function is called when a request is complete, or has failed."""

from __future__ import annotations

import threading

import numpy as np

from collectives import background


def test_it_is_called_when_a_request_is_complete(world):
    called = threading.Event()
    request = world.comm.iallreduce(np.ones(3))
    background.when_complete(request, called.set)
    assert called.wait(30)
    assert request.wait().tolist() == [world.comm.size] * 3


def test_it_is_called_at_once_if_the_request_is_complete(world):
    request = world.comm.ibarrier()
    request.wait()
    called = threading.Event()
    background.when_complete(request, called.set)
    assert called.is_set()


def test_what_it_raises_is_reported(world, capsys):
    request = world.comm.iallreduce(np.ones(3))
    request.wait()
    background.when_complete(request, lambda: 1 // 0)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_many_requests_of_two_communicators(world):
    with world.comm.dup() as other:
        events = []
        requests = []
        for k in range(40):
            comm = (world.comm, other)[k % 2]
            requests.append(comm.iallreduce(np.full(100 * k + 1, k)))
            events.append(threading.Event())
            background.when_complete(requests[-1], events[-1].set)
        assert all(event.wait(30) for event in events)
        for k, request in enumerate(requests):
            assert request.wait()[-1] == k * world.comm.size
