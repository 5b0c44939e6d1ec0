"""With ``bits="size"``, an element has the same bits alone and in any bucket.

On two ranks it always has. On three, these tests fail without.
"""

from __future__ import annotations

import pytest
import torch
from any_size import FEW, contribution, folded, same
from places import RANK, SIZE
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import collectives.torch as hvd
from collectives.errors import ArgumentError, MismatchError
from collectives.torch import hooks

X = torch.from_numpy(contribution(RANK))
TOTAL = folded(SIZE)


@pytest.fixture(scope="module")
def horovod():
    hvd.shutdown()
    hvd.init(bits="size")
    yield
    hvd.shutdown()


@pytest.fixture
def group(request):
    """The default group of torch, with the bits of the parameter."""
    hvd.init_process_group(bits=getattr(request, "param", "size"))
    yield dist.group.WORLD
    dist.destroy_process_group()


ANY = pytest.mark.parametrize("group", [None], indirect=True, ids=["any"])


class Weights(nn.Module):
    """Parameters of several lengths, whose gradients are the contributions of this rank."""

    def __init__(self):
        super().__init__()
        self.each = nn.ParameterList(torch.zeros(part.stop - part.start) for part in FEW)

    def forward(self, x):
        return sum((w * x[part]).sum() for w, part in zip(self.each, FEW, strict=True))

    def gradients(self):
        return [each.grad for each in self.each]


def hold(results, total=TOTAL):
    for got, part in zip(results, FEW, strict=True):
        same(got.numpy(), total[part])


def test_horovod_calls(horovod):
    parts = [X[part] for part in FEW]
    hold([hvd.allreduce(each, op=hvd.Sum) for each in parts])
    hold([hvd.synchronize(each) for each in [hvd.allreduce_async(x, op=hvd.Sum) for x in parts]])
    hold(hvd.grouped_allreduce(parts, op=hvd.Sum))
    rows = X[: 3000 * SIZE].reshape(SIZE, -1)
    same(
        hvd.reducescatter(rows, op=hvd.Sum)[0].numpy(), TOTAL[: 3000 * SIZE].reshape(SIZE, -1)[RANK]
    )


def test_horovod_optimizer(horovod):
    averages = hvd.allreduce(X).numpy()
    for groups in (None, 2):
        net = Weights()
        sgd = torch.optim.SGD(net.parameters(), 0.0)
        optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters(), groups=groups)
        for _ in range(2):
            net(X).backward()
            optimizer.step()
            hold(net.gradients(), averages)
            optimizer.zero_grad()


@pytest.mark.several
def test_process_sets_have_the_bits_of_init(horovod):
    others = hvd.add_process_set(range(SIZE - 1))
    if others.included():
        assert others.comm().bits == "size"
        parts = [hvd.allreduce(X[part], op=hvd.Sum, process_set=others) for part in FEW]
        hold(parts, folded(SIZE - 1))
    hvd.remove_process_set(others)


def test_what_init_refuses(horovod):
    hvd.init(bits="size")
    with pytest.raises(
        ValueError, match=r"bits is 'any', and init\(\) was called before with 'siz"
    ):
        hvd.init(bits="any")
    with pytest.raises(ValueError, match="bits is 3, and must be one of any, size"):
        hvd.init(bits=3)
    with pytest.raises(ValueError, match=r"compression is int8.*pass 'float16' or 'bfloat16'"):
        hvd.allreduce(X, compression="int8")
    if SIZE & (SIZE - 1) == 0:
        with pytest.raises(ValueError, match=r"op is Adasum, .*init\(bits='any'\)"):
            hvd.allreduce(X, op=hvd.Adasum)


@pytest.mark.several
def test_ranks_differ_in_init(horovod):
    for bits in ("any", None):
        hvd.shutdown()
        with pytest.raises(MismatchError, match="init: bits is size on rank 1, and any on rank 0"):
            hvd.init(bits="size" if RANK else bits)
    hvd.init(bits="size")


def test_calls_of_torch(group):
    assert group.communicator.bits == "size"
    parts = [X[part].clone() for part in FEW]
    for each in parts:
        dist.all_reduce(each)
    hold(parts)
    parts = [X[part].clone() for part in FEW]
    dist.all_reduce_coalesced(parts)
    hold(parts)
    parts = [X[part].clone() for part in FEW]
    for each in parts:
        dist.reduce(each, SIZE - 1)
    if RANK == SIZE - 1:
        hold(parts)
    out = torch.empty(1000)
    dist.reduce_scatter_tensor(out, X[: 1000 * SIZE])
    same(out.numpy(), TOTAL[: 1000 * SIZE].reshape(SIZE, -1)[RANK])


@pytest.mark.parametrize("megabytes", [0.001, 0.1, 25])
def test_buckets_of_ddp(group, megabytes):
    average = X.clone()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    net = DDP(Weights(), bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
    if megabytes != 25:
        net.register_comm_hook(hooks.State(group=group), hooks.allreduce)
    for _ in range(2):  # torch makes other buckets after the first step
        net.zero_grad()
        net(X).backward()
        scaled = X * (1.0 / SIZE)  # as DDP does it, where it has no hook
        dist.all_reduce(scaled)
        hold(net.module.gradients(), (scaled if megabytes == 25 else average).numpy())


@ANY
def test_a_hook_has_bits_of_its_own(group):
    net = DDP(Weights(), bucket_cap_mb=0.1)
    net.register_comm_hook(hooks.State(bits="size"), hooks.allreduce)
    net(X).backward()
    hold(net.module.gradients(), group.communicator.allreduce(X.numpy(), op="AVG", bits="size"))
    with pytest.raises(ArgumentError, match="bits is 'sizes'"):
        hooks.State(bits="sizes")


@ANY
def test_options_of_groups(group):
    assert group.communicator.bits == "any"
    other = dist.new_group(pg_options={"bits": "size"})
    assert other.communicator.bits == "size"
    x = X.clone()
    dist.all_reduce(x, group=other)
    same(x.numpy(), TOTAL)
    with pytest.raises(ArgumentError, match="pg_options has 'bit', and may have 'bits' only"):
        dist.new_group(pg_options={"bit": "size"})


@pytest.mark.several
def test_ranks_differ_in_a_group():
    with pytest.raises(MismatchError, match="bits is "):
        hvd.init_process_group(bits="size" if RANK else "any")
