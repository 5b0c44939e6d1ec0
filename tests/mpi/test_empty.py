"""Arrays in shared memory: every algorithm reads and writes them where they lie, in time."""

import gc
import importlib.util

import numpy as np
import pytest
from forms import CUT, WHOLE, Allreduce, several_in_flight

import collectives as cc
from collectives.errors import ArgumentError, CommunicatorError

N = 12_000  # elements: with 2 to 8 ranks, some pieces are long enough to stay in place, others not
FORMS = (*WHOLE, *CUT)
WAYS = ("x", "out", "both", "place")


@pytest.fixture(scope="module")
def comm():
    """A communicator whose programs lend."""
    return cc.Communicator()


@pytest.fixture(scope="module")
def empties(comm):
    """Room for an input and an output of any form."""
    return [comm.empty(comm.size * N + 16, np.float32) for _ in range(2)]


@pytest.fixture(scope="module")
def heaps(comm):
    """The same, in the heap of each rank, which the others have mapped."""
    with cc.shared_arrays():
        made = [np.zeros(comm.size * N + 16, np.float32) for _ in range(2)]
    for _ in range(3):
        comm.allreduce(made[0], made[1])
        comm.barrier()
    if comm._segment is not None:
        assert comm._segment.lends
        assert comm._segment.maps == comm.local_size - 1
    return made


@pytest.fixture(params=["empty", "heap"])
def memory(request, empties, heaps):
    return empties if request.param == "empty" else heaps


def test_a_device_without_cupy(comm):
    """All ranks are told, and go on; where CuPy is installed, GPU tests make such arrays."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    with pytest.raises(ArgumentError, match="the new array is on a CUDA device, and CuPy is not"):
        comm.empty(3, device="cuda")
    assert comm.empty(3).shape == (3,)


def test_shapes_and_dtypes(comm):
    three = np.int64(3)
    shapes = [(3, (3,)), (three, (3,)), ((2, three), (2, 3)), ([2, 3], (2, 3))]
    for shape, dims in (*shapes, ((), ()), (0, (0,)), ((4, 0), (4, 0))):
        for dtype in (np.float64, "float32", np.int8, np.complex128):
            x = comm.empty(shape, dtype)
            assert x.shape == dims
            assert x.dtype == dtype
            assert x.flags.writeable
            assert x.flags.c_contiguous
    with pytest.raises(ArgumentError, match="no negative dimension"):
        comm.empty((2, -1))


def test_shapes_may_differ(comm):
    x = comm.empty(3000 * (comm.rank + 1))
    x[:] = comm.rank
    counts = [3000 * (r + 1) for r in range(comm.size)]
    y = comm.allgatherv(x, counts=counts)
    assert (y == np.repeat(np.arange(comm.size), counts)).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("segment", [0, 20_000])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_algorithm(comm, memory, segments, form, segment, way):
    """An argument may be changed at once, although others have read it where it lies."""
    case = form(comm.size, N)
    if way == "place" and form.name == "alltoall":
        way = "both"
    with segments(comm, segment):
        for name in form.runnable():
            x, out = case.x(comm.rank), case.empty(comm.rank)
            if way == "place":
                x, out = case.shared(comm.rank)
                base = x if out is None or x.size >= out.size else out
                whole = memory[0][: base.size]
                whole[:] = base
                first = x if base is out else out
                if first is not None:
                    start = (first.ctypes.data - base.ctypes.data) // 4
                    part = whole[start : start + first.size]
                x, out = (part, whole) if base is not x else (whole, None if out is None else part)
            if way in ("x", "both"):
                memory[0][3 : 3 + x.size] = x
                x = memory[0][3 : 3 + x.size]
            if way in ("out", "both") and out is not None:
                out = memory[1][5 : 5 + out.size]
            before = None if way == "place" else x.copy()
            got = case.call(comm, x, out, algorithm=name)
            got = None if got is None else np.array(got)
            if before is not None:
                assert (x == before).all()
            if way != "out":
                x[:] = -1
            if out is not None:
                out[:] = -2
            case.verify(got, comm.rank)


def test_several_in_flight(comm):
    several_in_flight(comm, [comm.empty(5000 + i, np.int64) for i in range(6)])


def test_planned_calls_find_them(comm):
    x = comm.empty(8000, np.float32)
    planned = comm.plan("allreduce", x, x)
    for i in range(5):
        x[:] = i
        assert (planned() == i * comm.size).all()


def test_averages(comm):
    """Others do not read the scaled array."""
    x = comm.empty(50_000, np.float32)
    for name in Allreduce.runnable():
        x[:] = comm.rank
        comm.allreduce(x, out=x, op=cc.AVG, algorithm=name)
        assert (x == np.float32((comm.size - 1) / 2)).all(), name


def test_they_outlive_their_communicator(world):
    comm = world.comm.dup()
    x = comm.empty(10_000)
    view = x[5:]
    x[:] = comm.rank
    comm.allreduce(x, out=x)
    comm.free()
    with pytest.raises(CommunicatorError, match="freed"):
        comm.empty(3)
    del x
    gc.collect()
    total = world.comm.size * (world.comm.size - 1) / 2
    assert (view == total).all()
    assert (world.comm.allreduce(view) == total * world.comm.size).all()


def test_many_come_and_go(comm):
    for i in range(30):
        x = comm.empty(2000 + i)
        x[:] = i
        assert (comm.allreduce(x, out=x) == i * comm.size).all()
        del x


@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_tensors_share_them(comm):
    torch = pytest.importorskip("torch")
    x = comm.empty(5000, np.float32)
    tensor = torch.from_numpy(x)
    tensor.fill_(2)
    comm.allreduce(tensor, out=tensor)
    assert (x == 2 * comm.size).all()


@pytest.mark.parametrize("seed", range(40))
def test_ranks_pass_different_kinds_of_arrays(comm, empties, heaps, seed):
    """A result goes straight into an output in shared memory, unless some rank has none there."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1000, 5000, N, comm.size * N]))
    alike = rng.random() < 0.5
    op = (cc.SUM, cc.MAX, cc.AVG)[seed % 3]
    algorithm = (None, "round_robin", "ring", "butterfly", "tree", "master_worker")[seed % 6]
    kinds = [tuple(rng.integers(0, (3, 3, 2))) for _ in range(comm.size)]
    x_kind, out_kind, in_place = kinds[0] if alike else kinds[comm.rank]
    given = [rng.integers(0, 100, n).astype(np.float32) for _ in range(comm.size)]
    x = (np.empty(n, np.float32), empties[0][:n], heaps[0][:n])[x_kind]
    out = (np.empty(n, np.float32), empties[1][:n], heaps[1][:n])[out_kind]
    out = x if in_place else out
    for _ in range(3):
        out[:] = -1
        x[:] = given[comm.rank]
        if seed % 4:
            comm.allreduce(x, out, op=op, algorithm=algorithm)
        else:
            comm.iallreduce(x, out, op=op).wait()
        want = np.max(given, 0) if op is cc.MAX else np.sum(given, 0)
        np.testing.assert_allclose(out, want / (comm.size if op is cc.AVG else 1), rtol=1e-6)
        if not in_place:
            assert (x == given[comm.rank]).all()
        out[:] = 7  # nobody else reads it any more, or still writes there
        assert (out == 7).all()
