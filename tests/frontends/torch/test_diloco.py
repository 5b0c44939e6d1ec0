"""`DiLoCo`: inner steps of each rank, and outer steps with the averaged differences."""

from __future__ import annotations

import copy

import pytest
import torch
from places import RANK, SIZE
from torch_training import adam, alone, data, distance, loss_of, model, sgd

import collectives as cc
import collectives.torch as hvd
from collectives.errors import ArgumentError, MismatchError

STEPS = 9


@pytest.fixture(autouse=True)
def begun():
    hvd.init()


def train(net, optimizer, rank, steps=STEPS):
    """Train on the part of the data that a rank has."""
    x, y = (each.chunk(SIZE)[rank] for each in data())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


def simulated(make, phases, *, inner_steps, outer_lr, outer_momentum, overlap=0, keeps=0.5):
    """Return the networks of all ranks, computed here; `phases` are those of the parameters."""
    nets = [model() for _ in range(SIZE)]
    inner = [make(net.parameters()) for net in nets]
    shared = [each.detach().clone().requires_grad_() for each in nets[0].parameters()]
    outer = [torch.optim.SGD([each], outer_lr, outer_momentum, nesterov=True) for each in shared]
    sent = {}
    for step in range(1, STEPS + 1):
        for rank, net in enumerate(nets):
            train(net, inner[rank], rank, 1)
        for k, phase in enumerate(phases):
            local = [list(net.parameters())[k] for net in nets]
            if (step + phase) % inner_steps == 0:
                sent[step + overlap, k] = sum((shared[k] - each).detach() for each in local) / SIZE
            if (step, k) in sent:
                shared[k].grad = sent[step, k]
                outer[k].step()
                for each in local:
                    kept = keeps if overlap else 0.0
                    each.data.copy_(kept * each.data + (1 - kept) * shared[k].detach())
    return nets


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parts": 3},
        {"overlap": 2},
        {"overlap": 1, "parts": 2, "keeps": 0.25},
        {"overlap": 2, "keeps": 0.0},
    ],
    ids=str,
)
def test_it_computes_what_the_papers_say(make, options):
    rates = {"inner_steps": 4, "outer_lr": 0.7, "outer_momentum": 0.9}
    net = model()
    optimizer = make(net.parameters())
    outer = hvd.DiLoCo(optimizer, **rates, **options)
    phases = {id(each): part.phase for part in outer._parts for each in part.parameters}
    assert len(set(phases.values())) == options.pop("parts", 1)
    train(net, optimizer, RANK)
    ordered = [phases[id(each)] for each in net.parameters()]
    assert distance(net, simulated(make, ordered, **rates, **options)[RANK]) < 1e-5
    outer.finish()


def test_an_average_after_each_step_is_plain_data_parallelism():
    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    net = model(seed=RANK)
    with torch.no_grad():
        if RANK == 0:
            for each, start in zip(net.parameters(), model().parameters(), strict=True):
                each.copy_(start)
    optimizer = make(net.parameters())
    hvd.DiLoCo(optimizer, inner_steps=1, outer_lr=1.0, outer_momentum=0.0)
    train(net, optimizer, RANK, 3)
    assert distance(net, alone(make)) < 1e-5


@pytest.mark.parametrize("codec", [None, "float16", "int8", "int4"])
def test_all_ranks_have_the_same_bits_at_the_end(codec):
    net = model(seed=RANK)
    optimizer = adam(net.parameters())
    outer = hvd.DiLoCo(optimizer, inner_steps=3, parts=2, overlap=1, compression=codec)
    train(net, optimizer, RANK)
    outer.finish()
    for each in net.parameters():
        every = hvd.allgather(each.detach().flatten().unsqueeze(0))
        assert (every == every[0]).all()
    before = [each.detach().clone() for each in net.parameters()]
    assert loss_of(net, *data()) < loss_of(model(seed=0), *data())
    outer.detach()
    train(net, optimizer, RANK, 3)
    assert any(not torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))
    assert outer.steps == STEPS


def test_it_goes_on_with_a_state():
    nets, ends = [model(), model()], []
    for net in nets:
        optimizer = sgd(net.parameters())
        outer = hvd.DiLoCo(optimizer, inner_steps=2, parts=2)
        train(net, optimizer, RANK, 5)
        outer.finish()
        if net is nets[1]:
            saved = copy.deepcopy((outer.state_dict(), optimizer.state_dict()))
            outer.detach()
            other = model(seed=5)
            optimizer = sgd(other.parameters())
            outer = hvd.DiLoCo(optimizer, inner_steps=2, parts=2)
            outer.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            net = other
        train(net, optimizer, RANK, 5)
        outer.finish()
        ends.append(net)
    assert distance(*ends) == 0


def test_parameters_of_several_dtypes():
    net = torch.nn.ModuleList([torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).double()])
    optimizer = sgd(net.parameters())
    outer = hvd.DiLoCo(optimizer, inner_steps=1, outer_lr=1.0, outer_momentum=0.0)
    for layer in net:
        layer(torch.full((1, 3), RANK + 1.0, dtype=layer.weight.dtype)).sum().backward()
    start = [each.detach().clone() for each in net.parameters()]
    optimizer.step()
    for each, old in zip(net.parameters(), start, strict=True):
        step = 0.1 * ((SIZE + 1) / 2 if each.dim() == 2 else 1.0)
        assert torch.allclose(each.detach(), old - step, atol=1e-6)
    outer.finish()


@pytest.mark.several
def test_ranks_that_differ_are_named():
    optimizer = sgd(model().parameters())
    with pytest.raises(MismatchError, match=r"inner_steps 2, .*inner_steps 3, "):
        hvd.DiLoCo(optimizer, inner_steps=3 if RANK else 2)


def test_wrong_arguments():
    optimizer = sgd(model().parameters())
    for options, text in (
        ({"inner_steps": 0}, "inner_steps is 0, and must be an integer, at least 1"),
        ({"inner_steps": 2, "parts": 3}, "parts is 3, and must be an integer, from 1 to 2"),
        ({"inner_steps": 2, "overlap": 2}, "overlap is 2, and must be an integer, from 0 to 1"),
        ({"keeps": 1.5}, r"keeps is 1.5, and must be from 0 to 1"),
        ({"group": 5}, "group is 5, and must be a Communicator, or a process group"),
    ):
        with pytest.raises(ArgumentError, match=text):
            hvd.DiLoCo(optimizer, **options)
    with pytest.raises(ArgumentError, match="and must be a torch Optimizer"):
        hvd.DiLoCo(model())
    outer = hvd.DiLoCo(optimizer, inner_steps=2, overlap=1, group=cc.world())
    for parameters in optimizer.param_groups:
        for each in parameters["params"]:
            each.grad = torch.ones_like(each)
    for _ in range(2):
        optimizer.step()
    with pytest.raises(ArgumentError, match="a part is in flight; call finish"):
        outer.state_dict()
    outer.finish()
    state = outer.state_dict()
    state["parts"].append({"shared": torch.zeros(3)})
    with pytest.raises(ArgumentError, match=r"state has parts of \[139, 3\] elements"):
        outer.load_state_dict(state)
