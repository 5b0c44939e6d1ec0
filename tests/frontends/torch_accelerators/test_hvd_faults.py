"""Faults of an accelerator: memory that is full or gone, and a device that fails."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch
from fake_accelerator import Accelerator
from torch_training import model, sgd

import collectives as cc
import collectives.torch as hvd
from collectives import background
from collectives.errors import BufferError, CollectivesError, CommunicatorError


@pytest.fixture(params=["random", "lazy"])
def device(request):
    hvd.init()
    with Accelerator(request.param) as made:
        yield made


def begun():
    """Return a network on the device, and the function that trains it."""
    net = model().to("fake")
    return net, hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())


def fill(device):
    """Take what memory a device has left."""
    device.driver.used[0] = device.driver._memory
    return device


@pytest.mark.several
def test_no_memory_for_a_bucket(device):
    net, optimizer = begun()
    for each in net.parameters():
        each.grad = torch.ones_like(each)
    used = device.driver.used[0]
    fill(device)
    text = r"gradients of 4.bias to 0.weight.*: fake:0 has no memory of 556 bytes: "
    with pytest.raises(hvd.HorovodInternalError, match=text):
        optimizer.synchronize()
    device.driver.used[0] = used
    device.driver.forget()
    optimizer.step()  # there is memory again
    assert all((each.grad == 1).all() for each in net.parameters())


def test_no_memory_for_a_result(device):
    x, used = torch.ones(5).to("fake"), device.driver.used[0]
    fill(device)
    with pytest.raises(CommunicatorError, match="fake:0 has no memory of 20 bytes: "):
        background.submit("allreduce", x)
    device.driver.used[0] = used
    device.driver.forget()
    assert hvd.allreduce(x, op=hvd.Sum).tolist() == [hvd.size()] * 5


def test_a_tensor_whose_memory_is_gone(device):
    x = torch.ones(5).to("fake")
    with (
        mock.patch.object(torch.UntypedStorage, "nbytes", return_value=0),
        pytest.raises(BufferError, match=r"cannot be shared \(it has no memory\)"),
    ):
        background.submit("allreduce", x)


def test_the_owner_drops_a_tensor_that_is_on_its_way(device):
    handles = []
    for k in range(20):
        x = torch.full((1000,), 1.0 * k).to("fake") + 1
        handles.append(hvd.allreduce_async(x, op=hvd.Sum))
        del x
        torch.zeros(1000).to("fake").add_(5)  # where it was
    for k, handle in enumerate(handles):
        assert (hvd.synchronize(handle) == (k + 1) * hvd.size()).all()
    handles = [hvd.allreduce_async(torch.ones(100).to("fake") * 2) for _ in range(5)]
    del handles  # nobody waits for it
    gc.collect()
    hvd.barrier()


@pytest.mark.several
@pytest.mark.parametrize("what", ["the pass", "the copy back"])
def test_a_device_that_fails_in_the_middle_ends_the_training_of_all_ranks(device, what):
    comm = cc.world().dup()
    background.start(comm)
    x, problems = torch.ones(8).to("fake") * 3, []
    if what == "the pass" and hvd.rank() == 0:
        device.driver.fail_next("launch", RuntimeError("an illegal access"), on_device=True)
    if what == "the copy back" and hvd.rank() > 0:
        hvd.barrier()  # rank 0 gets no result before its driver is told to fail
    try:
        y = x * 2
        handle = background.submit("allreduce", y, y, name="gradients", group=comm)
        if what == "the copy back" and hvd.rank() == 0:
            handle.copies.wait()
            device.driver.fail_next("launch", RuntimeError("an illegal access"))
            hvd.barrier()
        handle.wait()
    except CollectivesError as error:  # the device may fail at any time
        problems.append(str(error))
    later = 0
    # Other ranks may have had results before. A later submission hears that all of it ends.
    while len(problems) < 2:
        later += 1
        assert later < 1000
        try:
            background.submit("allreduce", torch.ones(3), name=f"{later}", group=comm).wait()
        except CollectivesError as error:
            problems.append(str(error))
    text = "the device has failed: RuntimeError: an illegal access"
    assert all(text in each for each in problems), problems
    assert ("rank 0" in problems[0]) == (hvd.rank() > 0)
    device.driver.forget()
