"""Arrays in the heaps of ranks: when they are lent, and programs that use them in flight."""

import contextlib
import gc
import importlib
import os
import threading

import numpy as np
import pytest

import collectives as cc
from collectives import _core
from collectives.errors import SharedMemoryWarning
from collectives.process import segment

N = 30_000


@pytest.fixture
def comm(world):
    made = world.comm.dup()
    yield made
    made.free()


@pytest.fixture
def shared():
    with cc.shared_arrays():
        yield


def meet(comm, x=None):
    """Have calls until the heaps of all ranks are mapped."""
    x = np.ones(N) if x is None else x
    for _ in range(3):
        comm.allreduce(x)
        comm.barrier()


def lends(comm):
    return comm._segment is not None and comm._segment.lends


def works(comm):
    return comm._segment is not None


def test_an_unchanged_loop_lends_after_three_calls(comm, shared):
    for turn in range(5):
        x = np.full(N, comm.rank + turn)
        total = comm.allreduce(x)
        assert (total == comm.size * turn + comm.size * (comm.size - 1) // 2).all()
        x[:] = -1
        comm.barrier()
    assert lends(comm) == works(comm)


def test_some_ranks_have_shared_arrays(comm):
    """The others map the heap, and lend nothing."""
    if comm.rank % 2 == 0:
        with cc.shared_arrays():
            x, out = np.ones(N), np.empty(N)
    else:
        x, out = np.ones(N), np.empty(N)
    for name in (None, "ring", "round_robin", "all_to_all", "tree"):
        for _ in range(3):
            comm.allreduce(x, out, algorithm=name)
            assert (out == comm.size).all()
            out[:] = 0
            comm.barrier()
    if works(comm):
        assert lends(comm) == (comm.rank % 2 == 0)
        others = [r for r in range(comm.size) if r % 2 == 0 and r != comm.rank]
        assert comm._segment.maps == len([r for r in others if r in comm._segment.ranks])


@pytest.mark.parametrize("offset", [0, 1, 3, 17, 1023])
def test_views_with_odd_offsets(comm, shared, offset):
    base = np.zeros(3 * N + 1100, np.int32)
    meet(comm, base[:N])
    for n in (1025, 5000, N - 7):
        x, out = base[offset : offset + n], base[offset + N + 3 : offset + N + 3 + n]
        base[:] = -7
        x[:] = np.arange(n) + comm.rank
        comm.allreduce(x, out)
        assert (out == comm.size * np.arange(n) + comm.size * (comm.size - 1) // 2).all()
        assert (x == np.arange(n) + comm.rank).all()
        rest = np.ones(base.size, bool)
        rest[offset : offset + n] = rest[offset + N + 3 : offset + N + 3 + n] = False
        assert (base[rest] == -7).all()


def test_planned_calls_lend_once_the_heaps_are_mapped(comm, shared):
    x, out = np.empty(N), np.empty(N)
    planned = comm.plan("allreduce", x, out)
    for turn in range(6):
        x[:] = turn
        assert (planned() == comm.size * turn).all()
        x[:] = out[:] = -1
        comm.barrier()
    assert lends(comm) == works(comm)


def test_arrays_that_the_program_drops_in_flight(comm, shared):
    meet(comm)
    for _ in range(10):
        requests = [comm.iallreduce(np.full(N + i, comm.rank)) for i in range(5)]
        gc.collect()
        junk = [np.full(N + i, 9) for i in range(5)]
        for request in requests:
            assert (request.wait() == comm.size * (comm.size - 1) // 2).all()
        assert all((each == 9).all() for each in junk)


def test_arrays_come_and_go(comm, shared):
    """A block is given out again at once when a call is over, and nobody else touches it."""
    meet(comm)
    rng = np.random.default_rng(5)
    for turn in range(200):
        n = int(rng.integers(2048, N))
        x = np.full(n, turn)
        out = np.empty(n, int)
        comm.allreduce(x, out)
        assert (out == comm.size * turn).all()
        del x
        y = np.full(n, -turn)
        comm.broadcast(out, root=turn % comm.size)
        assert (y == -turn).all()
        assert (out == comm.size * turn).all()


def test_resize_between_calls(comm, shared):
    x = np.ones(4000)
    for n in (4000, 4001, 100_000, 3000, 10, 50_000):
        x.resize(n, refcheck=False)
        x[:] = 1
        assert (comm.allreduce(x) == comm.size).all()


def test_several_communicators_and_parts_of_one(world, shared):
    x = np.full(N, world.comm.rank)
    meet(world.comm, x)
    halves = world.comm.split(world.comm.rank % 2)
    back = world.comm.split(0, key=-world.comm.rank)
    copies = [world.comm.dup() for _ in range(3)]
    for each in (halves, back, *copies):
        members = each.allgather(np.array([world.comm.rank])).ravel()
        for _ in range(4):
            assert (each.allreduce(x) == members.sum()).all()
            gathered = each.allgather(x)
            assert (np.ravel(gathered) == np.repeat(members, N)).all()
    for each in (halves, back, *copies):
        each.free()
    assert (world.comm.allreduce(x) == world.comm.size * (world.comm.size - 1) / 2).all()


def test_arrays_outlive_communicators(world, shared):
    comm = world.comm.dup()
    x = np.full(N, comm.rank)
    meet(comm, x)
    comm.allreduce(x, out=x)
    comm.free()
    gc.collect()
    total = world.comm.size * (world.comm.size - 1) / 2
    assert (x == total).all()
    assert (world.comm.allreduce(x) == total * world.comm.size).all()


def test_threads_with_communicators_of_their_own(world):
    comms = [world.comm.dup() for _ in range(3)]
    wrong = []

    def work(comm, seed):
        with cc.shared_arrays():
            for turn in range(60):
                x = np.full(N + 100 * seed, turn)
                if not (comm.allreduce(x) == comm.size * turn).all():
                    wrong.append((seed, turn))
                y = np.full(N + 100 * seed, -1)
                del x
                if not (y == -1).all():
                    wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(c, k)) for k, c in enumerate(comms)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for each in comms:
        each.free()
    assert not wrong


def test_a_fork_between_calls_and_in_one(comm, shared):
    """A child has what the arrays had, may write to its copies, and the parent goes on to lend."""
    meet(comm)
    x, quiet = np.full(N, comm.rank), np.full(N, 5)
    comm.allreduce(x)
    request = comm.iallreduce(x)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            good = (x == comm.rank).all() and (quiet == 5).all()
            x[:] = quiet[:] = -1
            os.write(writer, b"yes" if good else b"no")
        finally:
            os._exit(0)
    os.close(writer)
    quiet[:] = 6
    assert (request.wait() == comm.size * (comm.size - 1) // 2).all()
    x[:] = 1
    assert (comm.allreduce(x, out=x) == comm.size).all()
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"yes"
    os.waitpid(child, 0)
    assert (x == comm.size).all()
    assert (quiet == 6).all()
    assert (comm.allreduce(quiet, out=quiet) == 6 * comm.size).all()
    assert _core.in_heap(x, lend=True) == works(comm)
    assert not _core.in_heap(quiet, lend=True)


def test_a_rank_that_may_not_map(world, shared, monkeypatch):
    """It says why, once, and data of the others is copied."""
    monkeypatch.setattr(segment, "_heaps", {})
    comm = world.comm.dup()

    def refuse(path):
        raise OSError(13, "Permission denied", path)

    if comm.local_rank == 1:
        monkeypatch.setattr(segment, "_opened", refuse)
    x = np.full(N, comm.rank)
    if comm.local_rank == 1 and works(comm):
        with pytest.warns(
            SharedMemoryWarning, match=r"the shared arrays of rank \d+ cannot be mapped"
        ):
            meet(comm, x)
    else:
        meet(comm, x)
    assert (comm.allreduce(x) == comm.size * (comm.size - 1) // 2).all()
    if works(comm):
        assert lends(comm) == (comm.local_rank == 1)
    monkeypatch.undo()
    comm.free()


def test_results_are_the_same_bits(comm):
    rng = np.random.default_rng(comm.rank)
    data = rng.standard_normal(N).astype(np.float32)
    with cc.shared_arrays():
        x = data.copy()
        meet(comm, x)
        for name in ("ring", "round_robin", "butterfly", "all_to_all", "tree"):
            mine = comm.allreduce(x, algorithm=name)
            usual = comm.allreduce(data, np.empty(N, np.float32), algorithm=name)
            assert mine.tobytes() == usual.tobytes()


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_results_of_frameworks_are_in_the_heap(comm, framework):
    """A long result of an allreduce is; freed memory is given out again."""
    module = pytest.importorskip(framework)
    make = {"torch": "from_numpy", "jax": "numpy.asarray", "tensorflow": "constant"}[framework]
    for part in make.split("."):
        module = getattr(module, part)
    for n in (100, N, 2 * N):
        data = np.arange(n, dtype=np.float32)
        x = module(data)
        for _ in range(4):
            with cc.shared_arrays():
                y = comm.allreduce(x)
            assert type(y) is type(x)
            assert (np.asarray(y) == comm.size * data).all()
            assert _core.in_heap(np.asarray(y)) == (n > 100 and _core.heap_state() is not None)
            comm.barrier()
        assert not _core.in_heap(np.asarray(comm.allreduce(x)))
        del y


@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_gradients_of_torch_are_in_the_heap(world):
    torch = pytest.importorskip("torch")
    hvd = importlib.import_module("collectives.torch")

    hvd.init()
    for shared in (True, False):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 50))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
        with cc.shared_arrays() if shared else contextlib.nullcontext():
            for _ in range(4):
                optimizer.zero_grad()
                net(torch.full((3, 100), world.comm.rank + 1.0)).sum().backward()
                optimizer.synchronize()
        gradient = net[1].weight.grad
        packs = world.comm.size > 1  # one rank leaves gradients where they are
        is_there = shared and packs and _core.heap_state() is not None
        assert _core.in_heap(gradient.numpy()) == is_there
        every = world.comm.allgather(gradient).reshape(world.comm.size, 50, 100)
        assert all(torch.equal(each, gradient) for each in every)
