"""Every registered algorithm against its contract, its cost and its promises."""

import dataclasses
from fractions import Fraction

import pytest
from usual import FULL

from collectives import algorithms
from collectives.algorithms import stragglar
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.errors import ProofError
from collectives.plans.schedule import compile

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
EXHAUSTIVE = range(1, 34) if FULL else [*range(1, 18), 31, 32, 33]
LARGE = [64]
SIZES = [*EXHAUSTIVE, *LARGE]


def hold(proof):
    """Hold a proof's counts against the cost formulas."""
    rounds, sent, folded = proof.algorithm.totals(proof.p)
    case = f"{proof.algorithm.name} p={proof.p} root={proof.root}"
    assert proof.depth == rounds, case
    assert float(max(proof.sent)) == pytest.approx(sent, abs=1e-12), case
    assert float(max(proof.folded)) == pytest.approx(folded, abs=1e-12), case


def relabelled(exchange, parts, p, root):
    """Return a round of the algorithm for root 0 as it must be for `root`."""

    def numbers(blocks):
        listed = [blocks] if isinstance(blocks, int) else list(blocks)
        # If each rank has a block of its own, the block moves with the ranks.
        return listed if parts == 1 else [(b + root) % p for b in listed]

    def moved(messages):
        return [((peer + root) % p, numbers(blocks)) for peer, blocks in listed(messages)]

    return moved(exchange.send), moved(exchange.recv), exchange.fold


def listed(messages):
    single = len(messages) == 2 and isinstance(messages[0], int)
    return [tuple(messages)] if single else list(messages)


# Ranks have the same partners for every root. If p is not a power of two, some roots fold less.
ABSOLUTE = {("reduce", "near_tree"), ("reduce", "near_halving")}
ROOTED = [e for e in EVERY if COLLECTIVES[e[0]].rooted and e not in ABSOLUTE]


@pytest.mark.usual(2, 3, 5, 8)
@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_proof_and_cost(collective, name, p):
    """Prove it for every root; where that would take minutes, for some of them.

    `test_roots_are_relabelled` carries those to all others.
    """
    algorithm = algorithms.get(collective, name)
    roots = range(p) if algorithm.collective.rooted else [0]
    many_blocks = algorithm.collective.parts(p) == 1 and algorithm.blocks(p) > 1
    if not algorithm.keeps_order and (p in LARGE or (p > 17 and many_blocks)):
        roots = sorted({0, 1, p // 2, p - 1} & set(roots))
    proofs = [check(algorithm, p=p, root=root, record=False) for root in roots]
    if (collective, name) in ABSOLUTE:
        worst = max(proofs, key=lambda proof: (max(proof.folded), max(proof.sent)))
        assert all(proof.depth == worst.depth for proof in proofs)
        assert all(max(proof.sent) <= max(worst.sent) for proof in proofs)
        proofs = [worst]
    for proof in proofs:
        hold(proof)


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_counts_are_those_of_the_events(collective, name):
    for p in (1, 2, 5, 8):
        proof = check(collective, name, p=p)
        parts = proof.algorithm.collective.per_array(p)
        cut = proof.nblocks // proof.algorithm.collective.parts(p)
        sent = [Fraction(0)] * p
        for event in proof.events:
            sent[event.source] += Fraction(len(event.blocks), parts * cut)
        assert proof.sent == sent
        assert sum(proof.links.values(), Fraction(0)) == proof.traffic
        assert sum(proof.messages) == len(proof.events)
        assert proof.depth == max((event.time for event in proof.events), default=0)


@pytest.mark.usual(5)
@pytest.mark.parametrize("k", [2, 3, 5, 31])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_proof_and_cost_of_trees_of_any_degree(collective, k):
    algorithm = algorithms.get(collective, f"kary:{k}")
    for p in SIZES:
        for root in sorted({0, p - 1}) if algorithm.collective.rooted else [0]:
            hold(check(algorithm, p=p, root=root, record=False))


@pytest.mark.parametrize("p", SIZES)
def test_proof_and_cost_of_every_number_of_rounds(p):
    """One group of ranks is the circulant algorithm, and groups of one rank are the butterfly."""
    up, twos = (p - 1).bit_length(), (p & -p).bit_length() - 1
    for t in range(2, 2 * up + 2):
        proof = check("allreduce", f"generalised:{t}", p=p, record=False)
        hold(proof)
        assert proof.depth == max(min(t, 2 * up), 2 * up - twos)
    if p > 1:
        circulant, butterfly = (
            check("allreduce", name, p=p) for name in ("circulant", "butterfly")
        )
        most = check("allreduce", f"generalised:{2 * up}", p=p)
        assert (most.depth, most.sent) == (circulant.depth, circulant.sent)
        if p == 1 << up > 2:
            fewest = check("allreduce", "generalised:2", p=p)
            assert (fewest.depth, fewest.sent) == (butterfly.depth, butterfly.sent)


@pytest.mark.parametrize("p", range(2, 13))
def test_any_rank_may_be_late(p):
    """The late rank takes part only after the others have folded what they have."""
    alone = (p - 2).bit_length()
    for late in range(p):
        proof = check("allreduce", f"stragglar:{late + p}", p=p)
        hold(proof)
        with_it = [event for event in proof.events if late in (event.source, event.target)]
        assert min(event.time for event in with_it) == alone + 1
        assert sum(event.fold for event in with_it if event.target == late) == p - 1
        assert proof.depth - alone == p + (p - 1).bit_length() - 2


def members(those):
    """Return the members of a bit set in ascending order."""
    return [v for v in range(those.bit_length()) if those >> v & 1]


@pytest.mark.parametrize("p", [5, 33, 70])
def test_messages_beside_a_late_rank_are_those_of_all_numbers(p):
    """Those of one number are found in bit sets without those of others."""
    for turn in stragglar.turns(p):
        given, taken = {}, {}
        if turn.guest >= 0:
            for v, other in ((turn.guest, p - 1), (p - 1, turn.guest)):
                given[v] = taken[v] = other, turn.guest
        for each in turn.passes:
            takers = [v for some in each.queue for v in members(some)]
            for giver, taker in zip(members(each.givers), takers, strict=True):
                given[giver], taken[taker] = (taker, each.block), (giver, each.block)
        for v in range(p):
            assert stragglar.messages(v, turn, p) == (given.get(v), taken.get(v))


@pytest.mark.usual(2, 3, 5, 8)
@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize(("collective", "name"), ROOTED)
def test_roots_are_relabelled(collective, name, p):
    """For root k, rank r does what rank r - k does for root 0, with peers moved by k.

    Peers and blocks determine the waits and the results, so the proof for one root is the proof
    for all. Only the order of folding follows the ranks' own numbers, and that is
    proven for every root where it is promised.
    """
    algorithm = algorithms.get(collective, name)
    parts = algorithm.collective.parts(p)
    plain = [list(algorithm.rounds(r, p, 0)) for r in range(p)]
    for root in range(p):
        for r in range(p):
            wanted = [relabelled(each, parts, p, root) for each in plain[(r - root) % p]]
            got = [relabelled(each, parts, p, 0) for each in algorithm.rounds(r, p, root)]
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


@pytest.mark.parametrize("p", [*range(2, 18), 33])
def test_counts_of_the_textbook(p):
    """Messages of each rank, and the sum of all sent parts in units of the whole array."""
    levels = (p - 1).bit_length()
    share = Fraction(p - 1, p)
    for name, messages in (("ring", p - 1), ("direct", p - 1), ("bruck", levels)):
        allgather, scatter = (check(c, name, p=p) for c in ("allgather", "reduce_scatter"))
        assert allgather.messages == scatter.messages == [messages] * p
        assert allgather.sent == scatter.sent == scatter.folded == [share] * p
        assert allgather.traffic == p - 1
    for name, messages in (("pairwise", p - 1), ("direct", p - 1), ("bruck", levels)):
        assert check("alltoall", name, p=p).messages == [messages] * p
    for name in ("pairwise", "direct"):
        assert check("alltoall", name, p=p).sent == [share] * p
    for collective in ("gather", "scatter"):
        flat, tree = (check(collective, name, p=p, root=p // 2) for name in ("flat", "tree"))
        assert flat.traffic == share
        assert (flat.depth, tree.depth) == (1, levels)
        assert sum(flat.messages) == sum(tree.messages) == p - 1
    assert check("scan", "chain", p=p).traffic == p - 1
    assert check("scan", "recursive", p=p).traffic == sum(p - (1 << i) for i in range(levels))


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16, 32])
def test_powers_of_two(p):
    """There recursive algorithms send no more than others, and bruck half of the array a round."""
    levels = p.bit_length() - 1
    share = Fraction(p - 1, p)
    for collective in ("allgather", "reduce_scatter"):
        proof = check(collective, "recursive", p=p)
        assert (proof.depth, proof.sent, proof.messages) == (levels, [share] * p, [levels] * p)
    assert check("alltoall", "bruck", p=p).sent == [Fraction(levels, 2)] * p


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 13])
def test_neighbours_only(p):
    right = {(r, (r + 1) % p) for r in range(p)}
    for collective in ("allreduce", "allgather", "reduce_scatter"):
        assert set(check(collective, "ring", p=p).links) == right
    for collective in ("scan", "exscan"):
        assert set(check(collective, "chain", p=p).links) == right - {(p - 1, 0)}


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 13])
def test_no_block_of_a_direct_alltoall_passes_through_a_third_rank(p):
    """As an alltoallv requires: only the ranks that a block goes between know its length."""
    for name in ("direct", "pairwise"):
        for event in check("alltoall", name, p=p).events:
            assert event.blocks == (event.source * p + event.target,)
        for r in range(p):
            plan = compile(algorithms.get("alltoall", name), p, r)
            assert plan.workspace() == []


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
                "kary",
                "all_to_all",
                "round_robin",
                "direct",
                "butterfly",
                "halving_doubling",
                "ring",
                "circulant",
                "double_tree",
                "near_halving",
                "swing",
                "pat",
                "multiplying",
                "trivance",
                "stragglar",
                "generalised",
            ],
        ),
        (
            "reduce",
            [
                *("flat", "tree", "chain", "direct", "reduce_scatter_gather"),
                *("near_tree", "near_halving", "bine", "circulant"),
            ],
        ),
        ("broadcast", ["flat", "tree", "kary", "chain", "scatter_allgather", "bine", "circulant"]),
        ("barrier", ["direct", "dissemination"]),
        ("allgather", ["direct", "recursive", "ring", "bruck", "pat", "trivance"]),
        (
            "reduce_scatter",
            [
                *("direct", "recursive", "ring", "bruck", "near_halving", "pat", "trivance"),
            ],
        ),
        ("alltoall", ["direct", "pairwise", "bruck"]),
        ("gather", ["flat", "tree", "bine"]),
        ("scatter", ["flat", "tree", "bine"]),
        ("scan", ["recursive", "chain", "rank_order", "windows"]),
        ("exscan", ["recursive", "doubling", "doubling_123", "rank_order", "chain", "windows"]),
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
                check(bold, p=p, root=root, record=False)
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
