"""`DistributedOptimizer` and its methods, compared with one process and the whole batch."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_training import adam, alone, data, distance, loss_of, mine, model, sgd

import collectives.torch as hvd


@pytest.fixture(autouse=True)
def initialised():
    hvd.init()


def assert_same_on_all_ranks(net):
    weights = torch.cat([each.detach().flatten() for each in net.parameters()])
    every = hvd.allgather(weights.unsqueeze(0))
    assert (every == every[0]).all()


OPTIONS = [
    ({}, 1e-6),
    ({"op": hvd.Sum}, 1e-6),
    ({"backward_passes_per_step": 2}, 1e-6),
    ({"gradient_predivide_factor": 2.0}, 1e-6),
    ({"groups": 2}, 1e-6),
    ({"compression": hvd.Compression.fp16}, 1e-3),
    ({"compression": "bfloat16"}, 1e-2),
    ({"compression": type("Halves", (hvd.Compression.fp16,), {})}, 1e-3),
]


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize(("options", "bound"), OPTIONS)
def test_it_learns_what_one_process_does(make, options, bound):
    if make is adam and bound > 1e-5:
        return  # it divides by gradients that may be close to zero
    net = model(seed=hvd.rank())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    named = net.named_parameters()
    optimizer = hvd.DistributedOptimizer(make(net.parameters()), named, **options)
    x, y = (mine(each) for each in data())
    passes = options.get("backward_passes_per_step", 1)
    share = passes * (hvd.size() if options.get("op") == hvd.Sum else 1)
    for _ in range(3):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(passes), y.chunk(passes), strict=True):
            (loss_of(net, a, b) / share).backward()
        optimizer.step()
    assert distance(net, alone(make)) < bound
    assert_same_on_all_ranks(net)


def test_the_number_of_backward_passes_is_set_later():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    optimizer.set_backward_passes_per_step(2)
    for x, y in zip(*(mine(each).chunk(2) for each in data()), strict=True):
        (loss_of(net, x, y) / 2).backward()
    optimizer.step()
    assert distance(net, alone(sgd, steps=1)) < 1e-6


def test_it_is_the_same_object_for_schedulers():
    net = model()
    optimizer = sgd(net.parameters())
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert hvd.DistributedOptimizer(optimizer, net.named_parameters()) is optimizer
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loss_of(net, *(mine(each) for each in data())).backward()
    optimizer.step()
    before.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    optimizer.zero_grad(set_to_none=False)
    assert all(not each.grad.any() for each in net.parameters())
    optimizer.zero_grad()
    assert all(each.grad is None for each in net.parameters())
    reference = alone(sgd, steps=1)
    assert distance(net, reference) < 1e-6
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.several
def test_gradients_are_kept_in_buckets():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    places = []
    for set_to_none in (True, False):
        loss_of(net, *(mine(each) for each in data())).backward()
        optimizer.step()
        places.append([each.grad.data_ptr() for each in net.parameters()])
        optimizer.zero_grad(set_to_none=set_to_none)
    assert places[0] == places[1]
    storages = {
        each.untyped_storage().data_ptr()
        for each in optimizer._distribution.buckets.buckets[0].views
    }
    assert len(storages) == 1


def test_clipping_between_synchronize_and_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    loss_of(net, *(mine(each) for each in data())).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    reference = model()
    loss_of(reference, *data()).backward()
    assert norm.item() == pytest.approx(
        nn.utils.get_total_norm([each.grad for each in reference.parameters()]).item(), rel=1e-5
    )
    assert_same_on_all_ranks(net)
    optimizer.zero_grad()
    loss_of(net, *(mine(each) for each in data())).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def test_a_scaler_goes_between_synchronize_and_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, *(mine(each) for each in data()))).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert distance(net, alone(sgd)) < 1e-6


def doubled_in_place(parameter):
    parameter.grad.mul_(2)


def doubled_elsewhere(parameter):
    parameter.grad = parameter.grad * 2


@pytest.mark.parametrize("hook", [doubled_in_place, doubled_elsewhere])
@pytest.mark.parametrize("options", [each for each, _ in OPTIONS if "op" not in each], ids=str)
def test_gradients_are_taken_after_all_hooks_of_a_parameter(hook, options):
    """Also if the program registers them after the wrap, and after the model was cast."""
    passes = options.get("backward_passes_per_step", 1)
    parameters = [nn.Parameter(torch.zeros(1000)) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **options)
    mean = (hvd.size() + 1) / 2
    for each in parameters:
        each.register_post_accumulate_grad_hook(hook)
    for step in range(4):
        for _ in range(passes):
            sum(each.sum() * (hvd.rank() + 1.0) for each in parameters).backward()
        optimizer.step()
        for each in parameters:
            assert (each.grad == mean * sum(2.0**k for k in range(1, passes + 1))).all()
        optimizer.zero_grad()
        if step == 1:
            for each in parameters:
                each.data = each.data.double()


@pytest.mark.several
def test_a_gradient_that_a_hook_frees_is_named():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    freeing = net[2].bias.register_post_accumulate_grad_hook(
        lambda each: setattr(each, "grad", None)
    )
    with pytest.raises(AssertionError, match=r"freed the gradient of 2\.bias(?s:.*)after step"):
        loss_of(net, *(mine(each) for each in data())).backward()
    freeing.remove()
    optimizer.synchronize()
    optimizer.zero_grad()
    trained(net, optimizer)
    assert_same_on_all_ranks(net)


@pytest.mark.several
def test_gradients_overlap_again_after_a_cast():
    """A parameter of another dtype has another node that accumulates its gradients."""
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    batch = [mine(each) for each in data()]
    optimizer.zero_grad()
    net.double().float()
    trained(net, optimizer)
    optimizer.zero_grad()
    loss_of(net, *batch).backward()
    assert optimizer._distribution.buckets.is_dirty
    with pytest.raises(AssertionError, match="gradients that are being reduced"):
        optimizer.zero_grad()
    optimizer.step()
    assert distance(net, alone(sgd, steps=2)) < 1e-6


class Nothing(torch.autograd.Function):
    """A function without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_a_parameter_whose_gradient_is_undefined_has_zeros():
    used, other = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, other], lr=1.0))
    (used.sum() + Nothing.apply(other).sum()).backward()
    optimizer.step()
    assert used.tolist() == [0.0, 0.0]
    assert other.tolist() == [1.0, 1.0]


@pytest.mark.several
def test_misuse_is_said():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    batch = [mine(each) for each in data()]
    loss_of(net, *batch).backward()
    with pytest.raises(AssertionError, match="gradients that are being reduced"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(net, *batch).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    loss_of(net, *batch).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op != Average"),
        ({"gradient_predivide_factor": 0.0}, "must be finite, and not 0"),
        ({"compression": 3}, "compression is 3"),
        ({"compression": "bogus"}, "bogus"),
        ({"compression": object}, "must be a class such as"),
        ({"named_parameters": [("a", 1), ("a", 2)]}, "several parameters of one name: a"),
        ({"named_parameters": []}, "lacks 6 of the 6 parameters"),
        ({"named_parameters": [torch.ones(1)]}, "pass model.named_parameters"),
        ({"groups": -1}, "groups"),
        ({"groups": [[1]]}, "groups has 1, and must be lists of parameters"),
        ({"op": hvd.Adasum, "compression": "int8"}, "no codec compresses"),
        ({"op": hvd.Max}, "Average, Sum or Adasum"),
    ],
)
def test_wrong_arguments(options, text):
    optimizer = sgd(model().parameters())
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(optimizer, **options)
    assert type(optimizer) is torch.optim.SGD


@pytest.mark.several
@pytest.mark.parametrize("many", [4, 60])
def test_parameters_with_other_names_or_shapes(many):
    """They have as many elements, and lie between others with the same names."""
    rank = hvd.rank()
    for odd, shape in ((f"middle {rank % 2}", (2, 3)), ("middle", (2, 3) if rank % 2 else (3, 2))):
        parameters = [nn.Parameter(torch.ones(shape)) for _ in range(many)]
        names = ["first", odd, *(f"layer {k}" for k in range(many - 3)), "last"]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.1), list(zip(names, parameters, strict=True))
        )
        sum(each.sum() for each in parameters).backward()
        with pytest.raises(hvd.HorovodInternalError, match=r"differs between ranks.* packed from"):
            optimizer.step()


def test_parameters_without_gradients_frozen_and_tied():
    net = model()
    net[4].weight.requires_grad_(False)
    net[2].weight = nn.Parameter(torch.eye(8))
    tied = nn.Linear(8, 8)
    tied.weight = net[2].weight
    unused = nn.Parameter(torch.ones(3))
    named = [*net.named_parameters(), ("unused", unused), ("tied.bias", tied.bias)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([each for _, each in named], lr=0.1), named
    )
    x, y = (mine(each) for each in data())
    optimizer.zero_grad()
    hidden = net[3](net[2](net[1](net[0](x))))
    out = tied(hidden) if hvd.rank() == 0 else hidden  # not the same on all ranks
    functional.cross_entropy(net[4](out), y).backward()
    optimizer.step()
    assert_same_on_all_ranks(nn.ParameterList([net[2].weight, tied.bias, unused]))
    assert hvd.size() == 1 or not unused.grad.any()


def test_layouts_and_half_precision():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    net = net.to(memory_format=torch.channels_last).to(torch.bfloat16)
    net[2].float()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.full((2, 3, 4, 4), hvd.rank() + 1.0, dtype=torch.bfloat16)
        net[2](net[1](net[0](x)).float()).sum().backward()
        optimizer.step()
    assert_same_on_all_ranks(net[0])
    assert_same_on_all_ranks(net[2])


LAYOUTS = {
    "channels_last": lambda net: net.to(memory_format=torch.channels_last),
    "transposed": lambda net: [
        setattr(each, "data", each.data.transpose(0, 1).contiguous().transpose(0, 1))
        for each in net.parameters()
        if each.dim() > 1
    ],
    "with gaps": lambda net: [
        setattr(each, "data", each.data.repeat_interleave(2, 0)[::2]) for each in net.parameters()
    ],
}


def convolutions(layout=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3), nn.Flatten()).double()
    if layout is not None:
        LAYOUTS[layout](net)
    return net


def fitted(net, optimizer, steps=3):
    images = torch.linspace(-1, 1, 3 * 8 * 8, dtype=torch.float64).reshape(1, 3, 8, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        net(images).square().mean().backward()
        optimizer.step()


FUSED = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
WITH_LAYOUTS = [
    *itertools.product(["channels_last", "transposed"], FUSED, [False, True]),
    ("with gaps", torch.optim.Adam, False),  # which fused optimizers of torch do not step over
]


@pytest.mark.parametrize(("layout", "kind", "is_fused"), WITH_LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.fp16}], ids=["", "fp16"])
def test_gradients_have_the_strides_of_their_parameters(layout, kind, is_fused, options):
    net, reference = convolutions(layout), convolutions(layout)
    alone = kind(reference.parameters(), lr=0.01, fused=is_fused)
    fitted(reference, alone)
    optimizer = kind(net.parameters(), lr=0.01, fused=is_fused)
    fitted(net, hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options))
    for ours, right in zip(net.parameters(), reference.parameters(), strict=True):
        assert ours.grad.stride() == right.grad.stride()
    assert distance(net, reference) < (1e-3 if options else 1e-12)


def test_the_layout_of_a_model_changes():
    net, reference = convolutions(), convolutions()
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    plain = torch.optim.Adam(reference.parameters())
    fitted(net, optimizer)
    fitted(reference, plain)
    net.to(memory_format=torch.channels_last)
    optimizer.state.clear()  # which has the former layout
    plain.state.clear()
    fitted(net, optimizer)
    fitted(reference, plain)
    assert distance(net, reference) < 1e-12


def test_a_model_is_moved_there_and_back():
    """As programs do that save it from host memory; its gradients leave the bucket."""
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for _ in range(3):
        trained(net, optimizer)
        net.double().float()
    assert distance(net, alone(sgd)) < 1e-6


@pytest.mark.several
def test_other_layouts_and_names_of_some_ranks_are_an_error_on_all():
    net = convolutions("channels_last" if hvd.rank() else None)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    with pytest.raises(hvd.HorovodInternalError, match=r"0.weight \(8, 3, 3, 3\) with strides"):
        fitted(net, optimizer)
    net = model()
    names = {"2.bias": f"of rank {hvd.rank()}"}
    named = [(names.get(name, name), each) for name, each in net.named_parameters()]
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), named)
    with pytest.raises(hvd.HorovodInternalError, match=r"of rank 1 \(8,\)"):
        trained(net, optimizer)


def test_a_state_is_sent_with_its_strides():
    net = convolutions("channels_last")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
    if hvd.rank() == 0:
        fitted(net, optimizer)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    fitted(net, optimizer)
    for each in net.parameters():
        assert optimizer.state[each]["exp_avg"].stride() == each.stride()
    assert_same_on_all_ranks(net)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), sparse_as_dense=as_dense
    )
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.tensor([[hvd.rank(), 7]])).sum().backward()
        optimizer.step()
        assert net[0].weight.grad.is_sparse
    assert_same_on_all_ranks(net)


def test_two_optimizers_and_one_that_is_gone():
    nets = model(0), model(1)  # with the same names
    optimizers = [
        hvd.DistributedOptimizer(sgd(each.parameters()), each.named_parameters()) for each in nets
    ]
    x, y = (mine(each) for each in data())
    sum(loss_of(net, x, y) for net in nets).backward()
    for optimizer in optimizers:
        optimizer.step()
    for net in nets:
        assert_same_on_all_ranks(net)
    del optimizer, optimizers
    gc.collect()
    nets[0].zero_grad()
    loss_of(nets[0], x, y).backward()
    loss_of(nets[0], x, y).backward()  # nothing is reduced any more
    again = hvd.DistributedOptimizer(sgd(nets[0].parameters()), nets[0].named_parameters())
    again.zero_grad()
    loss_of(nets[0], x, y).backward()
    again.step()
    assert_same_on_all_ranks(nets[0])


def test_more_parameters_later():
    net, more = model(), nn.Linear(3, 3)
    hvd.broadcast_parameters(more.named_parameters(), 0)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    optimizer.add_param_group({"params": list(more.parameters()), "lr": 0.01})
    x, y = (mine(each) for each in data())
    functional.cross_entropy(more(net(x)), y).backward()
    optimizer.step()
    assert_same_on_all_ranks(more)


def trained(net, optimizer, steps=1):
    x, y = (mine(each) for each in data())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


def test_a_new_optimizer_takes_the_parameters_of_an_old_one():
    """Also where a scheduler keeps that one alive."""
    net, reference = model(), model()
    old = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(old, 1)
    trained(net, old)
    scheduler.step()
    loss_of(net, *(mine(each) for each in data())).backward()  # and is in flight
    new = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    trained(net, new, steps=2)
    plain = sgd(reference.parameters())
    for part in range(3):
        if part == 1:
            plain = sgd(reference.parameters())
        plain.zero_grad()
        loss_of(reference, *data()).backward()
        plain.step()
    assert distance(net, reference) < 1e-6
    assert_same_on_all_ranks(net)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "adasum"])
def test_more_parameters_are_combined_by_each_operation(op):
    if hvd.size() == 3 and op == hvd.Adasum:
        return
    net, more = model(), nn.Linear(3, 3)
    hvd.broadcast_parameters(more.named_parameters(), 0)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), op=op)
    optimizer.add_param_group({"params": list(more.parameters())})
    x, y = (mine(each) for each in data())
    functional.cross_entropy(more(net(x)), y).backward()
    optimizer.step()
    assert_same_on_all_ranks(more)
    assert_same_on_all_ranks(net)


def test_layers_that_are_frozen_and_unfrozen_meanwhile():
    net, reference = model(), model()
    net[2].requires_grad_(False)
    reference[2].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    plain = sgd(reference.parameters())
    for frozen in (2, 0, 4, None):
        for each in (net, reference):
            for number in (0, 2, 4):
                each[number].requires_grad_(number != frozen)
        trained(net, optimizer, steps=2)
        for _ in range(2):
            plain.zero_grad()
            loss_of(reference, *data()).backward()
            plain.step()
    assert distance(net, reference) < 1e-6
    assert_same_on_all_ranks(net)


LAZY = "have no shape yet(?s:.*){}(?s:.*)first pass a batch"


@pytest.mark.several
def test_parameters_without_a_shape_are_named():
    net = nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2))
    made, named = (lambda: sgd(net.parameters())), net.named_parameters
    number = LAZY.format("number 2 of the optimizer, number 3 of the optimizer")
    for text, call in (
        (LAZY.format("1.weight, 1.bias"), lambda: hvd.DistributedOptimizer(made(), named())),
        (LAZY.format("1.bias, 1.weight"), lambda: hvd.broadcast_parameters(net.state_dict(), 0)),
        (LAZY.format("1.weight, 1.bias"), lambda: hvd.broadcast_parameters(named(), 0)),
        (number, lambda: hvd.broadcast_optimizer_state(made(), 0)),
        (number, lambda: hvd.DiLoCo(made())),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    net(torch.ones(1, 4))
    hvd.broadcast_parameters(net.state_dict(), 0)  # nothing is in flight
    assert_same_on_all_ranks(net)


@pytest.mark.several
def test_parameters_that_are_no_tensors_are_refused_before_others_are_sent():
    sent = {"a": torch.full((2,), float(hvd.rank())), "b": "text"}
    with pytest.raises(ValueError, match="b is 'text'"):
        hvd.broadcast_parameters(sent, root_rank=0)
    hvd.broadcast_parameters({"a": sent["a"]}, root_rank=0)
    assert not sent["a"].any()


@pytest.mark.parametrize("total", [1, 2, 3, 4, 31])
def test_an_elastic_sampler_gives_all_ranks_equally_many(total):
    sampler = hvd.elastic.ElasticSampler(range(total), shuffle=False)
    options = {"num_replicas": hvd.size(), "rank": hvd.rank(), "shuffle": False}
    assert list(sampler) == list(torch.utils.data.DistributedSampler(range(total), **options))
    assert len(sampler) == len(sampler.indices)
    sampler.load_state_dict({"epoch": 0, "processed_num": total - 1})  # one is left
    assert list(sampler) == [total - 1]
    sampler.load_state_dict({"epoch": 0, "processed_num": total})
    assert list(sampler) == []


def test_gradients_are_forgotten_when_a_state_is_loaded():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    loss_of(net, *data()).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    trained(net, optimizer)
    assert distance(net, alone(sgd, steps=1)) < 1e-6


@pytest.mark.several
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=["average", "sum"])
def test_a_loaded_state_discards_the_gradients_of_a_step_that_is_not_complete(op):
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), op=op)
    batch = [mine(each) for each in data()]
    loss_of(net, *batch).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    assert all(each.grad is None for each in net.parameters())
    loss_of(net, *batch).backward()
    optimizer.step()
    whole = model()
    loss_of(whole, *data()).backward()
    share = hvd.size() if op == hvd.Sum else 1
    for each, right in zip(net.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(each.grad, right.grad * share, atol=1e-6)
    optimizer.load_state_dict(optimizer.state_dict())  # after the step
    assert all(each.grad is not None for each in net.parameters())


@pytest.mark.several
def test_a_loaded_state_discards_the_gradients_of_a_step_that_failed():
    net = convolutions("channels_last" if hvd.rank() else None)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    with pytest.raises(hvd.HorovodInternalError, match="differs between ranks"):
        fitted(net, optimizer)
    assert any(each.grad is not None for each in net.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    assert all(each.grad is None for each in net.parameters())


def test_the_dtype_of_a_model_changes():
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    trained(net, optimizer)
    net.double()
    optimizer.zero_grad()
    x, y = (mine(each) for each in data())
    loss_of(net, x.double(), y).backward()
    optimizer.step()
    assert_same_on_all_ranks(net)


def test_copies_and_pickles_are_not_distributed():
    net = model()
    optimizer = hvd.DistributedOptimizer(adam(net.parameters()), net.named_parameters())
    trained(net, optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other) is torch.optim.AdamW
        assert len(other.state) == len(optimizer.state)
        other.step()


@pytest.mark.several
def test_a_process_set_with_some_ranks():
    first = hvd.add_process_set([0])
    net = model(hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        sgd(net.parameters()), net.named_parameters(), process_set=first
    )
    reference = model(hvd.rank())
    theirs = sgd(reference.parameters())
    batch = [mine(each) for each in data()]
    for each, own in ((net, optimizer), (reference, theirs)):
        loss_of(each, *batch).backward()
        own.step()
    assert distance(net, reference) == 0
    del optimizer
    hvd.remove_process_set(first)


def test_adasum_combines_changes_of_parameters():
    if hvd.size() not in (1, 2):
        return
    net = model()
    optimizer = hvd.DistributedOptimizer(
        sgd(net.parameters()), net.named_parameters(), op=hvd.Adasum
    )
    loss_of(net, *data()).backward()  # the same everywhere, so it is as on one rank
    optimizer.step()
    optimizer.zero_grad()
    assert distance(net, alone(sgd, steps=1)) < 1e-6
    if hvd.size() > 1:
        with pytest.raises(AssertionError, match="cannot be skipped"), optimizer.skip_synchronize():
            pass


def test_lbfgs_with_a_closure():
    def train(net, optimizer, x, y):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    def make(net):
        return torch.optim.LBFGS(net.parameters(), max_iter=3)

    net, reference = model(), model()
    train(net, hvd.DistributedOptimizer(make(net)), *(mine(each) for each in data()))
    train(reference, make(reference), *data())
    assert distance(net, reference) < 1e-4
    assert_same_on_all_ranks(net)


EVERY = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
]


@pytest.mark.parametrize("name", EVERY)
def test_the_state_of_every_optimizer_is_sent(name):
    torch.manual_seed(hvd.rank())
    weight = nn.Parameter(torch.randn(3, 4))
    optimizer = getattr(torch.optim, name)([weight], lr=0.01 * (hvd.rank() + 1))
    group = optimizer.param_groups[0]

    def closure():
        weight.grad = torch.ones_like(weight)
        if name == "SparseAdam":
            weight.grad = weight.grad.to_sparse()
        return weight.sum().detach()

    if hvd.rank() == 0:
        optimizer.step(closure)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters([weight], root_rank=0)
    assert optimizer.param_groups[0] is group
    assert group["lr"] == 0.01
    optimizer.step(closure)
    assert_same_on_all_ranks(nn.ParameterList([weight]))


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 2), (6, 3, 2, 2)])
def test_batch_normalisation_over_all_ranks(shape):
    torch.manual_seed(0)
    whole, weights = torch.randn(shape), torch.randn(shape)
    ours = mine(whole).clone().requires_grad_()
    whole.requires_grad_()
    synced = hvd.SyncBatchNorm(3)
    plain = (nn.BatchNorm1d if len(shape) < 4 else nn.BatchNorm2d)(3)
    result, expected = synced(ours), plain(whole)
    assert torch.allclose(result, mine(expected), atol=1e-5)
    (result * mine(weights)).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(ours.grad, mine(whole.grad), atol=1e-5)
    total = hvd.allreduce(synced.weight.grad, op=hvd.Sum)
    assert torch.allclose(total, plain.weight.grad, atol=1e-4)
    assert torch.allclose(synced.running_var, plain.running_var)
    assert torch.allclose(synced.eval()(ours), plain.eval()(ours), atol=1e-5)


def test_elastic_state():
    net = model(hvd.rank())
    optimizer = sgd(net.parameters())
    sampler = hvd.elastic.ElasticSampler(range(10))
    state = hvd.elastic.TorchState(net, optimizer, sampler=sampler, epoch=hvd.rank() + 5)

    @hvd.elastic.run
    def train(state, times):
        assert state.epoch == 5
        assert_same_on_all_ranks(net)
        state.epoch = 6
        state.commit()
        state.epoch = 7
        with torch.no_grad():
            net[0].weight.zero_()
        state.restore()
        assert state.epoch == 6
        assert net[0].weight.any()
        times.append(state.epoch)
        if len(times) == 1:
            state.epoch = 5
            state.save()
            raise hvd.HostsUpdatedInterrupt(skip_sync=False)
        return "done"

    times = []
    assert train(state, times) == "done"
    assert times == [6, 6]
    indices = hvd.allgather_object(list(sampler))
    assert {each for part in indices for each in part} == set(range(10))
    sampler.record_batch(0, 1)
    assert len(sampler.remaining_indices) == 10
    sampler.load_state_dict(sampler.state_dict())
    assert len(sampler.remaining_indices) == 10 - hvd.size()


def test_a_commit_sends_objects_only_when_hosts_have_changed():
    state, sent = hvd.elastic.TorchState(epoch=0), []
    send = state._bcast_object
    state._bcast_object = lambda value: sent.append(value) or send(value)
    state.commit()
    state.on_reset()
    assert not sent
    if hvd.rank() == 0:  # whose word counts
        state.on_hosts_updated(3, 2)
    with pytest.raises(hvd.HostsUpdatedInterrupt) as interrupt:
        state.commit()
    assert interrupt.value.skip_sync  # none were added
    assert len(sent) == 1
    state.commit()
    state.on_hosts_updated(4, 1)
    with pytest.raises(hvd.HostsUpdatedInterrupt) as interrupt:
        state.commit()
    assert not interrupt.value.skip_sync


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "Adasum"])
def test_parameters_without_a_gradient_have_zeros(op):
    if hvd.size() == 3 and op == hvd.Adasum:
        return
    net = model()
    net[0].bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), op=op)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert net[0].bias.grad is None
    assert all(not each.grad.any() for each in net.parameters() if each.requires_grad)
    optimizer.zero_grad()
    optimizer.step()  # no rank has gradients
    if hvd.size() > 1:
        assert all(not each.grad.any() for each in net.parameters() if each.requires_grad)
