"""A default group with two backends: gloo in host memory, this library on the accelerator."""

from __future__ import annotations

import pytest
import torch
from fake_accelerator import Accelerator
from places import RANK, SIZE
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import collectives.torch  # noqa: F401  it registers the backend


@pytest.fixture(params=["cpu:gloo,fake:collectives", "fake:collectives,cpu:gloo"])
def group(request):
    with Accelerator("random"):
        dist.init_process_group(request.param, init_method="collectives://")
        yield dist.group.WORLD
        dist.destroy_process_group()


def test_each_device_has_its_backend(group):
    host, device = torch.ones(3), torch.ones(3).to("fake")
    for each in (host, device):
        dist.all_reduce(each)
        assert each.tolist() == [SIZE] * 3
    halves = dist.new_group()
    dist.all_reduce(device, group=halves)
    assert device.tolist() == [SIZE * SIZE] * 3
    dist.barrier()


def test_ddp(group):
    torch.manual_seed(RANK)
    net = DDP(nn.Linear(3, 2).to("fake"))
    net(torch.full((2, 3), RANK + 1.0).to("fake")).sum().backward()
    mean = sum(2.0 * (rank + 1) for rank in range(SIZE)) / SIZE
    assert net.module.weight.grad.tolist() == [[mean] * 3] * 2
