"""Collectives of NCCL on a GPU that is not there: its calls run on streams, later."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fake_devices import MARKS, Exporter, Tensor, fetched, in_place, in_use, on_device, run_form
from fake_nccl import FakeGroup
from forms import (
    Allgather,
    Allgatherv,
    Allreduce,
    Alltoall,
    Alltoallv,
    Broadcast,
    Gather,
    Gatherv,
    Reduce,
    ReduceScatter,
    Scatter,
    Scatterv,
)
from mpi4py import MPI

import collectives as cc
from collectives.devices.requests import StreamRequest
from collectives.errors import (
    ArgumentError,
    BufferError,
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    StallError,
    UnsupportedTypeError,
)

pytestmark = MARKS

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
WHOLE = (Allreduce, Reduce, Broadcast, Allgather, Gather, Scatter, ReduceScatter, Alltoall)
FORMS = (*WHOLE, Allgatherv, Gatherv, Scatterv, Alltoallv)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
OWN = {"identities": [f"gpu {RANK}", f"second gpu {RANK}"]}


@pytest.fixture(scope="module", params=["random", "lazy"])
def gpu(request):
    """A driver whose devices are GPUs of this rank alone."""
    for driver in in_use(request.param, **OWN):
        with driver:
            yield driver


@pytest.fixture(scope="module")
def comm(gpu):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_VALIDATE", str(int(gpu.order.mode == "lazy")))
        made = cc.Communicator(MPI.COMM_WORLD)
    yield made
    made.free()


@pytest.fixture
def doomed():
    """A driver of which a broken communicator keeps something."""
    for driver in in_use("random", **OWN):
        yield driver
        driver.close()


@pytest.fixture
def stream(gpu):
    made = gpu.stream()
    yield made
    gpu.end_stream(made)


@every_form
def test_every_collective(gpu, comm, stream, form):
    for turn, n in enumerate((0, 1, 1000)):
        run_form(gpu, comm, stream, form, turn, n, algorithm="nccl")
    assert gpu.calls["join"] == 1


@pytest.mark.parametrize("form", FORMS[:-1], ids=lambda form: form.name)
def test_in_place(gpu, comm, stream, form):
    case = form(SIZE, 300, dtype="float64", root=SIZE - 1)
    x, out = in_place(gpu, case, RANK, stream)
    if form is Alltoall and SIZE > 1:
        with pytest.raises(BufferError, match="out overlaps x, and alltoall by NCCL"):
            case.call(comm, x, out, algorithm="nccl")
    else:
        case.verify(fetched(case.call(comm, x, out, algorithm="nccl")), RANK)


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32"])
def test_what_it_folds(gpu, comm, stream, op, dtype):
    for form in (Allreduce, ReduceScatter):
        case = form(SIZE, 100, dtype=dtype, op=op)
        got = case.call(comm, on_device(gpu, case.x(RANK), stream), algorithm="nccl")
        case.verify(fetched(got), RANK)


def test_the_mean(gpu, comm, stream):
    x = on_device(gpu, np.full(10, RANK, np.float32), stream)
    got = comm.allreduce(x, op=cc.AVG, algorithm="nccl")
    assert (got.get() == (SIZE - 1) / 2).all()


def test_any_dtype_moves(gpu, comm, stream):
    x = np.arange(6).astype(np.complex128) + 1j * RANK
    got = comm.allgather(on_device(gpu, x, stream), algorithm="nccl")
    assert (got.get()[SIZE - 1] == np.arange(6) + 1j * (SIZE - 1)).all()
    flags = on_device(gpu, np.arange(6) % 2 == 0, stream)
    assert comm.broadcast(flags, algorithm="nccl").get().tolist() == [True, False] * 3


def test_requests(gpu, comm, stream):
    x = on_device(gpu, np.full(500, RANK, np.int64), stream)
    requests = [comm.iallreduce(x, algorithm="nccl") for _ in range(3)]
    assert all(isinstance(each, StreamRequest) for each in requests)
    assert requests[0].test()
    assert re.search("allreduce of 500 int64 on cuda:0", repr(requests[0]))
    for each in [requests[1].wait(), requests[2].wait(host=True), cc.wait_all(requests)[0]]:
        assert (each.get() == SIZE * (SIZE - 1) // 2).all()
    x.put(np.ones(500, np.int64))  # later than all of them have read it
    which, got = cc.wait_any([comm.iallreduce(x, algorithm="nccl")])
    assert (which, got.get()[0]) == (0, SIZE)


def test_order_between_streams_and_with_staging(gpu, comm, stream):
    other = gpu.stream()
    x = on_device(gpu, np.ones(700, np.int32), stream)
    y = on_device(gpu, np.zeros(700, np.int32), other)
    for turn in range(3):
        x.put(np.full(700, turn, np.int32))
        comm.allreduce(x, y, algorithm="nccl")  # on another stream than that of x
        x.put(np.full(700, -1, np.int32))
        request = comm.iallreduce(y)
        total = comm.allreduce(y, algorithm="nccl")
        assert (total.get() == turn * SIZE * SIZE).all()
        assert (request.wait().get() == turn * SIZE * SIZE).all()
    gpu.end_stream(other)


def test_many_arrays_in_one_call(gpu, comm, stream):
    arrays = [on_device(gpu, np.full(n, RANK, np.int32), stream) for n in (5, 0, 300)]
    for got in comm.allreduce_many(arrays, algorithm="nccl"):
        assert (got.get() == SIZE * (SIZE - 1) // 2).all()


def test_it_does_not_keep_bits_at_any_size(gpu, comm, stream):
    x = on_device(gpu, np.ones(5, np.float32), stream)
    with pytest.raises(ArgumentError, match="bits is 'size', and 'nccl' chooses its algorithm by"):
        comm.allreduce(x, algorithm="nccl", bits="size")
    assert comm.allreduce(x, bits="size").get()[0] == SIZE
    assert comm.allreduce(x, algorithm="nccl", bits="any").get()[0] == SIZE


def test_ranks_that_do_not_all_ask_for_it(gpu, stream):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_VALIDATE", "1")
        made = cc.Communicator(MPI.COMM_WORLD)
    x = on_device(gpu, np.ones(5, np.int32), stream)
    if SIZE > 1:
        with pytest.raises(MismatchError, match=r"rank 0 called .* on a device, algorithm=nccl"):
            made.allreduce(x, algorithm=None if RANK else "nccl")
    assert made.allreduce(x, algorithm="nccl").get()[0] == SIZE
    made.free()


def test_plans_and_another_device(gpu, comm):
    with gpu.on(1):
        stream = gpu.stream()
    x = Tensor.of(gpu, np.ones(300, np.float32), device=1, stream=stream)
    planned = comm.plan("allreduce", x, algorithm="nccl")
    for turn in range(3):
        x.put(np.full(300, turn, np.float32))
        got = planned() if turn % 2 else planned.start().wait()
        assert (got.get() == turn * SIZE).all()
    with gpu.on(1):
        gpu.end_stream(stream)


def test_a_graph_repeats_what_was_captured(gpu, comm, stream):
    x, out = (on_device(gpu, np.zeros(200, np.float32), stream) for _ in range(2))
    comm.allreduce(x, out, algorithm="nccl")
    with gpu.capturing(stream) as graph:
        comm.allreduce(x, out, algorithm="nccl")
        with pytest.raises(BufferError, match=r"captured into a graph, .* algorithm='nccl'"):
            comm.allreduce(x, out)
        with pytest.raises(BufferError, match="use the blocking form"):
            comm.iallreduce(x, out, algorithm="nccl")
    for turn in range(3):
        x.put(np.full(200, turn, np.float32))
        graph.launch(stream)
        assert (out.get() == turn * SIZE).all()


def test_a_graph_cannot_have_the_first_call(gpu, stream):
    x = on_device(gpu, np.zeros(200, np.float32), stream)
    match = "the first call by NCCL connects the ranks"
    made = cc.Communicator(MPI.COMM_WORLD)
    with gpu.capturing(stream), pytest.raises(BufferError, match=match):
        made.allreduce(x, x, algorithm="nccl")
    made.free()


def test_what_is_refused(gpu, comm, stream):
    x = on_device(gpu, np.ones(6 * SIZE, np.float32), stream)

    def largest(incoming, accumulator):
        np.maximum(incoming, accumulator, out=accumulator)

    refused = {
        "NCCL has no scan here": lambda: comm.scan(x, algorithm="nccl"),
        "NCCL has no reduce_scatterv here": lambda: comm.reduce_scatterv(
            x, counts=[6] * SIZE, algorithm="nccl"
        ),
        "op is LARGEST, and NCCL has SUM": lambda: comm.allreduce(
            x, op=cc.reduction(largest, name="largest"), algorithm="nccl"
        ),
        "prescale and postscale": lambda: comm.allreduce(x, prescale=2.0, algorithm="nccl"),
        "nccl.* for arrays in GPU memory": lambda: comm.allreduce(np.ones(3), algorithm="nccl"),
    }
    for match, call in refused.items():
        with pytest.raises(ArgumentError, match=match):
            call()
    with pytest.raises(UnsupportedTypeError, match="x is int16, and NCCL folds"):
        comm.allreduce(on_device(gpu, np.ones(3, np.int16), stream), algorithm="nccl")
    assert comm.allreduce(x, algorithm="nccl").get()[0] == SIZE


def test_a_rank_that_cannot_join(doomed):
    if RANK == SIZE - 1:
        doomed.fail_next("join", RuntimeError("no sockets"))
    with cc.Communicator(MPI.COMM_WORLD) as fresh:
        x = on_device(doomed, np.ones(6, np.float32), 0)
        told = "no sockets" if RANK == SIZE - 1 else "another rank has failed"
        with pytest.raises(CommunicatorError, match=f"NCCL does not connect the ranks: .*{told}"):
            fresh.allreduce(x, algorithm="nccl")
        assert fresh.allreduce(x).get()[0] == SIZE


def test_what_nccl_tells_later(doomed, fresh, monkeypatch):
    comm = fresh(validate=False, timeout=20)
    x = on_device(doomed, np.ones(6, np.float32), 0)
    comm.allreduce(x, algorithm="nccl")
    MPI.COMM_WORLD.Barrier()
    if RANK:
        monkeypatch.setattr(FakeGroup, "check", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # the first rank does not come
            comm.iallreduce(x, algorithm="nccl").wait(host=True)
        with pytest.raises(CommunicatorError, match="failed in allreduce of 6 float32"):
            comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()


def test_a_rank_that_does_not_come_before_the_end(doomed, fresh):
    comm = fresh(validate=False, timeout=60)
    if SIZE == 1:
        return
    x = on_device(doomed, np.ones(6, np.float32), 0)
    comm.allreduce(x, algorithm="nccl")
    comm.timeout = 0.5
    MPI.COMM_WORLD.Barrier()
    if RANK:
        comm.allreduce(x, algorithm="nccl")  # it is on the stream
        with pytest.raises(StallError, match=r"free\(\): rank . waited 0.5 s for NCCL"):
            comm.free()
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("waits", ["for it", "for any"])
def test_a_rank_that_does_not_come(doomed, fresh, waits):
    comm = fresh(validate=False, timeout=60)
    if SIZE == 1:
        return
    kind = Exporter if waits == "for any" else Tensor  # the first is complete before it is returned
    x = on_device(doomed, np.ones(6, np.float32), 0, kind)
    comm.allreduce(x, algorithm="nccl")
    comm.timeout = 0.5
    MPI.COMM_WORLD.Barrier()
    if RANK:
        request = comm.iallreduce(x, algorithm="nccl")
        with pytest.raises((StallError, PeerAbortedError)):
            request.wait(host=True) if waits == "for it" else cc.wait_any([request])
        with pytest.raises(CommunicatorError, match="broken"):
            comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()
