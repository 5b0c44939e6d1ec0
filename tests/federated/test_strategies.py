"""Strategies, without any rank: means, draws, steps, and the parts that clients send."""

import numpy as np
import pytest

from collectives.arrays.parameters import divided
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.federated import DiLoCo, FedAdam, FedAvg, FedProx, Task, Update
from collectives.federated.parameters import Parameters
from collectives.federated.training import Wire, seed_of


def arrays(*values, dtype=np.float32):
    return [np.full((2, 3), values[0], dtype), np.array(values[1:], np.float64)]


def test_the_mean_has_the_weights_of_the_counts():
    updates = [Update(arrays(1, 2), 30), Update(arrays(5, 6), 10), Update(arrays(9, 9), 0)]
    before = arrays(0, 0)
    new, state = FedAvg().aggregate(before, updates, None)
    assert state is None
    assert [each.dtype for each in new] == [np.float32, np.float64]
    assert (new[0] == 2).all()
    assert (new[1] == 3).all()
    assert (before[0] == 0).all()


@pytest.mark.parametrize("kind", [FedAdam, DiLoCo])
def test_a_server_that_steps_averages_the_arrays_that_are_named(kind):
    before = [np.zeros(2), np.ones(3), np.ones(1)]
    updates = [Update([each + 1 for each in before], 1), Update([each + 3 for each in before], 1)]
    means = [each + 2 for each in before]
    stepped = kind().aggregate(before, updates, kind().start(before, 2))[0]
    strategy = kind(averaged=[1, 2])
    new, _ = strategy.aggregate(before, updates, strategy.start(before, 2))
    assert np.array_equal(new[0], stepped[0])
    assert not np.array_equal(new[0], means[0])
    assert np.array_equal(new[1], means[1])
    assert np.array_equal(new[2], means[2])
    assert strategy.restricted([2, 0]).averaged == [0]
    assert strategy.averaged == [1, 2]
    with pytest.raises(ArgumentError, match="averaged is -1"):
        kind(averaged=[-1])


@pytest.mark.parametrize("strategy", [FedAvg(), FedProx(0.1), FedAdam(), DiLoCo()])
def test_a_round_without_samples_changes_nothing(strategy):
    before = arrays(1, 2)
    state = strategy.start(before, 4)
    for updates in ([], [Update(arrays(7, 7), 0)]):
        new, after = strategy.aggregate(before, updates, state)
        assert all(map(np.array_equal, new, before))
        assert after is state


def test_draws_depend_on_the_round_and_the_seed_alone():
    strategy = FedAvg(fraction=0.5)
    draws = [strategy.sample(8, number, seed=3) for number in range(1, 41)]
    assert draws == [FedAvg(fraction=0.5).sample(8, number, 3) for number in range(1, 41)]
    assert draws != [strategy.sample(8, number, seed=4) for number in range(1, 41)]
    assert all(len(set(each)) == 4 and each == sorted(each) for each in draws)
    assert {client for each in draws for client in each} == set(range(8))
    assert FedAvg(fraction=0.01).sample(8, 1, 0) != []
    assert FedAvg().sample(3, 1, 0) == [0, 1, 2]
    assert [len(FedAvg(fraction=f).sample(8, 1, 0)) for f in (0.3, 0.32, 0.99)] == [2, 3, 8]


def test_adam_is_that_of_the_paper():
    """Against the lines of its algorithm 2, for one number."""
    rate, beta1, beta2, tau = 0.3, 0.8, 0.95, 0.01
    strategy = FedAdam(rate, beta1, beta2, tau)
    x, m, v = 2.0, 0.0, tau**2
    now = [np.array([x])]
    state = strategy.start(now, 2)
    for target in (3.0, 1.0, 1.5):
        now, state = strategy.aggregate(now, [Update([np.array([target])], 7)], state)
        change = target - x
        m = beta1 * m + (1 - beta1) * change
        v = beta2 * v + (1 - beta2) * change**2
        x += rate * m / (v**0.5 + tau)
        assert now[0][0] == pytest.approx(x, rel=1e-14)


def test_diloco_steps_beyond_the_mean():
    """Against SGD with Nesterov momentum as its papers have it, for one number."""
    strategy = DiLoCo(rate=0.7, momentum=0.9)
    x, velocity = 2.0, 0.0
    now = [np.array([x])]
    state = strategy.start(now, 2)
    for targets in ((3.0, 5.0), (1.0, 2.0), (1.5, 0.0)):
        updates = [Update([np.array([each])], 7) for each in targets]
        now, state = strategy.aggregate(now, updates, state)
        gradient = x - sum(targets) / 2
        velocity = 0.9 * velocity + gradient
        x -= 0.7 * (gradient + 0.9 * velocity)
        assert now[0][0] == pytest.approx(x, rel=1e-14)
    updates = [Update([np.array([3.0])], 1), Update([np.array([5.0])], 3)]
    plain = DiLoCo(rate=1.0, momentum=0.0)
    assert plain.aggregate(now, updates, plain.start(now, 2))[0][0] == pytest.approx(4.5)


def test_the_proximal_term():
    initial = [np.array([1.0, 2.0], np.float32), np.array(3.0)]
    task = Task(1, 0, 0, 1, FedProx(0.5).proximal, 0, initial)
    pull = task.pull([np.array([3.0, 2.0]), 1.0])
    assert np.array_equal(pull[0], [1.0, 0.0])
    assert pull[1] == -1.0
    assert pull[0].dtype == np.float32
    assert FedAvg().proximal == 0


def test_seeds_differ_between_rounds_and_clients():
    assert len({seed_of(0, number, client) for number in range(9) for client in range(9)}) == 81
    assert seed_of(5, 2, 1) == seed_of(5, 2, 1)


def test_what_is_sent_comes_back():
    own = Parameters([np.zeros((2, 3), np.float32), np.zeros(()), np.zeros(5, np.float16)])
    rng = np.random.default_rng(0)
    kinds = zip(own.shapes, own.dtypes, strict=True)
    update = Update([np.asarray(rng.random(shape), dtype) for shape, dtype in kinds], 41)
    wire = Wire(own)
    data = wire.packed(update, 1, 0, [0])
    assert data.nbytes == wire.nbytes == 8 + 24 + 8 + 10
    (back,) = wire.unpacked([data])
    assert back.count == 41
    for mine, other in zip(update.arrays, back.arrays, strict=True):
        assert np.array_equal(mine, other)
        assert mine.dtype == other.dtype
        assert np.shape(mine) == other.shape


class Variable:
    """The common interface of Keras's and TensorFlow's variables."""

    def __init__(self, value):
        self._value = np.asarray(value, np.float32)

    def numpy(self):
        return self._value

    def assign(self, value):
        self._value = np.asarray(value)


def test_variables():
    variable = Variable([1, 2])
    own = Parameters([variable])
    own.write([np.array([3, 4], np.float32)])
    assert np.array_equal(own.read()[0], [3, 4])


WRONG = [
    (lambda: FedAvg(fraction=0), "fraction is 0, and must be above 0 and at most 1"),
    (lambda: FedAvg(fraction=1.1), "fraction is 1.1"),
    (lambda: FedAvg(fraction="x"), "fraction is 'x'"),
    (lambda: FedAvg(epochs=0), "epochs is 0, and must be a positive integer"),
    (lambda: FedProx(-0.1), "proximal is -0.1, and must be 0 or more"),
    (lambda: FedAdam(beta1=1), "beta1 is 1, and must be 0 or more and below 1"),
    (lambda: FedAdam(rate=float("nan")), "rate is nan, and must be positive"),
    (lambda: DiLoCo(momentum=1.0), "momentum is 1.0, and must be 0 or more and below 1"),
    (lambda: DiLoCo(rate=0), "rate is 0, and must be positive"),
    (lambda: Parameters([]), "parameters is empty"),
    (lambda: Parameters(3), "parameters is an int, and must be a list of arrays"),
    (lambda: Parameters([3.0]), r"parameters\[0\] is 3.0, and must be an array of NumPy"),
    (lambda: Parameters([np.broadcast_to(1.0, 3)]), r"parameters\[0\] is read-only"),
    (lambda: Parameters([np.zeros(2)]).checked([], "x"), "x has 0 arrays, and must have 1"),
    (lambda: Parameters([np.zeros(2)]).checked([np.zeros(3)], "x"), r"x\[0\] has shape \(3,\)"),
]


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_wrong_arguments(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


def test_integers_have_no_mean():
    with pytest.raises(UnsupportedTypeError, match=r"parameters\[1\] has dtype int64"):
        Parameters([np.zeros(1), np.zeros(1, np.int64)])


@pytest.mark.parametrize(
    ("sizes", "parts", "places"),
    [
        ([5, 5, 5, 5], 2, [[0, 1], [2, 3]]),
        ([100, 1, 1], 3, [[0], [1], [2]]),
        ([1, 1, 100], 3, [[0], [1], [2]]),
        ([1, 1, 1, 100], 2, [[0, 1, 2], [3]]),
        ([0, 0], 2, [[0], [1]]),
        ([7], 3, [[0], [], []]),
    ],
)
def test_parts_have_about_as_many_elements(sizes, parts, places):
    assert divided(sizes, parts) == places
