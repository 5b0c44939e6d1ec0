"""The background of communicators: several at a time; its start, and the ways in which it ends."""

import contextlib
import gc
import threading
import time

import numpy as np
import pytest

from collectives import background
from collectives.errors import ArgumentError, CommunicatorError, MismatchError, StallError

SUBMIT = background.submit


@pytest.fixture
def comm(world):
    """One without a background yet, which a test may break."""
    made = world.comm.dup()
    made.timeout = 5
    return made


def test_groups_that_overlap(comm):
    """Several communicators with some of the ranks each, in different orders."""
    halves = comm.split(comm.rank % 2)
    background.start(halves)
    groups = [comm, halves] if comm.rank % 2 else [halves, comm]
    handles = []
    for k in range(30):
        for group in groups:
            name = f"{k}"
            handles.append((group, SUBMIT("allreduce", np.ones(100), name=name, group=group)))
    for group, handle in reversed(handles):
        assert handle.wait()[0] == group.size
    halves.free()


def wait_for_all(handles):
    for handle in handles:
        handle.wait(30)


def test_stop_waits_for_what_was_submitted(comm):
    """Also for later submissions of other ranks, and for waits of other threads; twice."""
    for turn in range(2):
        background.start(comm)
        comm.barrier()
        if comm.rank == 0:
            time.sleep(0.1)
        shapes = [(), (0,), (3, 5), (1000,), (70_000,), (1_200_000,)]
        handles = [
            SUBMIT("allreduce", np.ones(shape), name=f"{k}", priority=k % 3, group=comm)
            for k, shape in enumerate(shapes)
        ]
        thread = threading.Thread(target=wait_for_all, args=(handles[::2],))
        if turn:
            thread.start()
        background.stop(comm)
        assert all(handle.done() for handle in handles)
        assert comm._background is None
        if turn:
            thread.join()
        for shape, handle in zip(shapes, handles, strict=True):
            np.testing.assert_array_equal(handle.wait(), np.full(shape, float(comm.size)))


def test_stop_while_another_thread_submits(comm):
    """To submit then is an error, and nothing is freed that is in use."""
    if comm.size > 1:
        pytest.skip("others would not know what belongs together")
    ended = threading.Event()

    def work():
        with contextlib.suppress(CommunicatorError, StallError):
            while not ended.is_set():
                SUBMIT("allreduce", np.ones(1), group=comm).wait(1)

    thread = threading.Thread(target=work)
    thread.start()
    SUBMIT("allreduce", np.ones(1), name="first", group=comm).wait()
    background.stop(comm)
    ended.set()
    thread.join()
    assert comm.allreduce(np.ones(1))[0] == comm.size


@pytest.mark.several
def test_free_after_a_submission_has_failed(comm):
    """The error is raised, but everything is freed."""
    made = comm.dup()
    SUBMIT("allreduce", np.ones(1 + comm.rank), name="wrong", group=made)
    with pytest.raises(MismatchError):
        made.free()
    assert repr(made) == "<collectives.Communicator, freed>"
    assert made._background is None


def test_flush_makes_nothing(comm):
    """It is local: no other rank has to come."""
    if comm.rank == 0:
        background.flush(comm, timeout=1)
    assert comm._background is None


def test_a_communicator_that_is_dropped(comm):
    """Its group is forgotten when all is complete."""
    from collectives.background import engine

    background.start(comm)
    made = comm.dup()
    handle = SUBMIT("allreduce", np.ones(1), group=made)
    before = len(engine._engine.listed)
    del made
    gc.collect()
    assert handle.wait(30)[0] == comm.size
    del handle
    SUBMIT("allreduce", np.ones(1), group=comm).wait()
    limit = time.monotonic() + 60
    while len(engine._engine.listed) >= before and time.monotonic() < limit:
        engine._engine.work()
    assert len(engine._engine.listed) < before


def test_an_invalid_threshold(comm, monkeypatch):
    """All ranks raise, also those whose environment is right."""
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "some")
    with pytest.raises(ArgumentError, match="FUSION_THRESHOLD is"):
        background.start(comm)
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    handles = [SUBMIT("allreduce", np.ones(3), group=comm) for _ in range(3)]
    assert [handle.wait()[0] for handle in handles] == [comm.size] * 3
    comm.free()
    assert comm._background is None
