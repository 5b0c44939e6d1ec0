"""Simulated time: the formulas of the literature, the plain simulator, and refusals."""

import dataclasses
import random
from collections import Counter
from zlib import crc32

import closed_forms
import events
import pytest
from closed_forms import Case
from machines import MACHINES, some_machine, some_options
from rows import ROWS, every_row
from usual import FULL

from collectives import algorithms
from collectives.algorithms import Exchange, Fold, Store
from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import model
from collectives.errors import ArgumentError, ProofError
from collectives.simulate import simulate
from collectives.simulation.simulate import Kept, simulate_again
from collectives.topology import FatTree, Flat, Hosts, Links, Torus

ROUNDING = 1e-12
SAME = 1e-9  # how far apart the instants of two simulators may be, relative to the time
CASES = 12 if FULL else 3  # random machines for each algorithm

# -- sizes on one schedule ------------------------------------------------------------------------

# Consecutive blocks, blocks that are not, and parts whose number of blocks depends on the size.
SCHEDULES = [
    *[("allreduce", name) for name in ("ring", "butterfly", "halving_doubling")],
    *[("allgather", "bruck"), ("alltoall", "bruck"), ("broadcast", "circulant")],
]


@pytest.mark.parametrize("p", [5, 8])
@pytest.mark.parametrize(("collective", "name"), SCHEDULES)
def test_a_schedule_that_is_kept_has_the_messages_of_each_size(collective, name, p):
    kept, machine = Kept(), Hosts(2, 4) if p == 8 else Flat(p)
    for nbytes, segment in [(1000, 0), (1 << 16, 0), (7, 0), (1000, 64), (999, 64), (1000, 0)]:
        once = simulate(collective, name, nbytes, machine, segment=segment)
        again = simulate_again(kept, collective, name, nbytes, machine, segment=segment)
        assert (again.time, again.messages, again.links) == (once.time, once.messages, once.links)
        assert again.transfers == once.transfers
        assert again.finish.tolist() == once.finish.tolist()
        assert again.sent.tolist() == once.sent.tolist()


# -- the formulas of the literature ------------------------------------------------------------

FORMULAS = [(*key, formula, range(1, 18)) for key, formula in closed_forms.ANY.items()]
FORMULAS += [(*key, formula, (1, 2, 4, 8, 16, 64)) for key, formula in closed_forms.POWERS.items()]


@pytest.mark.parametrize(
    ("collective", "name", "formula", "sizes"), FORMULAS, ids=[f"{c}-{n}" for c, n, *_ in FORMULAS]
)
def test_closed_formulas(collective, name, formula, sizes):
    rng = random.Random(crc32(name.encode()))
    rooted = COLLECTIVES[collective].rooted
    for p in sizes:
        for unit in (0, 1, 1000):
            scales = (rng.uniform(1e-6, 1e-5), rng.uniform(1e-10, 1e-8), rng.uniform(1e-10, 1e-8))
            case = Case(p, closed_forms.whole(collective, name, p, unit), *scales)
            root = rng.randrange(p) if rooted else 0
            found = simulate(collective, name, case.n, Flat(p, *scales), root=root)
            assert found.time == pytest.approx(formula(case), rel=ROUNDING, abs=0)


@pytest.mark.parametrize("window", [2, 3, 4, 9])
@pytest.mark.parametrize("segments", [1, 2, 5, 16])
@pytest.mark.parametrize("p", [2, 3, 9])
def test_a_chain_in_segments(p, segments, window):
    case = Case(p, 1000 * segments, 1e-6, 1e-9, 0.0)
    found = simulate(
        "broadcast", "chain", case.n, Flat(p, *case[2:]), segment=1000, window=window, root=p - 1
    )
    assert found.segments == segments
    wanted = closed_forms.chain_in_segments(case, segments)
    assert found.time == pytest.approx(wanted, rel=ROUNDING)


# -- the cost formulas of the registry ---------------------------------------------------------

SIZES = [*range(2, 18), 33] if FULL else [2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 33]
# The formulas have the folds of all levels. One of them may be over before the ranks wait for it.
FOLDS_AHEAD = {
    ("allreduce", "kary"): 1,
    ("allreduce", "double_tree"): 1 / 2,
    ("allreduce", "trivance"): 1 / 2,
    ("reduce_scatter", "trivance"): 1 / 2,
    ("scan", "windows"): 1,
    ("exscan", "windows"): 1,
}


def runs(collective, name, sizes=SIZES):
    row = algorithms.get(collective, name)
    return [(row, p) for p in sizes if row.refusal(p) is None]


@pytest.mark.parametrize(("collective", "name"), [*ROWS, ("allreduce", "kary:2")])
def test_the_cost_formulas_are_the_simulated_time(collective, name):
    rng = random.Random(crc32(name.encode()))
    for row, p in runs(collective, name):
        n = closed_forms.whole(collective, name, p)
        # A root that is in a pair of ranks folds no less than others.
        roots = 1 if name.startswith("near_") else p
        root = rng.randrange(roots) if row.collective.rooted else 0
        ahead = FOLDS_AHEAD.get((collective, row.name.partition(":")[0]), 0)
        for _ in range(3):
            alpha, beta = rng.uniform(0, 1e-5), rng.uniform(0, 1e-8)
            a, b, g = row.factors(p)
            moved = simulate(collective, row, n, Flat(p, alpha, beta, 0.0), root=root).time
            assert moved == pytest.approx(a * alpha + b * n * beta, rel=ROUNDING)
            gamma = rng.uniform(0, beta)
            found = simulate(collective, row, n, Flat(p, alpha, beta, gamma), root=root).time
            wanted = moved + g * n * gamma
            least = wanted - ahead * n * gamma
            assert least * (1 - ROUNDING) <= found <= wanted * (1 + ROUNDING)


@every_row
def test_the_model_is_close_to_the_simulation_with_segments_and_with_a_delay(collective, name):
    for row, p in runs(collective, name, [2, 3, 5, 8]):
        known = model.Parameters(2e-6, 1e-10, 5e-11, "a test")
        n = 3 << 20
        flat = Flat(p, known.alpha, known.beta, known.gamma)
        found = simulate(collective, row, n, flat, segment=1 << 17, record=False).time
        assert 0.6 < model._seconds(row, p, n, known, 1 << 17, 1.0) / found < 1.25
        for gap in (0.1, model.GAP):
            flat = Flat(p, gap * known.alpha, known.beta, 0.0, delay=(1 - gap) * known.alpha)
            found = simulate(collective, row, 0, flat, record=False).time
            assert 0.85 < model._seconds(row, p, 0, known, 0, gap) / found < 1.9


# -- the plain simulator -----------------------------------------------------------------------


def hold(found, wanted):
    """Hold a simulation against the plain one's outcome."""
    near = {"rel": SAME, "abs": 0}
    assert list(found.finish) == pytest.approx(wanted.finish, **near)
    assert found.time == pytest.approx(wanted.time, **near)
    rounds = [wanted.rounds[k] for k in range(len(wanted.rounds))]
    assert list(found.rounds) == pytest.approx(rounds, **near)
    assert found.links == wanted.links
    assert found.messages == len(wanted.transfers) == len(found.transfers)
    sent = Counter()
    for message in wanted.transfers:
        sent[message.source] += message.nbytes
    assert list(found.sent) == [sent[r] for r in range(len(found.finish))]
    left = sorted((t[:5], tuple(t[5:])) for t in found.transfers)
    right = sorted(
        ((m.source, m.target, m.received_in, m.segment, m.nbytes), (m.start, m.end, m.folded))
        for m in wanted.transfers
    )
    assert [key for key, _ in left] == [key for key, _ in right]
    for (key, times), (_, others) in zip(left, right, strict=True):
        assert times == pytest.approx(others, **near), key


@every_row
def test_the_plain_simulator_finds_the_same(collective, name):
    algorithm = algorithms.get(collective, name)
    for case in range(CASES):
        seed = f"{collective}/{name} {case}"
        rng = random.Random(crc32(seed.encode()))
        topology, network = some_machine(rng, algorithm)
        nbytes, options = some_options(rng, algorithm, topology.p)
        print(seed, topology, nbytes, options)  # shown where it fails
        wanted = events.simulate(algorithm, nbytes, network, **options)
        hold(simulate(collective, algorithm, nbytes, topology, **options), wanted)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_kind_of_machine(machine):
    """The two descriptions of a machine are one machine: everybody speaks with everybody on it."""
    algorithm = algorithms.get("alltoall", "direct")
    for case in range(20):
        rng = random.Random(case)
        topology, network = machine(rng, rng.choice([0.0, 0.01]))
        wanted = events.simulate(algorithm, 1000, network)
        hold(simulate("alltoall", algorithm, 1000, topology), wanted)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_algorithms_with_a_parameter(k):
    rng = random.Random(k)
    for collective in ("allreduce", "broadcast"):
        algorithm = algorithms.get(collective, f"kary:{k}")
        for _ in range(CASES):
            topology, network = some_machine(rng, algorithm)
            nbytes, options = some_options(rng, algorithm, topology.p)
            wanted = events.simulate(algorithm, nbytes, network, **options)
            hold(simulate(collective, f"kary:{k}", nbytes, topology, **options), wanted)


def some_rounds(rng, p):
    """Return rounds of an algorithm that nobody would write, as {rank: [Exchange, ...]}.

    In each step some pairs exchange messages, from one round of a rank to one round of another, so
    no rank waits for a later message.
    """
    rounds = {r: [] for r in range(p)}
    for _ in range(rng.randrange(1, 7)):
        sends = {r: [] for r in range(p)}
        recvs = {r: [] for r in range(p)}
        # Each rank folds some blocks and stores the others.
        folded = {
            r: set(range(5)) if rng.random() < 0.3 else set(range(rng.randrange(5)))
            for r in range(p)
        }
        for s in range(p):
            for d in rng.sample(range(p), rng.randrange(0, min(p, 4))):
                for _ in range(rng.randrange(1, 3) if s != d else 0):
                    folds = rng.random() < len(folded[d]) / 5
                    able = sorted(folded[d] if folds else {*range(5)} - folded[d])
                    blocks = sorted(rng.sample(able, rng.randrange(1, min(4, len(able) + 1))))
                    sends[s].append((d, blocks))
                    recvs[d].append((Fold if folds else Store)(s, blocks))
        for r in range(p):
            order = {peer: rng.random() for peer in range(p)}  # shuffled, but first in, first out
            recvs[r].sort(key=lambda each, order=order: order[each[0]])
            if sends[r] or recvs[r] or rng.random() < 0.3:
                rounds[r].append(Exchange(sends[r], recvs[r]))
    return rounds


@pytest.mark.parametrize("seed", range(60))
def test_random_rounds(seed):
    """With other seeds the two may differ: a rounding error grows where many messages share links.

    Of about 4500 random rounds 11 differed; three of them were run with 60 digits, too, and both
    simulators were as far from that as from each other.
    """
    rng = random.Random(seed)
    made = dataclasses.replace(
        algorithms.get("allreduce", "ring"), name="made", blocks=lambda p: 5, cost=None
    )
    topology, network = some_machine(rng, made)
    rounds = some_rounds(rng, topology.p)
    made = dataclasses.replace(made, generate=lambda r, p: iter(rounds[r]))
    nbytes, options = some_options(rng, made, topology.p)
    wanted = events.simulate(made, nbytes, network, **options)
    hold(simulate("allreduce", made, nbytes, topology, **options), wanted)


# -- machines of a user ------------------------------------------------------------------------


def test_only_the_ways_that_are_gone_must_be_there():
    """A line of ranks knows its neighbours, and a chain needs no more."""
    wires = {"a": 1e-9, "b": 2e-9, "c": 3e-9}
    ways = {(k, k + 1): (1e-6, [wire]) for k, wire in enumerate(wires)}
    found = simulate("broadcast", "chain", 1000, Links(4, wires, ways))
    assert found.finish == pytest.approx([2e-6, 5e-6, 9e-6, 9e-6])
    assert found.links == dict.fromkeys(wires, 1000)
    with pytest.raises(ArgumentError, match="there is no route from rank 0 to rank 2"):
        simulate("broadcast", "tree", 1000, Links(4, wires, ways))


def test_ways_of_different_length():
    ways = {
        (0, 1): (1.0, []),
        (0, 2): (2.0, ["a", "b"]),
        (0, 3): (3.0, ["b"]),
    }
    found = simulate("broadcast", "flat", 10, Links(4, {"a": 0.1, "b": 0.2}, ways))
    assert found.finish == pytest.approx([10, 1, 5, 10])
    assert found.links == {"a": 10, "b": 20}


# -- refusals ----------------------------------------------------------------------------------

WRONG = [
    ({"algorithm": "nosuch"}, "allreduce has no algorithm 'nosuch'; it has: master_worker, "),
    ({"algorithm": "ring:4"}, "allreduce 'ring' takes no parameter, not '4'"),
    ({"collective": "nosuch"}, "there is no collective 'nosuch'; there are: allreduce, "),
    ({"nbytes": -8}, "nbytes is -8, and must be 0 or more"),
    ({"segment": -1}, "segment is -1, and must be 0 or more"),
    ({"window": 0}, "window is 0, and must be 1 or more"),
    ({"nbytes": 8.5}, "nbytes is 8.5, and must be a whole number"),
    ({"segment": 2.5}, "segment is 2.5, and must be a whole number"),
    ({"root": 4}, "root is 4, and must be in 0..3"),
    ({"root": -1}, "root is -1, and must be in 0..3"),
    (
        {"collective": "broadcast", "algorithm": algorithms.get("allreduce", "ring")},
        "'ring' is an algorithm of allreduce, not broadcast",
    ),
]


@pytest.mark.parametrize(("change", "text"), WRONG, ids=[text for _, text in WRONG])
def test_what_cannot_be_simulated_is_said(change, text):
    arguments = {"collective": "allreduce", "algorithm": "ring", "nbytes": 8, **change}
    with pytest.raises(ArgumentError) as caught:
        simulate(**arguments, topology=Flat(4))
    assert text in str(caught.value)


def test_requirements_are_kept():
    needy = dataclasses.replace(algorithms.get("allreduce", "ring"), requires=("power_of_two",))
    assert simulate("allreduce", needy, 8, Flat(4)).time > 0
    with pytest.raises(ArgumentError, match="needs a power of two as the number of ranks"):
        simulate("allreduce", needy, 8, Flat(6))


MACHINES_REFUSED = [
    (lambda: Flat(0), "a topology of 0 ranks"),
    (lambda: Flat(4, alpha=-1), "alpha is -1, and must be seconds, 0 or more"),
    (lambda: Flat(4, beta=float("nan")), "beta is nan"),
    (lambda: Flat(4, gamma=float("inf")), "gamma is inf"),
    (lambda: Flat(4, gamma="x"), "gamma is 'x', and must be seconds per byte"),
    (lambda: Flat(4, beta=[]), "with rising bytes"),
    (lambda: Flat(4, beta=[(8, 1.0), (4, 1.0)]), "with rising bytes"),
    (lambda: Flat(4, call=-1), "call is -1"),
    (lambda: Hosts(0, 2), "0 hosts of 2 ranks"),
    (lambda: FatTree(4, 2, 0), "0 hosts below a switch"),
    (lambda: FatTree(4, 2, 2, 0), "oversubscribed 0 times"),
    (lambda: Torus(()), "a torus of shape ()"),
    (lambda: Torus((2, 0)), "lengths must be 1 or more"),
    (lambda: Links(4, {"a": -1.0}, {}), "link 'a' is -1.0"),
]


@pytest.mark.parametrize(("make", "text"), MACHINES_REFUSED, ids=[t for _, t in MACHINES_REFUSED])
def test_machines_that_cannot_be(make, text):
    with pytest.raises(ArgumentError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (
            lambda s, d: (1.0, ["b"]),
            "the route from rank 0 to rank 1 crosses 'b', which is not a link",
        ),
        (lambda s, d: None, "the route from rank 0 to rank 1 is not a pair"),
        (lambda s, d: (-1.0, ["a"]), "the latency from rank 0 to rank 1 is -1.0"),
        ({(1, 0): (1.0, ["a"])}, "there is no route from rank 0 to rank 1"),
    ],
)
def test_ways_to_nowhere(way, text):
    with pytest.raises(ArgumentError) as caught:
        simulate("broadcast", "tree", 8, Links(2, {"a": 1.0}, way))
    assert text in str(caught.value)


def made(rounds, blocks=1):
    return dataclasses.replace(
        algorithms.get("allreduce", "ring"),
        name="made",
        generate=lambda r, p: iter(rounds[r]),
        blocks=lambda p: blocks,
    )


def test_ranks_that_wait_for_ever():
    both_wait = [[Exchange(recv=(1 - r, 0)), Exchange(send=(1 - r, 0))] for r in range(2)]
    with pytest.raises(ProofError, match=r"allreduce 'made' on 2 ranks: rank 0 waits .* round 1"):
        simulate("allreduce", made(both_wait), 8, Flat(2))


@pytest.mark.parametrize(
    "rounds",
    [
        [[Exchange(send=(1, 0))], []],  # nobody receives it
        [[], [Exchange(recv=(0, 0))]],  # nobody sends it
        [[Exchange(send=(2, 0))], []],  # to nobody
    ],
)
def test_messages_that_do_not_fit(rounds):
    with pytest.raises(ProofError, match="allreduce 'made' on 2 ranks"):
        simulate("allreduce", made(rounds, blocks=2), 8, Flat(2))
