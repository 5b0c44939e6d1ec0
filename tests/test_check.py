"""What the proof refuses, and in which words; what the registry refuses."""

import pytest

from collectives import algorithms
from collectives.algorithms import Algorithm, Exchange
from collectives.check import check, hazards
from collectives.errors import ArgumentError, ProofError
from collectives.schedule import IN, OUT, TMP, Message, Round, Run, Step
from collectives.spec import COLLECTIVES


def row(collective, generate, blocks=1, **promises):
    """Return an algorithm called "bad" that is not in the registry."""
    fields = {"requires": (), "same_bits": True, "keeps_order": False, **promises}
    return Algorithm(
        collective=COLLECTIVES[collective],
        name="bad",
        generate=generate,
        blocks=lambda p: blocks,
        cost=None,
        source="",
        included=False,
        **fields,
    )


def everybody_receives_first(r, p):
    yield Exchange(recv=((r + 1) % p, 0), fold=True)
    yield Exchange(send=((r - 1) % p, 0))


def nobody_listens(r, p, root):
    if r == root:
        yield Exchange(send=[(q, 0) for q in range(p) if q != root])
    elif r == 1:
        yield Exchange(recv=(root, 0))


def nobody_speaks(r, p, root):
    return iter(())


def overwrites_what_it_sends(r, p):
    yield Exchange(send=(1 - r, 0), recv=(1 - r, 0))


def receives_twice_into_one_block(r, p, root):
    if r == root:
        yield Exchange(send=[(1, 0), (1, 0)])
    else:
        yield Exchange(recv=[(0, 0), (0, 0)])


def sends_what_it_has_not(r, p, root):
    if r == root:
        yield Exchange(recv=(1, 0))
    else:
        yield Exchange(send=(0, 0))


def folds_into_what_it_has_not(r, p, root):
    if r == root:
        yield Exchange(send=(1, 0))
    else:
        yield Exchange(recv=(0, 0), fold=True)


def counts_everybody_twice(r, p):
    for _ in range(2):
        yield Exchange(send=(1 - r, 0), recv=(1 - r, 0), fold=True)


def folds_one_block_into_another(r, p):
    yield Exchange(send=(1 - r, 1), recv=(1 - r, 0), fold=True)


def moves_a_block_elsewhere(r, p, root):
    if r == root:
        yield Exchange(send=[(1, 1), (1, 0)])
    else:
        yield Exchange(recv=[(0, 0), (0, 1)])


def hears_of_its_neighbour_only(r, p):
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=True)


def meets_the_opposite_first(r, p):
    for other in (p - 1 - r, r ^ 1):
        yield Exchange(send=(other, 0), recv=(other, 0), fold=True)


def sums_round_the_ring(r, p, root):
    v = (r - root) % p
    if v < p - 1:
        yield Exchange(recv=((r + 1) % p, 0), fold=True)
    if v:
        yield Exchange(send=((r - 1) % p, 0))


def speaks_to_itself(r, p):
    yield Exchange(send=(r, 0), recv=(r, 0), fold=True)


def speaks_to_nobody(r, p):
    yield Exchange(send=(p, 0))


def sends_a_block_too_many(r, p):
    yield Exchange(send=((r + 1) % p, 2))


def receives_every_other_block(r, p):
    yield Exchange(recv=((r + 1) % p, range(0, 2, 2)))


def sends_no_pair(r, p):
    yield Exchange(send=[1, 2, 3])


def yields_a_tuple(r, p):
    yield ((r + 1) % p, 0)


def sends_more_than_expected(r, p, root):
    if r == root:
        yield Exchange(send=(1, range(2)))
    else:
        yield Exchange(recv=(0, 0))


def folds_into_overlapping_runs(r, p, root):
    if r == root:
        yield Exchange(recv=[(1, range(2)), (2, 0)], fold=True)
    elif r == 1:
        yield Exchange(send=(0, range(2)))
    else:
        yield Exchange(send=(0, 0))


REFUSED = [
    (
        ("allreduce", everybody_receives_first),
        3,
        "allreduce 'bad' on 3 ranks: deadlock: rank 0 in round 1 waits for rank 1 to send; "
        "rank 1 in round 1 waits for rank 2 to send; rank 2 in round 1 waits for rank 0 to send",
    ),
    (
        ("broadcast", nobody_listens),
        3,
        "broadcast 'bad' on 3 ranks, root 0: deadlock: "
        "rank 0 in round 1 waits for rank 2 to take what it sends",
    ),
    (
        ("broadcast", nobody_speaks),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1 ends without block 0",
    ),
    (
        ("allreduce", overwrites_what_it_sends),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: receives into out[0] while it is being sent",
    ),
    (
        ("broadcast", receives_twice_into_one_block),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1, round 1: receives twice into out[0]",
    ),
    (
        ("broadcast", sends_what_it_has_not),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1, round 1: "
        "sends block 0, which it does not hold",
    ),
    (
        ("broadcast", folds_into_what_it_has_not),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1, round 1: "
        "folds into block 0, which it does not hold",
    ),
    (
        ("allreduce", counts_everybody_twice),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 2: folds the contribution of ranks 0-1 twice",
    ),
    (
        ("allreduce", folds_one_block_into_another, 2),
        2,
        "allreduce 'bad' on 2 ranks: rank 1, round 1: folds block 0 into block 1",
    ),
    (
        ("broadcast", moves_a_block_elsewhere, 2),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1 ends with block 1 where block 0 belongs",
    ),
    (
        ("allreduce", hears_of_its_neighbour_only),
        4,
        "allreduce 'bad' on 4 ranks: rank 0 ends with block 0 of ranks 0, 3, wanted ranks 0-3",
    ),
    (
        ("allreduce", meets_the_opposite_first),
        4,
        "allreduce 'bad' on 4 ranks: ranks end with different expressions",
    ),
    (
        ("reduce", sums_round_the_ring, 1, {"keeps_order": True}),
        3,
        "reduce 'bad' on 3 ranks, root 1: rank 1 folds block 0 out of rank order",
    ),
    (
        ("allreduce", speaks_to_itself),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: sends to itself",
    ),
    (
        ("allreduce", speaks_to_nobody),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: sends to rank 2, and ranks are 0..1",
    ),
    (
        ("allreduce", sends_a_block_too_many, 2),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: sends block 2, and blocks are 0..1",
    ),
    (
        ("allreduce", receives_every_other_block, 2),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: "
        "receives block range(0, 2, 2), and blocks are 0..1",
    ),
    (
        ("allreduce", sends_no_pair),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: sends [1, 2, 3], "
        "which is not a pair (peer, block)",
    ),
    (
        ("allreduce", yields_a_tuple),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: yields (1, 0), which is not an Exchange",
    ),
    (
        ("broadcast", sends_more_than_expected, 2),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1, round 1: "
        "expects 1 blocks from rank 0, which sends 2",
    ),
    (
        ("reduce", folds_into_overlapping_runs, 2),
        3,
        "reduce 'bad' on 3 ranks, root 0: rank 0, round 1: "
        "folds into runs of blocks that overlap but are not equal",
    ),
]


@pytest.mark.parametrize(
    ("made_of", "p", "text"), REFUSED, ids=[case[0][1].__name__ for case in REFUSED]
)
def test_refusals_name_what_is_wrong(made_of, p, text):
    collective, generate, *rest = made_of
    promises = rest.pop() if rest and isinstance(rest[-1], dict) else {}
    algorithm = row(collective, generate, *rest, **promises)
    root = 1 if "root 1" in text else 0
    with pytest.raises(ProofError) as caught:
        check(algorithm, p=p, root=root)
    assert str(caught.value) == text


def test_a_long_deadlock_names_eight_ranks():
    with pytest.raises(ProofError) as caught:
        check(row("allreduce", everybody_receives_first), p=30)
    assert str(caught.value).count("waits for") == 8


def test_promises_decide():
    """The same rounds pass where the registry does not promise what they break."""
    check(row("allreduce", meets_the_opposite_first, same_bits=False), p=4)
    check(row("reduce", sums_round_the_ring), p=3, root=1)
    check(row("reduce", sums_round_the_ring, keeps_order=True), p=3, root=0)


A, B, C = Run(TMP, 0, 1), Run(OUT, 0, 2), Run(OUT, 1, 1)
FROM, TO = Message(False, 1, A, 1), Message(True, 1, C, 1)


@pytest.mark.parametrize(
    ("messages", "steps", "text"),
    [
        ([FROM, TO], [Step(C, A, C, 1, (0,), True)], None),
        (
            [FROM, TO],
            [Step(C, A, C, 1, (0,), False)],
            "overwrites out[1] while it is being sent",
        ),
        (
            [FROM, Message(True, 1, Run(IN, 1, 1), 1)],
            [Step(C, A, Run(IN, 1, 1), 1, (0,), False)],
            "overwrites out[1] while it is being sent",
        ),
        ([FROM], [Step(C, A, C, 1)], "reads or writes tmp[0] while it is being received"),
        (
            [Message(False, 1, B, 0)],
            [Step(C, Run(IN, 1, 1), None, 1)],
            "reads or writes out[0..1] while it is being received",
        ),
        # A copy to the output changes nothing where input and output are the same.
        (
            [Message(True, 1, Run(IN, 1, 1), 1)],
            [Step(C, Run(IN, 1, 1), None, 1)],
            None,
        ),
        ([Message(True, 1, C, 1)], [Step(C, Run(IN, 1, 1), None, 1)], "overwrites out[1]"),
        ([Message(False, 1, B, 0), Message(False, 2, C, 1)], [], "receives twice into out[0..1]"),
        ([Message(False, 1, C, 1), Message(True, 2, B, 0)], [], "receives into out[1] while"),
    ],
)
def test_hazards(messages, steps, text):
    danger = hazards(Round(messages, steps))
    if text is None:
        assert danger is None
    else:
        assert danger is not None
        assert danger.startswith(text)


def test_arguments():
    with pytest.raises(ArgumentError, match=r"^root is 3, and must be in 0\.\.2$"):
        check("broadcast", "tree", p=3, root=3)
    with pytest.raises(ArgumentError, match="no collective 'gossip'; there are: allreduce, "):
        check("gossip", "tree", p=3)
    with pytest.raises(ArgumentError, match="has no algorithm 'ring'; it has: dissemination"):
        check("barrier", "ring", p=3)
    with pytest.raises(ArgumentError, match="has no algorithm ''; it has: "):
        check("barrier", p=3)


def test_requirements():
    algorithm = row("allreduce", meets_the_opposite_first, requires=("power_of_two",))
    wanted = "allreduce 'bad' needs a power of two as the number of ranks, and p is 3"
    assert algorithm.refusal(3) == wanted
    assert algorithm.refusal(4) is None
    with pytest.raises(ArgumentError) as caught:
        check(algorithm, p=3)
    assert str(caught.value) == wanted


@pytest.fixture
def sequential():
    @algorithms.algorithm("broadcast", blocks=2, source="nobody, 2001")
    def sequential(r, p, root):
        """The root sends to one rank after the other."""
        for q in range(p):
            if r == root and q != root:
                yield Exchange(send=(q, range(2)))
            elif r == q != root:
                yield Exchange(recv=(root, range(2)))

    yield sequential
    if "sequential" in algorithms.names("broadcast"):
        algorithms.unregister("broadcast", "sequential")


def test_an_algorithm_of_ones_own(sequential):
    algorithm = algorithms.get("broadcast", "sequential")
    assert algorithm.generate is sequential
    assert algorithm.summary == "The root sends to one rank after the other."
    assert (algorithm.blocks(7), algorithm.cost, algorithm.included) == (2, None, False)
    assert algorithms.names("broadcast")[-1] == "sequential"
    assert check("broadcast", "sequential", p=5, root=3).depth == 4
    algorithms.unregister("broadcast", "sequential")
    with pytest.raises(ArgumentError, match="no algorithm 'sequential'; it has: flat, "):
        algorithms.get("broadcast", "sequential")
    with pytest.raises(ArgumentError, match="has no algorithm 'sequential'"):
        algorithms.unregister("broadcast", "sequential")


def test_a_name_is_taken_once(sequential):
    with pytest.raises(ArgumentError) as caught:
        algorithms.algorithm("broadcast", name="sequential")(nobody_speaks)
    assert str(caught.value) == (
        "broadcast already has an algorithm 'sequential'; pass replace=True to take its place"
    )
    assert algorithms.get("broadcast", "sequential").generate is sequential
    algorithms.algorithm("broadcast", name="sequential", replace=True)(nobody_speaks)
    assert algorithms.get("broadcast", "sequential").generate is nobody_speaks


def test_registration_refuses_what_it_does_not_know():
    with pytest.raises(ArgumentError, match=r"unknown requirement 'prime'; known: .*power_of_two"):
        algorithms.algorithm("broadcast", requires=("prime",))
    with pytest.raises(ArgumentError, match="no collective 'gossip'; there are: allreduce, "):
        algorithms.algorithm("gossip")
    with pytest.raises(ArgumentError, match="there is no collective None"):
        algorithms.names(None)
    with pytest.raises(ArgumentError, match=r"has no algorithm \[\]"):
        algorithms.get("reduce", [])
