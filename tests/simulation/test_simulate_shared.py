"""Simulated time in shared memory: programs whose times can be computed by hand, and properties."""

from __future__ import annotations

from itertools import pairwise

import pytest

from collectives import algorithms, check
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError
from collectives.plans.program import STEP_FIELDS, pack
from collectives.plans.schedule import compile
from collectives.simulate import Simulation, simulate
from collectives.simulation.host import SharedMemory

# Exact in binary, so that sums are exact, too, in whichever order.
CALL, STEP, ALPHA, SWITCH = 2.0, 0.25, 0.5, 4.0
READ, WRITE, FETCH, PUBLISH = (2.0**-k for k in (10, 9, 8, 7))
N = 1024  # bytes

EVERY = [(name, each) for name in COLLECTIVES for each in algorithms.names(name)]


def host(p: int, cores: int, **changed: object) -> SharedMemory:
    settings: dict[str, object] = {
        "call": CALL,
        "step": STEP,
        "alpha": ALPHA,
        "switch": SWITCH,
        "read": READ,
        "write": WRITE,
        "fetch": FETCH,
        "publish": PUBLISH,
    }
    return SharedMemory(p, cores, **{**settings, **changed})


def able(p: int) -> list[tuple[str, str]]:
    return [each for each in EVERY if algorithms.get(*each).refusal(p) is None]


def test_one_rank_copies() -> None:
    found = simulate("allreduce", "ring", N, host(1, 1))
    assert found.time == CALL + STEP + N * (READ + WRITE)
    assert found.transfers == []
    assert found.links == {}


def test_one_is_published_and_the_other_reads() -> None:
    root = CALL + STEP + N * (READ + PUBLISH)
    found = simulate("broadcast", "flat", N, host(2, 2))
    # The array is where it should be, on the root, and to find that is a step.
    assert found.finish.tolist() == [root + STEP, root + ALPHA + STEP + N * (FETCH + WRITE)]
    (read,) = found.transfers
    assert (read.source, read.target, read.nbytes) == (0, 1, N)
    assert (read.start, read.end) == (root + ALPHA, found.time)
    assert found.critical_path == [read]
    assert found.links == {(0, 1): N}
    assert found.sent.tolist() == [N, 0]


def test_short_payloads_come_with_the_flag() -> None:
    found = simulate("broadcast", "flat", 80, host(2, 2))
    assert found.time == CALL + 2 * STEP + ALPHA + 80 * (READ + WRITE)
    found = simulate("broadcast", "flat", 81, host(2, 2))
    assert found.time == CALL + 2 * STEP + ALPHA + 81 * (READ + WRITE + PUBLISH + FETCH)


def test_ranks_of_one_core_take_turns() -> None:
    found = simulate("broadcast", "flat", N, host(2, 1))
    root = CALL + STEP + N * (READ + PUBLISH) + STEP
    # A publication on the same core is seen at once.
    other = root + SWITCH + CALL + STEP + N * (FETCH + WRITE)
    assert found.finish.tolist() == [root, other]


def test_who_waits_gives_way_and_comes_again() -> None:
    found = simulate("broadcast", "flat", N, host(2, 1), root=1)
    # Rank 0 has nothing to read yet; when rank 1 is done, it is the turn of rank 0.
    root = CALL + SWITCH + CALL + STEP + N * (READ + PUBLISH) + STEP
    assert found.finish.tolist() == [root + SWITCH + STEP + N * (FETCH + WRITE), root]


def test_who_looks_in_vain_sees_it_in_its_next_turn() -> None:
    # Ranks 0 and 2 share a core and wait for rank 1, that of the other.
    found = simulate("broadcast", "flat", N, host(3, 2), root=1)
    published = CALL + STEP + N * (READ + PUBLISH)
    # Turns begin at 2 (rank 0 looks), 6 (rank 2 calls and looks), 12 (rank 0), 16, ...
    assert CALL < published + ALPHA < CALL + SWITCH + CALL + SWITCH
    start = CALL + SWITCH + CALL + SWITCH
    first = start + STEP + N * (FETCH + WRITE)
    assert found.finish.tolist()[0] == first
    assert found.finish.tolist()[2] == first + SWITCH + STEP + N * (FETCH + WRITE)


def test_all_fold_what_all_have_published() -> None:
    found = simulate("allreduce", "all_to_all", N, host(3, 3))
    publish = STEP + N * (READ + PUBLISH)
    fold = STEP + N * (READ + 2 * FETCH + WRITE)
    assert found.finish.tolist() == [CALL + publish + ALPHA + fold] * 3
    assert found.rounds.max() == found.time
    assert found.messages == 6


@pytest.mark.parametrize("window", [1, 4])
def test_segments_are_a_pipeline(window: int) -> None:
    found = simulate("broadcast", "chain", 4 * N, host(3, 3), segment=N, window=window)
    assert found.segments == 4
    give = STEP + N * (READ + PUBLISH)
    pass_on = STEP + N * (FETCH + WRITE + PUBLISH)
    take = STEP + N * (FETCH + WRITE)
    if window == 4:  # rank 1 has most to do, and is never without work from its first segment on
        assert pass_on > give > take
        assert found.time == CALL + give + ALPHA + 4 * pass_on + ALPHA + take
    else:  # the next segment waits until the last rank has finished the one before
        once = give + ALPHA + pass_on + ALPHA + take
        assert found.time == CALL + 4 * once + 3 * ALPHA


def test_lanes_have_room_for_all_publications_of_a_segment() -> None:
    # A ring on 2 ranks publishes 2 blocks of half the array each.
    assert simulate("allreduce", "ring", 8 * N, host(2, 2, lane=8 * N)).segments == 1
    assert simulate("allreduce", "ring", 8 * N, host(2, 2, lane=4 * N)).segments == 2


def test_memory_is_slower_when_all_are_at_work() -> None:
    rows = ((1.0, READ, 2 * READ),)
    alone = simulate("broadcast", "flat", N, host(2, 2, read=rows))
    assert alone.time == simulate("broadcast", "flat", N, host(2, 2)).time
    both = simulate("allreduce", "all_to_all", N, host(2, 2, read=rows))
    one = simulate("allreduce", "all_to_all", N, host(2, 2))
    assert both.time == one.time + 2 * N * READ


def test_rates_go_by_the_logarithm_of_the_bytes() -> None:
    machine = host(2, 2, read=((4, 1.0, 2.0), (64, 3.0, 6.0)))
    assert [machine.read(n) for n in (1, 4, 16, 64, 1e9)] == [
        (1.0, 2.0),
        (1.0, 2.0),
        (2.0, 4.0),
        (3.0, 6.0),
        (3.0, 6.0),
    ]


def test_what_was_gone_over_is_in_the_cache() -> None:
    # The array is slow, and a second read of a part of it is not.
    rows = ((4 * N, 0.0, 0.0), (64 * N, READ, READ))
    free = {"write": 0.0, "fetch": 0.0, "publish": 0.0, "read": rows}
    found = simulate("allreduce", "all_to_all", 64 * N, host(2, 2, **free), segment=N)
    # While a flag is on its way, the next segment is published.
    assert found.time == CALL + 64 * (2 * STEP + N * READ)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("segment", [0, 100])
def test_every_algorithm_runs(p: int, segment: int) -> None:
    for collective, name in able(p):
        for cores in {1, max(1, p // 2), p}:
            found = simulate(collective, name, 5000, host(p, cores), segment=segment)
            assert isinstance(found, Simulation)
            work = 0.0
            for r in range(p):
                plan = compile(algorithms.get(collective, name), p, r)
                whole = found.segments == 1
                program = pack(plan, whole=whole, local=range(p) if p > 1 else ())
                steps = len(program.steps) // STEP_FIELDS * found.segments
                assert found.finish[r] >= CALL + steps * STEP
                work += CALL + steps * STEP
            assert found.time >= work / cores
            assert sum(found.links.values()) == pytest.approx(found.sent.sum())
            assert all(b.start >= a.end for a, b in pairwise(found.critical_path))


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_only_flags_take_time(p: int) -> None:
    """With nothing but alpha, it is as many of them as rounds depend on each other, or fewer."""
    nothing = dict.fromkeys(("call", "step", "switch", "read", "write", "fetch", "publish"), 0.0)
    for collective, name in able(p):
        found = simulate(collective, name, 5000, host(p, p, **nothing))
        depth = check.check(collective, name, p=p).depth
        assert ALPHA <= found.time <= depth * ALPHA
        if name in ("ring", "chain", "dissemination"):
            assert found.time == depth * ALPHA, (collective, name)


@pytest.mark.parametrize("p", [2, 3, 8])
def test_times_are_in_proportion(p: int) -> None:
    double = {
        name: 2 * value
        for name, value in {
            "call": CALL,
            "step": STEP,
            "alpha": ALPHA,
            "switch": SWITCH,
            "read": READ,
            "write": WRITE,
            "fetch": FETCH,
            "publish": PUBLISH,
        }.items()
    }
    for collective, name in able(p):
        for cores in {2, p}:
            once = simulate(collective, name, 5000, host(p, cores), segment=512)
            twice = simulate(collective, name, 5000, host(p, cores, **double), segment=512)
            assert twice.finish == pytest.approx(2 * once.finish, rel=1e-12)


def test_more_cores_than_ranks_are_idle() -> None:
    for collective, name in able(4):
        few, many = (simulate(collective, name, 5000, host(4, cores)) for cores in (4, 9))
        assert few.finish.tolist() == many.finish.tolist()


def test_nothing_is_recorded_unless_wanted() -> None:
    found = simulate("allreduce", "ring", N, host(2, 2), record=False)
    assert found.transfers == [] == found.critical_path
    assert found.messages > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cores": 0}, "cores is 0, and must be a positive integer"),
        ({"lane": 1.5}, "lane is 1.5"),
        ({"step": -1.0}, "step is -1.0, and must be seconds"),
        ({"call": -1.0}, "call is -1.0"),
        ({"read": ()}, r"read is \(\), and must be seconds per byte, or rows"),
        ({"fetch": ((2, 1, 1), (2, 1, 1))}, "rising bytes"),
        ({"publish": ((2, 1),)}, "publish is"),
    ],
)
def test_what_is_no_host_is_refused(changed: dict[str, object], message: str) -> None:
    settings = {"cores": 2, **changed}
    with pytest.raises(ArgumentError, match=message):
        host(2, **settings)


def test_it_says_what_it_is() -> None:
    assert repr(host(3, 2)) == "SharedMemory(3 ranks on 2 cores)"
    assert "3 ranks" in str(simulate("allreduce", "ring", N, host(3, 2)))
