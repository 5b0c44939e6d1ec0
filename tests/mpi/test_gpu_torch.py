"""Torch programs on GPUs, as `frontends/torch_accelerators` has them on one that is written in
Python, and groups whose tensors on CUDA go to NCCL. Without a GPU, torch is not imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from places import RANK, SIZE

import collectives as cc

sys.path.append(str(Path(__file__).resolve().parents[1]))

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
