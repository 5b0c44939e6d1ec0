"""The backend "collectives" of torch.distributed on an accelerator, which is a fake one."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
import torch
import torch.nn.functional as F
from fake_accelerator import Accelerator
from places import RANK, SIZE
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from collectives.errors import ArgumentError, BufferError, CollectivesError
from collectives.torch import hooks
from collectives.torch.distributed import nccl as choice

STEPS, ROWS = 3, 12  # rows of each rank
X = torch.randn(ROWS * SIZE, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (ROWS * SIZE,), generator=torch.Generator().manual_seed(2))
TOTAL = SIZE * (SIZE + 1) // 2

pytestmark = pytest.mark.usefixtures("group")


@pytest.fixture(params=["random", "lazy"])
def accelerator(request):
    with Accelerator(request.param) as made:
        yield made


def mine(*shape):
    return torch.full(shape or (5,), RANK + 1.0).to("fake") * 1


@pytest.mark.parametrize("is_async", [False, True])
def test_reductions(accelerator, is_async):
    def ended(work):
        if is_async:
            work.wait()

    x, strided, many = mine(), mine(4, 6).t(), [mine(2), mine(3)]
    ended(dist.all_reduce(x, async_op=is_async))
    ended(dist.all_reduce(strided, dist.ReduceOp.MAX, async_op=is_async))
    assert (x * 2).tolist() == [2 * TOTAL] * 5
    assert strided.tolist() == [[SIZE] * 4] * 6
    with dist._coalescing_manager(async_ops=is_async) as coalesced:
        for each in many:
            dist.all_reduce(each)
    ended(coalesced)
    assert [each.tolist() for each in many] == [[TOTAL] * 2, [TOTAL] * 3]
    root = SIZE - 1
    ended(dist.reduce(x, root, async_op=is_async))
    assert x.tolist() == [TOTAL * (SIZE if root == RANK else 1)] * 5
    out = torch.empty(2).to("fake")
    ended(dist.reduce_scatter_tensor(out, mine(2 * SIZE), async_op=is_async))
    assert out.tolist() == [TOTAL] * 2
    ended(dist.reduce_scatter(out, [mine(2) for _ in range(SIZE)], async_op=is_async))
    assert out.tolist() == [TOTAL] * 2


@pytest.mark.parametrize("is_async", [False, True])
def test_moves(accelerator, is_async):
    def ended(work):
        if is_async:
            work.wait()

    x = mine(2, 3)
    ended(dist.broadcast(x, SIZE - 1, async_op=is_async))
    assert x.tolist() == [[SIZE] * 3] * 2
    every = [torch.empty(2).to("fake") for _ in range(SIZE)]
    ended(dist.all_gather(every, mine(2), async_op=is_async))
    assert [each.tolist() for each in every] == [[k + 1] * 2 for k in range(SIZE)]
    row = torch.empty(SIZE, 2).to("fake")
    ended(dist.all_gather_into_tensor(row, mine(2), async_op=is_async))
    assert row.tolist() == [[k + 1] * 2 for k in range(SIZE)]
    out = torch.empty(SIZE).to("fake")
    ended(dist.all_to_all_single(out, mine(SIZE), async_op=is_async))
    assert out.tolist() == [k + 1 for k in range(SIZE)]
    ended(
        dist.scatter(
            out, list(row.t().repeat(SIZE, 1)[:SIZE]) if RANK == 0 else None, async_op=is_async
        )
    )
    assert out.tolist() == [k + 1 for k in range(SIZE)]
    there = [torch.empty(2).to("fake") for _ in range(SIZE)] if RANK == 0 else None
    ended(dist.gather(mine(2), there, async_op=is_async))
    assert RANK or [each.tolist() for each in there] == [[k + 1] * 2 for k in range(SIZE)]


@pytest.mark.several
def test_messages_and_objects(accelerator):
    x = mine(3)
    if RANK < 2:
        dist.send(x, 1) if RANK == 0 else dist.recv(x, 0)
        assert x.tolist() == [1.0] * 3
    if RANK < 2:
        dist.send(x, 1, tag=3) if RANK == 0 else dist.recv(x, tag=3)
    objects = [x.cpu() if RANK == 0 else None]
    dist.broadcast_object_list(objects)
    assert objects[0].tolist() == [1.0] * 3


@pytest.mark.several
def test_one_rank_has_its_tensor_in_host_memory(accelerator):
    x = mine(3) if RANK else mine(3).cpu()
    dist.all_reduce(x)
    assert x.tolist() == [TOTAL] * 3


def test_the_future_of_a_call_has_the_result(accelerator):
    x = mine()
    future = dist.all_reduce(x, async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] + 1).wait().tolist() == [TOTAL + 1] * 5


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def train(net, rows, labels):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(rows), labels).backward()
        optimizer.step()
    return net


def difference(net):
    """Return how far the parameters are from those of one process on the host."""
    reference = train(model(), X, Y)
    ours = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    pairs = zip(ours, reference.parameters(), strict=True)
    return max((a.detach().cpu() - b).abs().max().item() for a, b in pairs)


def share():
    return [each[RANK * ROWS :][:ROWS].to("fake") for each in (X, Y)]


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-3}])
def test_ddp(accelerator, options):
    assert difference(train(DDP(model(RANK).to("fake"), **options), *share()).module) < 1e-5


@pytest.mark.parametrize(("codec", "most"), [(None, 1e-5), ("int8", 0.05)])
def test_ddp_with_our_hook(accelerator, codec, most):
    net = DDP(model(RANK).to("fake"), bucket_cap_mb=1e-3)
    net.register_comm_hook(hooks.State(codec), hooks.allreduce)
    assert difference(train(net, *share()).module) < most


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_tensor_whose_memory_was_given_back(accelerator):
    x = mine()
    x.untyped_storage().resize_(0)
    text = r"the tensor is a torch tensor whose memory cannot be shared \(it has no memory\)"
    for call in (
        dist.all_reduce,
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_gather([mine()] * SIZE, x),
    ):
        with pytest.raises(BufferError, match=text):
            call(x)
    y = mine()
    dist.all_reduce(y)
    assert y.tolist() == [TOTAL] * 5


@pytest.mark.several
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("failing", ["launch", "record"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
def test_a_device_that_fails_before_a_call_ends_the_group_on_all_ranks(
    accelerator, name, failing, is_async
):
    made, x = dist.new_group(timeout=timedelta(seconds=30)), mine()
    dist.all_reduce(mine())  # there is a lane
    arguments = ([mine() for _ in range(SIZE)], x) if name == "all_gather" else (x,)
    if RANK == 0:
        accelerator.driver.fail_next(failing, RuntimeError("an illegal access"))
    began = time.monotonic()
    text = "on fake:0 could not be copied to host memory: RuntimeError: an illegal access"

    def call():
        work = getattr(dist, name)(*arguments, group=made, async_op=is_async)
        return work.wait() if is_async else None

    with pytest.raises(CollectivesError, match=text):  # each rank sees the error of rank 0
        call()
    assert time.monotonic() - began < 20  # before the deadline
    with pytest.raises(CollectivesError, match=f"{text}|the communicator is broken"):
        dist.all_reduce(torch.ones(2), group=made)
    accelerator.driver.forget()
    dist.all_reduce(x)  # the other groups go on
    assert x.tolist() == [TOTAL] * 5


# -- other backends for other devices --------------------------------------------------------------


class Sums(dist.ProcessGroup):
    """A process group for the accelerator that only adds, by a group of another kind."""

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.calls = []
        self.inner = None

    def getBackendName(self):
        return "sums"

    def allreduce(self, tensors, opts=None):
        self.calls.append([each.device.type for each in tensors])
        hosts = [each.cpu() for each in tensors]
        work = _through.allreduce(hosts, opts)
        work.wait()
        for each, host in zip(tensors, hosts, strict=True):
            each.copy_(host)
        return work


_through = None  # what `Sums` adds by


@pytest.fixture
def mixed(accelerator, group):
    """Return what makes groups of given backends."""
    if not hasattr(dist.Backend, "SUMS"):

        def create(options, _):
            return Sums(options.group_rank, options.group_size)

        dist.Backend.register_backend("sums", create, extended_api=True, devices=["fake"])
    return lambda backends: dist.new_group(backend=backends)


def gloos(call):
    """Return whether a call goes to gloo, by the events of the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    names = {each.name.partition(":")[0] for each in profile.events() if "all_reduce" in each.name}
    return "gloo" in names and "collectives" not in names


@pytest.mark.parametrize("backends", ["cpu:gloo,fake:collectives", "fake:collectives,cpu:gloo"])
def test_host_tensors_go_to_gloo(mixed, backends):
    made = mixed(backends)
    host, device = torch.ones(3), mine(3)
    assert gloos(lambda: dist.all_reduce(host, group=made))
    assert not gloos(lambda: dist.all_reduce(device, group=made))
    assert host.tolist() == [SIZE] * 3
    assert device.tolist() == [TOTAL] * 3
    assert dist.get_backend(made)
    dist.destroy_process_group(made)


def test_device_tensors_go_to_another_backend(mixed, group):
    global _through
    _through = group
    made = mixed("cpu:collectives,fake:sums")
    host, device = torch.ones(3), mine(3)
    dist.all_reduce(host, group=made)
    assert made.others.calls == []
    dist.all_reduce(device, group=made)
    assert made.others.calls == [["fake"]]
    assert host.tolist() == [SIZE] * 3
    assert device.tolist() == [TOTAL] * 3
    objects = [RANK]
    dist.broadcast_object_list(objects, group=made)
    assert objects == [0]
    dist.destroy_process_group(made)


@pytest.fixture
def nccl(mixed, monkeypatch):
    """Have `Sums` on the accelerator stand for NCCL on CUDA, and the environment ask for it."""
    monkeypatch.setattr(choice, "DEVICE", "fake")
    monkeypatch.setattr(choice, "BACKEND", "sums")
    monkeypatch.setattr(choice, "problem", lambda: None)
    monkeypatch.setattr(choice, "facts", lambda device: json.dumps([f"gpu {RANK}", 22703, False]))
    monkeypatch.setenv("COLLECTIVES_DEVICE_TRANSPORT", "nccl")
    return monkeypatch


def test_nccl_gets_what_lies_on_devices_if_the_environment_asks_for_it(nccl, mixed, group):
    global _through
    _through = group
    made = mixed("collectives")
    host, device = torch.ones(3), mine(3)
    for each in (host, device):
        dist.all_reduce(each, group=made)
    assert made.others.calls == [["fake"]]
    assert (host.tolist(), device.tolist()) == ([SIZE] * 3, [TOTAL] * 3)
    dist.destroy_process_group(made)
    nccl.setenv("COLLECTIVES_DEVICE_TRANSPORT", "staging")
    staged = mixed("collectives")
    assert not hasattr(staged, "others")
    dist.destroy_process_group(staged)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no NCCL", f"torch has no NCCL \\(rank {SIZE - 1}\\)"),
        ("no driver", f"the driver is too old \\(rank {SIZE - 1}\\)"),
        pytest.param("shared", f"ranks 0-{SIZE - 1} share one GPU", marks=pytest.mark.several),
    ],
)
def test_nccl_that_is_not_possible_is_told_on_all_ranks(nccl, mixed, reason, told):
    def fail():
        raise RuntimeError("the driver is too old")

    if reason == "shared":
        nccl.setattr(choice, "facts", lambda device: json.dumps(["gpu 0", 22703, False]))
    elif RANK == SIZE - 1:
        nccl.setattr(
            choice, "problem", fail if reason == "no driver" else lambda: "torch has no NCCL"
        )
    made = mixed("collectives")
    host, device = torch.ones(3), mine(3)
    text = f"COLLECTIVES_DEVICE_TRANSPORT is 'nccl', .* on fake here: {told}.*set_device"
    for call in (
        lambda: dist.all_reduce(device, group=made),
        lambda: dist.broadcast(device, 0, made),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()
    dist.all_reduce(host, group=made)  # it goes on in host memory
    assert host.tolist() == [SIZE] * 3
    dist.destroy_process_group(made)


@pytest.mark.skipif(dist.is_nccl_available(), reason="NCCL is there")
def test_this_torch_says_that_it_has_no_nccl():
    assert choice.problem() == f"torch {torch.__version__} has no NCCL"


def test_a_backend_that_is_not_there_is_an_error(mixed):
    if dist.is_nccl_available():
        pytest.skip("NCCL is there")
    with pytest.raises(RuntimeError, match="NCCL"):
        mixed("cpu:collectives,cuda:nccl")
