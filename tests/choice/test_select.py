"""The algorithm that is chosen, and the text of the reason."""

import dataclasses

import pytest

from collectives import algorithms
from collectives.algorithms import Cost, registry
from collectives.algorithms.bits import ONCE
from collectives.algorithms.groups import Groups
from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import model, select
from collectives.choice.model import Parameters
from collectives.choice.profile import Profile
from collectives.choice.sections import Row, Section
from collectives.choice.select import decide
from collectives.errors import ArgumentError
from collectives.plans.order import has_fixed_order

TREE = algorithms.get("allreduce", "tree")
TABLES = {
    "shm": {
        "allreduce": {
            "2": [[1023, "all_to_all", 0], [None, "ring", 65536]],
            "8": [[1023, "kary:8", 0], [None, "ring", 4096]],
        },
        "alltoall": {"8": [[1023, "bruck", 0], [None, "pairwise", 512]]},
    },
    "openmpi": {"allreduce": {"4": [[None, "tree", 0]]}},
}


def section(transport, tables, **more):
    rows = {
        name: {int(p): tuple(Row(*each) for each in listed) for p, listed in sizes.items()}
        for name, sizes in tables.items()
    }
    return Section(transport, "an MPI", rows=rows, **more)


def table_of(tables):
    profile = Profile("a cpu", 2, "0", tuple(section(*each) for each in tables.items()))
    return lambda: profile


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(select, "measured", table_of(TABLES))
    monkeypatch.delenv("COLLECTIVES_SEGMENT", raising=False)


@pytest.mark.parametrize(
    ("p", "nbytes", "family", "name", "segment", "reason"),
    [
        (2, 8, "shm", "all_to_all", 0, "in shared memory on 2 ranks, up to 1023 B"),
        (3, 1023, "shm", "all_to_all", 0, "in shared memory on 2 ranks, up to 1023 B"),
        # A decision holds for all sizes with equally many bits.
        (3, 600, "shm", "all_to_all", 0, "in shared memory on 2 ranks, up to 1023 B"),
        (3, 1024, "shm", "ring", 65536, "in shared memory on 2 ranks, any size"),
        # 4 is as far from 2 as from 8: the larger one counts.
        (4, 8, "shm", "kary:8", 0, "in shared memory on 8 ranks, up to 1023 B"),
        (100, 1 << 40, "shm", "ring", 4096, "in shared memory on 8 ranks, any size"),
        (3, 8, "openmpi", "tree", 0, "with openmpi on 4 ranks, any size"),
    ],
)
def test_the_table_decides(p, nbytes, family, name, segment, reason):
    decision = decide("allreduce", None, p=p, nbytes=nbytes, family=family)
    assert (decision.algorithm.name, decision.segment) == (name, segment)
    assert decision.reason == f"measured fastest {reason}"


def test_the_caller_decides():
    decision = decide("allreduce", "ring", p=8, nbytes=1 << 20)
    assert repr(decision).startswith("<Decision: allreduce of 1 MiB on 8 ranks: ring, ")
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
    rounds, _, _ = algorithm.totals(p)
    _, sent, folded = algorithm.factors(p)
    return rounds * model.DEFAULT.alpha + nbytes * (
        sent * model.DEFAULT.beta + folded * model.DEFAULT.gamma
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("p", [2, 3, 8, 33, 1000])
@pytest.mark.usual(8)
def test_formulas_decide_where_nothing_is_measured(monkeypatch, collective, p):
    monkeypatch.setattr(select, "measured", table_of({"mpich": {}}))
    every = [algorithms.get(collective, name) for name in algorithms.names(collective)]
    rows = [row for row in every if row.included and row.chosen == "anywhere"]
    for nbytes in (0, 1, 8, 1000, 1 << 16, 1 << 24):
        decision = decide(collective, None, p=p, nbytes=nbytes)
        assert decision.reason == (
            "least time by the cost formulas with usual numbers, as nothing was measured here"
        )
        assert decision.segment == select.SEGMENT
        largest = (1 << nbytes.bit_length()) - 1
        if largest <= 1:  # only messages count
            best = min(seconds(row, p, largest) for row in rows)
            assert seconds(decision.algorithm, p, largest) == pytest.approx(best)


def test_a_round_waits_for_a_segment(monkeypatch):
    """By what each rank sends, a chain is never worse than doubling; but its rounds take turns."""
    monkeypatch.setattr(select, "measured", table_of({"mpich": {}}))
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


def test_what_is_chosen_nowhere_runs_by_name_or_where_a_profile_says_so(monkeypatch, request):
    ring = algorithms.get("allreduce", "ring")
    hidden = dataclasses.replace(ring, chosen="nowhere")
    monkeypatch.setitem(registry._TABLE, "allreduce", {"tree": TREE, "ring": hidden})
    registry._changed()  # compositions with the other ring may be cached
    request.addfinalizer(registry._changed)
    for groups in (None, Groups((0, 1, 2, 3)), Groups((0, 0, 1, 1))):
        options = {"p": 4, "nbytes": 1 << 26, "family": "mpich", "groups": groups}
        free = decide("allreduce", None, **options)
        assert "ring" not in free.algorithm.name
        assert not [each for each in select.alternatives(free, 99) if "ring" in each.algorithm.name]
        assert decide("allreduce", "ring", **options).algorithm is hidden
        profile = section("mpich", {"allreduce": {"4": [[None, "ring", 0]]}})
        assert decide("allreduce", None, profile=profile, **options).algorithm is hidden


def test_what_is_not_included_is_not_chosen():
    @algorithms.algorithm("gather", cost=Cost("0", "0"))
    def mine(r, p, root):
        return iter(())

    chosen = decide("gather", None, p=4, nbytes=8).algorithm.name
    algorithms.unregister("gather", "mine")
    assert chosen == "flat"


@pytest.mark.parametrize("p", [2, 3, 8, 33])
@pytest.mark.parametrize(
    "collective", [c for c in COLLECTIVES if COLLECTIVES[c].reduces and c != "barrier"]
)
@pytest.mark.usual(8)
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
        "algorithm=None or one that does: master_worker, tree, all_to_all, direct, butterfly, "
        "near_halving, multiplying"
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
    monkeypatch.setenv("COLLECTIVES_SEGMENT", "64K")
    assert decide("allreduce", None, p=2, nbytes=8).segment == 65536
    for text in ("4 pages", "-1", str(2**70)):
        monkeypatch.setenv("COLLECTIVES_SEGMENT", text)
        with pytest.raises(ArgumentError) as caught:
            decide("allreduce", None, p=2, nbytes=8)
        assert str(caught.value) == (
            f"COLLECTIVES_SEGMENT is {text!r}, and must be 0, or a number of bytes such as 8, 64K, "
            "1M or 1MiB"
        )


KARY = """\
broadcast of 1000 B on 13 ranks: kary:3
  why       asked for by the caller
  what      Each rank that has the array sends it to its k children, all at once.
  rounds    2
  per rank  sends up to 2.93 KiB, folds up to 0 B
  time      (hops(k)) alpha + (hops(k)) n beta
  predicted 2.36 us, by alpha 1 us, beta 0.06 ns/B, gamma 0.022 ns/B of the library's defaults
  pieces    1 block, in segments of 128 KiB at most
  source    Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory \
multiprocessors, 1991, doi:10.1145/103727.103729"""


def test_a_decision_says_what_and_why():
    assert str(decide("broadcast", "kary:3", p=13, nbytes=1000)) == KARY
    text = str(decide("alltoall", "pairwise", p=4, nbytes=4000))
    assert "  pieces    4 blocks, in segments of 512 B at most\n" in text
    assert "  per rank  sends up to 2.93 KiB, folds up to 0 B\n" in text


# -- the profile of a machine, and the model with its measurements --------------------------------

TIMES = ((8, 1e-6), (512, 2e-6))
OWN = section(
    "mpich",
    {
        "allreduce": {"4": [(1023, "tree", 0, TIMES), (None, "butterfly", 4096, ((4096, 9e-6),))]},
        "alltoall": {"4": [(None, "bruck", 0)]},
        "gather": {"4": [(1023, "flat", 0)]},
        "scan": {"4": [(None, "gone", 0)]},
    },
    date="2026-11-21",
)
SLOW = Parameters(1e-3, 1e-12, 0.0, "a test")


def own(collective, p, nbytes, **more):
    return decide(collective, None, p=p, nbytes=nbytes, family="mpich", profile=OWN, **more)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_the_profile_comes_before_the_table_and_the_model(p):
    decision = own("allreduce", p, 500, parameters=SLOW)
    assert (decision.algorithm.name, decision.segment) == ("tree", 0)
    assert decision.reason == (
        "measured fastest with mpich on 4 ranks, up to 1023 B; the profile of 2026-11-21"
    )
    assert decision.measured == (2e-6, 512, 4, "the profile of 2026-11-21")
    decision = own("allreduce", p, 1 << 20)
    assert (decision.algorithm.name, decision.segment) == ("butterfly", 4096)


def test_the_profile_holds_for_numbers_of_ranks_within_a_factor_of_two():
    for p in (9, 16):
        assert "profile" not in own("allreduce", p, 500).reason
        assert own("allreduce", p, 500).measured is None


def test_where_the_profile_cannot_be_used_the_next_decides():
    # An algorithm that is not registered any more; sizes beyond; what the call must not have.
    assert own("scan", 4, 8).reason.startswith("least time by the cost formulas")
    assert own("gather", 4, 1023).reason.endswith("the profile of 2026-11-21")
    assert own("gather", 4, 1024).reason.startswith("least time by the cost formulas")
    decision = own("allreduce", 4, 1 << 20, ordered=True)
    assert decision.algorithm.name == "butterfly"
    assert own("alltoall", 4, 0).algorithm.name == "bruck"
    assert own("alltoall", 4, 0, vector=True).algorithm.name == "direct"


@pytest.mark.parametrize(("limit", "name"), [(81919, "butterfly"), (81920, "tree")])
def test_sizes_with_equally_many_bits_are_decided_as_one_near_the_least(limit, name):
    tables = {"allreduce": {"4": [(limit, "tree", 0), (None, "butterfly", 0)]}}
    for nbytes in (65536, 100_000, 131071):
        decision = decide(
            "allreduce", None, p=4, nbytes=nbytes, profile=section("shm", tables, date="2026-11-21")
        )
        assert decision.algorithm.name == name


@pytest.mark.parametrize(
    ("collective", "name", "cut"),
    [
        ("alltoall", "direct", False),
        ("broadcast", "flat", False),
        ("broadcast", "chain", True),  # passed on
        ("allreduce", "all_to_all", True),  # folded
    ],
)
def test_segments_of_messages_overlap_with_something(monkeypatch, collective, name, cut):
    monkeypatch.setattr(select, "measured", table_of({}))
    mpich = select.SEGMENT if cut else 0
    usual = {"mpich": mpich, "shm": select.SEGMENT, "ucx": select.UCX_SEGMENT}
    for family, wanted in usual.items():
        options = {"p": 4, "nbytes": 1 << 20, "family": family}
        assert decide(collective, name, **options).segment == wanted
        every = [decide(collective, None, **options)]
        every += select.alternatives(every[0], 99)
        (found,) = (each for each in every if each.algorithm.name == name)
        assert found.segment == wanted


def test_the_caller_comes_before_the_profile():
    decision = decide("allreduce", "tree", p=4, nbytes=8, family="mpich", profile=OWN)
    assert decision.reason == "asked for by the caller"
    assert decision.measured.seconds == 1e-6
    decision = decide("allreduce", "ring", p=4, nbytes=8, family="mpich", profile=OWN)
    assert decision.measured is None


def test_the_model_with_measured_numbers_comes_before_the_table_but_in_shared_memory(monkeypatch):
    decision = decide("allreduce", None, p=8, nbytes=1 << 24, family="mpich", parameters=SLOW)
    assert decision.algorithm.totals(8)[0] == 1  # a message takes a millisecond
    assert decision.reason == (
        "least time by the cost formulas with the times measured here (a test)"
    )
    assert decision.predicted == pytest.approx(model.seconds(decision.algorithm, 8, 1 << 24, SLOW))
    monkeypatch.setattr(select, "measured", table_of(TABLES))
    decision = decide("allreduce", None, p=8, nbytes=1 << 24, family="shm", parameters=SLOW)
    assert decision.algorithm.name == "ring"
    assert decision.parameters is SLOW


def test_what_was_predicted_and_measured_is_told():
    text = str(own("allreduce", 4, 500, parameters=SLOW))
    assert (
        "\n  predicted 4 ms, by alpha 1e+03 us, beta 0.001 ns/B, gamma 0 ns/B of a test\n" in text
    )
    assert "\n  measured  2 us on 4 ranks, 512 B (the profile of 2026-11-21)\n" in text


def test_alternatives_may_run_too_and_come_by_their_predicted_time():
    decision = decide("allreduce", None, p=6, nbytes=1 << 16)
    others = select.alternatives(decision, 4)
    assert len(others) == 4
    assert decision.algorithm.name not in {each.algorithm.name for each in others}
    predicted = [each.predicted for each in others]
    assert predicted == sorted(predicted)
    ordered = select.alternatives(decision, 99, ordered=True)
    assert all(each.algorithm.keeps_order for each in ordered)
    assert 0 < len(ordered) < len(select.alternatives(decision, 99))
    vector = decide("alltoall", None, p=8, nbytes=64, vector=True)
    assert {each.algorithm.name for each in select.alternatives(vector, 9, vector=True)} == {
        "direct",
        "pairwise",
    } - {vector.algorithm.name}


def test_the_numbers_of_the_model_come_back_from_the_times_that_they_give():
    known = Parameters(2e-6, 1e-10, 3e-11, "a test")
    for p in (2, 3, 8, 33):
        n = 1 << 20
        gather = algorithms.get("allgather", "bruck")
        scatter = algorithms.get("reduce_scatter", "bruck")
        rounds, sent, _ = gather.totals(p)
        again = scatter.totals(p)
        found = model.solved(
            p,
            n,
            rounds * known.alpha,
            rounds * known.alpha + sent * n * known.beta,
            again[0] * known.alpha + again[1] * n * known.beta + again[2] * n * known.gamma,
            "a test",
        )
        assert found.alpha == pytest.approx(known.alpha)
        assert found.beta == pytest.approx(known.beta)
        assert found.gamma == pytest.approx(known.gamma)


def test_what_cannot_be_fitted_is_left_out():
    """Times from which beta, or gamma, would be nothing, below nothing, or faster than memory."""
    gather, scatter = (
        algorithms.get(name, "bruck").totals(4) for name in ("allgather", "reduce_scatter")
    )
    n, alpha, beta = 1 << 20, 2e-6, 1e-10
    short, gathered = gather[0] * alpha, gather[0] * alpha + gather[1] * n * beta
    for gamma in (0.0, -1e-11, 1e-14):
        scattered = scatter[0] * alpha + n * (scatter[1] * beta + scatter[2] * gamma)
        found = model.solved(4, n, short, gathered, scattered, "a test")
        assert found.assumed == ("gamma",)
        assert found.gamma == model.DEFAULT.gamma
        assert found.beta == pytest.approx(beta)
        assert str(found) == (
            "alpha 2 us, beta 0.1 ns/B of a test, gamma 0.022 ns/B of the library's defaults"
        )
        assert found.text() == "alpha 2 us, beta 0.1 ns/B, gamma could not be fitted"
    found = model.solved(4, n, short, short, short, "a test")
    assert found.assumed == ("beta", "gamma")
    assert (found.beta, found.gamma) == (model.DEFAULT.beta, model.DEFAULT.gamma)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("family", ["shm", "mpich"])
def test_only_calls_that_ask_for_it_run_what_is_no_candidate(monkeypatch, collective, family):
    monkeypatch.undo()  # the table of the library
    for p in (2, 3, 4, 8, 9):
        for nbytes in (1, 1000, 1 << 16, 1 << 24):
            row = decide(collective, None, p=p, nbytes=nbytes, family=family).algorithm
            assert row.chosen == "anywhere"
            decision = decide(collective, None, p=p, nbytes=nbytes, family=family, bits="size")
            reduces = row.collective.reduces and collective != "barrier"
            assert decision.bits == ("size" if reduces else "any")
            if reduces:
                assert has_fixed_order(decision.algorithm, p)
                others = select.alternatives(decision, 9)
                assert all(has_fixed_order(each.algorithm, p) for each in others)
            else:
                assert decision.algorithm is row


def test_what_is_measured_holds_for_the_counterpart_in_the_fixed_order(monkeypatch):
    rows = [[1 << 16, "all_to_all", 0], [None, "round_robin", 4096]]
    monkeypatch.setattr(select, "measured", table_of({"shm": {"allreduce": {"4": rows}}}))
    decision = decide("allreduce", None, p=4, nbytes=1 << 20, bits="size")
    assert (decision.algorithm.name, decision.segment) == ("direct", 4096)
    assert decision.reason.startswith("as round_robin, but in a fixed order, which was ")
    short = decide("allreduce", None, p=4, nbytes=100, bits="size")
    assert short.algorithm is registry.get("allreduce", "all_to_all").folding("pairs")
    assert short.reason.startswith("measured fastest ")
    assert "in pairs of neighbouring ranks" in str(short)
    assert "do not depend on the size" in str(decision)


@pytest.mark.parametrize("hosts", [1, 0], ids=["one host", "a host each"])
def test_the_free_choice_stays_where_it_keeps_the_bits(hosts):
    """There, calls of this mode cost what others do."""
    kept = 0
    for p in range(2, 10):
        groups = None if hosts else Groups.sized([1] * p)
        for nbytes in (64, 512, 4096, 32 << 10, 256 << 10):
            for collective in ("allreduce", "reduce", "reduce_scatter", "scan"):
                where = {"p": p, "nbytes": nbytes, "family": "mpich", "groups": groups}
                free = decide(collective, None, **where).algorithm
                mine = decide(collective, None, **where, bits="size").algorithm
                if has_fixed_order(free, p):
                    assert mine is free
                    kept += 1
                else:
                    assert has_fixed_order(mine, p)
    assert kept


SIZES = [1 << k for k in range(3, 25)]


def between_hosts(collective, p, nbytes, **bits):
    """Decide for a host for each rank, where nothing was measured."""
    groups = Groups.sized([1] * p)
    return decide(collective, None, p=p, nbytes=nbytes, family="mpich", groups=groups, **bits)


@pytest.mark.parametrize(
    ("collective", "most", "harder"),
    [
        ("allreduce", 1.01, {}),
        ("reduce", 1.01, {}),
        ("reduce_scatter", 1.14, {7: 1.34, 9: 1.3}),
        ("scan", 1.0, {8: 1.34}),
        ("exscan", 1.0, {9: 1.26}),
    ],
)
def test_bits_of_any_size_cost_little_between_hosts(collective, most, harder):
    """By the cost formulas; on `harder` numbers of ranks, no algorithm has as few rounds."""
    for p in range(2, 10):
        for nbytes in SIZES:
            free = between_hosts(collective, p, nbytes)
            mine = between_hosts(collective, p, nbytes, bits="size")
            assert mine.predicted <= harder.get(p, most) * free.predicted


def test_exact_sums_send_as_little_as_others():
    for collective in ("allreduce", "reduce", "reduce_scatter"):
        for p in range(2, 10):
            for nbytes in SIZES:
                free = between_hosts(collective, p, nbytes).algorithm.totals(p)[1]
                mine = between_hosts(collective, p, nbytes, bits=ONCE).algorithm.totals(p)[1]
                assert mine <= (1.001 if nbytes >= 64 << 10 else 2.34) * free


def test_who_does_not_keep_the_bits_is_refused():
    with pytest.raises(ArgumentError) as caught:
        decide("allreduce", "ring", p=4, nbytes=8, bits="size")
    assert str(caught.value) == (
        "bits is 'size', but allreduce 'ring' on 4 ranks does not fold each element in the fixed "
        "order; pass algorithm=None, bits='any', or one of: master_worker, tree, "
        "kary, all_to_all, direct, butterfly, near_halving, swing, multiplying"
    )
    assert decide("allreduce", "ring", p=2, nbytes=8, bits="size").algorithm.name == "ring"
