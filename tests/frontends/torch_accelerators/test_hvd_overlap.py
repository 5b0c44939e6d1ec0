"""Horovod's optimizer and programs on an accelerator: the overlap with other work."""

from __future__ import annotations

import runpy
import threading
import time

import pages
import pytest
import torch
from as_cuda import AsCuda
from fake_accelerator import Accelerator
from torch_training import distance, loss_of, sgd

import collectives as cc
import collectives.torch as hvd
from collectives import background

DEADLINE = 30  # seconds


@pytest.fixture
def device():
    """An accelerator whose streams run at once, unless a kernel holds one of them."""
    hvd.init()
    with Accelerator("fast") as made:
        yield made


class Gate(torch.autograd.Function):
    """A function that does nothing, except that its backward kernel waits for an event."""

    @staticmethod
    def forward(ctx, x, device, event):
        ctx.device, ctx.event = device, event
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        passed = gradient.clone()
        ctx.device.enqueue("a long kernel", lambda: ctx.event.wait(DEADLINE), [], [passed])
        return passed, None, None


def until(is_so):
    """Wait until something is so."""
    deadline = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.several
def test_gradients_are_reduced_while_the_backward_pass_computes(device):
    torch.manual_seed(hvd.rank())
    first, last = (torch.nn.Linear(3, 3).to("fake") for _ in range(2))
    net = torch.nn.ModuleList([first, last])
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    groups = [list(each.parameters()) for each in net]
    optimizer = hvd.DistributedOptimizer(
        sgd(net.parameters()), net.named_parameters(), groups=groups
    )
    gate = threading.Event()
    x = torch.ones(2, 3).to("fake") * (hvd.rank() + 1)
    last(Gate.apply(first(x), device, gate)).sum().backward()  # the host does not wait for it
    early, late = (
        optimizer._distribution.buckets.home[each.weight].handle for each in (last, first)
    )
    until(early.done)
    assert not late.done()
    gate.set()
    optimizer.step()
    for each in net.parameters():
        every = hvd.allgather(each.detach().flatten().unsqueeze(0))
        assert (every == every[0]).all()


@pytest.mark.several
def test_what_is_urgent_comes_first(device):
    """A long tensor runs by pieces, and tensors of a higher priority come between them."""
    order = []
    with cc.world().dup() as comm:
        background.start(comm)
        for name, count, priority in (("long", 12_000_000, -1), ("urgent", 10, 5)):
            x = torch.ones(count).to("fake")
            options = {"name": name, "priority": priority, "group": comm}
            handle = background.submit("allreduce", x, x, **options)
            handle.add_done_callback(lambda handle: order.append(handle.name))
        background.flush(comm)
    assert order == ["urgent", "long"]
    assert (x == hvd.size()).all()


def embedding(is_sparse):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(6, 4, sparse=is_sparse), torch.nn.Linear(4, 3))


def test_an_embedding_with_sparse_gradients_learns_what_one_process_does(device):
    rows = torch.arange(2 * hvd.size()) % 6
    labels = rows % 3
    net, reference = embedding(True).to("fake"), embedding(False)
    plain = torch.optim.SGD(reference.parameters(), 0.1)
    adapted = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(adapted, net.named_parameters())
    mine = [each.chunk(hvd.size())[hvd.rank()].to("fake") for each in (rows, labels)]
    for _ in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, *mine).backward()
        loss_of(reference, rows, labels).backward()
        optimizer.step()
        plain.step()
    optimizer.zero_grad()  # a sparse gradient of the fake device cannot be moved
    assert distance(net.cpu(), reference) < 1e-6


def test_the_program_of_the_manual_with_its_cuda_branch(tmp_path, capsys):
    page = (pages.DOCS / "training" / "horovod.md").read_text()
    listing = page.split("<!-- file: train.py -->\n```python\n")[1].partition("```")[0]
    assert "torch.cuda.set_device(hvd.local_rank())" in listing
    path = tmp_path / "train.py"
    path.write_text(listing)
    hvd.init()
    with AsCuda("random") as cuda:
        runpy.run_path(str(path), run_name="__main__")
        assert cuda.devices == [hvd.local_rank()]
        assert cuda.check() == f"1 model on fake, the same on {hvd.size()} ranks"
    if hvd.rank() == 0:
        assert f"1 kind of weights on {hvd.size()} ranks" in capsys.readouterr().out
