"""Arrays of devices, on a GPU that is not there: its streams run later, and it finds races."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from dtypes import DTYPES
from fake_devices import (  # noqa: F401
    CHUNK,
    MARKS,
    TRANSPORTS,
    Tensor,
    fetched,
    group,
    in_place,
    on_device,
    run_form,
)
from forms import CUT, VECTOR, WHOLE, Allgatherv, Alltoallv, Gatherv, Scatterv
from mpi4py import MPI

import collectives as cc
from collectives.devices.calls import DevicePlan
from collectives.devices.direct import DirectRequest
from collectives.devices.staging import DeviceRequest
from collectives.errors import (
    ArgumentError,
    BufferError,
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    StallError,
    UnsupportedTypeError,
)

pytest_plugins = ["fake_devices"]  # the fixtures
pytestmark = MARKS

FORMS = (*WHOLE, *CUT, *VECTOR)
EXCHANGED = (Allgatherv, Gatherv, Alltoallv)  # counts, where nobody says them
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def columns(comm, form):
    """Return how many elements of a part are in a piece, about."""
    return CHUNK // 4 // (comm.size if form.cut else 1)


def sizes(comm, form):
    c = columns(comm, form)
    return (0, 1, c - 1, c, c + 1, 5 * c + 3)


# -- results ---------------------------------------------------------------------------------------


@every_form
def test_every_collective_on_odd_sizes(gpu, comm, stream, form):
    for turn, n in enumerate(sizes(comm, form)):
        exchange = form in EXCHANGED and turn == 3
        run_form(gpu, comm, stream, form, turn, n, exchange=exchange)


@every_form
def test_in_place(gpu, comm, stream, form):
    start = gpu.order.mode == "lazy"
    for turn, n in enumerate((1, 5, 3 * columns(comm, form) + 1)):
        case = form(comm.size, n, dtype="float64", root=turn % comm.size, seed=turn)
        x, out = in_place(gpu, case, comm.rank, stream)
        got = case.call(comm, x, out, start=start)
        case.verify(fetched(got.wait() if start else got), comm.rank)


@every_form
def test_many_in_flight_are_waited_for_in_any_order(gpu, comm, stream, form):
    cases = [
        form(comm.size, n, dtype="int64", root=turn % comm.size, seed=turn)
        for turn, n in enumerate(sizes(comm, form))
    ]
    requests = [
        case.call(comm, on_device(gpu, case.x(comm.rank), stream), start=True) for case in cases
    ]
    assert all(isinstance(each, (DeviceRequest, DirectRequest)) for each in requests)
    order = list(range(len(cases)))
    if comm.rank % 2:
        order.reverse()
    for k in order:
        cases[k].verify(fetched(requests[k].wait()), comm.rank)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_folds(gpu, comm, stream, dtype):
    for form in (FORMS[0], CUT[3]):
        case = form(comm.size, 2 * columns(comm, form) + 3, dtype=dtype)
        x = on_device(gpu, case.x(comm.rank), stream)
        case.verify(fetched(case.call(comm, x)), comm.rank)


def test_scales_and_functions(gpu, comm, stream):
    x = np.arange(1000, dtype=np.float32)
    given = on_device(gpu, x, stream)
    got = comm.allreduce(given, op=cc.AVG, prescale=2.0, postscale=0.5)
    np.testing.assert_allclose(got.get(), x, rtol=1e-6)

    def largest(incoming, accumulator):
        np.maximum(incoming, accumulator, out=accumulator)

    op = cc.reduction(largest, name="largest")
    got = comm.allreduce(on_device(gpu, x + comm.rank, stream), op=op, algorithm="ring")
    assert (got.get() == x + comm.size - 1).all()


def test_parts_that_lie_elsewhere(gpu, comm, stream):
    p, rank, n = comm.size, comm.rank, 700
    counts = np.array([n * (r + 1) for r in range(p)])
    displs = [sum(counts[r + 1 :]) + 3 * (p - r) for r in range(p)]  # backwards, with gaps
    room = int(sum(counts)) + 3 * (p + 1)
    out = on_device(gpu, np.full(room, -1, np.int32), stream)
    x = np.arange(counts[rank], dtype=np.int32) + 1000 * rank
    comm.allgatherv(on_device(gpu, x, stream), out, counts=counts, displs=displs)
    want = np.full(room, -1, np.int32)
    for r in range(p):
        want[displs[r] : displs[r] + counts[r]] = np.arange(counts[r]) + 1000 * r
    assert (out.get() == want).all()
    back = comm.scatterv(out, counts=counts, displs=displs, root=p - 1)
    assert (back.get() == x).all()
    sent = on_device(gpu, want, stream)
    got = comm.alltoallv(sent, counts, displs=displs)
    assert (got.get() == np.tile(x, p)).all()


def test_tests_move_it_on(gpu, comm, stream):
    x = on_device(gpu, np.ones(3000, np.float32), stream)
    request = comm.iallreduce(x)
    while not request.test():
        pass
    got = request.wait(host=True)
    assert (got.get() == comm.size).all()
    assert "complete" in repr(request)
    results = cc.wait_all([comm.iallreduce(x), comm.ibroadcast(x), None])
    assert (results[0].get() == comm.size).all()
    which, _ = cc.wait_any([comm.iallreduce(x)])
    assert which == 0


def test_between_calls_on_the_host(gpu, comm, stream):
    """The order of operations is that of the program, for any order of waits."""
    x = on_device(gpu, np.full(5000, comm.rank, np.int64), stream)
    total = comm.size * (comm.size - 1) // 2
    requests = []
    for _ in range(3):
        requests.append(comm.iallreduce(x))
        requests.append(comm.iallreduce(np.full(4, comm.rank)))
        assert comm.allreduce(np.full(3, comm.rank))[0] == total
    for request in requests if comm.rank % 2 else reversed(requests):
        got = request.wait()
        assert (got.get() == total).all() if isinstance(got, Tensor) else (got == total).all()


def test_plans(gpu, comm, stream):
    x = on_device(gpu, np.zeros(2000, np.float32), stream)
    planned = comm.plan("allreduce", x)
    assert isinstance(planned, DevicePlan)
    for turn in range(3):
        x.put(np.full(2000, turn, np.float32))
        got = planned() if turn % 2 else planned.start().wait()
        assert (got.get() == turn * comm.size).all()
    gathered = comm.plan("gather", x, root=comm.size - 1)
    got = gathered()
    assert (got is None) == (comm.rank != comm.size - 1)
    assert got is None or got.shape == (comm.size, 2000)
    if comm.rank == comm.size - 1:
        assert gathered() is got
    else:
        gathered()
    with pytest.raises(CommunicatorError, match=r"allreduce of 2000 float32 on cuda:0 was not"):
        comm.plan("allreduce", x).wait()


def test_several_devices_and_streams(gpu, comm):
    with gpu.on(1):
        stream = gpu.stream()
    before = gpu.current
    x = Tensor.of(gpu, np.ones(3000, np.int32), device=1, stream=stream)
    y = Tensor.of(gpu, np.ones(10, np.int32), device=0)
    first, second = comm.iallreduce(x), comm.iallreduce(y)
    assert second.wait().get()[0] == first.wait().get()[-1] == comm.size
    assert gpu.current == before
    with gpu.on(1):
        gpu.end_stream(stream)


def test_nothing_is_allocated_by_later_calls(gpu, comm, stream):
    x = on_device(gpu, np.ones(5000, np.float32), stream)
    comm.allreduce(x, x)
    before = {name: gpu.calls[name] for name in ("allocate", "pinned", "stream", "event")}
    for _ in range(3):
        comm.allreduce(x, x)
    assert {name: gpu.calls[name] for name in before} == before


def test_threads_wait_for_different_calls(gpu, comm, stream):
    x = on_device(gpu, np.full(3000, comm.rank + 1, np.int64), stream)
    requests = [comm.iallreduce(x) for _ in range(4)]
    results = [None] * 4

    def wait(k):
        results[k] = requests[k].wait()

    threads = [threading.Thread(target=wait, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in results:
        assert (got.get() == comm.size * (comm.size + 1) // 2).all()


def test_two_communicators_are_waited_for_in_any_order(gpu, comm, stream):
    x = on_device(gpu, np.full(5000, comm.rank, np.int64), stream)
    with group(False) as other:
        requests = [comm.iallreduce(x), other.iallreduce(x), comm.iallreduce(x)]
        for request in requests if comm.rank % 2 else reversed(requests):
            assert (request.wait().get() == comm.size * (comm.size - 1) // 2).all()


def test_threads_whose_first_calls_meet(gpu, plain_comm, stream, transport):
    x = on_device(gpu, np.ones(300, np.int64), stream)
    before, results = gpu.calls["stream"], []
    threads = [
        threading.Thread(target=lambda: results.append(plain_comm.allreduce(x))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((got.get() == plain_comm.size).all() for got in results)
    assert len(results) == 4
    assert gpu.calls["stream"] == before + (2 if transport == "auto" else 1)


def test_results_outlive_their_communicator(gpu, stream):
    with group(False) as comm:
        x = on_device(gpu, np.ones(10, np.float32), stream)
        request = comm.iallreduce(x)
        request.wait()
    assert request.wait(host=True).get()[0] == comm.size


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_call_outlives_its_communicator(doomed):
    request = group(False).iallreduce(on_device(doomed, np.ones(5000, np.float32), 0))
    gc.collect()
    assert (request.wait().get() == MPI.COMM_WORLD.Get_size()).all()


def test_every_form_where_parts_move_in_place(gpu, comm, stream):
    """The counts differ, so that a part would be written over one that was not read."""
    p, n = comm.size, 900
    counts = np.array([[n // (1 + s + r) for r in range(p)] for s in range(p)])
    sent = np.concatenate([np.full(counts[comm.rank, r], 10 * comm.rank + r) for r in range(p)])
    received = counts[:, comm.rank]
    room = max(sent.size, int(received.sum()))
    memory = on_device(gpu, np.resize(sent, room), stream)
    x, out = memory.view(sent.shape, 0, None), memory.view((int(received.sum()),), 0, None)
    comm.alltoallv(x, counts[comm.rank], out, receive_counts=received)
    want = np.concatenate([np.full(counts[s, comm.rank], 10 * s + comm.rank) for s in range(p)])
    assert (out.get() == want).all()
    given = on_device(gpu, np.arange(3 * n * p), stream)
    first = given.view((3 * n,), 0, None)  # as MPI does it in place
    comm.reduce_scatter(given, first)
    assert (first.get() == p * np.arange(3 * n * comm.rank, 3 * n * (comm.rank + 1))).all()


# -- errors ----------------------------------------------------------------------------------------


def test_arguments_that_are_refused(gpu, plain_comm, stream):
    comm = plain_comm
    x = on_device(gpu, np.ones(6, np.float32), stream)
    host = np.ones(6, np.float32)
    other = Tensor.of(gpu, host, device=1)
    refused = {
        "x is on cuda:0 and out is in host memory": lambda: comm.allreduce(x, host),
        "out is on (a CUDA device|cuda:0), and must be in host": lambda: comm.allreduce(host, x),
        "x is on cuda:0 and out is on cuda:1; they": lambda: comm.allreduce(x, other),
        r"x is not C-contiguous \(shape \(3,\)": lambda: comm.allreduce(x.view((3,), 0, (8,))),
        "out has 3 elements, and the result has 6": lambda: comm.allreduce(
            x, x.view((3,), 0, None)
        ),
        "out overlaps x in part": lambda: comm.allreduce(
            x.view((3,), 0, None), x.view((3,), 4, None)
        ),
        "out is float64 and x is float32": lambda: comm.allreduce(
            x, on_device(gpu, np.ones(6), stream)
        ),
        "algorithm": lambda: comm.allreduce(x, algorithm="no such"),
        r"arrays\[0\] is on cuda:0 and arrays\[1\] is in host": lambda: comm.allreduce_many(
            [x, host]
        ),
        r"arrays\[1\]: x is on cuda:0 and out is in host": lambda: comm.allreduce_many(
            [x, x], [x, host]
        ),
        r"out\[1\] overlaps out\[0\]": lambda: comm.allreduce_many([x, x], [x, x]),
        "timeout is -1": lambda: comm.allreduce(x, timeout=-1),
        "root is 99": lambda: comm.broadcast(x, root=99),
    }
    for match, call in refused.items():
        with pytest.raises(ArgumentError, match=match):
            call()
    with pytest.raises(UnsupportedTypeError, match="BAND is not defined on float32"):
        comm.allreduce(x, op=cc.BAND)
    frozen = Tensor.of(gpu, host, is_read_only=True)
    with pytest.raises(BufferError, match="out is a read-only Tensor"):
        comm.allreduce(x, frozen)
    assert comm.allreduce(x).get()[0] == comm.size


def test_free_names_what_is_in_flight(gpu, plain_comm, stream):
    x = on_device(gpu, np.ones(6, np.float32), stream)
    request = plain_comm.iallreduce(x)
    state = "(0 of 1 pieces have ended|allreduce '.*' on . ranks?.*: .*|all of it is enqueued)"
    match = f"allreduce of 6 float32 on cuda:0: {state}, started at .*test_devices"
    with pytest.raises(CommunicatorError, match=match):
        plain_comm.free()
    request.wait()


@pytest.mark.parametrize("validate", [False, True])
def test_ranks_that_mix_host_and_device(doomed, fresh, validate, shares):
    comm = fresh(validate=validate, timeout=20)
    if comm.size == 1 or not (validate or shares):
        return
    x = np.ones(5000, np.float32)
    given = on_device(doomed, x, 0) if comm.rank == 0 else x
    match = "SUM, on a device, algorithm="
    with pytest.raises((MismatchError, PeerAbortedError), match=match if validate else None):
        comm.allreduce(given)


@pytest.mark.parametrize("start", [False, True], ids=["blocking", "started"])
def test_a_rank_that_does_not_come(doomed, fresh, start):
    comm = fresh(validate=False, timeout=0.5)
    if comm.size == 1:
        return
    x = on_device(doomed, np.ones(5000, np.float32), 0)
    if comm.rank:
        with pytest.raises((StallError, PeerAbortedError)):
            comm.iallreduce(x).wait() if start else comm.allreduce(x)
        with pytest.raises(CommunicatorError, match="broken"):
            comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("vector", [False, True], ids=["behind another", "counts"])
def test_any_of_those_that_a_rank_does_not_come_to(doomed, vector):
    comm, n = group(False), 1000
    if comm.size == 1:
        return
    x = on_device(doomed, np.ones(n * comm.size, np.float32), 0)
    counts = [n] * comm.size
    comm.allreduce(x)  # by ipc, the first call waits for all ranks, also one that does not block
    comm.timeout = 0.5
    if comm.rank:
        if vector:
            last = comm.ialltoallv(x, counts, receive_counts=counts)
        else:
            _, last = comm.iallreduce(x), comm.iallreduce(x)
        with pytest.raises((StallError, PeerAbortedError)):
            cc.wait_any([last])
    MPI.COMM_WORLD.Barrier()


def test_other_counts_are_found_in_the_first_piece(doomed, fresh, shares):
    comm = fresh(validate=False, timeout=20)
    if comm.size == 1 or not shares:
        return
    x = on_device(doomed, np.ones(3_000_000 + comm.rank, np.float32), 0)
    told = r"count=300000|given up|gave up|bytes from"
    with pytest.raises((MismatchError, PeerAbortedError), match=told):
        comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()  # MPI may still read the memory of a rank that was told first


def test_a_copy_that_fails_breaks_the_communicator(doomed, fresh):
    comm = fresh(validate=False, timeout=20)
    if comm.size > 1:
        return
    x = on_device(doomed, np.ones(5000, np.float32), 0)
    comm.allreduce(x)
    doomed.fail_next("copy", RuntimeError("the bus fell off"))
    with pytest.raises(RuntimeError, match="fell off"):
        comm.allreduce(x)
    with pytest.raises(CommunicatorError, match=r"failed in allreduce (of 5000|'.*' on 1)"):
        comm.allreduce(x)


def test_memory_that_no_call_copies(gpu, plain_comm, monkeypatch):
    x = Tensor.of(gpu, np.ones(4, np.float32))
    monkeypatch.setattr(gpu, "place", lambda address: SimpleNamespace(kind="managed", device=0))
    with pytest.raises(BufferError, match="x is in managed memory"):
        plain_comm.allreduce(x)
    monkeypatch.undo()
    monkeypatch.setattr(gpu, "is_capturing", lambda stream: True)
    with pytest.raises(BufferError, match="x is on a stream that is being captured"):
        plain_comm.allreduce(x)
    monkeypatch.undo()


SAYS = {"shape": (4,), "typestr": "<f4", "data": (512, False), "version": 3, "strides": None}
NONSENSE = [
    {"shape": None},
    {"shape": (-2, -2)},
    {"shape": (4.0,)},
    {"shape": (2**40, 2**40)},
    {"data": None},
    {"data": (None, False)},
    {"data": (-512, False)},
    {"data": (2**70, False)},
    {"version": "3"},
    {"stream": -5},
    {"stream": "fast"},
    {"strides": (4, 4)},
]


@pytest.mark.parametrize("wrong", NONSENSE, ids=str)
def test_interfaces_that_cannot_be(gpu, plain_comm, stream, wrong):
    class Odd:
        dtype = np.dtype("float32")
        __cuda_array_interface__ = property(lambda self: {**SAYS, **wrong})

    x = on_device(gpu, np.ones(4, np.float32), stream)
    with pytest.raises(BufferError, match="x "):
        plain_comm.allreduce(Odd())
    with pytest.raises(BufferError, match="out "):
        plain_comm.allreduce(x, Odd())
    assert plain_comm.allreduce(x).get()[0] == plain_comm.size


def test_interfaces_that_host_arrays_do_not_have(gpu, plain_comm, stream):
    class Either:
        """The array of a library whose class is the same for all devices."""

        @property
        def __cuda_array_interface__(self):
            raise AttributeError("this array is in host memory")

        def __dlpack__(self, **keys):
            return values.__dlpack__(**keys)

        def __dlpack_device__(self):
            return values.__dlpack_device__()

    class Failing:
        __cuda_array_interface__ = property(lambda self: 1 / 0)

    values = np.ones(4, np.float32)
    assert plain_comm.allreduce(Either())[0] == plain_comm.size
    assert plain_comm.allreduce(np.ones(4, np.float32), Either()) is not None
    x = on_device(gpu, values, stream)
    with pytest.raises(BufferError, match="x is on cuda:0 and out is in host memory"):
        plain_comm.allreduce(x, Either())
    with pytest.raises(BufferError, match="x is a Failing whose memory cannot be shared"):
        plain_comm.allreduce(Failing())


@pytest.mark.parametrize("method", ["pinned", "stream", "event", "place", "allocate"])
def test_what_fails_before_a_call_is_told(gpu, method, transport):
    if transport != "auto" and method not in ("place", "allocate"):
        return  # it is for the way through the host; see the next test
    with group(True) as comm:
        x = Tensor.of(gpu, np.ones(5000, np.float32))
        if comm.rank == 0:
            gpu.fail_next(method, MemoryError("none left"))
            with pytest.raises((CommunicatorError, MemoryError), match="none left"):
                comm.allreduce(x)
        else:
            with pytest.raises(MismatchError, match=r"rank 0 refused allreduce\(.*none left"):
                comm.allreduce(x)
        assert comm.allreduce(x).get()[0] == comm.size


def test_an_event_that_fails_breaks_the_communicator(doomed, fresh, shares):
    comm = fresh(validate=False, timeout=20)
    if comm.size > 1 and not shares:
        return
    x = on_device(doomed, np.ones(5000, np.float32), 0)
    comm.allreduce(x)
    if comm.rank == 0:
        doomed.fail_next("record", RuntimeError("the bus fell off"))
    with pytest.raises((RuntimeError, PeerAbortedError), match="the bus fell off"):
        comm.allreduce(x)
    with pytest.raises(CommunicatorError, match="broken"):
        comm.allreduce(x)


def test_vector_forms_with_counts_of_no_use(gpu, plain_comm, stream):
    x = on_device(gpu, np.ones(4, np.float32), stream)
    for form in (Allgatherv, Scatterv, Alltoallv):
        with pytest.raises(ArgumentError):
            getattr(plain_comm, form.name)(x, counts=[-1] * plain_comm.size)


def test_a_communicator_that_is_dropped_gives_its_memory_back(gpu, stream, transport):
    """Memory that is left at the end of the driver fails the test, too."""
    if transport != "auto":
        return  # what they have for devices is given back later: see test_devices_ipc and _mpi
    x = on_device(gpu, np.ones(5000, np.float32), stream)
    dropped = group(False)
    assert dropped.allreduce(x).get()[0] == dropped.size
    request = dropped.iallreduce(x)
    del dropped
    gc.collect()
    assert gpu.calls["free_pinned"] == 0  # the request still needs it
    assert request.wait().get()[0] == MPI.COMM_WORLD.Get_size()
    del request
    gc.collect()
    assert gpu.calls["free_pinned"] == 1
