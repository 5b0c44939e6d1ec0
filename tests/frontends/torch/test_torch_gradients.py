"""The promises of all front ends on gradients, for `DistributedOptimizer` of torch."""

from __future__ import annotations

import pytest
import torch
from gradients import *  # noqa: F403  the tests
from gradients import Rows

import collectives.torch as hvd


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
