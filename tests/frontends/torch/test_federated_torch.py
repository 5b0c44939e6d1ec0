"""Federated averaging of a model of torch."""

import copy

import numpy as np
import pytest
import torch

import collectives as cc
import collectives.torch as hvd
from collectives import federated
from collectives.errors import UnsupportedTypeError


def samples(client):
    made = torch.Generator().manual_seed(client)
    x = torch.randn(8 + 4 * client, 3, generator=made)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 1


def steps(model, x, y, many, pull=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(many):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        if pull is not None:
            parameters = list(model.parameters())
            more = pull([each.detach() for each in parameters])
            for each, term in zip(parameters, more, strict=True):
                each.grad += torch.from_numpy(term)
        optimizer.step()


def test_a_model_of_torch():
    """Its parameters are trained in place; a whole step of each client is one on all data."""
    comm = cc.world()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    want = copy.deepcopy(model)

    def fit(parameters, task):
        assert all(map(torch.Tensor.is_set_to, parameters, model.parameters()))
        x, y = samples(task.client)
        steps(model, x, y, task.epochs, task.pull)
        return parameters, len(x)

    result = federated.run(comm, model.parameters(), fit, strategy=federated.FedProx(0.5), rounds=5)
    every = [samples(client) for client in range(comm.size)]
    steps(want, *(torch.cat(each) for each in zip(*every, strict=True)), 5)
    for mine, other, sent in zip(
        model.parameters(), want.parameters(), result.parameters, strict=True
    ):
        assert torch.allclose(mine, other, atol=1e-6)
        assert np.array_equal(mine.detach().numpy(), sent)
        assert mine.requires_grad
    with pytest.raises(UnsupportedTypeError, match=r"parameters\[0\] cannot be read"):
        federated.run(comm, [torch.zeros(2, dtype=torch.bfloat16)], fit)


def test_diloco_is_the_same_as_a_strategy_and_as_a_hook_of_the_optimizer():
    comm = cc.world()
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    other = copy.deepcopy(model)
    x, y = samples(comm.rank)
    x, y = x[:8], y[:8]  # as many on each rank, so that the means are equal

    def fit(parameters, task):
        steps(model, x, y, task.epochs)
        return parameters, len(x)

    strategy = federated.DiLoCo(rate=0.5, momentum=0.8, epochs=4)
    federated.run(comm, model.parameters(), fit, strategy=strategy, rounds=3)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    outer = hvd.DiLoCo(optimizer, inner_steps=4, outer_lr=0.5, outer_momentum=0.8, group=comm)
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(other(x), y).backward()
        optimizer.step()
    outer.detach()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
