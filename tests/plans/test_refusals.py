"""The texts with which the proof refuses; a plan and the simulation say the same."""

from functools import partial

import broken
import pytest

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.algorithms.registry import compositions
from collectives.algorithms.schedule import exceeds
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.errors import ArgumentError, ProofError
from collectives.plans.schedule import compile
from collectives.simulate import simulate
from collectives.topology import Flat

# By collective, ranks and blocks.
REFUSED = {
    ("allreduce", 3, 1): {
        broken.everybody_receives_first: "deadlock: rank 0 in round 1 waits for rank 1 to send; "
        "rank 1 in round 1 waits for rank 2 to send; rank 2 in round 1 waits for rank 0 to send",
    },
    ("broadcast", 3, 1): {
        broken.nobody_listens: "deadlock: rank 0 in round 1 waits for rank 2 to receive, but "
        "rank 2 has ended",
    },
    ("broadcast", 2, 1): {
        broken.nobody_speaks: "rank 1 ends without block 0",
        broken.receives_twice_into_one_block: "rank 1, round 1: receives twice into out[0]",
        broken.sends_what_it_has_not: "rank 1, round 1: sends block 0, which it does not hold",
        broken.folds_into_what_it_has_not: "rank 1, round 1: folds into block 0, which it does "
        "not hold",
    },
    ("allreduce", 2, 1): {
        broken.swaps_where_it_should_fold: "rank 0 ends with block 0 of rank 1, wanted ranks 0-1",
        broken.counts_everybody_twice: "rank 0, round 2: folds the contribution of ranks 0-1 twice",
        broken.speaks_to_itself: "rank 0, round 1: sends to itself",
        broken.speaks_to_nobody: "rank 0, round 1: sends to rank 2, and ranks are 0..1",
        broken.sends_no_pair: "rank 0, round 1: sends [1, 2, 3], which is not a pair (peer, block)",
        broken.yields_a_tuple: "rank 0, round 1: yields (1, 0), which is not an Exchange",
    },
    ("allreduce", 2, 2): {
        broken.folds_one_block_into_another: "rank 1, round 1: expects block 0 from rank 0, which "
        "sends block 1",
        broken.sends_a_block_too_many: "rank 0, round 1: sends block 2, and blocks are 0..1; "
        "set their number with blocks= of @algorithm",
        broken.receives_no_block: "rank 0, round 1: receives block range(2, 2), and blocks are "
        "0..1; set their number with blocks= of @algorithm",
        broken.receives_a_block_twice: "rank 0, round 1: receives a block twice in [0, 1, 0]",
    },
    ("broadcast", 2, 2): {
        broken.moves_a_block_elsewhere: "rank 1, round 1: expects block 0 from rank 0, which "
        "sends block 1",
        broken.sends_more_than_expected: "rank 1, round 1: expects block 0 from rank 0, which "
        "sends blocks 0-1",
    },
    ("allreduce", 4, 1): {
        broken.hears_of_its_neighbour_only: "rank 0 ends with block 0 of ranks 0, 3, wanted ranks "
        "0-3",
        broken.meets_the_opposite_first: "ranks end with different expressions",
    },
    ("reduce", 3, 1): {
        broken.keeps_what_it_receives_twice: "rank 0, round 1: has both=True, which needs "
        "scratch=True of @algorithm",
    },
    ("reduce", 2, 2): {
        broken.folds_blocks_in_another_order: "rank 0, round 1: expects blocks 1, 0 from rank 1, "
        "which sends blocks 0-1",
    },
    ("allgather", 3, 1): {
        broken.gives_the_blocks_of_others: "rank 0, round 1: sends block 1, which it does not hold",
        broken.speaks_to_the_right_only: "rank 0 ends without block 1",
    },
    ("allgather", 3, 2): {
        broken.speaks_to_the_right_only: "rank 1, round 1: sends block 1, which it does not hold",
    },
    ("reduce_scatter", 2, 1): {
        broken.says_nothing: "rank 0 ends with block 0 of rank 0, wanted ranks 0-1",
    },
    ("reduce_scatter", 3, 1): {
        broken.folds_the_block_of_its_neighbour: "rank 0 ends with block 0 of rank 0, wanted "
        "ranks 0-2",
    },
    ("alltoall", 2, 1): {
        broken.says_nothing: "rank 0 ends without block 2",
    },
    ("alltoall", 3, 1): {
        broken.sends_all_to_the_right: "rank 0 ends without block 3",
        broken.sends_what_others_send: "rank 0, round 1: sends block 7, which it does not hold",
    },
    ("gather", 3, 1): {
        broken.forgets_the_last: "rank 0 ends without block 2",
    },
    ("scatter", 3, 1): {
        broken.keeps_the_last: "rank 2 ends without block 2",
    },
    ("scan", 2, 1): {
        broken.hears_of_those_after_it: "rank 0 ends with block 0 of ranks 0-1, wanted rank 0",
        broken.says_nothing: "rank 1 ends with block 0 of rank 1, wanted ranks 0-1",
    },
    ("exscan", 2, 1): {
        broken.counts_itself: "rank 1 ends with block 0 of ranks 0-1, wanted rank 0",
    },
}


@pytest.mark.parametrize(
    ("generate", "case", "text"),
    [(generate, case, text) for case in REFUSED for generate, text in REFUSED[case].items()],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refusals_name_what_is_wrong(generate, case, text):
    collective, p, blocks = case
    with pytest.raises(ProofError) as caught:
        check(broken.row(collective, generate, blocks), p=p)
    root = ", root 0" if COLLECTIVES[collective].rooted else ""
    assert str(caught.value) == f"{collective} 'bad' on {p} ranks{root}: {text}"


def test_a_fold_out_of_order_is_refused_where_order_is_promised():
    algorithm = broken.row("reduce", broken.sums_round_the_ring, keeps_order=True)
    text = "reduce 'bad' on 3 ranks, root 1: rank 1 folds block 0 out of rank order"
    with pytest.raises(ProofError, match=f"^{text}$"):
        check(algorithm, p=3, root=1)


def refused_by_all(algorithm, text):
    """Check that the proof, a plan and the simulation report the same fault."""
    for run in (
        lambda: check(algorithm, p=3),
        lambda: compile(algorithm, 3, 0),
        lambda: simulate("allreduce", algorithm, 8, Flat(3)),
    ):
        with pytest.raises(ProofError) as caught:
            run()
        assert str(caught.value) == text


def never_ends(r, p):
    while True:
        yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0))


@pytest.mark.parametrize(("blocks", "most"), [(1, 3000), (7, 7000)])
def test_a_generator_without_an_end_is_refused(blocks, most):
    text = f"allreduce 'bad' on 3 ranks: rank 0 has more than {most} rounds; does it end?"
    refused_by_all(broken.row("allreduce", never_ends, blocks), text)


def sends_to_the_last_of_all(r, p):
    yield Exchange(send=(r + 1, 0), recv=(r - 1, 0), fold=True)


def keeps_to_itself(r, p):
    yield Exchange(send=(r, 0), recv=(r, 0), fold=True)


def yields_a_pair(r, p):
    yield (r + 1) % p, 0


def names_no_block(r, p):
    yield Exchange(send="next", recv=((r - 1) % p, 0))


def yields_nothing(r, p):
    return None


def returns_a_round(r, p):
    return Exchange(send=((r + 1) % p, 0))


def returns_its_last_round(r, p):
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0))
    return 7


def divides_in_its_second_round(r, p):
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=True)
    yield Exchange(send=((r + 1) % p, r // 0), recv=((r - 1) % p, 0))


def takes_one_argument(r):
    return iter(())


def divides_by(number, r, p):
    yield Exchange(send=(1, r // number))


def divides_the_peer(r, p):
    yield Exchange(send=(1 / 1, r), recv=((r + 1) % p, 0))


def divides_the_block(r, p):
    yield Exchange(send=[(1, r / 1)])


def sends_none(r, p):
    yield Exchange(send=None, recv=((r + 1) % p, 0))


@pytest.mark.parametrize(
    ("generate", "text"),
    [
        (sends_to_the_last_of_all, "rank 0, round 1: receives from rank -1, and ranks are 0..2"),
        (keeps_to_itself, "rank 0, round 1: sends to itself"),
        (yields_a_pair, "rank 0, round 1: yields (1, 0), which is not an Exchange"),
        (names_no_block, "rank 0, round 1: sends 'next', which is not a pair (peer, block)"),
        (yields_nothing, "rank 0 returns None, and must yield its rounds"),
        (
            returns_a_round,
            "rank 0 returns Exchange(send=(1, 0), recv=(), fold=False, both=False), "
            "and must yield its rounds",
        ),
        (returns_its_last_round, "rank 0 returns 7 after its rounds; write yield, not return"),
        (
            divides_in_its_second_round,
            "rank 0, round 2: raises ZeroDivisionError: integer division or modulo by zero "
            f"(test_refusals.py, line {divides_in_its_second_round.__code__.co_firstlineno + 2})",
        ),
        (
            takes_one_argument,
            "rank 0, round 1: raises TypeError: takes_one_argument() takes 1 positional argument "
            "but 2 were given "
            f"(test_refusals.py, line {takes_one_argument.__code__.co_firstlineno})",
        ),
        (
            partial(divides_by, 0),
            "rank 0, round 1: raises ZeroDivisionError: integer division or modulo by zero "
            f"(test_refusals.py, line {divides_by.__code__.co_firstlineno + 1})",
        ),
        (
            divides_the_peer,
            "rank 0, round 1: sends (1.0, 0), which is not a pair (peer, block) of integers; "
            "divide by // instead of /",
        ),
        (
            divides_the_block,
            "rank 0, round 1: sends (1, 0.0), which is not a pair (peer, block) of integers; "
            "divide by // instead of /",
        ),
        (
            sends_none,
            "rank 0, round 1: sends None, which is not a pair (peer, block); for no message, "
            "leave it out",
        ),
    ],
)
def test_what_is_no_round_is_refused(generate, text):
    algorithm = broken.row("allreduce", generate)
    refused_by_all(algorithm, f"allreduce 'bad' on 3 ranks: {text}")
    assert not exceeds(algorithm, 3, 0, 5)  # a run of it reports the fault


def crosses(r, p):
    for bit in range(p.bit_length() - 1):
        yield Exchange(send=(r ^ 1 << bit, 0), recv=(r ^ 1 << bit, 0), fold=True)


@pytest.mark.parametrize("p", [3, 6])
def test_an_algorithm_for_powers_of_two_is_told_how_to_say_so(p):
    text = r"It is right on 2 and 4 ranks: .* register it with requires=\('power_of_two',\)$"
    with pytest.raises(ProofError, match=text):
        check(broken.row("allreduce", crosses), p=p)


def divides(p):
    return p // (p - 3)


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (0, " has 0 blocks, and needs one at least"),
        (
            "1",
            ": the number of blocks: TypeError: 'str' object cannot be interpreted as an integer",
        ),
        (
            divides,
            ": the number of blocks: ZeroDivisionError: integer division or modulo by zero "
            f"(test_refusals.py, line {divides.__code__.co_firstlineno + 1})",
        ),
    ],
)
def test_what_is_no_number_of_blocks_is_refused(blocks, text):
    algorithms.algorithm("allreduce", name="bad", blocks=blocks)(keeps_to_itself)
    algorithm = algorithms.get("allreduce", "bad")
    algorithms.unregister("allreduce", "bad")
    refused_by_all(algorithm, f"allreduce 'bad' on 3 ranks{text}")


def test_a_long_deadlock_names_eight_ranks():
    with pytest.raises(ProofError) as caught:
        check(broken.row("allreduce", broken.everybody_receives_first), p=30)
    assert str(caught.value).count("waits for") == 8


def test_scratch_blocks_are_refused_where_they_cannot_be():
    @algorithms.algorithm("reduce", name="twice", scratch=True)
    def twice(r, p, root):
        yield from broken.keeps_what_it_receives_twice(r, p, root)

    try:
        with pytest.raises(ProofError, match="rank 0, round 1: receives a block twice, which a"):
            check("reduce", "twice", p=3)
        with pytest.raises(ArgumentError, match="reduce 'twice' has scratch blocks, and cannot be"):
            algorithms.get("reduce", "hierarchical(flat,twice)")
        assert not [each for each in compositions("reduce") if "twice" in each]
    finally:
        algorithms.unregister("reduce", "twice")
