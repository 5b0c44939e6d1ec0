"""Arrays in the memory of a GPU; `test_devices` has the same without one, and more."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from cases import DTYPES, names, runnable
from forms import CUT, VECTOR, WHOLE
from mpi4py import MPI

import collectives as cc
from collectives.errors import BufferError

sys.path.append(str(Path(__file__).resolve().parents[1]))

import gpus

pytestmark = gpus.MARKS
FORMS = (*WHOLE, *CUT, *VECTOR)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
CHUNK = 1 << 16  # bytes of a slot
SIZES = 0, 1, 1000, 200_001  # elements


@pytest.fixture(scope="module", params=["staging", "ipc"])
def comm(request):
    """A communicator whose slots are small, so that there are many pieces."""
    import cupy

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_DEVICE_CHUNK", str(CHUNK))
        patch.setenv("COLLECTIVES_DEVICE_TRANSPORT", request.param)
        made = cc.Communicator(MPI.COMM_WORLD)
        cupy.cuda.Device(made.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
        made.allreduce(cupy.ones(1))
    if request.param == "ipc" and made._devices().peers is None:
        reason = made._devices().reason
        made.free()
        pytest.skip(reason)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_folds(comm, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for form in (WHOLE[0], CUT[3]):
        case = form(comm.size, 50_001, dtype=dtype)
        case.verify(fetched(case.call(comm, cupy_array(case.x(comm.rank)))), comm.rank)


def test_order_on_streams(comm):
    """What the call reads was enqueued just before, and what reads the result just after."""
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
    for name in names("allreduce"):
        if not runnable("allreduce", name, comm.size):
            continue
        on_host = comm.allreduce(x, algorithm=name)
        assert fetched(comm.allreduce(cupy_array(x), algorithm=name)).tobytes() == on_host.tobytes()
