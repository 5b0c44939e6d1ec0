"""Models and states that are divided among the ranks, in host memory and on an accelerator that is
a fake one: FSDP2, DTensor, styles of tensor parallelism, pipelines, checkpoints.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fake_accelerator import Accelerator
from places import RANK, SIZE
from torch import distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

STEPS, ROWS, WIDTH = 3, 12, 4 * SIZE  # rows of each rank
X = torch.randn(ROWS * SIZE, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (ROWS * SIZE,), generator=torch.Generator().manual_seed(2))
MANY = 2 if SIZE % 2 == 0 else 1  # in the second dimension of a mesh of two
TOTAL = SIZE * (SIZE + 1) // 2

pytestmark = pytest.mark.usefixtures("group")


@pytest.fixture(params=["host, random", "lazy"])
def device(request):
    """Return the name of a device. There is an accelerator always: torch knows it until the end."""
    with Accelerator(request.param.removeprefix("host, ")):
        yield "cpu" if request.param.startswith("host") else "fake"


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))


def train(net, rows, labels, optimizer=None, steps=STEPS):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(rows).float(), labels).backward()
        optimizer.step()
    return net


def whole(tensor):
    """Return all of a tensor, in host memory."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def difference(net, steps=STEPS):
    """Return how far the parameters are from those of one process on the host."""
    reference = train(model(), X, Y, steps=steps)
    pairs = zip(net.parameters(), reference.parameters(), strict=True)
    return max((whole(a) - b).abs().max().item() for a, b in pairs)


def part(device, number, many):
    """Return one of as many equal parts of the rows."""
    rows = len(X) // many
    return [each[number * rows :][:rows].to(device) for each in (X, Y)]


def sharded(net, device, **options):
    mesh = init_device_mesh(device, (SIZE,))
    net = net.to(device)
    for each in (0, 2):
        fully_shard(net[each], mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def folder(path):
    """Return the folder of rank 0."""
    names = [str(path)]
    dist.broadcast_object_list(names)
    return names[0]


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 1e-5),
        ({"reshard_after_forward": False}, 1e-5),
        ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 1e-5),
        ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, 0.02),
    ],
    ids=["plain", "kept", "offload", "bfloat16"],
)
def test_fsdp2(device, options, most):
    net = train(sharded(model(), device, **options), *part(device, RANK, SIZE))
    assert difference(net) < most
    gradients = [whole(each.grad).clone() for each in net.parameters()]
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    expected = torch.cat([each.flatten() for each in gradients]).norm()
    assert whole(norm).item() == pytest.approx(expected.item(), rel=1e-4)


def test_fsdp2_on_groups_that_have_copies(device):
    mesh = init_device_mesh(device, (SIZE // MANY, MANY), mesh_dim_names=("copies", "shards"))
    net = fully_shard(model().to(device), mesh=mesh)
    assert difference(train(net, *part(device, RANK, SIZE))) < 1e-5


def test_fsdp2_and_tensor_parallelism(device):
    mesh = init_device_mesh(device, (SIZE // MANY, MANY), mesh_dim_names=("data", "tensor"))
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net = parallelize_module(model().to(device), mesh["tensor"], styles)
    fully_shard(net, mesh=mesh["data"])
    mine = part(device, mesh["data"].get_local_rank(), mesh["data"].size())
    assert difference(train(net, *mine)) < 1e-5


def test_tensor_parallelism_along_the_sequence(device):
    def layers():
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4))

    styles = {
        "0": SequenceParallel(sequence_dim=1),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Replicate()),
    }
    mesh = init_device_mesh(device, (SIZE,))
    net, reference = parallelize_module(layers().to(device), mesh, styles), layers()
    x = X.view(2, ROWS * SIZE // 2, 8)
    out, expected = net(x.chunk(SIZE, 1)[RANK].contiguous().to(device)), reference(x)
    assert torch.allclose(whole(out), expected, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, other in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(whole(mine.grad), other.grad, rtol=1e-4, atol=1e-4)


def test_redistribute(device):
    mesh = init_device_mesh(device, (SIZE,))
    x = torch.arange(3.0 * (2 * SIZE + 1)).view(-1, 3)  # parts of unequal length
    placed = distribute_tensor(x.to(device), mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0), Shard(1), Shard(0)):
        placed = placed.redistribute(mesh, [placement])
        assert placed.to_local().device.type == device
        assert torch.equal(whole(placed), x)
    square = placed.t() @ placed
    assert torch.allclose(whole(square), x.t() @ x)
    partial = DTensor.from_local(torch.full((SIZE, 2), RANK + 1.0).to(device), mesh, [Partial()])
    assert whole(partial).tolist() == [[TOTAL] * 2] * SIZE
    assert whole(partial.redistribute(mesh, [Shard(0)]).to_local()).tolist() == [[TOTAL] * 2]


def test_functional_collectives(device, group):
    x = torch.full((2 * SIZE,), RANK + 1.0).to(device)
    every = [rank + 1.0 for rank in range(SIZE) for _ in range(2 * SIZE)]
    assert functional.all_reduce(x, "sum", group).tolist() == [TOTAL] * 2 * SIZE
    assert functional.all_gather_single(x, 0, group).tolist() == every
    assert functional.reduce_scatter_single(x, "avg", 0, group).tolist() == [TOTAL / SIZE] * 2
    assert functional.broadcast(x, SIZE - 1, group).tolist() == [SIZE] * 2 * SIZE
    exchanged = functional.all_to_all_single(x, None, None, group)
    assert exchanged.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(2)]
    turn = [(rank + 1) % SIZE for rank in range(SIZE)]
    assert functional.permute_tensor(x, turn, group).tolist()[0] == (RANK - 1) % SIZE + 1
    sums = functional.all_reduce_coalesced([x, 2 * x], "sum", group)
    assert [each[0].item() for each in sums] == [TOTAL, 2 * TOTAL]
    parts = functional.reduce_scatter_single_coalesced([x, 2 * x], "sum", [0, 0], group)
    assert [each.tolist() for each in parts] == [[TOTAL] * 2, [2 * TOTAL] * 2]
    gathered = functional.all_gather_single_coalesced([x, 2 * x], group)
    assert [each.tolist() for each in gathered] == [every, [2 * each for each in every]]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_several_kinds_between_the_ends_of_coalescing(device, is_async):
    outs = [torch.empty(2).to(device), torch.empty(3).to(device)]
    x = [torch.full((n * SIZE,), RANK + 1.0).to(device) for n in (2, 3)]
    place = torch.device(device)
    with dist._coalescing_manager(device=place, async_ops=is_async) as calls:
        for out, each in zip(outs, x, strict=True):
            dist.reduce_scatter_single(out, each)
    if is_async:
        calls.wait()
    assert [each.tolist() for each in outs] == [[TOTAL] * 2, [TOTAL] * 3]
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    with dist._coalescing_manager(device=place, async_ops=is_async) as calls:
        dist.isend(x[0], right)
        dist.irecv(x[1][: 2 * SIZE], left)
        dist.broadcast(outs[0], 0, async_op=True)
    if is_async:
        calls.wait()
    assert x[1].tolist() == [left + 1.0] * 2 * SIZE + [RANK + 1.0] * SIZE
    dist.all_reduce(x[0])  # nothing is left of it
    assert x[0].tolist() == [TOTAL] * 2 * SIZE


@pytest.mark.skipif(SIZE != 2, reason="it has two stages")
def test_a_pipeline(device):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    net, reference = model().to(device), model()
    mine = net[:2] if RANK == 0 else net[2:]
    stage = PipelineStage(mine, RANK, SIZE, torch.device(device))
    schedule = Schedule1F1B(stage, 4, loss_fn=F.cross_entropy)
    schedule.step(X.to(device)) if RANK == 0 else schedule.step(target=Y.to(device))
    F.cross_entropy(reference(X), Y).backward()
    expected = reference[2 * RANK].weight.grad
    assert torch.allclose(whole(mine[0].weight.grad), expected, atol=1e-6)


def test_a_checkpoint_has_the_optimizer(device, tmp_path):
    def begun(seed):
        net = sharded(model(seed), device)
        return net, torch.optim.AdamW(net.parameters(), 0.01)

    def state_of(*pair):
        return dict(zip(("net", "optimizer"), get_state_dict(*pair), strict=True))

    mine = part(device, RANK, SIZE)
    first, second = begun(0), begun(3)
    train(first[0], *mine, first[1])
    place = folder(tmp_path)
    checkpoint.save(state_of(*first), checkpoint_id=place)
    train(second[0], *mine, second[1], steps=1)
    state = state_of(*second)
    checkpoint.load(state, checkpoint_id=place)
    set_state_dict(*second, model_state_dict=state["net"], optim_state_dict=state["optimizer"])
    for each in (first, second):
        train(each[0], *mine, each[1])
    pairs = zip(first[0].parameters(), second[0].parameters(), strict=True)
    assert all(torch.equal(whole(a), whole(b)) for a, b in pairs)


def test_a_checkpoint_is_written_while_training_goes_on(device, tmp_path):
    mine = part(device, RANK, SIZE)
    net, place = train(sharded(model(), device), *mine), folder(tmp_path)
    apart = dist.new_group()  # for the thread that writes
    state = {"net": net.state_dict()}
    saving = checkpoint.async_save(state, checkpoint_id=place, process_group=apart)
    train(net, *mine)
    saving.result()
    assert difference(net, 2 * STEPS) < 1e-5
    other = sharded(model(5), device)
    state = {"net": other.state_dict()}
    checkpoint.load(state, checkpoint_id=place)
    other.load_state_dict(state["net"])
    assert difference(other) < 1e-5
    dist.destroy_process_group(apart)
