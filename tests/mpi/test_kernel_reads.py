"""Private arrays that their readers ask the kernel for: long, and right whatever they are."""

import os
import threading

import numpy as np
import pytest
from forms import CUT, VECTOR, WHOLE, Allreduce, Broadcast, several_in_flight

import collectives as cc
from collectives.process.segment import unread

N = 40_000  # elements: with up to 4 ranks pieces are long enough, with more some of them are not
LEAST = 4 << 10  # READ_LEAST in _core/executor/steps.pxi
FORMS = (*WHOLE, *CUT, *VECTOR)


@pytest.fixture(scope="module", params=["auto", "1"])
def comm(request):
    """Communicators whose ranks lend as it seems best, and whenever they can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_SHM_READS", request.param)
        made = cc.Communicator()
    if made.size > 1 and any(made.allgather_object(made._segment is None)):
        pytest.skip("some ranks share no memory")
    if made.size > 1 and not made._segment.reads:
        pytest.skip(f"ranks may not read each other's memory: {unread(made._segment)}")
    yield made
    made.free()


@pytest.mark.parametrize("way", ["apart", "place"])
@pytest.mark.parametrize("segment", [0, 40_000])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_algorithm(comm, segments, form, segment, way):
    """An argument may be changed at once, although others have read it where it lies."""
    if way == "place" and form.name.startswith("alltoall"):
        pytest.skip("an alltoall is not in place")
    case = form(comm.size, N)
    with segments(comm, segment):
        for name in form.runnable():
            if way == "place":
                x, out = case.shared(comm.rank)
            else:
                x, out = case.x(comm.rank).copy(), case.empty(comm.rank)
            got = case.call(comm, x, out, algorithm=name)
            got = None if got is None else np.array(got)
            x[:] = -1
            if out is not None:
                out[:] = -2
            case.verify(got, comm.rank)


@pytest.mark.parametrize("dtype", ["int8", "float64", "complex128"])
@pytest.mark.parametrize("n", [LEAST - 1, LEAST, LEAST + 1, 5 * LEAST + 3])
def test_unaligned_arrays(comm, dtype, n):
    """An array may begin at any address, and have any length."""
    for form in (Allreduce, Broadcast):
        case = form(comm.size, n, dtype=dtype, root=comm.size - 1)
        size = np.dtype(dtype).itemsize
        memory = [np.zeros(n * size + 64, np.uint8) for _ in range(2)]
        x, out = (each[size : (n + 1) * size].view(dtype) for each in memory)
        x[:] = case.x(comm.rank)
        for name in form.runnable():
            out[:] = 0
            got = case.call(comm, x, out, algorithm=name)
            case.verify(np.array(got), comm.rank)
            assert not memory[1][:size].any()
            assert not memory[1][(n + 1) * size :].any()


def test_averages_and_scales(comm):
    x, total = np.full(N, comm.rank, np.float32), comm.size * (comm.size - 1) / 2
    for name in Allreduce.runnable():
        out = np.empty_like(x)
        comm.allreduce(x, out, op=cc.AVG, algorithm=name)
        assert np.allclose(out, total / comm.size), name
        comm.allreduce(x, out, prescale=2.0, postscale=0.5, algorithm=name)
        assert np.allclose(out, total), name
        comm.allreduce(x, x, prescale=2.0, postscale=3.0, algorithm=name)
        assert np.allclose(x, 6 * total), name
        x[:] = comm.rank


def test_folds_of_the_user(comm):
    """Some of the arrays are kept: their values stay."""
    kept = []

    def add(a, b):
        if a.size and len(kept) < 3:
            kept.append((a, a.copy()))
        b += a

    op = cc.reduction(add, name="add and keep")
    x = np.arange(N, dtype=np.float64) + comm.rank
    want = comm.size * np.arange(N) + comm.size * (comm.size - 1) / 2
    for name in Allreduce.runnable():
        assert (comm.allreduce(x, op=op, algorithm=name) == want).all(), name
    for array, copy in kept:
        assert array.shape == copy.shape


def test_several_in_flight(comm):
    several_in_flight(comm, [np.empty(20_000 + i, np.int64) for i in range(6)])


def test_planned_calls(comm):
    x, out = np.empty(N, np.float32), np.empty(N, np.float32)
    planned = comm.plan("allreduce", x, out)
    for i in range(5):
        x[:] = i + comm.rank
        got = planned()
        x[:] = -1
        assert (got == i * comm.size + comm.size * (comm.size - 1) // 2).all()


def test_kinds_of_memory(comm, tmp_path):
    """Mapped files, memory that is read-only, and arrays that only some ranks have in common."""
    file = np.memmap(tmp_path / "array", np.int32, "w+", shape=N)
    fixed = np.full(N, comm.rank, np.int32)
    fixed.flags.writeable = False
    shared = comm.empty(N, np.int32)
    want = comm.size * (comm.size - 1) // 2
    for turn in range(6):
        kinds = [file, fixed, shared]
        x = kinds[(comm.rank + turn) % 3]
        if x.flags.writeable:
            x[:] = comm.rank
        out = shared if x is file else np.empty(N, np.int32)
        for name in Allreduce.runnable():
            out[:] = -1
            assert (comm.allreduce(x, out, algorithm=name) == want).all(), name


def test_kinds_of_outputs(comm, tmp_path):
    """Others write results to an array wherever it is, and to nothing beside it."""
    file = np.memmap(tmp_path / "array", np.int32, "w+", shape=N + 64)
    foreign = np.frombuffer(bytearray(4 * (N + 64)), np.int32)
    kinds = [file, foreign, comm.empty(N + 64, np.int32), np.empty(N + 64, np.int32)]
    total = comm.size * (comm.size - 1) // 2
    for turn in range(2 * len(kinds)):
        memory = kinds[(comm.rank + turn) % len(kinds)]
        memory[:] = -1
        out = memory[turn : turn + N]
        for name in Allreduce.runnable():
            out[:] = comm.rank
            x = out if turn % 2 else out.copy()
            assert (comm.allreduce(x, out, algorithm=name) == total).all(), name
            assert (memory[:turn] == -1).all(), name
            assert (memory[turn + N :] == -1).all(), name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_with_a_copy(comm):
    """A forked child has the same addresses: what it writes there is its own."""
    x = np.full(N, comm.rank, np.float64)
    pid = os.fork()
    if pid == 0:
        x[:] = 1000
        os._exit(0)
    for _ in range(20):
        assert (comm.allreduce(x) == comm.size * (comm.size - 1) / 2).all()
    assert os.waitpid(pid, 0)[1] == 0
    assert (comm.allreduce(x) == comm.size * (comm.size - 1) / 2).all()


def test_threads_with_communicators_of_their_own(comm):
    comms = [comm.dup() for _ in range(2)]
    errors = []

    def work(comm, start):
        try:
            for i in range(60):
                x = np.arange(N + i, dtype=np.float32) + comm.rank + start
                want = comm.size * (np.arange(N + i) + start) + comm.size * (comm.size - 1) / 2
                got = comm.allreduce(x)
                x[:] = -1
                assert np.allclose(got, want)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(c, 7 * i)) for i, c in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in comms:
        each.free()
    assert not errors, errors
