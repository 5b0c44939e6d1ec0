"""Horovod's calls on tensors: results, gradients, errors."""

from __future__ import annotations

import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from horovod_calls import HorovodCalls
from horovod_names import exported, wanted
from places import SIZE

import collectives.torch as hvd
from collectives.horovod import util

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def initialised():
    hvd.init()


@pytest.fixture
def way():
    """Return the ways to call a function of tensors."""
    return lambda function: function


class TestCalls(HorovodCalls):
    hvd = hvd

    def tensor(self, values, dtype="float32"):
        return torch.tensor(values).to(getattr(torch, dtype))

    def dtype(self, tensor):
        return str(tensor.dtype).removeprefix("torch.")

    def numpy(self, tensor):
        return tensor.detach().to(torch.float64).numpy()

    def total(self, tensor):
        return tensor.sum()

    def gradient(self, way, function, x):
        x.requires_grad_()
        function(x).backward()
        return x.grad


def test_a_member_that_all_ranks_refuse_leaves_the_others_as_they_are():
    x = torch.ones(2)
    with pytest.raises(RuntimeError):
        hvd.grouped_allreduce_([x, torch.eye(2).to_sparse()], op=hvd.Sum)
    hvd.allreduce_(torch.ones(2))  # which comes after all that was submitted
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_allreduce_in_place(dtype, shape):
    x = torch.full(shape, hvd.rank() + 1.0, dtype=dtype)
    assert hvd.allreduce_(x) is x
    assert torch.equal(x, torch.full(shape, (hvd.size() + 1) / 2, dtype=dtype))
    xs = [torch.ones(3) * hvd.rank(), torch.ones(2, 2, dtype=torch.int32)]
    assert hvd.grouped_allreduce_(xs)[0] is xs[0]


def test_the_gradient_of_an_alltoall_with_splits():
    x = torch.ones(hvd.size() + 1, requires_grad=True)
    moved, _ = hvd.alltoall(x, [1] * hvd.size())
    (moved * (hvd.rank() + 1)).sum().backward()
    assert torch.equal(x.grad, torch.tensor([*range(1, hvd.size() + 1), 0.0]))


def test_the_gradient_of_parts_of_different_lengths():
    rank = hvd.rank()
    x = torch.ones(rank + 1, requires_grad=True)
    joined = hvd.allgather(x)
    (joined * torch.arange(float(len(joined)))).sum().backward()
    first = sum(range(1, rank + 1))
    assert torch.equal(x.grad, torch.arange(float(first), first + rank + 1))


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
    assert hvd.cuda_built() == (torch.version.cuda is not None)
    assert hvd.rocm_built() == (torch.version.hip is not None)


def test_it_says_which_devices_tensors_may_be_on(monkeypatch):
    assert util.gpu_available("torch") == torch.cuda.is_available()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert hvd.cuda_built()
    assert not hvd.rocm_built()
    assert util.gpu_available("horovod.torch")
    assert not util.gpu_available("tensorflow")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not hvd.cuda_built()
    assert hvd.rocm_built()


def test_init_logs_that_operations_on_gpus_are_not_those_of_nccl(monkeypatch, caplog):
    monkeypatch.setenv("HOROVOD_GPU_ALLREDUCE", "NCCL")
    hvd.shutdown()
    with caplog.at_level("INFO", "collectives"):
        hvd.init()
    text = "HOROVOD_GPU_ALLREDUCE is 'NCCL': tensors on devices travel through host memory"
    assert [each for each in caplog.messages if each.startswith(text)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_factors_are_rounded_to_the_dtype(dtype):
    x = torch.linspace(-100, 100, 17, dtype=dtype)
    kind = torch.promote_types(dtype, torch.float32)
    expected = (x.to(kind) * torch.tensor(0.653177, dtype=kind)).to(dtype)
    found = hvd.allreduce(x if hvd.rank() == 0 else 0 * x, op=hvd.Sum, prescale_factor=0.653177)
    assert torch.equal(found, expected)


def test_a_tensor_need_not_be_contiguous():
    x = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last) + hvd.rank()
    expected = torch.arange(24.0).reshape(1, 2, 3, 4) + (hvd.size() - 1) / 2
    assert torch.equal(hvd.allreduce(x), expected)
    hvd.allreduce_(x)
    assert torch.equal(x, expected)
    transposed = torch.full((2, 3), float(hvd.rank())).t()
    hvd.broadcast_(transposed, hvd.size() - 1)
    assert torch.equal(transposed, torch.full((3, 2), hvd.size() - 1.0))


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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_factors_of_adasum_are_rounded_with_the_result(dtype, shape):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of 2")
    x = torch.full(shape, 1.7, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    expected = ((x.to(wide) * 0.3) * 2.7).to(dtype)
    found = hvd.allreduce(x, op=hvd.Adasum, prescale_factor=0.3, postscale_factor=2.7)
    assert found.shape == shape
    assert torch.allclose(found, expected, rtol=torch.finfo(dtype).eps / 2, atol=0)


@pytest.mark.parametrize("largest", [1e-4, 1e-25, 1e18])
def test_adasum_of_parallel_gradients_is_their_mean(largest):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of 2")
    direction = torch.linspace(0.5, 1.5, 100_000)
    lengths = [largest * 1e-3**rank for rank in range(hvd.size())]
    mean = direction * (sum(lengths) / hvd.size())
    found = hvd.allreduce(direction * lengths[hvd.rank()], op=hvd.Adasum)
    assert torch.allclose(found, mean, rtol=1e-5, atol=0)


def test_begin_and_end_again():
    hvd.init()  # does nothing
    hvd.shutdown()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.barrier):
        with pytest.raises(ValueError, match=r"call hvd.init\(\) before"):
            call()
    first = hvd.ProcessSet([0])
    with pytest.raises(ValueError, match=r"there is a process set with the ranks \[0\] already"):
        hvd.init(process_sets=[first, hvd.ProcessSet([0])])
    assert hvd.is_initialized()
    assert first.size() is None
    if SIZE == 1:  # it has all ranks
        with pytest.raises(ValueError, match=r"ranks \[0\] already: global_process_set"):
            hvd.init(process_sets=[first])
    else:
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


@pytest.mark.several
def test_process_sets_are_made_of_whole_numbers_of_any_kind():
    for ranks in ([np.int64(1)], np.array([1]), torch.tensor([1]), range(1, 2), {1}):
        made = hvd.add_process_set(ranks)
        assert made.ranks == [1]
        assert type(made.ranks[0]) is int
        hvd.remove_process_set(made)
    for ranks in ([True], np.array([True]), [1.0], np.array([1.0]), "1", np.array([[1]]), [None]):
        with pytest.raises(ValueError, match="a process set is made of a list of ranks"):
            hvd.add_process_set(ranks)


def test_a_timeline(tmp_path_factory):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("timeline") / "out.json"))
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(torch.ones(2), name="recorded")
    hvd.stop_timeline()
    hvd.barrier()
    with open(path) as file:
        assert "allreduce.recorded" in file.read()


@pytest.mark.parametrize("call", [hvd.allreduce, hvd.allreduce_, hvd.allreduce_async])
def test_a_warning_names_the_line_of_the_program(call):
    with pytest.warns(DeprecationWarning, match="op=") as said:
        made = call(torch.ones(2), average=True)
    assert [each.filename for each in said] == [__file__]
    if call is hvd.allreduce_async:
        hvd.synchronize(made)


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(torch.ones(3, requires_grad=True))
        hvd.sparse_allreduce_async(
            torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True), "quiet"
        )()


def test_an_argument_that_is_no_tensor_is_refused():
    x = np.ones((hvd.size(), 2))
    codec = {"compression": hvd.Compression.fp16}
    for call in (
        hvd.allreduce,
        partial(hvd.allreduce, **codec),
        hvd.allreduce_,
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        partial(hvd.broadcast, root_rank=0),
        lambda x: hvd.grouped_allreduce([x]),
        lambda x: hvd.grouped_reducescatter([x]),
    ):
        with pytest.raises(TypeError, match=r"tensor is array(?s:.*)must be a torch\.Tensor"):
            call(x)


@pytest.mark.parametrize("compression", ["bogus", 3])
def test_what_is_no_compression_is_refused(compression):
    with pytest.raises(ValueError, match=f"compression is {compression!r}"):
        hvd.allreduce(torch.ones(2), compression=compression)


def test_the_gradient_of_a_compressed_allreduce_is_compressed():
    x = torch.full((100,), 1 / 3, requires_grad=True)
    hvd.allreduce(x, compression="float16", name="x").sum().backward()
    assert torch.equal(x.grad, torch.ones(100))
    hvd.grouped_allreduce([x, x * 2], compression="float16", name="xs")[1].sum().backward()
    assert torch.equal(x.grad, torch.full((100,), 3.0))


def test_the_background_goes_on_after_a_call_that_was_refused():
    hvd.allreduce(torch.ones(2))
    with pytest.raises(ValueError, match="of which there is no Sum"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Sum, prescale_factor=2.0)
    handle = hvd.allreduce_async(torch.ones(2), name="after a refusal")
    limit = time.monotonic() + 60
    while not hvd.poll(handle):  # which does nothing for it
        assert time.monotonic() < limit
        time.sleep(0.001)
    assert torch.equal(hvd.synchronize(handle), torch.ones(2))
