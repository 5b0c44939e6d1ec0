"""What the proof refuses, and in which words; what the registry refuses."""

import dataclasses

import pytest

from collectives import algorithms
from collectives.algorithms import Algorithm, Exchange
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check, hazards
from collectives.errors import ArgumentError, ProofError
from collectives.plans.schedule import (
    IN,
    MERGED_MESSAGES,
    OUT,
    TMP,
    WORK,
    Message,
    Round,
    Run,
    Step,
    compile,
)
from collectives.simulate import simulate
from collectives.simulation.traffic import exceeds
from collectives.topology import Flat


def row(collective, generate, blocks=1, **promises):
    """Return an algorithm called "bad" that is not in the registry."""
    fields = {"requires": (), "same_bits": True, "keeps_order": False, **promises}
    return Algorithm(
        collective=COLLECTIVES[collective],
        name="bad",
        generate=generate,
        blocks=lambda p: blocks * COLLECTIVES[collective].parts(p),
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


def swaps_where_it_should_fold(r, p):
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


def receives_no_block(r, p):
    yield Exchange(recv=((r + 1) % p, range(2, 2)))


def receives_a_block_twice(r, p):
    yield Exchange(recv=((r + 1) % p, [0, 1, 0]))


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


def folds_blocks_in_another_order(r, p, root):
    if r == root:
        yield Exchange(recv=(1, [1, 0]), fold=True)
    else:
        yield Exchange(send=(0, [0, 1]))


def says_nothing(r, p):
    return iter(())


def gives_the_blocks_of_others(r, p):
    yield Exchange(send=((r + 1) % p, (r + 1) % p), recv=((r - 1) % p, r))


def speaks_to_the_right_only(r, p):
    yield Exchange(send=((r + 1) % p, r), recv=((r - 1) % p, (r - 1) % p))


def folds_the_block_of_its_neighbour(r, p):
    yield Exchange(send=((r + 1) % p, r), recv=((r - 1) % p, (r - 1) % p), fold=True)


def sends_all_to_the_right(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    yield Exchange(send=(right, r * p + right), recv=(left, left * p + r))


def sends_what_others_send(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    yield Exchange(send=(right, left * p + right), recv=(left, (left - 1) % p * p + r))


def forgets_the_last(r, p, root):
    if r == root:
        yield Exchange(recv=[(q, q) for q in range(1, p - 1)])
    elif r < p - 1:
        yield Exchange(send=(root, r))


def keeps_the_last(r, p, root):
    if r == root:
        yield Exchange(send=[(q, q) for q in range(1, p - 1)])
    elif r < p - 1:
        yield Exchange(recv=(root, r))


def hears_of_those_after_it(r, p):
    yield Exchange(send=(1 - r, 0), recv=(1 - r, 0), fold=True)


def counts_itself(r, p):
    if r + 1 < p:
        yield Exchange(send=(r + 1, 0))
    if r:
        yield Exchange(recv=(r - 1, 0), fold=True)


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
        ("allreduce", swaps_where_it_should_fold),
        2,
        "allreduce 'bad' on 2 ranks: rank 0 ends with block 0 of rank 1, wanted ranks 0-1",
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
        "allreduce 'bad' on 2 ranks: rank 1, round 1: "
        "expects block 0 from rank 0, which sends block 1",
    ),
    (
        ("broadcast", moves_a_block_elsewhere, 2),
        2,
        "broadcast 'bad' on 2 ranks, root 0: rank 1, round 1: "
        "expects block 0 from rank 0, which sends block 1",
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
        ("allreduce", receives_no_block, 2),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: "
        "receives block range(2, 2), and blocks are 0..1",
    ),
    (
        ("allreduce", receives_a_block_twice, 2),
        2,
        "allreduce 'bad' on 2 ranks: rank 0, round 1: receives a block twice in [0, 1, 0]",
    ),
    (
        ("reduce", folds_blocks_in_another_order, 2),
        2,
        "reduce 'bad' on 2 ranks, root 0: rank 0, round 1: "
        "expects blocks 1, 0 from rank 1, which sends blocks 0-1",
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
        "expects block 0 from rank 0, which sends blocks 0-1",
    ),
    (
        ("reduce", folds_into_overlapping_runs, 2),
        3,
        "reduce 'bad' on 3 ranks, root 0: rank 0, round 1: "
        "folds into runs of blocks that overlap but are not equal",
    ),
    (
        ("allgather", gives_the_blocks_of_others),
        3,
        "allgather 'bad' on 3 ranks: rank 0, round 1: sends block 1, which it does not hold",
    ),
    (
        ("allgather", speaks_to_the_right_only, 2),
        3,
        "allgather 'bad' on 3 ranks: rank 1, round 1: sends block 1, which it does not hold",
    ),
    (
        ("allgather", speaks_to_the_right_only),
        3,
        "allgather 'bad' on 3 ranks: rank 0 ends without block 1",
    ),
    (
        ("reduce_scatter", says_nothing),
        2,
        "reduce_scatter 'bad' on 2 ranks: rank 0 ends with block 0 of rank 0, wanted ranks 0-1",
    ),
    (
        ("reduce_scatter", folds_the_block_of_its_neighbour),
        3,
        "reduce_scatter 'bad' on 3 ranks: rank 0 ends with block 0 of rank 0, wanted ranks 0-2",
    ),
    (
        ("alltoall", says_nothing),
        2,
        "alltoall 'bad' on 2 ranks: rank 0 ends without block 2",
    ),
    (
        ("alltoall", sends_all_to_the_right),
        3,
        "alltoall 'bad' on 3 ranks: rank 0 ends without block 3",
    ),
    (
        ("alltoall", sends_what_others_send),
        3,
        "alltoall 'bad' on 3 ranks: rank 0, round 1: sends block 7, which it does not hold",
    ),
    (
        ("gather", forgets_the_last),
        3,
        "gather 'bad' on 3 ranks, root 0: rank 0 ends without block 2",
    ),
    (
        ("scatter", keeps_the_last),
        3,
        "scatter 'bad' on 3 ranks, root 0: rank 2 ends without block 2",
    ),
    (
        ("scan", hears_of_those_after_it),
        2,
        "scan 'bad' on 2 ranks: rank 0 ends with block 0 of ranks 0-1, wanted rank 0",
    ),
    (
        ("scan", says_nothing),
        2,
        "scan 'bad' on 2 ranks: rank 1 ends with block 0 of rank 1, wanted ranks 0-1",
    ),
    (
        ("exscan", counts_itself),
        2,
        "exscan 'bad' on 2 ranks: rank 1 ends with block 0 of ranks 0-1, wanted rank 0",
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


def never_ends(r, p):
    while True:
        yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0))


@pytest.mark.parametrize(("blocks", "most"), [(1, 3000), (7, 7000)])
def test_a_generator_without_an_end_is_refused(blocks, most):
    text = f"allreduce 'bad' on 3 ranks: rank 0 has more than {most} rounds; does it end?"
    refused_by_all(row("allreduce", never_ends, blocks), text)


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


def divides_in_its_second_round(r, p):
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=True)
    yield Exchange(send=((r + 1) % p, r // 0), recv=((r - 1) % p, 0))


@pytest.mark.parametrize(
    ("generate", "text"),
    [
        (sends_to_the_last_of_all, "rank 0, round 1: receives from rank -1, and ranks are 0..2"),
        (keeps_to_itself, "rank 0, round 1: sends to itself"),
        (yields_a_pair, "rank 0, round 1: yields (1, 0), which is not an Exchange"),
        (names_no_block, "rank 0, round 1: sends 'next', which is not a pair (peer, block)"),
        (yields_nothing, "rank 0 returns None, and must yield its rounds"),
        (
            divides_in_its_second_round,
            "rank 0, round 2: raises ZeroDivisionError: integer division or modulo by zero "
            f"(test_check.py, line {divides_in_its_second_round.__code__.co_firstlineno + 2})",
        ),
        (
            lambda r: (),
            "rank 0, round 1: raises TypeError: <lambda>() takes 1 positional argument but 2 were "
            "given",
        ),
    ],
)
def test_what_is_no_round_is_refused(generate, text):
    algorithm = row("allreduce", generate)
    refused_by_all(algorithm, f"allreduce 'bad' on 3 ranks: {text}")
    assert not exceeds(algorithm, 3, 0, 5)  # who runs it will say what is wrong


def refused_by_all(algorithm, text):
    """Hold that the proof, a plan and the simulation say the same of what is wrong."""
    for run in (
        lambda: check(algorithm, p=3),
        lambda: compile(algorithm, 3, 0),
        lambda: simulate("allreduce", algorithm, 8, Flat(3)),
    ):
        with pytest.raises(ProofError) as caught:
            run()
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


def test_what_is_stored_over_a_block_that_is_being_sent_lands_beside_it():
    """The sends read the old value; the new one comes to its place when they have completed."""
    algorithm = row("exscan", algorithms.get("exscan", "recursive").generate)
    plan = compile(algorithm, 3, 1)
    (beside,) = (m.run for m in plan.rounds[0].messages if not m.send)
    assert (beside.space, plan.parcels) == (WORK, (0,))
    (step,) = plan.rounds[0].steps
    assert step == Step(Run(OUT, 0, 1), beside, None, Run(OUT, 0, 1), (0,), after_sends=True)


def test_merged_rounds_have_a_limit():
    """A pairwise alltoall could post all at once; on many ranks that would be too many requests."""
    algorithm = algorithms.get("alltoall", "pairwise")
    assert [len(each.messages) for each in compile(algorithm, 8, 3).rounds] == [14]
    posted = [len(each.messages) for each in compile(algorithm, 100, 3).rounds]
    assert posted == [MERGED_MESSAGES] * 3 + [6]


def test_a_proof_without_a_record_counts_alike():
    for collective, name in (("allreduce", "ring"), ("alltoall", "bruck"), ("gather", "tree")):
        full, lean = (check(collective, name, p=6, record=record) for record in (True, False))
        assert full.events
        assert full.history[0]
        assert dataclasses.replace(full, events=[], history=[[]] * 6, links={}) == lean


def spoilt(change):
    """Return `compile` with a change made to what it returns for rank 0."""

    def compiled(*arguments, **options):
        plan = compile(*arguments, **options)
        if plan.rank:
            return plan
        rounds = [Round(list(each.messages), list(each.steps)) for each in plan.rounds]
        change(rounds)
        return dataclasses.replace(plan, rounds=tuple(rounds))

    return compiled


def change_step(rounds, **fields):
    at = next(each for each in rounds if each.steps)
    for name, value in fields.items():
        old = getattr(at.steps[0], name)
        at.steps[0] = at.steps[0]._replace(**{name: old._replace(**value)})


@pytest.mark.parametrize(
    ("collective", "name", "change", "text"),
    [
        (
            "reduce_scatter",
            "ring",
            lambda rounds: change_step(rounds, right={"space": IN, "first": 0}),
            "rank 0, round 1: folds block 0 into block 1",
        ),
        (
            "allgather",
            "ring",
            lambda rounds: change_step(rounds, dst={"first": 1}),
            "rank 0, round 2: reads or writes out[1] while it is being received",
        ),
        (
            "scan",
            "chain",
            lambda rounds: rounds[-1].steps.clear(),
            "rank 0 ends without block 0",
        ),
        (
            "reduce_scatter",
            "ring",
            lambda rounds: rounds[-1].steps.append(
                Step(Run(IN, 1, 1), Run(OUT, 0, 1), None, Run(IN, 1, 1))
            ),
            "rank 0 overwrites its input, block 1",
        ),
        (
            "scatter",
            "flat",
            lambda rounds: change_step(rounds, left={"first": 1}),
            "rank 0 ends with block 1 where block 0 belongs",
        ),
    ],
)
def test_plans_are_proven_not_generators(monkeypatch, collective, name, change, text):
    """What `compile` might do wrong is refused as well."""
    monkeypatch.setattr("collectives.plans.proof.compile", spoilt(change))
    with pytest.raises(ProofError) as caught:
        check(collective, name, p=3)
    assert str(caught.value).endswith(text)


A, B, C = Run(TMP, 0, 1), Run(OUT, 0, 2), Run(OUT, 1, 1)
OWN = Run(IN, 1, 1)
FROM, TO = Message(False, 1, A, C), Message(True, 1, C, C)


@pytest.mark.parametrize(
    ("messages", "steps", "text"),
    [
        ([FROM, TO], [Step(C, A, C, C, (0,), True)], None),
        (
            [FROM, TO],
            [Step(C, A, C, C, (0,), False)],
            "overwrites out[1] while it is being sent",
        ),
        (
            [FROM, Message(True, 1, OWN, OWN)],
            [Step(C, A, OWN, C, (0,), False)],
            "overwrites out[1] while it is being sent",
        ),
        ([FROM], [Step(C, A, C, C)], "reads or writes tmp[0] while it is being received"),
        (
            [Message(False, 1, B, B)],
            [Step(C, OWN, None, C)],
            "reads or writes out[0..1] while it is being received",
        ),
        # A copy to the output changes nothing where input and output are the same.
        ([Message(True, 1, OWN, OWN)], [Step(C, OWN, None, C)], None),
        ([Message(True, 1, C, C)], [Step(C, OWN, None, C)], "overwrites out[1]"),
        ([Message(False, 1, B, B), Message(False, 2, C, C)], [], "receives twice into out[0..1]"),
        ([Message(False, 1, C, C), Message(True, 2, B, B)], [], "receives into out[1] while"),
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
    with pytest.raises(
        ArgumentError, match="has no algorithm 'ring'; it has: direct, dissemination"
    ):
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


def test_an_algorithm_with_a_parameter():
    default, other = (algorithms.get("allreduce", name) for name in ("kary", "kary:08"))
    assert (default.name, default.parameters) == ("kary", {"k": 4})
    assert (other.name, other.parameters) == ("kary:8", {"k": 8})
    assert algorithms.get("allreduce", "kary:8") is other
    assert algorithms.get("broadcast", "kary:8").collective.name == "broadcast"
    assert default.totals(9) == (4.0, 5.0, 4.0)
    assert other.totals(9) == (2.0, 8.0, 8.0)
    assert check("allreduce", "kary:2", p=7).depth == 4


@pytest.mark.parametrize("text", ["", "1", "0", "-3", "2.5", "many", "4:4", " 4"])
def test_a_parameter_is_an_integer_from_2_on(text):
    with pytest.raises(ArgumentError) as caught:
        algorithms.get("allreduce", f"kary:{text}")
    assert str(caught.value) == (
        f"allreduce 'kary' takes an integer from 2 on as k, as in 'kary:4', not {text!r}"
    )


def test_who_takes_no_parameter_is_given_none():
    with pytest.raises(ArgumentError) as caught:
        algorithms.get("allreduce", "ring:2")
    assert str(caught.value) == "allreduce 'ring' takes no parameter, not '2'"
    with pytest.raises(ArgumentError, match="has no algorithm 'star'; it has: "):
        algorithms.get("allreduce", "star:2")


def test_a_changed_row_changes_its_variants():
    def broom(r, p, k):
        """Stand still."""
        return iter(())

    algorithms.algorithm("allreduce", parameters={"k": 3})(broom)
    old = algorithms.get("allreduce", "broom:5")
    algorithms.algorithm("allreduce", name="broom", parameters={"j": 3}, replace=True)(broom)
    assert algorithms.get("allreduce", "broom:5").parameters == {"j": 5} != old.parameters
    algorithms.unregister("allreduce", "broom")
    with pytest.raises(ArgumentError, match="no algorithm 'broom'"):
        algorithms.get("allreduce", "broom:5")


@pytest.mark.parametrize(
    "options", [{"name": "a:b"}, {"name": "ab", "parameters": {"k": 2, "j": 3}}]
)
def test_registration_refuses_names_and_parameters_that_cannot_be_written(options):
    with pytest.raises(ArgumentError) as caught:
        algorithms.algorithm("broadcast", **options)(nobody_speaks)
    assert str(caught.value) == ("an algorithm has one parameter at most, and no colon in its name")
    assert options["name"] not in algorithms.names("broadcast")


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
            f"(test_check.py, line {divides.__code__.co_firstlineno + 1})",
        ),
    ],
)
def test_what_is_no_number_of_blocks_is_refused(blocks, text):
    algorithms.algorithm("allreduce", name="bad", blocks=blocks)(keeps_to_itself)
    algorithm = algorithms.get("allreduce", "bad")
    algorithms.unregister("allreduce", "bad")
    refused_by_all(algorithm, f"allreduce 'bad' on 3 ranks{text}")
