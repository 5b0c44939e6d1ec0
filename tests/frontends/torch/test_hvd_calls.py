"""Horovod's calls on tensors: results, gradients, errors."""

from __future__ import annotations

import warnings

import pytest
import torch
from horovod_names import exported, wanted
from places import SIZE

import collectives.torch as hvd
from collectives.errors import MismatchError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def initialised():
    hvd.init()


def of_each(make):
    """Return what each rank makes, given its number."""
    return [make(rank) for rank in range(hvd.size())]


@pytest.mark.parametrize("front_end", ["torch", "torch.mpi_ops"])
def test_it_has_the_names_of_horovod(front_end):
    assert exported(front_end) == wanted(front_end)


def test_it_says_which_rank_this_is():
    assert 0 <= hvd.rank() < hvd.size()
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    assert hvd.mpi_built()
    assert hvd.local_size() * hvd.cross_size() == hvd.size()
    assert hvd.local_rank() + hvd.cross_rank() * hvd.local_size() == hvd.rank()
    assert hvd.nccl_built() == 0
    assert not hvd.cuda_built()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_factors_are_rounded_to_the_dtype(dtype):
    x = torch.linspace(-100, 100, 17, dtype=dtype)
    kind = torch.promote_types(dtype, torch.float32)
    expected = (x.to(kind) * torch.tensor(0.653177, dtype=kind)).to(dtype)
    found = hvd.allreduce(x if hvd.rank() == 0 else 0 * x, op=hvd.Sum, prescale_factor=0.653177)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_allreduce_takes_the_mean(dtype, shape):
    x = torch.full(shape, hvd.rank() + 1.0, dtype=dtype)
    mean = torch.full(shape, (hvd.size() + 1) / 2, dtype=dtype)
    assert torch.equal(hvd.allreduce(x), mean)
    assert hvd.allreduce_(x) is x
    assert torch.equal(x, mean)


def test_all_operations():
    x = torch.tensor([1.0, -2.0]) * (hvd.rank() + 1)
    every = torch.stack(of_each(lambda rank: torch.tensor([1.0, -2.0]) * (rank + 1)))
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), every.sum(0))
    assert torch.equal(hvd.allreduce(x, op=hvd.Min), every.amin(0))
    assert torch.equal(hvd.allreduce(x, op=hvd.Max), every.amax(0))
    assert torch.equal(hvd.allreduce(x, op=hvd.Product), every.prod(0))
    scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.equal(scaled, 2 * every.sum(0))


def test_the_mean_of_integers_is_truncated():
    x = torch.tensor([1, -1, 7]) + hvd.rank()
    total = sum(of_each(lambda rank: torch.tensor([1, -1, 7]) + rank))
    assert torch.equal(hvd.allreduce(x), torch.div(total, hvd.size(), rounding_mode="trunc"))
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), total)


def test_a_tensor_need_not_be_contiguous():
    x = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last) + hvd.rank()
    expected = torch.arange(24.0).reshape(1, 2, 3, 4) + (hvd.size() - 1) / 2
    assert torch.equal(hvd.allreduce(x), expected)
    hvd.allreduce_(x)
    assert torch.equal(x, expected)
    transposed = torch.full((2, 3), float(hvd.rank())).t()
    hvd.broadcast_(transposed, hvd.size() - 1)
    assert torch.equal(transposed, torch.full((3, 2), hvd.size() - 1.0))


def test_average_is_an_older_argument():
    x = torch.ones(2)
    with pytest.warns(DeprecationWarning, match="op="):
        assert torch.equal(hvd.allreduce(x, average=False), x * hvd.size())
    with pytest.raises(ValueError, match="both"):
        hvd.allreduce(x, average=True, op=hvd.Sum)


def test_compression_and_groups():
    xs = [torch.ones(3) * hvd.rank(), torch.ones(2, 2, dtype=torch.int32)]
    mean = (hvd.size() - 1) / 2
    first, second = hvd.grouped_allreduce(xs, name="group", compression=hvd.Compression.fp16)
    assert first.dtype is torch.float32
    assert torch.equal(first, torch.full((3,), mean))
    assert torch.equal(second, xs[1])
    assert hvd.grouped_allreduce_(xs)[0] is xs[0]
    parts = hvd.grouped_reducescatter([torch.ones(hvd.size(), 2)], op=hvd.Sum)
    assert torch.equal(parts[0], torch.full((1, 2), float(hvd.size())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_allgather_takes_parts_of_different_lengths(dtype):
    x = torch.ones(hvd.rank() + 1, 2).to(dtype)
    joined, other = hvd.grouped_allgather([x, x[:0]])
    assert torch.equal(joined, torch.cat(of_each(lambda rank: torch.ones(rank + 1, 2).to(dtype))))
    assert other.shape == (0, 2)
    assert hvd.allgather(torch.empty(hvd.rank(), 0)).shape == (sum(range(hvd.size())), 0)


def test_alltoall_with_splits():
    size, rank = hvd.size(), hvd.rank()
    x = torch.full((size * (size - 1) // 2 + 1, 2), float(rank))  # rank k gets k rows
    moved, received = hvd.alltoall(x, splits=torch.arange(size))
    assert torch.equal(received, torch.full((size,), rank))
    assert torch.equal(moved[:, 0], torch.arange(float(size)).repeat_interleave(rank))
    assert torch.equal(hvd.alltoall(torch.arange(size)), torch.full((size,), rank))
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(x, splits=[1] * (size + 1))


def test_reducescatter_gives_the_first_ranks_more():
    size, rank = hvd.size(), hvd.rank()
    x = torch.arange(2.0 * size + 1).unsqueeze(1)
    part = hvd.reducescatter(x, op=hvd.Sum)
    assert torch.equal(part, x.tensor_split(size)[rank] * size)


def test_broadcast_by_any_rank():
    for root in range(hvd.size()):
        x = torch.tensor([hvd.rank()], dtype=torch.bfloat16)
        assert hvd.broadcast(x, root).item() == root
        assert x.item() == hvd.rank()


def test_handles():
    handle = hvd.allreduce_async(torch.ones(3), name="one", op=hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), torch.full((3,), float(hvd.size())))
    assert hvd.poll(handle)
    assert hvd.synchronize(7) is None
    with pytest.raises(ValueError, match="handle"):
        hvd.poll(7)


def test_names_match_in_any_order():
    names = ["a", "b", "c"] if hvd.rank() else ["c", "b", "a"]
    handles = {name: hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum) for name in names}
    gathered = hvd.allgather_async(torch.ones(hvd.rank(), 2), name="a")  # another kind of call
    for handle in handles.values():
        assert torch.equal(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))
    assert len(hvd.synchronize(gathered)) == sum(range(hvd.size()))


def test_gradients():
    size, rank = hvd.size(), hvd.rank()
    x = torch.ones(2, requires_grad=True)
    (hvd.allreduce(x * 3, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0 * sum(range(1, size + 1))))
    x = torch.ones(rank + 1, requires_grad=True)
    joined = hvd.allgather(x)
    (joined * torch.arange(float(len(joined)))).sum().backward()
    first = sum(range(1, rank + 1))
    assert torch.equal(x.grad, torch.arange(float(first), first + rank + 1))
    x = torch.ones(2, requires_grad=True)
    hvd.broadcast(x, 0).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), float(rank == 0)))
    x = torch.ones(size + 1, requires_grad=True)
    moved, _ = hvd.alltoall(x, [1] * size)
    (moved * (rank + 1)).sum().backward()
    assert torch.equal(x.grad, torch.tensor([*range(1, size + 1), 0.0]))
    x = torch.ones(size, requires_grad=True)
    hvd.reducescatter(x, op=hvd.Sum).sum().backward()
    assert torch.equal(x.grad, torch.full((size,), float(size)))
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    sum(each.sum() for each in hvd.grouped_allreduce([x, y], op=hvd.Sum)).backward()
    assert torch.equal(y.grad, torch.full((2,), float(size)))


def test_in_place_changes_are_seen_by_autograd():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    z = y * y
    hvd.allreduce_(y.detach(), op=hvd.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_sparse_tensors_are_added():
    x = torch.sparse_coo_tensor([[hvd.rank(), 0]], [1.0, 2.0], (hvd.size(),), check_invariants=True)
    total = hvd.sparse_allreduce_async(x, name="sparse", op=hvd.Sum)().to_dense()
    expected = torch.ones(hvd.size())
    expected[0] += 2 * hvd.size()
    assert torch.equal(total, expected)
    with pytest.raises(ValueError, match="layout"):
        hvd.allreduce(x)


def test_adasum():
    if hvd.size() & (hvd.size() - 1):
        with pytest.raises(NotImplementedError, match="power of 2"):
            hvd.allreduce(torch.ones(2), op=hvd.Adasum)
        return
    same = torch.tensor([1.0, 2.0])
    assert torch.allclose(hvd.allreduce(same, op=hvd.Adasum), same)
    alone = torch.zeros(hvd.size(), dtype=torch.bfloat16)
    alone[hvd.rank()] = 1
    assert torch.equal(hvd.allreduce(alone, op=hvd.Adasum), torch.ones_like(alone))


@pytest.mark.parametrize("largest", [1e-4, 1e-25, 1e18])
def test_adasum_of_parallel_gradients_is_their_mean(largest):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of 2")
    direction = torch.linspace(0.5, 1.5, 100_000)
    lengths = [largest * 1e-3**rank for rank in range(hvd.size())]
    mean = direction * (sum(lengths) / hvd.size())
    found = hvd.allreduce(direction * lengths[hvd.rank()], op=hvd.Adasum)
    assert torch.allclose(found, mean, rtol=1e-5, atol=0)


def test_objects():
    assert hvd.broadcast_object({"rank": hvd.rank()}, hvd.size() - 1) == {"rank": hvd.size() - 1}
    assert hvd.allgather_object([hvd.rank()] * hvd.rank()) == of_each(lambda rank: [rank] * rank)


@pytest.mark.several
def test_what_differs_between_ranks_is_said():
    with pytest.raises(hvd.HorovodInternalError, match=r"'allreduce.loss' differs") as caught:
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="loss")
    assert isinstance(caught.value.__cause__, MismatchError)
    assert hvd.allreduce(torch.ones(2), name="loss", op=hvd.Sum)[0] == hvd.size()


def test_join():
    if hvd.rank() == 0:
        for _ in range(2):
            mean = hvd.allreduce(torch.ones(2), name="late")
        assert torch.equal(mean, torch.full((2,), 1 / hvd.size()))
    assert 0 <= hvd.join() < hvd.size()
    hvd.barrier()


def test_process_sets():
    size, rank = hvd.size(), hvd.rank()
    first = hvd.add_process_set([0])
    others = hvd.add_process_set(range(1, size)) if size > 2 else None
    assert first.included() == (rank == 0)
    assert first.size() == 1
    mine = first if rank == 0 else others
    if mine is not None:
        expected = [0] if rank == 0 else list(range(1, size))
        x = torch.tensor([rank])
        assert hvd.allgather(x, process_set=mine).tolist() == expected
        assert hvd.broadcast(x, expected[-1], process_set=mine).item() == expected[-1]
        assert mine.rank() == expected.index(rank)
    if rank:
        with pytest.raises(ValueError, match="not in"):
            hvd.allreduce(torch.ones(1), process_set=first)
    if size > 1:
        with pytest.raises(ValueError, match="already"):
            hvd.add_process_set([0])
    assert hvd.remove_process_set(first)
    assert not hvd.remove_process_set(first)
    assert others is None or hvd.remove_process_set(others)
    assert not hvd.remove_process_set(hvd.global_process_set)


def test_begin_and_end_again():
    hvd.init()  # does nothing
    hvd.shutdown()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.barrier):
        with pytest.raises(ValueError, match=r"use hvd.init\(\)"):
            call()
    first = hvd.ProcessSet([0])
    with pytest.raises(ValueError, match=r"there is a process set with the ranks \[0\] already"):
        hvd.init(process_sets=[first, hvd.ProcessSet([0])])
    assert hvd.is_initialized()
    assert first.size() is None
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1
    assert first.size() == 1
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    hvd.init(comm=list(range(SIZE)))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size() == SIZE
    hvd.shutdown()


@pytest.mark.several
def test_process_sets_of_communicators_have_numbers_that_all_ranks_know():
    from mpi4py import MPI

    rank = hvd.rank()
    if MPI.COMM_WORLD.size != SIZE:
        pytest.skip("no MPI has started the ranks")
    part = MPI.COMM_WORLD.Split(rank % 2)
    mine, wrong = hvd.ProcessSet(part), hvd.ProcessSet(part)
    hvd.shutdown()
    with pytest.raises(ValueError, match="there is a process set with the ranks"):
        hvd.init(comm=MPI.COMM_WORLD, process_sets=[mine, wrong])
    mine = hvd.ProcessSet(part)
    hvd.init(comm=MPI.COMM_WORLD, process_sets=[mine])
    parts = [list(range(first, SIZE, 2)) for first in range(2)]
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {
        0: list(range(SIZE)),
        1: parts[0],
        2: parts[1],
    }
    assert (mine.process_set_id, mine.ranks) == (1 + rank % 2, parts[rank % 2])
    assert str(mine).startswith(f"ProcessSet(process_set_id={1 + rank % 2}, ranks=[{rank % 2}")
    assert hvd.global_process_set.mpi_comm == MPI.COMM_WORLD
    hvd.shutdown()
    hvd.init()
    part.Free()
    first, second = hvd.add_process_set([0]), hvd.add_process_set([1])
    hvd.remove_process_set(first)
    assert hvd.add_process_set(first).process_set_id == 1  # numbers are used again
    hvd.remove_process_set(first)
    hvd.remove_process_set(second)


def test_a_timeline(tmp_path_factory):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("timeline") / "out.json"))
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(torch.ones(2), name="recorded")
    hvd.stop_timeline()
    hvd.barrier()
    with open(path) as file:
        assert "allreduce.recorded" in file.read()


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(torch.ones(3, requires_grad=True))
        hvd.sparse_allreduce_async(
            torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True), "quiet"
        )()
