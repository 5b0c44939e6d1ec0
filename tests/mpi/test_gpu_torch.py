"""Torch programs on GPUs, as `frontends/torch_accelerators` has them on one that is written in
Python, and groups whose tensors on CUDA go to NCCL. Without a GPU, torch is not imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from places import RANK, SIZE

import collectives as cc

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import gpus

pytestmark = gpus.MARKS
TOTAL = SIZE * (SIZE + 1) // 2
MIXED = "cpu:collectives,cuda:nccl"


@pytest.fixture
def device():
    """Return the GPU of this rank, which ranks may share."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    number = cc.world().local_rank % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


@pytest.fixture(params=["collectives", MIXED])
def group(request, device):
    """Return the default group, by name of its backend."""
    import torch

    import collectives.torch

    has_nccl = torch.distributed.is_nccl_available()
    if request.param == MIXED and not (has_nccl and torch.cuda.device_count() >= SIZE):
        pytest.skip("NCCL needs a GPU for each rank")
    collectives.torch.init_process_group(backend=request.param)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_tensors_of_both_kinds(device, group):
    import torch
    from torch import distributed as dist

    for place in ("cpu", device):
        x = torch.full((1000,), RANK + 1.0, device=place) * 2
        dist.all_reduce(x)
        assert (x == 2 * TOTAL).all()
        out = torch.empty(SIZE * 10, device=place)
        dist.all_gather_into_tensor(out, torch.full((10,), RANK + 1.0, device=place))
        assert out.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(10)]


def test_fsdp2(device, group):
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def trained(net, x, y):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        return net

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    made = torch.Generator().manual_seed(1)
    x, y = torch.randn(12 * SIZE, 8, generator=made), torch.randn(12 * SIZE, 4, generator=made)
    mine = (each[12 * RANK :][:12].to(device) for each in (x, y))
    net = fully_shard(model().to(device), mesh=init_device_mesh("cuda", (SIZE,)))
    pairs = zip(trained(net, *mine).parameters(), trained(model(), x, y).parameters(), strict=True)
    assert all(torch.allclose(a.full_tensor().cpu(), b, atol=1e-4) for a, b in pairs)


def test_the_environment_asks_for_nccl(device, monkeypatch):
    import torch
    from torch import distributed as dist

    import collectives.torch
    from collectives.errors import ArgumentError
    from collectives.torch.distributed import nccl

    monkeypatch.setenv("COLLECTIVES_DEVICE_TRANSPORT", "nccl")
    collectives.torch.init_process_group()
    x, host = torch.full((3,), RANK + 1.0, device=device), torch.ones(3)
    others = dist.group.WORLD.others
    try:
        dist.all_reduce(host)
        assert host.tolist() == [SIZE] * 3
        if isinstance(others, nccl.Refused):
            with pytest.raises(ArgumentError, match=r"share one GPU|has no NCCL"):
                dist.all_reduce(x)
        else:
            dist.all_reduce(x)
            assert x.tolist() == [TOTAL] * 3
    finally:
        dist.destroy_process_group()


def test_horovods_interface(device):
    import torch

    import collectives.torch as hvd

    hvd.init()
    assert hvd.cuda_built() == (torch.version.cuda is not None)
    x = torch.full((1000,), RANK + 1.0, device=device) * 2
    assert (hvd.allreduce(x, op=hvd.Sum) == 2 * TOTAL).all()
    net = torch.nn.Linear(3, 2).to(device)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    net(torch.full((2, 3), RANK + 1.0, device=device)).sum().backward()
    optimizer.step()
    assert len(hvd.allgather(net.weight.detach()[None]).unique(dim=0)) == 1


def sum_of_sparse(hvd, x):
    """Return the sum of sparse tensors with the rows of `x`."""
    import torch

    places = torch.arange(len(x), device=x.device)[None]
    sparse = torch.sparse_coo_tensor(places, x, (len(x) + 1, *x.shape[1:]))
    total = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)()
    return total.cpu().to_dense().to(x.device)  # a GPU adds equal places in any order


def many_in_flight(hvd, x):
    """Return one of the results of several calls."""
    handles = [hvd.allreduce_async(x * k) for k in range(9)]
    return [hvd.synchronize(each) for each in handles][4]


CALLS = {
    "allreduce": lambda hvd, x: hvd.allreduce(x),
    "allreduce_": lambda hvd, x: hvd.allreduce_(x.clone(), op=hvd.Sum),
    "max": lambda hvd, x: hvd.allreduce(x, op=hvd.Max),
    "scaled": lambda hvd, x: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0),
    "fp16": lambda hvd, x: hvd.allreduce(x, compression=hvd.Compression.fp16),
    "adasum": lambda hvd, x: hvd.allreduce(x, op=hvd.Adasum),
    "grouped_allreduce": lambda hvd, x: hvd.grouped_allreduce([x, 2 * x])[1],
    "sparse": sum_of_sparse,
    "allgather": lambda hvd, x: hvd.allgather(x[: RANK + 1]),
    "broadcast": lambda hvd, x: hvd.broadcast(x, root_rank=SIZE - 1),
    "alltoall": lambda hvd, x: hvd.alltoall(x.repeat(SIZE, 1)),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x.repeat(SIZE, 1)),
    "many in flight": many_in_flight,
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_horovods_interface_have_the_bits_of_the_host(device, name):
    import torch

    import collectives.torch as hvd

    hvd.init()
    made = torch.Generator().manual_seed(RANK)
    for shape in ((7, 3), (1001, 301)):
        x = torch.randn(shape, generator=made)
        host, mine = (CALLS[name](hvd, each) for each in (x, x.to(device)))
        assert mine.device.type == "cuda"
        assert torch.equal(host, mine.cpu())


@pytest.mark.parametrize("is_compressed", [False, True])
def test_training_with_sync_batch_norm(device, is_compressed):
    """Weights after some steps are those in host memory, but for the rounding of the GPU."""
    import torch
    from torch import nn

    import collectives.torch as hvd

    hvd.init()

    def trained(where):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), hvd.SyncBatchNorm(16), nn.Linear(16, 4)).to(where)
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        compression = hvd.Compression.fp16 if is_compressed else hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(
            optimizer, net.named_parameters(), compression, backward_passes_per_step=2
        )
        made = torch.Generator().manual_seed(RANK)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                x = torch.randn(12, 8, generator=made).to(where)
                net(x).square().mean().backward()
            optimizer.step()
        return [each.detach().cpu() for each in net.parameters()]

    for a, b in zip(trained(device), trained(torch.device("cpu")), strict=True):
        assert torch.allclose(a, b, atol=2e-3 if is_compressed else 1e-4)


def test_horovods_interface_over_nccl(device, monkeypatch):
    """Results are the same if NCCL is not possible, through host memory."""
    import torch

    import collectives.torch as hvd
    from collectives.torch.distributed import nccl

    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    hvd.shutdown()
    hvd.init()
    if SIZE > 1 and torch.distributed.is_nccl_available():
        have_one_each = torch.cuda.device_count() >= SIZE
        may_share = nccl.may_share() and nccl.version() >= 23000
        assert hvd.nccl_built() == (nccl.version() if have_one_each or may_share else 0)
    sizes = torch.randperm(8, generator=torch.Generator().manual_seed(RANK)).tolist()
    handles = {
        n: hvd.allreduce_async(
            torch.full((n + 1,), RANK + 1.0, device=device), name=f"{n}", op=hvd.Sum
        )
        for n in sizes
    }
    for n, handle in sorted(handles.items()):
        assert hvd.synchronize(handle).tolist() == [TOTAL] * (n + 1)
    rows = torch.full((RANK + 1, 2), RANK, device=device)
    assert hvd.allgather(rows)[:, 0].tolist() == [r for r in range(SIZE) for _ in range(r + 1)]
    assert hvd.broadcast(torch.full((3,), RANK, device=device), SIZE - 1).tolist() == [SIZE - 1] * 3
    moved = hvd.alltoall(torch.arange(SIZE, device=device) + 10 * RANK)
    assert moved.tolist() == [RANK + 10 * rank for rank in range(SIZE)]
    part = hvd.reducescatter(torch.arange(SIZE + 1.0, device=device), op=hvd.Sum)
    first = 0 if RANK == 0 else RANK + 1
    assert part.tolist() == [SIZE * k for k in range(first, first + 1 + (RANK == 0))]
    hvd.shutdown()
