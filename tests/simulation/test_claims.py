"""The claims of `synthesize` and `simulate`: no simulation contradicts them, on any network."""

import random

import machines
import pytest

pytest.importorskip("scipy")

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.simulate import simulate
from collectives.simulation.grid import simulated
from collectives.simulation.topology_text import Machine
from collectives.synthesis.search import SEARCHED, Search

ROUNDING = 1e-9
INTERPOLATED = 3e-3  # three times LINE of simulation/grid.py
TEXTS = ("hosts=2,delay=20us", "flat", "flat,delay=30us", "hosts=1", "torus,delay=5us")
SIZES = [8, 64, 1000, 4096, 1 << 15, 1 << 18, 1 << 21]


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def some_network(rng):
    """Return a random machine of 2 to 16 ranks, three of four with a delay."""
    while True:
        delay = rng.choice([0.0, rng.uniform(0.1, 3), rng.uniform(3, 40), rng.uniform(40, 400)])
        network, _ = rng.choice(machines.MACHINES)(rng, rng.uniform(0, 0.01), delay=delay)
        if network.p > 1:
            return network


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *map(slow, range(4, 12))])
@pytest.mark.parametrize("collective", SEARCHED)
def test_no_simulation_beats_a_bound(collective, seed):
    """The bound of a search is no more than the time of any algorithm, whole or in segments."""
    rng = random.Random(f"{collective} {seed}")
    network = some_network(rng)
    nbytes = rng.choice([1, 16, rng.randrange(1, 2000), rng.randrange(2000, 100_000)])
    root = rng.randrange(network.p) if COLLECTIVES[collective].rooted else 0
    search = Search(collective, network, nbytes, root, 1)
    search._bound(lambda part, text: None)
    least = search.bound.seconds * (1 - ROUNDING)
    for name in algorithms.names(collective):
        if algorithms.get(collective, name).refusal(network.p):
            continue
        for segment in (0, 1 + nbytes // 8):
            found = simulate(collective, name, nbytes, network, root=root, segment=segment)
            assert found.time >= least, (name, segment, str(search.bound), network)


@pytest.mark.parametrize("p", [6, 2, 3, 4, 5, *map(slow, range(7, 17))])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_table_has_the_times_of_single_simulations(collective, text, p):
    """Times that a table interpolates, and the algorithm that it calls the fastest."""
    if text == TEXTS[0] and p % 2:
        return
    machine = Machine(text)
    rows = [algorithms.get(collective, name) for name in algorithms.names(collective)]
    rows = [row for row in rows if not row.refusal(p)]
    grid = simulated(rows, machine, [p], SIZES, limit=1 << 30)
    for k, size in enumerate(SIZES):
        times = {
            name: simulate(collective, name, size, machine.make(p)).time for name in grid.times[p]
        }
        for name, time in times.items():
            assert grid.times[p][name][k] == pytest.approx(time, rel=INTERPOLATED)
        best = grid.winner(p, k)
        assert times[best] <= min(times.values()) * (1 + 2 * INTERPOLATED)
