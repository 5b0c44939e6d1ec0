"""Arrays in the memory of a GPU; `test_devices` has the same without one, and more."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dtypes import DTYPES
from forms import CUT, VECTOR, WHOLE, Allreduce, ReduceScatterv
from mpi4py import MPI

import collectives as cc
from collectives import background
from collectives.errors import BufferError

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import gpus

pytestmark = gpus.MARKS
FORMS = (*WHOLE, *CUT, *VECTOR)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
CHUNK = 1 << 16  # bytes of a slot
SIZES = 0, 1, 1000, 200_001  # elements


@pytest.fixture(scope="module", params=["auto", "ipc", "mpi"])
def comm(request):
    """A communicator whose slots are small, so that there are many pieces."""
    import cupy

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(CHUNK))
        patch.setenv("COLLECTIVES_DEVICE_TRANSPORT", request.param)
        made = cc.Communicator(MPI.COMM_WORLD)
        cupy.cuda.Device(made.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
        found = made.device_transports(cupy.ones(1))
    if found.used is None:
        made.free()
        pytest.skip(found.reasons[request.param])
    yield made
    made.free()


def cupy_array(values):
    import cupy

    return cupy.asarray(values)


def torch_tensor(values):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    import cupy

    return torch.as_tensor(cupy.asarray(values), device=f"cuda:{cupy.cuda.Device().id}")


def fetched(got):
    if got is None:
        return None
    return got.get() if hasattr(got, "get") else got.cpu().numpy()


@pytest.mark.parametrize("make", [cupy_array, torch_tensor])
@every_form
def test_every_collective(comm, form, make):
    for turn, n in enumerate(SIZES):
        case = form(comm.size, n, dtype="int32", root=turn % comm.size, seed=turn)
        x = make(case.x(comm.rank))
        out = case.empty(comm.rank) if turn % 2 else None
        out = None if out is None else make(out)
        got = case.call(comm, x, out)
        assert out is None or got is out
        assert got is None or type(got) is type(x)
        case.verify(fetched(got), comm.rank)


@every_form
def test_many_in_flight(comm, form):
    cases = [
        form(comm.size, n, dtype="float64", root=turn % comm.size, seed=turn)
        for turn, n in enumerate(SIZES)
    ]
    requests = [case.call(comm, cupy_array(case.x(comm.rank)), start=True) for case in cases]
    for case, request in reversed(list(zip(cases, requests, strict=True))):
        case.verify(fetched(request.wait()), comm.rank)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float128"])  # CuPy has none
def test_every_dtype_folds(comm, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for form in (WHOLE[0], CUT[3]):
        case = form(comm.size, 50_001, dtype=dtype)
        case.verify(fetched(case.call(comm, cupy_array(case.x(comm.rank)))), comm.rank)


def test_order_on_streams(comm):
    """The kernel that writes the input was enqueued just before, and its reader just after."""
    import cupy

    n = 3_000_000
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for turn in range(5):
                x = cupy.zeros(n, cupy.float32)
                for _ in range(20):
                    x += 1
                x *= turn + comm.rank
                total = comm.allreduce(x)
                x[:] = -1  # later than the call has read it
                seen = total + 0
                total[:] = -1
                want = 20 * sum(turn + r for r in range(comm.size))
                assert bool((seen == want).all())


def test_plans_and_captures(comm):
    import cupy

    x = cupy.ones(100_000, cupy.float32)
    planned = comm.plan("allreduce", x)
    for turn in range(3):
        x[:] = turn
        assert bool((planned() == turn * comm.size).all())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(BufferError, match="captured into a graph"):
            comm.allreduce(x)
        stream.end_capture()


def test_managed_memory_is_refused(comm):
    import cupy

    memory = cupy.cuda.malloc_managed(64)
    x = cupy.ndarray(8, cupy.float64, memory)
    with pytest.raises(BufferError, match="managed memory"):
        comm.allreduce(x)


def test_same_bits_as_on_the_host(comm):
    x = np.random.default_rng(comm.rank).standard_normal(100_000).astype(np.float32)
    for name in Allreduce.runnable():
        on_host = comm.allreduce(x, algorithm=name)
        assert fetched(comm.allreduce(cupy_array(x), algorithm=name)).tobytes() == on_host.tobytes()


def test_messages_and_many_arrays(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for n in SIZES:
        x, out = cupy_array(np.full(n, comm.rank)), cupy_array(np.full(n, -1))
        assert comm.sendrecv(x, right, out, left) is out
        assert (fetched(out) == left).all()
        request = comm.irecv(out, left, tag=3)
        comm.send(x + 1, right, tag=3)
        assert (fetched(request.wait()) == left + 1).all()
    arrays = [cupy_array(np.full(n, comm.rank, np.float32)) for n in SIZES]
    for got in comm.allreduce_many(arrays):
        assert (fetched(got) == comm.size * (comm.size - 1) / 2).all()


def test_results_of_jax(comm):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX finds no GPU")
    x = jax.numpy.full(1000, comm.rank, jax.numpy.float32)
    for got in (comm.allreduce(x), comm.iallreduce(x).wait()):
        assert isinstance(got, jax.Array)
        assert bool((got == comm.size * (comm.size - 1) / 2).all())


def test_jax_in_a_compiled_program(comm):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX finds no GPU")
    import collectives.jax as cj

    @jax.jit
    def centred(x):
        return x - cj.allreduce(x, op=cc.AVG, comm=comm)

    x = jax.numpy.full(1000, comm.rank, jax.numpy.float32)
    assert bool((centred(x) == comm.rank - (comm.size - 1) / 2).all())


@pytest.mark.parametrize("make", [cupy_array, torch_tensor])
def test_in_the_background(comm, make):
    n = comm.size * (comm.size - 1) // 2
    arrays = [make(np.full(k, comm.rank, np.float32)) for k in SIZES]
    handles = [background.submit("allreduce", each, group=comm) for each in arrays]
    for handle, each in zip(reversed(handles), reversed(arrays), strict=True):
        found = handle.wait()
        assert type(found) is type(each)
        assert (fetched(found) == n).all()
    host = np.full(5, comm.rank, np.float32)
    mixed = background.submit_many([arrays[2], host], group=comm).wait()
    assert (fetched(mixed[0]) == n).all()
    assert (mixed[1] == n).all()
    background.stop(comm)


# -- NCCL ------------------------------------------------------------------------------------------

BY_NCCL = [form for form in FORMS if form.collective not in ("scan", "exscan")]
BY_NCCL.remove(ReduceScatterv)


@pytest.fixture
def nccl_comm(comm):
    found = comm.device_transports(cupy_array(np.ones(1)))
    if found.used != "staging":
        pytest.skip(f"calls by {found.used} do not ask for NCCL")
    reason = found.reasons["nccl"]
    if reason is not None:  # the same on all ranks
        pytest.skip(reason)
    return comm


@pytest.mark.parametrize("form", BY_NCCL, ids=lambda form: form.name)
def test_every_collective_of_nccl(nccl_comm, form):
    comm = nccl_comm
    for turn, n in enumerate(SIZES):
        case = form(comm.size, n, dtype="int32", root=turn % comm.size, seed=turn)
        start = turn % 2 == 1
        got = case.call(comm, cupy_array(case.x(comm.rank)), start=start, algorithm="nccl")
        case.verify(fetched(got.wait(host=True) if start else got), comm.rank)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX"])
def test_folds_of_nccl(nccl_comm, dtype, op):
    case = WHOLE[0](nccl_comm.size, 1000, dtype=dtype, op=op)
    got = case.call(nccl_comm, cupy_array(case.x(nccl_comm.rank)), algorithm="nccl")
    case.verify(fetched(got), nccl_comm.rank)


def test_nccl_in_a_graph(nccl_comm):
    import cupy

    comm = nccl_comm
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, out = cupy.zeros(1000, cupy.float32), cupy.zeros(1000, cupy.float32)
        comm.allreduce(x, out, algorithm="nccl")
        stream.begin_capture()
        comm.allreduce(x, out, algorithm="nccl")
        graph = stream.end_capture()
        for turn in range(3):
            x[:] = turn
            graph.launch(stream)
            assert bool((out == turn * comm.size).all())
