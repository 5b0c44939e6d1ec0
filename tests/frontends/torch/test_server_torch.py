"""Parameter servers with modules of torch, and optimizers that step as those of torch."""

import numpy as np
import pytest
import torch

import collectives as cc
from collectives import server


def torch_steps(make, steps):
    w = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    optimizer = make(torch.optim, [w])
    for step in range(steps):
        optimizer.zero_grad()
        (w * w * (step + 1)).sum().backward()
        optimizer.step()
    return w.detach().numpy()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (server.SGD(0.05), lambda o, w: o.SGD(w, 0.05)),
        (server.SGD(0.01, 0.9), lambda o, w: o.SGD(w, 0.01, momentum=0.9)),
        (
            server.SGD(0.01, 0.9, nesterov=True),
            lambda o, w: o.SGD(w, 0.01, momentum=0.9, nesterov=True),
        ),
        (server.Adam(0.1), lambda o, w: o.Adam(w, 0.1)),
    ],
)
def test_optimizers_step_as_those_of_torch(ours, theirs):
    wanted = torch_steps(theirs, 5)
    w, state = np.linspace(-1, 1, 6), {}
    for step in range(5):
        ours(w, 2 * w * (step + 1), state, step + 1)
    assert np.allclose(w, wanted, rtol=1e-12, atol=0)


@pytest.mark.several
def test_parameters_of_a_module():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad = False
    bias = model.bias.clone()
    with server.ParameterServer(cc.world(), model, optimizer=server.SGD(0.1)) as ps:
        for _ in range(40 if ps.is_worker else 0):
            ps.pull()
            model.zero_grad()
            ((model.weight - 1) ** 2).sum().backward()
            ps.push()
    assert torch.allclose(model.weight, torch.ones(2, 3), atol=1e-2)
    assert torch.equal(model.bias, bias)
