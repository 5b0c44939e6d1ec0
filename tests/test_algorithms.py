"""Every registered algorithm against its contract, its cost and its promises."""

import dataclasses
from fractions import Fraction

import pytest

from collectives import algorithms
from collectives.check import check
from collectives.errors import ProofError
from collectives.spec import COLLECTIVES

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
EXHAUSTIVE = range(1, 34)
LARGE = [64, 100]
SIZES = [*EXHAUSTIVE, *LARGE]


def hold(proof):
    """Hold a proof's counts against the cost formulas."""
    rounds, sent, folded = proof.algorithm.cost.evaluate(proof.p)
    case = f"p={proof.p} root={proof.root}"
    assert proof.depth == rounds, case
    assert float(max(proof.sent)) == pytest.approx(sent, abs=1e-12), case
    assert float(max(proof.folded)) == pytest.approx(folded, abs=1e-12), case
    assert sum(proof.links.values(), Fraction(0)) == proof.traffic, case
    assert sum(proof.messages) == len(proof.events), case


def relabelled(exchange, p, root):
    """Return a round of the algorithm for root 0 as it must be for `root`."""

    def moved(messages):
        return [((peer + root) % p, blocks) for peer, blocks in listed(messages)]

    return moved(exchange.send), moved(exchange.recv), exchange.fold


def listed(messages):
    single = len(messages) == 2 and isinstance(messages[0], int)
    return [tuple(messages)] if single else list(messages)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_proof_and_cost(collective, name, p):
    """Prove it for every root; where that would take minutes, for three of them.

    `test_roots_are_relabelled` carries those three to all others.
    """
    algorithm = algorithms.get(collective, name)
    roots = range(p) if algorithm.collective.rooted else [0]
    if p in LARGE and not algorithm.keeps_order:
        roots = sorted({0, 1, p - 1} & set(roots))
    for root in roots:
        hold(check(algorithm, p=p, root=root))


@pytest.mark.parametrize("p", [2, 3, 8, 33, *LARGE])
@pytest.mark.parametrize(("collective", "name"), [e for e in EVERY if COLLECTIVES[e[0]].rooted])
def test_roots_are_relabelled(collective, name, p):
    """For root k, rank r does what rank r - k does for root 0, with peers moved by k.

    Peers and blocks decide who waits for whom and what ends where, so the proof for one root is
    the proof for all. Only the order of folding follows the ranks' own numbers, and that is
    proven for every root where it is promised.
    """
    algorithm = algorithms.get(collective, name)
    plain = [list(algorithm.rounds(r, p, 0)) for r in range(p)]
    for root in range(p):
        for r in range(p):
            wanted = [relabelled(each, p, root) for each in plain[(r - root) % p]]
            got = [relabelled(each, p, 0) for each in algorithm.rounds(r, p, root)]
            assert got == wanted, f"root={root} rank={r}"


@pytest.mark.parametrize("p", [*range(1, 18), 33])
def test_traffic_of_the_textbook(p):
    """N elements, m ranks: the master moves 2N(m-1); in a ring each rank sends 2N(m-1)/m."""
    master = check("allreduce", "master_worker", p=p)
    assert master.traffic == 2 * (p - 1)
    through_master = [size for link, size in master.links.items() if 0 in link]
    assert sum(through_master) == 2 * (p - 1)
    for name in ("ring", "round_robin"):
        proof = check("allreduce", name, p=p)
        assert proof.sent == [Fraction(2 * (p - 1), p)] * p
        assert proof.folded == [Fraction(p - 1, p)] * p


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 13])
def test_ring_speaks_with_neighbours_only(p):
    links = check("allreduce", "ring", p=p).links
    assert set(links) == {(r, (r + 1) % p) for r in range(p)}


@pytest.mark.parametrize("p", EXHAUSTIVE)
def test_no_rank_is_inside_both_trees(p):
    inside = {(e.target, e.blocks) for e in check("allreduce", "double_tree", p=p).events if e.fold}
    assert len({rank for rank, _ in inside}) == len(inside)


@pytest.mark.parametrize(
    ("collective", "names"),
    [
        (
            "allreduce",
            [
                "master_worker",
                "tree",
                "all_to_all",
                "round_robin",
                "butterfly",
                "halving_doubling",
                "ring",
                "double_tree",
            ],
        ),
        ("reduce", ["flat", "tree", "chain", "reduce_scatter_gather"]),
        ("broadcast", ["flat", "tree", "chain", "scatter_allgather"]),
        ("barrier", ["dissemination"]),
    ],
)
def test_names_are_in_the_order_of_registration(collective, names):
    assert algorithms.names(collective) == names


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_every_row_is_complete(collective, name):
    algorithm = algorithms.get(collective, name)
    assert algorithm.name == name
    assert algorithm.collective is COLLECTIVES[collective]
    assert algorithm.included
    assert algorithm.cost is not None
    assert "alpha" in str(algorithm.cost)
    assert any(year in algorithm.source for year in ("19", "20"))
    assert "doi:" in algorithm.source or "arXiv:" in algorithm.source
    assert algorithm.summary.endswith(".")
    assert "Examples" in algorithm.generate.__doc__
    assert not any(each.send or each.recv for each in algorithm.rounds(0, 1, 0))


def breaks(algorithm, **promise):
    """Say whether the algorithm breaks a promise that it does not make, for some p and root."""
    bold = dataclasses.replace(algorithm, **promise)
    for p in range(1, 9):
        for root in range(p) if algorithm.collective.rooted else [0]:
            try:
                check(bold, p=p, root=root)
            except ProofError:
                return True
    return False


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_promises_are_not_too_modest(collective, name):
    algorithm = algorithms.get(collective, name)
    if not algorithm.same_bits:
        assert breaks(algorithm, same_bits=True)
    if not algorithm.keeps_order and algorithm.collective.reduces:
        assert breaks(algorithm, keeps_order=True)
