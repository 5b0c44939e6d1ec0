"""A small training with torch, on all ranks and on one process with the whole batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import collectives.torch as hvd

ROWS = 12  # of the whole batch: 2 and 3 ranks divide them


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def data():
    made = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 4, generator=made), torch.randint(0, 3, (ROWS,), generator=made)


def mine(x):
    return x.chunk(hvd.size())[hvd.rank()]


def loss_of(net, x, y):
    return functional.cross_entropy(net(x), y)


def alone(make, steps=3):
    """Return a model that was trained on the whole batch in this process."""
    net = model()
    optimizer = make(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net, *data()).backward()
        optimizer.step()
    return net


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)
