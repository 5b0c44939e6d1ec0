"""Differential privacy: draws, clipping, noise, and the accountant."""

import math
import sys

import numpy as np
import pytest

from collectives.errors import ArgumentError
from collectives.federated import DifferentialPrivacy, FedAdam, FedAvg, Update


def private(strategy=None, noise=1.0, clip=2.0, seed=0):
    strategy = FedAvg(fraction=0.5) if strategy is None else strategy
    return DifferentialPrivacy(strategy, noise, clip, np.random.default_rng(seed))


def test_each_client_is_drawn_by_itself():
    strategy = private(FedAvg(fraction=0.25))
    draws = [strategy.sample(40, number, 7) for number in range(1, 201)]
    sizes = np.array([len(each) for each in draws])
    assert abs(sizes.mean() - 10) < 4 * math.sqrt(40 * 0.25 * 0.75 / 200)
    assert abs(sizes.var() - 7.5) < 3
    assert private(FedAvg()).sample(5, 1, 0) == [0, 1, 2, 3, 4]


def test_draws_do_not_follow_from_the_seed():
    """They are a secret that the accountant relies on, and every rank knows the seed."""
    one, other = (DifferentialPrivacy(FedAvg(fraction=0.5), 1, 1) for _ in range(2))
    assert one.sample(100, 1, 0) != other.sample(100, 1, 0)


def test_changes_are_clipped_to_a_norm_over_all_parameters():
    initial = [np.ones((2, 2), np.float32), np.ones(1)]
    strategy = private(clip=2.0)
    far = strategy.prepare(initial, [initial[0] + 3, initial[1] + 8], 55)
    assert far.count == 1
    assert np.allclose(far.arrays[0], 0.6)
    assert np.allclose(far.arrays[1], 1.6)
    assert [each.dtype for each in far.arrays] == [np.float32, np.float64]
    near = strategy.prepare(initial, [initial[0] + 0.5, initial[1]], 55)
    assert np.array_equal(near.arrays[0], np.full((2, 2), 0.5))
    lost = strategy.prepare(initial, [initial[0] * np.nan, initial[1]], 55)
    assert all((each == 0).all() for each in lost.arrays)


def test_the_noise_and_the_denominator():
    """Half of 40 clients are expected, even if others come; the noise has the deviation 1.5 * 2."""
    parameters = [np.full(100_000, 3.0)]
    for came in (0, 1, 30):
        strategy = private(noise=1.5, clip=2.0, seed=came)
        state = strategy.start(parameters, 40)
        updates = [Update([np.full(100_000, 0.001)], 1)] * came
        (new,), _ = strategy.aggregate(parameters, updates, state)
        noise = (new - 3.0) * 20 - 0.001 * came
        assert abs(noise.mean()) < 5 * 3 / math.sqrt(100_000)
        assert noise.std() == pytest.approx(3.0, rel=0.02)
    assert (parameters[0] == 3.0).all()


def test_the_sum_of_masked_updates_is_as_good():
    """With secure sums, one update is the mean of all."""
    parameters = [np.zeros(3)]
    several = [Update([np.full(3, value)], 1) for value in (1.0, 2.0, 6.0)]
    one = [Update([np.full(3, 3.0)], 3)]
    results = []
    for updates in (several, one):
        strategy = private()
        state = strategy.start(parameters, 8)
        results.append(strategy.aggregate(parameters, updates, state)[0][0])
    assert np.allclose(*results, rtol=1e-14)


def test_the_strategy_inside_takes_the_step():
    parameters = [np.zeros(3)]
    strategy = private(FedAdam(rate=0.1), noise=1e-9)
    state = strategy.start(parameters, 2)
    updates = [Update([np.full(3, 0.5)], 1)] * 2
    got, _ = strategy.aggregate(parameters, updates, state)
    adam = FedAdam(rate=0.1)
    want, _ = adam.aggregate(parameters, [Update([np.full(3, 0.5)], 1)], adam.start(parameters, 2))
    assert np.allclose(got[0], want[0], rtol=1e-6)
    assert "FedAdam(" in repr(strategy)
    assert "noise_multiplier=1e-09" in repr(strategy)


def test_the_accountant():
    """Without sampling, one round is a Gaussian mechanism, whose epsilon has a bound that is known:
    for Renyi divergences alpha / (2 s^2).
    """
    pytest.importorskip("dp_accounting")
    delta, noise = 1e-5, 4.0
    alpha = np.linspace(1.01, 200, 20_000)
    simple = (alpha / (2 * noise**2) + math.log(1 / delta) / (alpha - 1)).min()
    one = private(FedAvg(), noise=noise).epsilon(1, delta)
    assert 0.5 * simple < one <= simple + 1e-3
    many = private(FedAvg(), noise=noise).epsilon(100, delta)
    assert one < many
    assert private(FedAvg(fraction=0.1), noise=noise).epsilon(100, delta) < many


def test_the_accountant_of_sampled_rounds():
    """Renyi divergences of integer orders have a closed form, of which epsilon is at most the
    least: Ilya Mironov, Kunal Talwar, Li Zhang: Renyi Differential Privacy of the Sampled Gaussian
    Mechanism, 2019, arXiv:1908.10530, equation 6.
    """
    pytest.importorskip("dp_accounting")
    q, noise, rounds, delta = 0.1, 2.0, 100, 1e-5
    bounds = []
    for alpha in range(2, 64):
        terms = (
            math.comb(alpha, k) * (1 - q) ** (alpha - k) * q**k
            * math.exp((k * k - k) / (2 * noise**2))
            for k in range(alpha + 1)
        )  # fmt: skip
        divergence = math.log(sum(terms)) / (alpha - 1)
        bounds.append(rounds * divergence + math.log(1 / delta) / (alpha - 1))
    epsilon = private(FedAvg(fraction=q), noise=noise).epsilon(rounds, delta)
    assert 0.5 * min(bounds) < epsilon <= min(bounds) + 1e-3


def test_arguments(monkeypatch):
    for make, text in (
        (lambda: DifferentialPrivacy("fedavg", 1, 1), "strategy is 'fedavg', and must be"),
        (lambda: private(noise=0), "noise_multiplier is 0, and must be positive"),
        (lambda: private(clip=-1), "clipping_norm is -1, and must be positive"),
    ):
        with pytest.raises(ArgumentError, match=text):
            make()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ArgumentError, match=r"needs the package dp-accounting .*: pip install"):
        private().epsilon(1, 1e-5)
