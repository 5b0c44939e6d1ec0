"""Arrays of devices that go from device to device: what only that transport does."""

from __future__ import annotations

import gc
import random
import time

import numpy as np
import pytest
from cases import names, runnable
from fake_devices import (
    MARKS,
    Tensor,
    bits_of_every_algorithm,
    fetched,
    group,
    on_device,
)
from forms import CUT, VECTOR, WHOLE
from mpi4py import MPI

import collectives as cc
from collectives.devices import folds, peers
from collectives.devices.direct import DirectRequest
from collectives.devices.staging import DeviceRequest
from collectives.errors import ArgumentError, CommunicatorError, MismatchError, PeerAbortedError

pytest_plugins = ["fake_devices"]  # the fixtures
pytestmark = MARKS

TRANSPORTS = ("ipc",)
SIZE = MPI.COMM_WORLD.Get_size()
FORMS = (*WHOLE, *CUT, *VECTOR)


def goes_by_ipc(comm, x, **arguments):
    request = comm.iallreduce(x, **arguments)
    request.wait()
    return isinstance(request, DirectRequest)


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "broadcast"])
def test_every_algorithm_has_the_bits_of_the_host(gpu, plain_comm, stream, collective):
    """On some pages, and on one."""
    p = plain_comm.size
    bits_of_every_algorithm(gpu, plain_comm, stream, collective, (p * 7, p * 700))


@pytest.mark.parametrize("op", sorted({op for op, _ in folds.PAIRS}))
def test_every_operation(gpu, plain_comm, stream, op):
    """With a dtype that has another kernel, as well."""
    assert goes_by_ipc(plain_comm, on_device(gpu, np.ones(3, np.int32), stream), op=op)
    for dtype in ("int8", "uint64"):
        x = np.arange(300).astype(dtype) + plain_comm.rank
        want = plain_comm.allreduce(x, op=op)
        assert (plain_comm.allreduce(on_device(gpu, x, stream), op=op).get() == want).all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_factors_have_the_bits_of_the_host(gpu, plain_comm, stream, dtype):
    x = (np.random.default_rng(plain_comm.rank).standard_normal(777) * 3).astype(dtype)
    for options in ({"op": "AVG"}, {"prescale": 1 / 3}, {"op": "AVG", "postscale": 0.7}):
        for algorithm in ("master_worker", "ring", None):
            want = plain_comm.allreduce(x, algorithm=algorithm, **options)
            given = on_device(gpu, x, stream)
            got = plain_comm.allreduce(given, algorithm=algorithm, **options)
            assert got.get().tobytes() == want.tobytes()
            assert given.get().tobytes() == x.tobytes()
            plain_comm.allreduce(given, given, algorithm=algorithm, **options)
            assert given.get().tobytes() == want.tobytes()


def test_what_goes_through_the_host(gpu, plain_comm, stream):
    """User's folds, and an alltoallv, in which no rank knows the counts of all."""
    p = plain_comm.size
    x = on_device(gpu, np.ones(60 * p, np.float32), stream)
    assert goes_by_ipc(plain_comm, x)

    def largest(incoming, accumulator):
        np.maximum(incoming, accumulator, out=accumulator)

    assert not goes_by_ipc(plain_comm, x, op=cc.reduction(largest, name="largest"))
    request = plain_comm.ialltoallv(x, [60] * p, receive_counts=[60] * p)
    last = plain_comm.iallreduce(x)
    assert isinstance(request, DirectRequest if p == 1 else DeviceRequest)
    assert isinstance(last, DirectRequest)
    assert (last.wait().get() == p).all()
    assert (request.wait().get() == 1).all()


def test_ranks_on_several_devices(gpu, plain_comm):
    """And a call whose arrays are on another device than those of the first call."""
    rank, p = plain_comm.rank, plain_comm.size
    for turn in range(3):
        device = (rank + turn) % 2
        with gpu.on(device):
            stream = gpu.stream()
        x = Tensor.of(gpu, np.full(3000 * p, rank, np.int64), device=device, stream=stream)
        assert goes_by_ipc(plain_comm, x)
        assert (plain_comm.allreduce(x).get() == p * (p - 1) // 2).all()
        parts = plain_comm.reduce_scatter(x, prescale=1.0)
        assert parts.device == device
        assert (parts.get() == p * (p - 1) // 2).all()
        plain_comm.broadcast(x, x, root=p - 1)
        assert (x.get() == p - 1).all()
        counts = [100 * (r + 1) for r in range(p)]
        displs = [sum(counts[:r]) + 5 * r for r in range(p)]
        out = Tensor.of(gpu, np.full(displs[-1] + counts[-1], -1), device=device, stream=stream)
        mine = x.view((counts[rank],), 0, None)
        plain_comm.allgatherv(mine, out, counts=counts, displs=displs)
        assert (out.get() != p - 1).sum() == 5 * (p - 1)
        with gpu.on(device):
            gpu.end_stream(stream)


def test_seventeen_sources(gpu, stream):
    """More than one kernel takes: the ranks stand for themselves several times."""
    from collectives.devices.passes import Passes
    from collectives.devices.peers import Peers

    mine = Peers(gpu, 0, 1024, True)
    passes = Passes(mine, "SUM", "int64", 8, None)
    arrays = [Tensor.of(gpu, np.full(50, 3**k), stream=mine.stream) for k in range(33)]
    out = arrays[20].address  # in place
    number = [0] + [1] * 32  # of folds after each of them
    passes.run([], [each.address for each in arrays], number, out, 0, 50, False, None)
    assert (arrays[20].get() == sum(3**k for k in range(33))).all()
    passes.release()
    del arrays
    mine.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(gpu, plain_comm, stream, seed):
    """Calls of all kinds, some on the host, are waited for in another order on each rank."""
    chance = random.Random(seed)
    mine = random.Random(f"{seed} {plain_comm.rank}")
    cases = []
    for turn in range(14):
        form, n = chance.choice(FORMS), chance.choice([0, 1, 5, 63, 64, 65, 400, 1500])
        case = form(plain_comm.size, n, dtype="int32", root=turn % plain_comm.size, seed=turn)
        is_here = chance.random() < 0.8
        x = case.x(plain_comm.rank)
        given = on_device(gpu, x, stream) if is_here else x
        cases.append((case, is_here, case.call(plain_comm, given, start=True)))
        if chance.random() < 0.3:
            mine.shuffle(cases)
            verify(cases.pop(), plain_comm.rank)
    mine.shuffle(cases)
    for each in cases:
        verify(each, plain_comm.rank)


def verify(one, rank):
    case, is_here, request = one
    got = request.wait()
    case.verify(fetched(got) if is_here else got, rank)


def test_a_device_has_no_page_while_others_read_it(gpu, plain_comm, stream):
    """Many short calls in a row, of which none waits for the device."""
    p, rank = plain_comm.size, plain_comm.rank
    out = on_device(gpu, np.zeros((40, 30 * p), np.int32), stream)
    for turn in range(40):
        row = out.view((30 * p,), turn * 120 * p, None)
        x = on_device(gpu, np.full(30 * p, turn * rank, np.int32), stream)
        plain_comm.allreduce(x, row)
        x.put(np.full(30 * p, -1, np.int32))
    total = p * (p - 1) // 2
    assert (out.get() == total * np.arange(40)[:, None]).all()


def test_other_calls_are_found(doomed, fresh):
    comm = fresh(validate=False, timeout=20)
    if comm.size == 1:
        return
    x = on_device(doomed, np.ones(500, np.float32), 0)
    comm.allreduce(x)
    with pytest.raises((MismatchError, PeerAbortedError), match=r"SUM|MAX|gave up"):
        comm.allreduce(x, op="SUM" if comm.rank else "MAX")


EXPORTS = ["stream", "shared_event", "export_memory", "export_event", "open_memory", "open_event"]


@pytest.mark.parametrize("method", EXPORTS)
def test_devices_that_cannot_be_mapped(gpu, method):
    """One rank cannot, so all ranks are told, and all memory is given back."""
    if SIZE == 1:
        return
    with group(False) as comm:
        x = Tensor.of(gpu, np.ones(5000, np.float32))
        if comm.rank == comm.size - 1:
            gpu.fail_next(method, RuntimeError("the driver says no"))
        for _ in range(2):
            match = f"'ipc', which is not possible here: the driver says no .rank {comm.size - 1}"
            with pytest.raises(ArgumentError, match=match):
                comm.iallreduce(x)
        found = comm.device_transports(x)
        assert (found.used, found.reasons["staging"]) == (None, None)


def test_a_device_without_room_for_a_ring(gpu):
    if SIZE == 1:
        return
    with group(False) as comm:
        x = Tensor.of(gpu, np.ones(5000, np.float32))
        if comm.rank == 0:
            gpu.fail_next("allocate", MemoryError("none left"))
        with pytest.raises(ArgumentError, match=r"none left \(rank 0\)"):
            comm.allreduce(x, x)
        assert comm._devices().peers is None


def test_a_device_without_room_for_a_call(doomed, fresh):
    comm = fresh(validate=False, timeout=20)
    x = on_device(doomed, np.ones(5000, np.float32), 0)
    comm.allreduce(x)
    if comm.rank == 0:
        out = on_device(doomed, np.ones(5000, np.float32), 0)
        doomed.fail_next("allocate", MemoryError("none left"))
        match = "cuda:0 has no memory for allreduce of 5000 float32.*: none left"
        with pytest.raises(CommunicatorError, match=match):
            comm.allreduce(x, out, prescale=2.0)
    else:
        with pytest.raises(PeerAbortedError, match=r"rank 0 gave up.*none left"):
            comm.allreduce(x, x, prescale=2.0)
    with pytest.raises(CommunicatorError, match="broken"):
        comm.allreduce(x)


def test_communicators_that_are_dropped_give_their_memory_back(gpu, stream):
    """Until all ranks have dropped them; memory that is left at the end fails the test, too."""
    x = on_device(gpu, np.ones(5000, np.float32), stream)
    kept = group(False)
    kept.allreduce(x)
    before = gpu.calls["free"]
    for ends_first in (True, False):
        dropped = group(False)
        request = dropped.iallreduce(x)
        if ends_first:
            request.wait(host=True)
        del dropped
        gc.collect()
        assert request.wait().get()[0] == SIZE
        del request
        gc.collect()
    kept.barrier()
    limit = time.monotonic() + 60
    while peers._leaving and time.monotonic() < limit:
        peers.sweep()  # as a call does
        time.sleep(0.001)
    assert peers._leaving == []
    assert gpu.calls["free"] >= before + 2 * (SIZE > 1)
    kept.free()


def roomy():
    """Make a communicator whose slots hold more than the smallest lent array."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(32 << 10))
        return cc.Communicator(MPI.COMM_WORLD)


def made_empty(gpu, comm, values, stream):
    """Return an array that the other ranks have mapped, with some values."""
    made = comm.empty(values.shape, values.dtype, device="cuda")
    made.stream = stream
    made.put(values)
    return made


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "broadcast"])
def test_arrays_that_others_read_where_they_lie(gpu, stream, collective):
    """They are not copied first, and their values may change as soon as a call is over."""
    comm, plain = roomy(), group(False)
    p, rank, n = comm.size, comm.rank, comm.size * 6000
    x = np.random.default_rng(rank).standard_normal(n).astype(np.float32)
    want = getattr(plain, collective)(x)
    given = made_empty(gpu, comm, x, stream)
    out = made_empty(gpu, comm, np.zeros_like(want), stream)
    for name in names(collective):
        if not runnable(collective, name, p):
            continue
        want = getattr(plain, collective)(x, algorithm=name)
        for turn in range(2):
            got = getattr(comm, collective)(given, out, algorithm=name)
            assert got is out
            given.put(np.full_like(x, np.nan))
            assert out.get().tobytes() == want.tobytes(), (name, turn)
            given.put(x)
        if collective == "allreduce":
            comm.allreduce(given, given, algorithm=name)
            assert given.get().tobytes() == want.tobytes(), name
            given.put(x)
    given.get()
    del given, out, got
    comm.free()
    plain.free()


def copies(gpu, call):
    before = gpu.calls["copy"]
    call()
    return gpu.calls["copy"] - before


def test_arrays_that_others_read_where_they_lie_are_not_copied_first(gpu, stream):
    with roomy() as comm:
        if comm.size == 1:
            return
        x = np.ones(50_000, np.float32)
        given, out = (made_empty(gpu, comm, x, stream) for _ in range(2))
        private, result = (on_device(gpu, x, stream) for _ in range(2))
        few = copies(gpu, lambda: comm.allreduce(given, out, algorithm="round_robin"))
        many = copies(gpu, lambda: comm.allreduce(private, result, algorithm="round_robin"))
        assert few < many
        assert out.get().tobytes() == result.get().tobytes()


def test_arrays_that_come_and_go(gpu, stream):
    """Their memory is given back when all ranks make another, and the last one's with it."""
    x = np.ones(30_000, np.float32)
    comm = roomy()
    for _ in range(4):
        made = made_empty(gpu, comm, x, stream)
        comm.allreduce(made, made)
        assert made.get()[0] == SIZE
        comm.barrier()
        del made
    peers = comm._engine.devices().peers
    assert len(peers.loans) == (SIZE > 1)
    made = made_empty(gpu, comm, x, stream)
    made.get()
    del peers
    comm.free()
    made.put(x)
    assert made.get()[0] == 1.0  # it outlives the communicator
    del made
    gc.collect()


def test_empty_on_a_device_that_is_not_there(gpu):
    with group(False) as comm:
        for wrong in ("cpu", "cuda:x", "cuda:99", -1, 2.5):
            with pytest.raises(ArgumentError, match="device is"):
                comm.empty(3, device=wrong)
        if comm.size > 1:
            with pytest.raises(MismatchError, match="without one on the others"):
                comm.empty(3, device="cuda" if comm.rank == 0 else None)
        assert comm.empty((2, 0), device=0).shape == (2, 0)
        if comm.size > 1:
            gpu.fail_next("export_memory", RuntimeError("no more handles"))
            with pytest.raises(CommunicatorError, match="all ranks map: no more handles"):
                comm.empty(3, device="cuda")
        assert comm.empty(3, np.float32, device="cuda").shape == (3,)
