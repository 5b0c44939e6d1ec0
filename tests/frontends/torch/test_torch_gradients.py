"""The promises of all front ends on gradients, for `DistributedOptimizer` of torch."""

from __future__ import annotations

import pytest
import torch
from gradients import *  # noqa: F403  the tests
from gradients import SPLITS, WHOLE, Rows, of_horovod
from gradients import test_derivatives_are_those_of_one_process as test_derivatives  # noqa: F401
from places import RANK, SIZE
from torch import distributed as dist
from torch.distributed.nn import functional

import collectives.torch as hvd

# As torch calls what it has in another place, too.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")


class Torch:
    hvd = hvd
    has_rows = True
    tensor = staticmethod(torch.tensor)

    def seeds(self):
        return ()

    def reduced(self, gradients, groups=None, **options):
        made = [
            torch.nn.Parameter(torch.zeros(each.shape, dtype=torch.float32)) for each in gradients
        ]
        if callable(groups):
            groups = groups(made)
        optimizer = torch.optim.SGD(made, lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, groups=groups, **options)
        sum(map(self._loss, made, gradients)).backward()
        optimizer.synchronize()
        return [each.grad.to_dense().numpy() for each in made]

    def _loss(self, parameter, gradient):
        if not isinstance(gradient, Rows):
            return (parameter * torch.from_numpy(gradient)).sum()
        rows = torch.nn.functional.embedding(torch.tensor(gradient.indices), parameter, sparse=True)
        return (rows * torch.from_numpy(gradient.values)).sum()


@pytest.fixture
def front_end():
    hvd.init()
    return Torch()


class Collectives:
    def __init__(self, collectives):
        self.collectives = collectives

    def derivatives(self, function, x):
        x = torch.tensor(x, requires_grad=True)
        (first,) = torch.autograd.grad(function(x**2).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        return [each.detach().numpy() for each in (first, second)]


def of_torch():
    """Return the collectives of `torch.distributed.nn`, on the backend "collectives"."""

    def scattered(x):
        parts = [each.contiguous() for each in x.chunk(SIZE)]
        return functional.reduce_scatter(torch.empty_like(parts[0]), parts)

    def moved(x):
        x = x.tile(SIZE, 1)[:WHOLE]
        received = [splits[RANK] for splits in SPLITS]
        out = x.new_empty(sum(received), x.shape[1])
        return functional.all_to_all_single(out, x, received, SPLITS[RANK])

    return {
        "sum": functional.all_reduce,
        "scattered sum": scattered,
        "joined": lambda x: torch.stack(functional.all_gather(x)),
        "sent": lambda x: functional.broadcast(x.clone(), SIZE - 1),
        "transposed": lambda x: functional.all_to_all_single(torch.empty_like(x), x),
        "moved": moved,
    }


@pytest.fixture(params=["hvd", "torch.distributed"])
def differentiable(request):
    if request.param == "hvd":
        hvd.init()
        yield Collectives(of_horovod(hvd, lambda x, n: x.tile(n, 1)))
    else:
        hvd.init_process_group()
        yield Collectives(of_torch())
        dist.destroy_process_group()


@pytest.mark.several
def test_batch_normalisation_has_no_second_derivative():
    hvd.init()
    layer, x = hvd.SyncBatchNorm(2), torch.ones(3, 2, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_other_reductions_have_no_gradient(op):
    hvd.init()
    x = torch.ones(SIZE, requires_grad=True)
    for call in (
        hvd.allreduce,
        hvd.reducescatter,
        lambda x, op: hvd.grouped_allreduce([x], op=op)[0],
        lambda x, op: hvd.grouped_reducescatter([x], op=op)[0],
    ):
        made = call(x, op=op)
        with pytest.raises(ValueError, match=f"with op {op.name} has no gradient"):
            made.sum().backward()
