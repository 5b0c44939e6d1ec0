"""Arrays of devices in the background, on a GPU that is not there."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_devices import MARKS, Exporter, Tensor, on_device
from mpi4py import MPI

import collectives as cc
from collectives import background
from collectives.errors import ArgumentError, BufferError, CollectivesError

pytest_plugins = ["fake_devices"]  # the fixtures
pytestmark = MARKS

TRANSPORTS = ("auto",)
SUBMIT, MANY = background.submit, background.submit_many
several = pytest.mark.skipif(MPI.COMM_WORLD.Get_size() == 1, reason="it takes several ranks")


@pytest.fixture(params=[Tensor, Exporter])
def make(request, gpu, stream):
    """Return what makes an array of the device, which a stream has yet to write."""
    return lambda values: on_device(gpu, np.asarray(values), stream, request.param)


def total(comm):
    return comm.size * (comm.size + 1) // 2


def test_reductions_and_what_moves(gpu, comm, make):
    rank, size = comm.rank, comm.size
    x = make(np.full(4000, rank + 1.0, np.float32))
    handles = [
        SUBMIT("allreduce", x, group=comm),
        SUBMIT("allreduce", x, op="max", group=comm, prescale=2.0),
        SUBMIT("broadcast", make(np.full((2, 3), rank)), root=size - 1, group=comm),
        SUBMIT("allgather", make([rank]), group=comm),
        SUBMIT("reduce", make(np.full(2, rank)), root=0, op="max", group=comm),
        SUBMIT("reduce_scatter", make(np.arange(2.0 * size)), group=comm),
        SUBMIT("alltoall", make(np.arange(size) + 10 * rank), group=comm),
        SUBMIT("allgatherv", make(np.full(rank + 1, rank)), group=comm),
        SUBMIT("alltoallv", make(np.arange(size)), counts=[1] * size, group=comm),
    ]
    results = [handle.wait() for handle in handles]
    assert (results[0].get() == total(comm)).all()
    assert results[0].get().shape == (4000,)
    assert (results[1].get() == 2 * size).all()
    assert (results[2].get() == np.full((2, 3), size - 1)).all()
    assert results[3].get().ravel().tolist() == list(range(size))
    assert (results[4] is None) == (rank != 0)
    assert rank or results[4].get().tolist() == [size - 1] * 2
    assert results[5].get().tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    assert results[6].get().tolist() == [rank + 10 * each for each in range(size)]
    assert results[7].get().tolist() == [k for k in range(size) for _ in range(k + 1)]
    assert results[8][0].get().tolist() == [rank] * size
    assert results[8][1].tolist() == [1] * size
    assert handles[0].wait() is results[0]
    background.stop(comm)


def test_in_place_and_into_another_array(gpu, comm, make):
    x, out = make(np.full(7, comm.rank + 1)), make(np.zeros(7, int))
    assert SUBMIT("allreduce", x, out, group=comm).wait() is out
    assert SUBMIT("allreduce", x, x, group=comm, op="max").wait() is x
    assert out.get().tolist() == [total(comm)] * 7
    assert x.get().tolist() == [comm.size] * 7
    rows = make(np.zeros((comm.size, 7), int))
    assert SUBMIT("allgather", x, rows, group=comm).wait() is rows
    assert (rows.get() == comm.size).all()
    background.stop(comm)


def test_a_rank_without_a_result_keeps_out_as_it_was(gpu, comm, make):
    x = make(np.full(4, comm.rank + 1.0))
    last = comm.size - 1
    expected = {
        "reduce": [total(comm)] * 4 if comm.rank == last else None,
        "gather": [k + 1 for k in range(comm.size) for _ in range(4)]
        if comm.rank == last
        else None,
        "exscan": [comm.rank * (comm.rank + 1) / 2] * 4 if comm.rank else None,
    }
    for kind, values in expected.items():
        out = make(np.full((comm.size, 4) if kind == "gather" else 4, 77.0))
        SUBMIT(kind, x, out, root=last, group=comm).wait()
        found = out.get().ravel().tolist()
        assert found == ([77.0] * len(found) if values is None else values)
    background.stop(comm)


def test_what_is_urgent_comes_first(gpu, comm, make):
    """A long array runs by pieces, and arrays of a higher priority come between them."""
    order, urgent_is_there = [], threading.Event()

    def add(incoming, accumulator):
        assert urgent_is_there.wait(60)  # at most two pieces are under way
        accumulator += incoming

    op, x = cc.reduction(add), make(np.ones(6_000_000))
    long = SUBMIT("allreduce", x, op=op, name="long", priority=-1, group=comm)
    urgent = SUBMIT("allreduce", make(np.ones(10)), name="urgent", priority=5, group=comm)
    for handle in (long, urgent):
        handle.add_done_callback(lambda handle: order.append(handle.name))
    urgent_is_there.set()
    background.flush(comm)
    assert order == (["urgent", "long"] if comm.size > 1 else ["long", "urgent"])
    assert (long.wait().get() == comm.size).all()
    background.stop(comm)


def test_small_arrays_run_as_one(gpu, comm, make):
    small = [SUBMIT("allreduce", make(np.full(5, k)), group=comm) for k in range(40)]
    for k, handle in enumerate(small):
        assert handle.wait().get().tolist() == [k * comm.size] * 5
    background.stop(comm)


def test_mixtures_of_ranks_and_in_one_batch(gpu, comm, make):
    """Some ranks pass arrays of devices, some arrays of the host, and all of them both."""
    host = np.full(3, comm.rank + 1.0)
    first = SUBMIT("allreduce", host if comm.rank else make(host), name="first", group=comm)
    arrays = [make(host), host.copy(), make(np.array([5], np.int32))]
    if comm.rank == 1:
        arrays = [host.copy(), make(host), np.array([5], np.int32)]
    second = MANY(arrays, name="second", group=comm)
    third = MANY(arrays, arrays, group=comm)
    found = first.wait()
    assert isinstance(found, np.ndarray) == (comm.rank > 0)
    for results, factor in ((second.wait(), 1), (third.wait(), 1)):
        kinds = [type(each) for each in results]
        assert kinds == [type(each) for each in arrays]
        values = [each if isinstance(each, np.ndarray) else each.get() for each in results]
        assert [each.tolist() for each in values] == [
            [factor * total(comm)] * 3,
            [factor * total(comm)] * 3,
            [5 * factor * comm.size],
        ]
    assert third.wait()[0] is arrays[0]
    background.stop(comm)


def test_a_codec_compresses_arrays_of_devices(gpu, comm, make):
    values = np.linspace(0.1, 0.9, 50, dtype=np.float32)
    for options in ({"prescale": 1.0}, {"prescale": 0.5}):
        handle = SUBMIT("allreduce", make(values), compression="float16", group=comm, **options)
        found = handle.wait().get()
        np.testing.assert_allclose(found, values * comm.size * options["prescale"], rtol=2e-3)
    background.stop(comm)


@several
def test_a_submission_does_not_wait_for_the_device(gpu, comm, stream):
    background.start(comm)
    gate = threading.Event()
    with gpu.order.changed:
        gpu.order.enqueue(gpu.stream_object(stream), "a long kernel", lambda: gate.wait(20))
    handle = SUBMIT("allreduce", on_device(gpu, np.ones(3), stream), group=comm)
    assert not handle.done()
    gate.set()
    assert handle.wait().get().tolist() == [comm.size] * 3
    background.stop(comm)


@several
def test_what_differs_between_ranks_is_named(gpu, comm, make):
    handle = SUBMIT("allreduce", make(np.ones(3 + (comm.rank == 0))), name="odd", group=comm)
    text = r"'odd' differs between ranks: rank 0: allreduce of float64 \(4,\), op SUM; ranks? 1"
    with pytest.raises(CollectivesError, match=text):
        handle.wait()
    assert SUBMIT("allreduce", make([1]), group=comm).wait().get().tolist() == [comm.size]
    background.stop(comm)


def test_wrong_arguments(gpu, plain_comm, make):
    comm = plain_comm
    with pytest.raises(BufferError, match="x is on cuda:0 and out is in host memory"):
        SUBMIT("allreduce", make([1.0]), np.zeros(1), group=comm)
    with pytest.raises(ArgumentError, match="out has 1 arrays, and must have 2"):
        MANY([make([1.0]), make([1.0])], [make([1.0])], group=comm)
    with pytest.raises(BufferError, match=r"arrays\[1\]: out is in host memory|arrays\[1\]"):
        MANY([make([1.0]), make([1.0])], [None, np.zeros(1)], group=comm)
    background.stop(comm)


@several
def test_a_device_that_fails_ends_the_submissions_of_all_ranks(doomed):
    with cc.Communicator(MPI.COMM_WORLD) as comm:
        background.start(comm)
        x = on_device(doomed, np.ones(3), doomed.stream())
        if comm.rank == 0:
            doomed.fail_next("copy", RuntimeError("an illegal access"), on_device=True)
        handle = SUBMIT("allreduce", x, group=comm)
        with pytest.raises(CollectivesError, match="RuntimeError: an illegal access"):
            handle.wait()
