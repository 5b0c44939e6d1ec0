"""Which algorithm is chosen, and what the reason says."""

import pytest

from collectives import algorithms, select
from collectives.algorithms import Cost
from collectives.errors import ArgumentError
from collectives.select import decide
from collectives.spec import COLLECTIVES

TABLES = {
    "mpich": {
        "allreduce": {
            "2": [[1023, "all_to_all", 0], [None, "ring", 65536]],
            "8": [[1023, "kary:8", 0], [None, "ring", 4096]],
        },
        "alltoall": {"8": [[1023, "bruck", 0], [None, "pairwise", 512]]},
    },
    "openmpi": {"allreduce": {"4": [[None, "tree", 0]]}},
}


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(select, "measured", lambda: {"tables": TABLES})
    monkeypatch.delenv("COLLECTIVES_SEGMENT", raising=False)


@pytest.mark.parametrize(
    ("p", "nbytes", "family", "name", "segment", "reason"),
    [
        (2, 8, "mpich", "all_to_all", 0, "with mpich on 2 ranks, up to 1023 B"),
        (3, 1023, "mpich", "all_to_all", 0, "with mpich on 2 ranks, up to 1023 B"),
        # A decision holds for all sizes with equally many bits.
        (3, 600, "mpich", "all_to_all", 0, "with mpich on 2 ranks, up to 1023 B"),
        (3, 1024, "mpich", "ring", 65536, "with mpich on 2 ranks, any size"),
        # 4 is as far from 2 as from 8: the larger one counts.
        (4, 8, "mpich", "kary:8", 0, "with mpich on 8 ranks, up to 1023 B"),
        (100, 1 << 40, "mpich", "ring", 4096, "with mpich on 8 ranks, any size"),
        (3, 8, "openmpi", "tree", 0, "with openmpi on 4 ranks, any size"),
        (2, 8, "other", "all_to_all", 0, "with mpich on 2 ranks, up to 1023 B"),
    ],
)
def test_the_table_decides(p, nbytes, family, name, segment, reason):
    decision = decide("allreduce", None, p=p, nbytes=nbytes, family=family)
    assert (decision.algorithm.name, decision.segment) == (name, segment)
    assert decision.reason == f"measured fastest {reason}"


def test_the_caller_decides():
    decision = decide("allreduce", "ring", p=8, nbytes=1 << 20)
    assert (decision.algorithm.name, decision.segment) == ("ring", 4096)
    assert decision.reason == "asked for by the caller"
    decision = decide("allreduce", "tree", p=8, nbytes=1 << 20)
    assert (decision.algorithm.name, decision.segment) == ("tree", select.SEGMENT)
    assert decide("allreduce", "kary:8", p=8, nbytes=8).segment == 0
    assert decide("allreduce", "kary", p=8, nbytes=8).segment == select.SEGMENT
    assert decide("gather", "tree", p=8, nbytes=8).segment == select.SEGMENT
    with pytest.raises(ArgumentError, match="gather has no algorithm 'ring'; it has: flat, tree"):
        decide("gather", "ring", p=8, nbytes=8)


def test_one_rank_only_copies():
    for collective in COLLECTIVES:
        decision = decide(collective, None, p=1, nbytes=8, ordered=True, vector=True)
        assert decision.algorithm.name == algorithms.names(collective)[0]
        assert decision.reason == "one rank only copies"


def seconds(algorithm, p, nbytes):
    """Return the time by the formulas, without what waits for segments."""
    rounds, sent, folded = algorithm.totals(p)
    return rounds * select.ALPHA + nbytes * (sent * select.BETA + folded * select.GAMMA)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("p", [2, 3, 8, 33, 1000])
def test_formulas_decide_where_nothing_is_measured(monkeypatch, collective, p):
    monkeypatch.setattr(select, "measured", lambda: {"tables": {"mpich": {}}})
    rows = [algorithms.get(collective, name) for name in algorithms.names(collective)]
    for nbytes in (0, 1, 8, 1000, 1 << 16, 1 << 24):
        decision = decide(collective, None, p=p, nbytes=nbytes)
        assert decision.reason == (
            f"least time by the cost formulas; {collective} has not been measured"
        )
        assert decision.segment == select.SEGMENT
        largest = (1 << nbytes.bit_length()) - 1
        if largest <= 1:  # only messages count
            best = min(seconds(row, p, largest) for row in rows)
            assert seconds(decision.algorithm, p, largest) == pytest.approx(best)


def test_a_round_waits_for_a_segment(monkeypatch):
    """By what each rank sends, a chain is never worse than doubling; but its rounds take turns."""
    monkeypatch.setattr(select, "measured", lambda: {"tables": {"mpich": {}}})
    chosen = [
        decide("scan", None, p=33, nbytes=nbytes).algorithm.name for nbytes in (8, 1 << 16, 1 << 26)
    ]
    assert chosen == ["recursive", "recursive", "chain"]


@pytest.fixture
def free():
    """An algorithm that costs nothing and needs a power of two."""

    def free(r, p):
        return iter(())

    free.__module__ = "collectives.algorithms.free"
    algorithms.algorithm("gather", cost=Cost("0", "0"), requires=("power_of_two",))(free)
    yield algorithms.get("gather", "free")
    algorithms.unregister("gather", "free")


def test_requirements_exclude(free):
    assert decide("gather", None, p=4, nbytes=8).algorithm is free
    assert decide("gather", None, p=6, nbytes=8).algorithm.name == "flat"
    with pytest.raises(ArgumentError) as caught:
        decide("gather", "free", p=6, nbytes=8)
    assert str(caught.value) == (
        "gather 'free' needs a power of two as the number of ranks, and p is 6"
    )


def test_what_is_not_included_is_not_chosen():
    @algorithms.algorithm("gather", cost=Cost("0", "0"))
    def mine(r, p):
        return iter(())

    chosen = decide("gather", None, p=4, nbytes=8).algorithm.name
    algorithms.unregister("gather", "mine")
    assert chosen == "flat"


@pytest.mark.parametrize("p", [2, 3, 8, 33])
@pytest.mark.parametrize(
    "collective", [c for c in COLLECTIVES if COLLECTIVES[c].reduces and c != "barrier"]
)
def test_the_order_is_kept_where_it_must_be(collective, p):
    for nbytes in (8, 1 << 12, 1 << 24):
        assert decide(collective, None, p=p, nbytes=nbytes, ordered=True).algorithm.keeps_order


def test_what_is_measured_counts_if_it_keeps_the_order():
    decision = decide("allreduce", None, p=2, nbytes=8, ordered=True)
    assert decision.algorithm.name == "all_to_all"
    assert decision.reason.startswith("measured fastest")
    decision = decide("allreduce", None, p=2, nbytes=1 << 20, ordered=True)
    assert decision.algorithm.name in ("butterfly", "all_to_all")
    assert decision.reason == (
        "least time by the cost formulas among those that fold in rank order, as op is not "
        "commutative"
    )


def test_who_does_not_keep_the_order_is_refused():
    with pytest.raises(ArgumentError) as caught:
        decide("allreduce", "ring", p=4, nbytes=8, ordered=True)
    assert str(caught.value) == (
        "op is not commutative, and allreduce 'ring' does not fold in rank order; pass "
        "algorithm=None or one that does: master_worker, tree, all_to_all, butterfly"
    )
    with pytest.raises(ArgumentError, match="'kary:2' does not fold in rank order"):
        decide("allreduce", "kary:2", p=4, nbytes=8, ordered=True)
    assert decide("allreduce", "tree", p=4, nbytes=8, ordered=True).algorithm.name == "tree"
    assert decide("broadcast", "tree", p=4, nbytes=8, ordered=True).algorithm.name == "tree"


def test_no_block_of_an_alltoallv_passes_through_a_third_rank():
    assert decide("alltoall", None, p=8, nbytes=0).algorithm.name == "bruck"
    decision = decide("alltoall", None, p=8, nbytes=0, vector=True)
    assert decision.algorithm.name == "direct"
    assert decision.reason == (
        "least time by the cost formulas among those in which no block passes through a third rank"
    )
    assert decide("alltoall", None, p=8, nbytes=4096, vector=True).algorithm.name == "pairwise"
    for name in ("allgather", "gather", "scatter", "reduce_scatter"):
        plain = decide(name, None, p=8, nbytes=4096)
        assert decide(name, None, p=8, nbytes=4096, vector=True) == plain


def test_the_environment_sets_the_segment(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_SEGMENT", "4000")
    assert decide("allreduce", None, p=2, nbytes=8).segment == 4000
    monkeypatch.setenv("COLLECTIVES_SEGMENT", "4 KiB")
    with pytest.raises(ArgumentError) as caught:
        decide("allreduce", None, p=2, nbytes=8)
    assert str(caught.value) == "COLLECTIVES_SEGMENT is '4 KiB', and must be bytes, or 0"


KARY = """\
broadcast of 1000 B on 13 ranks: kary:3
  why       asked for by the caller
  what      Each rank that has the array sends it to its k children, all at once.
  rounds    2
  per rank  sends up to 2.93 KiB, folds up to 0 B
  time      (levels(k)) alpha + (min(k, p - 1)) n beta
  pieces    1 block, in segments of 128 KiB at most
  source    Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory \
multiprocessors, 1991, doi:10.1145/103727.103729"""


def test_a_decision_says_what_and_why():
    assert str(decide("broadcast", "kary:3", p=13, nbytes=1000)) == KARY
    text = str(decide("alltoall", "pairwise", p=4, nbytes=4000))
    assert "  pieces    4 blocks, in segments of 512 B at most\n" in text
    assert "  per rank  sends up to 2.93 KiB, folds up to 0 B\n" in text
