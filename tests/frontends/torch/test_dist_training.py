"""Training on the backend "collectives", against one process that has all the data."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from places import RANK, SIZE
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import collectives.torch
from collectives.torch import hooks
from collectives.torch.distributed.work import PendingWork

STEPS, ROWS = 4, 24  # rows of each rank
X = torch.randn(ROWS * SIZE, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (ROWS * SIZE,), generator=torch.Generator().manual_seed(2))
x, y = X[RANK * ROWS :][:ROWS], Y[RANK * ROWS :][:ROWS]


@pytest.fixture(scope="module", autouse=True)
def group():
    """The default group, by the function of this library."""
    collectives.torch.init_process_group()
    yield dist.group.WORLD
    dist.destroy_process_group()


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))


def train(net, rows=x, labels=y, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(rows).float(), labels).backward()
        optimizer.step()
    return net


def difference(net):
    """Return how far the parameters are from those of one process."""
    reference = train(model(), X, Y)
    ours = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    pairs = zip(ours, reference.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        {"find_unused_parameters": True},
    ],
    ids=["plain", "static", "unused"],
)
def test_ddp(options):
    assert difference(train(DDP(model(RANK), **options)).module) < 1e-5


def test_ddp_without_synchronisation():
    net = DDP(model(RANK))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    half = ROWS // 2
    for _ in range(STEPS):
        optimizer.zero_grad()
        with net.no_sync():
            (F.cross_entropy(net(x[:half]), y[:half]) / 2).backward()
        (F.cross_entropy(net(x[half:]), y[half:]) / 2).backward()
        optimizer.step()
    assert difference(net.module) < 1e-5


def test_ddp_join():
    net = DDP(model(RANK))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with Join([net]):
        for _ in range(2 + RANK):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    every = [torch.empty_like(flat) for _ in range(SIZE)]
    dist.all_gather(every, flat)
    assert all(torch.equal(each, every[0]) for each in every)


@pytest.mark.parametrize(
    ("hook", "state", "most"),
    [
        (default_hooks.fp16_compress_hook, lambda: None, 1e-3),
        (
            powerSGD_hook.powerSGD_hook,
            lambda: powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2),
            0.3,
        ),
        (hooks.allreduce, hooks.State, 1e-5),
        (hooks.allreduce, lambda: hooks.State("int8", by_priority=False), 0.05),
        (hooks.allreduce, lambda: hooks.State("topk:0.5", group=dist.group.WORLD), 0.3),
    ],
    ids=["fp16", "powersgd", "ours", "int8", "topk"],
)
def test_hooks(hook, state, most):
    net = DDP(model(RANK), bucket_cap_mb=0.001)
    net.register_comm_hook(state(), hook)
    assert difference(train(net).module) < most


@pytest.mark.parametrize("has_hook", [False, True])
def test_gradients_have_the_strides_of_their_parameters(has_hook):
    def made():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
        return net.double().to(memory_format=torch.channels_last)

    def fit(net):
        optimizer = torch.optim.Adam(net.parameters(), 0.01, fused=True)
        return train(net, torch.ones(2, 3, 5, 5).double(), torch.ones(2).long(), optimizer)

    net = DDP(made())
    if has_hook:
        net.register_comm_hook(hooks.State(), hooks.allreduce)
    for ours, right in zip(fit(net).parameters(), fit(made()).parameters(), strict=True):
        assert ours.grad.stride() == ours.stride() == right.stride()
        assert (ours - right).abs().max() < 1e-6


def test_our_hook_on_gloo():
    net = DDP(model(RANK), process_group=dist.new_group(backend="gloo"))
    net.register_comm_hook(hooks.State(), hooks.allreduce)
    assert difference(train(net).module) < 1e-5


def test_an_error_in_the_reducer_is_raised_in_backward(monkeypatch):
    net = DDP(model(RANK))

    def fail(self):
        raise ValueError("nothing works")

    loss = F.cross_entropy(net(x), y)
    monkeypatch.setattr(PendingWork, "_finish", fail)
    with pytest.raises((RuntimeError, ValueError), match="nothing works"):
        loss.backward()
    monkeypatch.undo()
    assert difference(train(DDP(model(RANK))).module) < 1e-5


def test_fsdp2():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    exact, mixed = model(), model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (0, 2):
        fully_shard(exact[part])
        fully_shard(mixed[part], mp_policy=policy)
    assert difference(train(fully_shard(exact))) < 1e-5
    train(fully_shard(mixed, mp_policy=policy))
    assert nn.utils.clip_grad_norm_(mixed.parameters(), 1.0).full_tensor() > 0
    assert difference(mixed) < 0.02


def test_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = train(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))
    with FullyShardedDataParallel.summon_full_params(net):
        assert difference(net) < 1e-5


def test_zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DDP(model(RANK))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    assert difference(train(net, optimizer=optimizer).module) < 1e-5


def test_tensor_parallel_and_functional_collectives():
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(4.0 * SIZE)
    assert torch.equal(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)
    if 64 % SIZE == 0:
        net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        assert torch.allclose(net(X), model()(X), atol=1e-5)
    total = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert total.sum().item() == 3 * SIZE


def test_compile():
    compiled = torch.compile(DDP(model(RANK)), backend="aot_eager")
    assert difference(train(compiled)) < 1e-5


def test_checkpoint(tmp_path):
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import fully_shard

    folder = [str(tmp_path)]
    dist.broadcast_object_list(folder)
    net = train(fully_shard(model()))
    checkpoint.save({"net": net.state_dict()}, checkpoint_id=folder[0])
    other = fully_shard(model(seed=5))
    state = {"net": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["net"])
    assert difference(other) < 1e-5
