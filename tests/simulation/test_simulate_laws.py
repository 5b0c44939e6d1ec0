"""Simulated time: what must be so on any machine, and thousands of ranks."""

import random
from collections import Counter
from itertools import pairwise

import closed_forms
import events
import numpy as np
import pytest
from closed_forms import Case
from machines import some_machine, some_options
from rows import every_row
from usual import FULL

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.simulate import simulate
from collectives.topology import FatTree, Flat, Hosts, Torus

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
ROUNDING = 1e-12
SAME = 1e-9  # how far apart instants may be that are sums of other terms, relative to the time
CASES = 12 if FULL else 3  # random machines for each algorithm


def runs_on(collective, name, p):
    return algorithms.get(collective, name).refusal(p) is None


def single(collective, name, p):
    """Return True if no rank ever sends, or receives, more than one message in a round."""
    algorithm = algorithms.get(collective, name)
    rounds = (each for r in range(p) for each in algorithm.rounds(r, p, 0))
    return all(len(events.listed(m)) <= 1 for each in rounds for m in (each.send, each.recv))


SINGLE = [(c, name) for c, name in EVERY if runs_on(c, name, 8) and single(c, name, 8)]


@pytest.mark.usual(4, 7)
@pytest.mark.parametrize("p", range(1, 18))
@every_row
def test_no_algorithm_beats_the_bounds(collective, name, p):
    if not runs_on(collective, name, p):
        return
    alpha, beta, gamma = 3e-6, 2e-9, 1e-9
    nbytes = closed_forms.whole(collective, name, p, 10)
    found = simulate(collective, name, nbytes, Flat(p, alpha, beta, gamma))
    if p == 1:
        assert found.time == found.messages == 0
        assert list(found.finish) == [0]
        return
    algorithm = algorithms.get(collective, name)
    rounds, sent, folded = algorithm.totals(p)
    below = 1 - ROUNDING
    assert found.time >= rounds * alpha * below
    # After each alpha, the number of ranks that know a contribution at most doubles.
    assert found.time >= (p - 1).bit_length() * alpha * below
    assert found.time >= max(sent * beta, folded * gamma) * nbytes * below
    assert max(found.sent) == pytest.approx(sent * nbytes, rel=ROUNDING)
    for side in ("source", "target"):
        busy = Counter()
        for t in found.transfers:
            busy[getattr(t, side)] += alpha + t.nbytes * beta
        assert found.time >= max(busy.values()) * below
    # Nor does it take longer than one message after the other, and one fold after the other.
    moved = sum(found.sent) * (beta + gamma)
    assert found.time <= (found.messages * alpha + moved) / below


@every_row
def test_without_bandwidth_it_takes_at_least_the_depth_of_the_proof(collective, name):
    for p in (2, 3, 8, 13):
        if runs_on(collective, name, p):
            depth = check(collective, name, p=p, record=False).depth
            time = simulate(collective, name, 1000, Flat(p, 1.0, 0.0, 0.0)).time
            assert time >= depth
            if single(collective, name, p):
                assert time == depth


@every_row
def test_time_has_the_unit_of_alpha_beta_and_gamma(collective, name):
    for p in (4, 7):
        if runs_on(collective, name, p):
            slow, fast = (
                simulate(collective, name, 1001, Flat(p, *scales), segment=50)
                for scales in ((3e-6, 2e-9, 1e-9), (3.0, 2e-3, 1e-3))
            )
            assert fast.finish / 1e6 == pytest.approx(slow.finish, rel=SAME)


@every_row
def test_bytes_are_twice_as_many_or_twice_as_slow(collective, name):
    for p in (4, 7):
        if runs_on(collective, name, p):
            n = closed_forms.whole(collective, name, p)
            more = simulate(collective, name, 2 * n, Flat(p, 1.0, 0.01, 0.02), segment=24)
            slower = simulate(collective, name, n, Flat(p, 1.0, 0.02, 0.04), segment=12)
            assert more.segments == slower.segments > 1
            assert more.finish == pytest.approx(slower.finish, rel=SAME)


@pytest.mark.parametrize(("collective", "name"), SINGLE)
def test_nothing_gets_faster_on_a_slower_machine(collective, name):
    """If nobody waits for a port, and only then: in general a wait may put things in order."""
    for p in (2, 5, 8):
        if not (runs_on(collective, name, p) and single(collective, name, p)):
            continue
        n = closed_forms.whole(collective, name, p)
        plain = simulate(collective, name, n, Flat(p, 1.0, 0.01, 0.02))
        for scales in ((1.5, 0.01, 0.02), (1.0, 0.03, 0.02), (1.0, 0.01, 0.05)):
            slower = simulate(collective, name, n, Flat(p, *scales))
            assert all(slower.finish >= plain.finish * (1 - ROUNDING))
        longer = simulate(collective, name, 3 * n, Flat(p, 1.0, 0.01, 0.02))
        assert all(longer.finish >= plain.finish * (1 - ROUNDING))


# It folds in an order of the ranks that does not depend on the root.
SAME_FOR_ALL_ROOTS = [("reduce", "near_halving")]


@pytest.mark.parametrize(
    ("collective", "name"),
    [each for each in SINGLE if COLLECTIVES[each[0]].rooted and each not in SAME_FOR_ALL_ROOTS],
)
def test_roots_are_alike_on_a_flat_machine(collective, name):
    p = 8
    n = closed_forms.whole(collective, name, p)
    plain = simulate(collective, name, n, Flat(p, 1.0, 0.01, 0.02)).finish
    for root in range(p):
        moved = simulate(collective, name, n, Flat(p, 1.0, 0.01, 0.02), root=root).finish
        assert [moved[(r + root) % p] for r in range(p)] == pytest.approx(list(plain), rel=ROUNDING)


@every_row
def test_bytes_over_links_are_those_of_the_messages(collective, name):
    p = 12
    if not runs_on(collective, name, p):
        return
    options = {"segment": 1000, "root": 5 if COLLECTIVES[collective].rooted else 0}
    hosts = simulate(collective, name, 5000, Hosts(4, 3, memory=1e-10), **options)
    away = sum(t.nbytes for t in hosts.transfers if t.source // 3 != t.target // 3)
    near = sum(t.nbytes for t in hosts.transfers if t.source // 3 == t.target // 3)
    for side, wanted in (("out", away), ("in", away), ("memory", near)):
        assert sum(n for link, n in hosts.links.items() if link[0] == side) == wanted
    for h in range(4):
        leaving = (t for t in hosts.transfers if t.source // 3 == h != t.target // 3)
        assert hosts.links["out", h] == sum(t.nbytes for t in leaving)
    tree = simulate(collective, name, 5000, FatTree(4, 3, 2), **options)
    across = sum(t.nbytes for t in tree.transfers if t.source // 6 != t.target // 6)
    for side in ("up", "down"):
        assert tree.links[side, 0] + tree.links[side, 1] == across
    ring = simulate(collective, name, 5000, Torus((p,)), **options)
    far = sum(
        t.nbytes * min((t.target - t.source) % p, (t.source - t.target) % p) for t in ring.transfers
    )
    assert sum(ring.links.values()) == far
    for each in (hosts, tree, ring):
        assert sum(each.sent) == sum(t.nbytes for t in each.transfers)


@every_row
def test_the_critical_path_is_as_long_as_it_takes(collective, name):
    algorithm = algorithms.get(collective, name)
    for case in range(CASES):
        rng = random.Random(case)
        topology, _ = some_machine(rng, algorithm)
        nbytes, options = some_options(rng, algorithm, topology.p)
        found = simulate(collective, name, nbytes, topology, **options)
        path = found.critical_path
        if not found.messages:
            assert path == []
            continue
        every = set(found.transfers)
        assert every.issuperset(path)
        assert path[0].start == topology.call
        assert max(path[-1].end, path[-1].folded) == found.time
        for one, other in pairwise(path):
            delay = topology.delay(np.array([one.source]), np.array([one.target]))
            assert other.start in [
                pytest.approx(instant, rel=SAME)
                for instant in (one.end - np.max(delay), one.end, one.folded)
            ]
            # It is on the way of the other: they share a rank.
            assert {one.source, one.target} & {other.source, other.target}
        lengths = [b.start - a.start for a, b in pairwise(path)]
        lengths.append(path[-1].folded - path[-1].start)
        assert topology.call + sum(lengths) == pytest.approx(found.time, rel=SAME)


def test_a_message_waits_for_nothing_on_an_idle_machine():
    for collective, name in EVERY:
        topology = Torus((2, 4), 1.0, 0.01, 0.02, hop=0.5)
        if runs_on(collective, name, 8):
            found = simulate(collective, name, 800, topology)
            for t in found.transfers:
                hops = sum(
                    min((b - a) % extent, (a - b) % extent)
                    for a, b, extent in zip(
                        divmod(t.source, 4), divmod(t.target, 4), (2, 4), strict=True
                    )
                )
                alone = 1 + 0.5 * hops + 0.01 * t.nbytes
                assert t.end - t.start >= alone * (1 - SAME)
                assert t.folded >= t.end


@pytest.mark.parametrize("p", [1, 2, 7, 16])
def test_a_delay_is_paid_once_in_a_row(p):
    """Messages that one rank sends are on their way together, those of a chain one by one."""
    case, delay = Case(p, 1000, 1e-6, 1e-9, 0.0), 1e-4
    machine = Flat(*case[:1], *case[2:], delay=delay)
    flat = simulate("broadcast", "flat", case.n, machine)
    assert flat.time == pytest.approx((p - 1) * case.message + (delay if p > 1 else 0))
    assert flat.finish[0] == pytest.approx((p - 1) * case.message)
    chain = simulate("broadcast", "chain", case.n, machine)
    assert chain.time == pytest.approx((p - 1) * (case.message + delay))
    ring = simulate("allgather", "ring", p * 100, machine)
    assert ring.time == pytest.approx((p - 1) * (case.alpha + 100 * case.beta + delay))


def test_nothing_is_delayed_within_a_host():
    machine = Hosts(2, 2, 1e-6, 0.0, 0.0, inside=(1e-7, 0.0), delay=1e-4)
    assert list(simulate("broadcast", "flat", 8, machine).finish) == pytest.approx(
        [2.1e-6, 1e-7, 1.011e-4, 1.021e-4]
    )


# -- thousands of ranks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "name", "p"),
    [
        ("allreduce", "ring", 4096 if FULL else 512),
        ("allreduce", "butterfly", 65536),
        ("broadcast", "tree", 65536 if FULL else 8192),
        ("reduce", "tree", 65536 if FULL else 8192),
        ("allreduce", "tree", 65536 if FULL else 8192),
        ("allreduce", "halving_doubling", 1024),
        ("allgather", "recursive", 1024),
        ("broadcast", "tree", 5001),
        ("allreduce", "butterfly", 5001),
    ],
)
def test_thousands_of_ranks(collective, name, p):
    formula = (closed_forms.ANY | closed_forms.POWERS)[collective, name]
    case = Case(p, p * 64, 1e-6, 1e-9, 0.5e-9)
    found = simulate(collective, name, case.n, Flat(p, *case[2:]), record=False)
    assert found.time == pytest.approx(formula(case), rel=SAME)
    assert len(found.finish) == p
    assert found.transfers == found.critical_path == []


def test_messages_are_recorded_where_they_are_few():
    few = simulate("broadcast", "tree", 8, Flat(33))
    assert len(few.transfers) == few.messages == 32
    assert [t.start for t in few.transfers] == sorted(t.start for t in few.transfers)
    none = simulate("broadcast", "tree", 8, Flat(33), record=False)
    assert none.transfers == []
    assert none.finish == pytest.approx(few.finish, rel=ROUNDING)
    many = simulate("allreduce", "ring", 800, Flat(8), segment=1)
    assert many.messages == 8 * 14 * 100
    assert len(many.transfers) == many.messages
