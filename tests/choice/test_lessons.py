"""The settings that are tried, and the one that stays, given the times of its trials."""

import pytest

from collectives.algorithms.bits import ANY
from collectives.algorithms.groups import Groups
from collectives.choice import lessons, select
from collectives.choice.lessons import CACHED, LENDS, MEMCPY, PAYLOADS, RESULTS, RULES, Lesson
from collectives.plans.order import order

KIB = 1 << 10
WHOLE = "all_to_all", 0


class Chooser:
    """The part of a chooser that a lesson uses."""

    meets, any_order, by_rules, reads, planning = False, False, False, False, 1e-3
    groups = Groups.read([0, 0])

    def __init__(self, **other):
        self.__dict__.update(other)

    def planned(self, decision, root, vector):
        return decision


def settings(chooser, collective, nbytes, p=2, *, which=2, name=None, ordered=False):
    """Return the settings of a class, as a lesson has them."""
    decision = select.decide(collective, name, p=p, nbytes=nbytes, ordered=ordered)
    place = (collective, name, nbytes.bit_length(), 0, ordered, ANY)
    return Lesson(chooser, place, decision, False).settings(which)


@pytest.fixture
def chooser():
    return Chooser()


def test_short_arrays_have_one_way_to_be_stored(chooser):
    assert {each.ways for each in settings(chooser, "allreduce", 8)} == {RULES}
    assert settings(chooser, "allreduce", 8, which=1)[1:] == []


def test_payloads_go_past_the_cache_from_4_kib_on_and_results_of_long_arrays(chooser):
    own = settings(chooser, "allreduce", 4 * KIB, which=1)
    assert [each.ways for each in own] == [CACHED, MEMCPY, PAYLOADS]
    own = settings(chooser, "allreduce", 4 * KIB * KIB, which=1)
    assert {each.ways for each in own} == {*(CACHED, MEMCPY, PAYLOADS, RESULTS, PAYLOADS | RESULTS)}
    assert len({each.algorithm.name for each in own}) == 1
    assert len({each.segment for each in own}) > 1


def test_what_writes_results_past_the_cache_is_tried_last():
    """Some calls that follow such a setting are slower."""
    for which in (1, 2):
        first, *rest = settings(Chooser(reads=True), "allreduce", 4 * KIB * KIB, which=which)
        past = [each.ways & RESULTS for each in rest]
        assert first.ways == CACHED
        assert past == sorted(past)
        assert set(past) == {0, RESULTS}


def test_algorithms_that_are_the_same_on_two_ranks_are_tried_once():
    """A butterfly is all_to_all there, and halving_doubling round_robin."""
    names = {each.algorithm.name for each in settings(Chooser(), "allreduce", 64 * KIB)}
    assert len(names & {"butterfly", "all_to_all"}) == 1
    assert len(names & {"halving_doubling", "round_robin"}) == 1
    assert "ring" in names


@pytest.mark.parametrize("reads", [False, True])
def test_arrays_of_middle_length_are_also_published_as_a_whole(reads):
    for nbytes, is_tried in [(128 * KIB, True), (512 * KIB, True), (1 << 20, False)]:
        every = settings(Chooser(reads=reads), "allreduce", nbytes)
        ways = {each.ways for each in every if (each.algorithm.name, each.segment) == WHOLE}
        assert (CACHED in ways) == is_tried
        assert len(every) <= 16  # MOST_TRIED of the core


def test_what_the_environment_says_is_not_tried():
    every = settings(Chooser(by_rules=True), "allreduce", 1 << 20)
    assert {each.ways for each in every} == {RULES}


def test_private_arrays_are_lent_from_4_kib_on():
    """First of all where long blocks only move, and with each algorithm where they are folded."""
    chooser = Chooser(reads=True)
    assert not any(each.ways == LENDS for each in settings(chooser, "allreduce", 4 * KIB - 1))
    assert [each.ways for each in settings(chooser, "broadcast", 32 * KIB - 1, name="tree")] == [
        CACHED,
        MEMCPY,
        PAYLOADS,
        LENDS,
    ]
    for collective in ("alltoall", "broadcast", "reduce_scatter"):
        every = settings(chooser, collective, 256 * KIB)
        assert every[0].ways == LENDS
        assert {CACHED, PAYLOADS} < {each.ways for each in every}
    first, *others = settings(chooser, "allreduce", 256 * KIB)
    assert first.ways == CACHED
    lent = [each for each in others if each.ways == LENDS]
    assert {each.algorithm.name for each in lent} == {each.algorithm.name for each in others}
    assert {each.segment for each in lent} == {0}
    named = settings(chooser, "allreduce", 256 * KIB, name="ring")
    assert [each.ways for each in named] == [CACHED, MEMCPY, PAYLOADS, LENDS]
    assert len({each.segment for each in named}) == 1
    assert select.setting("ring", 0, LENDS | PAYLOADS, 9) == (
        "ring, payloads past the cache, private arrays lent"
    )
    assert select.setting("ring", 0, MEMCPY, 9) == "ring, copied by memcpy"


def test_of_a_named_algorithm_only_the_ways_to_store_are_tried(chooser):
    every = settings(chooser, "allreduce", 1 << 20, name="ring")
    assert {each.algorithm.name for each in every} == {"ring"}
    assert len({each.segment for each in every}) == 1
    assert [each.ways for each in every] == [CACHED, MEMCPY, PAYLOADS]


@pytest.mark.parametrize("p", range(2, 9))
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan"])
def test_what_is_tried_gives_the_same_bits(chooser, collective, p):
    for nbytes in (64, 64 * KIB, 1 << 20):
        first, *others = settings(chooser, collective, nbytes, p)
        for each in others:
            assert order(each.algorithm, p) == order(first.algorithm, p)


def test_online_tries_other_orders():
    assert lessons.COMPARED >= 4
    tried = settings(Chooser(any_order=True), "allreduce", 64 * KIB, 4)
    assert len({order(each.algorithm, 4) for each in tried}) > 1


def test_between_hosts_only_algorithms_are_tried():
    every = settings(Chooser(meets=True, any_order=True), "allreduce", 1 << 20)
    assert len({each.algorithm.name for each in every}) == len(every) > 1
    assert {each.ways for each in every} == {RULES}


@pytest.fixture
def lesson(chooser):
    decision = select.decide("allreduce", None, p=2, nbytes=64 * KIB)
    return Lesson(chooser, ("allreduce", None, 17, 0, False, ANY), decision, False)


def test_finalists_are_the_fastest_and_the_choice(lesson):
    assert lesson.finalists([[9, 9], [1, 7], [2, 2], [1.4, 1.4], [1.2, 3]], 3) == [0, 1, 4]
    assert lesson.finalists([[1], [1.8], [1.7]], 4) == [0, 2]
    assert lesson.finalists([[], [1], []], 4) == [0, 1]
    assert lesson.finalists([[], []], 4) == [0, 1]


def test_the_lower_quartile_decides_and_the_choice_stays_unless_another_is_faster(lesson):
    assert lesson.fastest([[2, 2, 2, 2], [1, 9, 9, 1], [0, 3, 3, 3]]) == 1
    assert lesson.fastest([[1.0], [0.98]]) == 0
    assert lesson.fastest([[1.0], [0.96]]) == 1
    assert lesson.fastest([[], [5]]) == 1
    assert lesson.fastest([[], []]) == 0


def test_memory_for_copies_has_its_price_where_arrays_are_lent_so_far():
    chooser, costs = Chooser(reads=True), {}
    for collective in ("allreduce", "alltoall"):
        decision = select.decide(collective, None, p=2, nbytes=256 * KIB)
        lesson = Lesson(chooser, (collective, None, 19, 0, False, ANY), decision, False)
        costs[collective] = lesson.cost(1)
    assert costs["alltoall"] == costs["allreduce"] + lessons.COPYING
