"""Horovod's interface on an accelerator, which is a fake one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fake_accelerator import Accelerator
from horovod_calls import HorovodCalls
from torch_training import alone, data, distance, loss_of, mine, model, sgd

import collectives as cc
import collectives.torch as hvd
from collectives import background
from collectives.errors import CollectivesError

WAYS = [
    {"mode": "random"},
    {"mode": "lazy"},
    {"mode": "random", "pins": False, "records": False},
    {"mode": "random", "has_streams": False},
]


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(map(str, way.values())))
def accelerator(request):
    hvd.init()
    with Accelerator(**request.param) as made:
        yield made


@pytest.mark.usefixtures("accelerator")
class TestCalls(HorovodCalls):
    hvd = hvd

    @pytest.fixture
    def way(self):
        return lambda function: function

    def tensor(self, values, dtype="float32"):
        return torch.tensor(values).to(getattr(torch, dtype)).to("fake")

    def dtype(self, tensor):
        return str(tensor.dtype).removeprefix("torch.")

    def numpy(self, tensor):
        assert tensor.device.type == "fake"
        return tensor.detach().cpu().to(torch.float64).numpy()

    def total(self, tensor):
        return tensor.sum()

    def gradient(self, way, function, x):
        x.requires_grad_()
        function(x).backward()
        return x.grad


# -- the order of operations -----------------------------------------------------------------------


@pytest.fixture
def lazy():
    """An accelerator of which nothing runs until somebody asks for it."""
    hvd.init()
    with Accelerator("lazy") as made:
        yield made


def on_device(*values):
    return torch.tensor(values).to("fake")


def last_op():
    return torch.accelerator.current_stream().stream.last


@pytest.mark.several
def test_a_submission_does_not_wait_for_the_device(lazy):
    gate = threading.Event()
    x = on_device(1.0, 2.0)
    lazy.enqueue("a long kernel", lambda: gate.wait(20), [], [x])
    handle = hvd.allreduce_async(x * (hvd.rank() + 1), op=hvd.Sum)
    assert not hvd.poll(handle)
    gate.set()
    total = sum(range(1, hvd.size() + 1))
    assert hvd.synchronize(handle).tolist() == [total, 2 * total]


def test_synchronize_does_not_wait_for_the_copy_back(lazy):
    x = on_device(1.0, 2.0)
    handle = hvd.allreduce_async(x, op=hvd.Sum)
    found = hvd.synchronize(handle)
    back = [each.last for each in lazy.driver.order.streams if each.handle]
    assert [each.what for each in back] == ["record"]
    assert not back[0].is_done
    assert (found + 1).tolist() == [hvd.size() + 1, 2 * hvd.size() + 1]


def test_each_thread_takes_the_result_on_its_own_stream(lazy):
    handle = hvd.allreduce_async(on_device(1.0), op=hvd.Sum)
    with torch.Stream("fake"):
        found = hvd.synchronize(handle) * 2
        assert found.item() == 2 * hvd.size()
    assert hvd.synchronize(handle).item() == hvd.size()


def test_a_copy_that_is_not_ordered_is_reported(lazy):
    x = on_device(1.0) * 2
    host = torch.empty(1, pin_memory=True)
    with torch.Stream("fake"), pytest.raises(RuntimeError, match="have no order"):
        host.copy_(x, non_blocking=True)
    lazy.driver.forget()


def test_the_host_cannot_touch_what_is_on_the_device():
    program = """
import ctypes
from fake_accelerator import Accelerator, torch
with Accelerator("fast"):
    x = torch.ones(3, device="fake")
    print(x.tolist(), flush=True)
    ctypes.string_at(x.data_ptr(), 1)
    print("read")
"""
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "[1.0, 1.0, 1.0]\n"
    assert ended.returncode == -signal.SIGSEGV


def test_copies_do_not_wait_and_a_broadcast_copies_one_way(lazy):
    x = on_device(float(hvd.rank()), 5.0)
    lazy.copies.clear()
    hvd.broadcast_(x, root_rank=0)
    way = ("fake", "cpu") if hvd.rank() == 0 else ("cpu", "fake")
    assert lazy.copies == [(*way, 8, True)]
    assert x.tolist() == [0.0, 5.0]


# -- host and device -------------------------------------------------------------------------------


@pytest.mark.several
@pytest.mark.parametrize("name", [None, "mixed"])
def test_ranks_with_tensors_on_the_device_and_in_host_memory(accelerator, name):
    mine = torch.full((3,), hvd.rank() + 1.0)
    mine = mine.to("fake") if hvd.rank() == 0 else mine
    handles = [
        hvd.allreduce_async(mine * k, name=name and f"{name} {k}", op=hvd.Sum) for k in (1, 2)
    ]
    total = sum(range(1, hvd.size() + 1))
    for k, handle in enumerate(handles, start=1):
        found = hvd.synchronize(handle)
        assert found.device == mine.device
        assert found.tolist() == [k * total] * 3


@pytest.mark.several
def test_what_has_no_name_keeps_its_place(lazy):
    """Also where a tensor in host memory is there at once, and one before it is on its way."""
    first = torch.full((3,), 1.0)
    first = first.to("fake") if hvd.rank() else first
    handles = [hvd.allreduce_async(each, op=hvd.Sum) for each in (first, torch.full((3,), 5.0))]
    found = [hvd.synchronize(each).tolist() for each in handles]
    assert found == [[1.0 * hvd.size()] * 3, [5.0 * hvd.size()] * 3]


class OfAnotherLibrary:
    """An array that is on a GPU, as its library says, and torch knows nothing of."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (1,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}


def test_arguments_on_different_devices_are_refused(accelerator):
    group = hvd.global_process_set.comm()
    with pytest.raises(ValueError, match=r"x is on fake:0 and out on the host, and both must be"):
        background.submit("allreduce", on_device(1.0), torch.zeros(1), group=group)
    text = "x is a tensor of torch on fake:0, and out an array of another library on a device"
    with pytest.raises(ValueError, match=text):
        background.submit("allreduce", on_device(1.0), OfAnotherLibrary(), group=group)
    with pytest.raises(ValueError, match=r"requires?_grad|x.detach\(\)"):
        background.submit("allreduce", on_device(1.0).requires_grad_(), group=group)
    with pytest.raises(ValueError, match="out has 2 elements, and the result has 1"):
        background.submit("allreduce", on_device(1.0), on_device(0.0, 0.0), group=group)


def test_a_rank_without_a_result_keeps_out_as_it_was(lazy):
    group = hvd.global_process_set.comm()
    for kind in "reduce", "exscan":
        out = on_device(77.0, 77.0)
        background.submit(kind, on_device(1.0, 1.0), out, group=group).wait()
        gets = hvd.rank() == 0 if kind == "reduce" else hvd.rank() > 0
        expected = hvd.size() if kind == "reduce" else hvd.rank()
        assert out.cpu().tolist() == [expected if gets else 77.0] * 2


@pytest.mark.several
def test_a_device_that_fails_ends_the_calls_of_all_ranks(lazy):
    comm = hvd.global_process_set.comm().dup()
    background.start(comm)
    x = on_device(1.0, 2.0)
    if hvd.rank() == 0:
        lazy.driver.fail_next("launch", RuntimeError("an illegal access"), on_device=True)
    handle = background.submit("allreduce", x + 1, group=comm)
    text = "the device has failed: RuntimeError: an illegal access"
    with pytest.raises(CollectivesError, match=text):
        handle.wait()
    lazy.driver.forget()


@pytest.mark.several
def test_a_device_that_is_late_is_said(lazy):
    comm = cc.Communicator(timeout=1.0)
    background.start(comm)
    gate, x = threading.Event(), on_device(1.0, 2.0)
    if hvd.rank() == 0:
        lazy.enqueue("a long kernel", lambda: gate.wait(20), [], [x])
    handle = background.submit("allreduce", x, name="late", group=comm)
    text = r"waited \d+ s for (its device to finish the work before|rank 0 to submit) 'late'"
    with pytest.raises(CollectivesError, match=text):
        handle.wait()
    gate.set()


# -- training --------------------------------------------------------------------------------------


def test_parameters_and_the_state_of_an_optimizer_are_sent(accelerator):
    net = model(seed=hvd.rank()).to("fake")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 * (hvd.rank() + 1))
    if hvd.rank() == 0:
        loss_of(net, *(each.to("fake") for each in data())).backward()
        optimizer.step()
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    averages = [optimizer.state[each]["exp_avg"] for each in net.parameters()]
    assert {each.device.type for each in averages} == {"fake"}
    for each in [*averages, *net.parameters()]:
        every = hvd.allgather(each.detach().flatten().unsqueeze(0))
        assert (every == every[0]).all()


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 1e-6),
        ({"op": hvd.Sum}, 1e-6),
        ({"backward_passes_per_step": 2}, 1e-6),
        ({"groups": 3}, 1e-6),
        ({"compression": hvd.Compression.fp16}, 1e-3),
        ({"compression": "bfloat16"}, 1e-2),
        ({"compression": type("Halves", (hvd.Compression.fp16,), {})}, 1e-3),
    ],
    ids=str,
)
def test_it_learns_what_one_process_on_the_host_does(accelerator, options, bound):
    net = model(seed=hvd.rank()).to("fake")
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), **options)
    x, y = (mine(each).to("fake") for each in data())
    passes = options.get("backward_passes_per_step", 1)
    share = passes * (hvd.size() if options.get("op") == hvd.Sum else 1)
    for _ in range(3):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(passes), y.chunk(passes), strict=True):
            (loss_of(net, a, b) / share).backward()
        optimizer.step()
    assert distance(net.cpu(), alone(sgd)) < bound


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"compression": "bfloat16"}], ids=str)
def test_parameters_on_two_devices(accelerator, options):
    net = model()
    net[2:].to("fake")
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), **options)
    x, y = (mine(each) for each in data())
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(net[2:], net[:2](x).to("fake"), y.to("fake")).backward()
        optimizer.step()
    for each in net.parameters():
        assert each.grad.device == each.device
    assert distance(net.cpu(), alone(sgd)) < (1e-2 if "compression" in options else 1e-6)


@pytest.mark.parametrize("options", [{}, {"parts": 2, "overlap": 1}], ids=str)
def test_seldom_averages_are_those_of_ranks_on_the_host(accelerator, options):
    ends = []
    for place in ("cpu", "fake"):
        net = model().to(place)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        outer = hvd.DiLoCo(optimizer, inner_steps=3, **options)
        x, y = (mine(each).to(place) for each in data())
        for _ in range(7):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()
        outer.finish()
        ends.append(net.cpu())
    assert distance(*ends) < 1e-5


def test_batches_are_normalised_together(accelerator):
    torch.manual_seed(0)
    batch = torch.randn(6 * hvd.size(), 3, 4)
    reference, layer = torch.nn.BatchNorm1d(3), hvd.SyncBatchNorm(3).to("fake")
    expected = reference(batch)
    x = batch.chunk(hvd.size())[hvd.rank()].to("fake").requires_grad_()
    found = layer(x)
    assert torch.allclose(found.cpu(), expected.chunk(hvd.size())[hvd.rank()], atol=1e-5)
    assert torch.allclose(layer.running_var.cpu(), reference.running_var, atol=1e-5)
    found.square().sum().backward()
    assert x.grad.device.type == "fake"


def test_sparse_tensors_are_added(accelerator):
    places, elements = torch.tensor([[hvd.rank(), 0]]).to("fake"), on_device(1.0, 2.0)
    x = torch.sparse_coo_tensor(places, elements, (hvd.size(),), check_invariants=False)
    total = hvd.sparse_allreduce_async(x, name="sparse", op=hvd.Sum)()
    assert total.device.type == "fake"
    assert total._indices().tolist() == [[k for rank in range(hvd.size()) for k in (rank, 0)]]
    assert total._values().tolist() == [1.0, 2.0] * hvd.size()


def test_adasum(accelerator):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of 2")
    x = on_device(1.0, 2.0)
    assert hvd.allreduce(x, op=hvd.Adasum).tolist() == [1.0, 2.0]
    assert hvd.allreduce_(x, op=hvd.Adasum) is x
    assert x.tolist() == [1.0, 2.0]


def test_a_state_is_kept_restored_and_sent(accelerator):
    net = model(seed=hvd.rank()).to("fake")
    state = hvd.elastic.TorchState(model=net, optimizer=sgd(net.parameters()), batch=hvd.rank())
    state.sync()
    before = [each.detach().cpu() for each in net.parameters()]
    with torch.no_grad():
        for each in net.parameters():
            each.add_(1.0)
    state.restore()
    assert state.batch == 0
    for each, old in zip(net.parameters(), before, strict=True):
        assert each.device.type == "fake"
        assert torch.equal(each.cpu(), old)
        every = hvd.allgather(each.detach().flatten().unsqueeze(0))
        assert (every == every[0]).all()
