"""The proof: what an algorithm promises decides, and plans are proven, not generators."""

import dataclasses

import broken
import pytest

from collectives.algorithms import Exchange, get
from collectives.check import check, hazards
from collectives.errors import ArgumentError, ProofError
from collectives.picture import picture
from collectives.plans.rounds import IN, OUT, TMP, Message, Round, Run, Step
from collectives.plans.schedule import compile


def test_promises_decide():
    """The same rounds pass where the registry does not promise what they break."""
    check(broken.row("allreduce", broken.meets_the_opposite_first, same_bits=False), p=4)
    check(broken.row("reduce", broken.sums_round_the_ring), p=3, root=1)
    check(broken.row("reduce", broken.sums_round_the_ring, keeps_order=True), p=3, root=0)


def sends_down_a_line(r, p):
    yield Exchange(send=(1, 0)) if r == 0 else Exchange(recv=(0, 0), fold=True)
    yield Exchange(recv=(1, 0)) if r == 0 else Exchange(send=(0, 0))


def test_a_cyclic_algorithm_is_one():
    line = broken.row("allreduce", sends_down_a_line)
    check(line, p=2)
    with pytest.raises(ProofError, match="not all ranks do as rank 0, as cyclic=True says"):
        check(dataclasses.replace(line, cyclic=True), p=2)
    with pytest.raises(ProofError, match="not all ranks do as rank 0, as alike= says"):
        check(dataclasses.replace(line, alike=lambda q, r, p: q ^ r), p=2)
    check(dataclasses.replace(get("allreduce", "ring"), included=False), p=4)
    check(dataclasses.replace(get("allreduce", "swing"), included=False), p=8)


def test_a_proof_without_a_record_counts_alike():
    for collective, name in (("allreduce", "ring"), ("alltoall", "bruck"), ("gather", "tree")):
        full, lean = (check(collective, name, p=6, record=record) for record in (True, False))
        assert full.events
        assert full.history[0]
        assert dataclasses.replace(full, events=[], history=[[]] * 6, links={}) == lean


def spoilt(change):
    """Return `compile` with a change of its result for rank 0."""

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
        (
            # With input and output in the same place, the second time finds the first result.
            "allreduce",
            "all_to_all",
            lambda rounds: rounds[0].steps.insert(0, rounds[0].steps[0]),
            "rank 0, round 1: folds the contribution of rank 1 twice",
        ),
    ],
)
def test_plans_are_proven_not_generators(monkeypatch, collective, name, change, text):
    """A wrong plan of `compile` is refused as well."""
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
    algorithm = broken.row("allreduce", broken.meets_the_opposite_first, requires=("power_of_two",))
    wanted = "allreduce 'bad' needs a power of two as the number of ranks, and p is 3"
    assert algorithm.refusal(3) == wanted
    assert algorithm.refusal(4) is None
    with pytest.raises(ArgumentError) as caught:
        check(algorithm, p=3)
    assert str(caught.value) == wanted


def test_a_proof_and_an_algorithm_are_short_at_a_prompt():
    assert repr(check("reduce", "chain", p=3, root=1)) == (
        "<Proof of reduce 'chain' on 3 ranks, root 1: 2 rounds; a rank sends up to 1 and folds up "
        "to 1 of the array>"
    )
    assert repr(get("allreduce", "kary:8")) == (
        f"<Algorithm allreduce/kary:8: {get('allreduce', 'kary').summary}>"
    )
    assert repr(broken.row("allreduce", broken.speaks_to_itself)) == (
        "<Algorithm allreduce/bad: not described>"
    )


def test_a_notebook_shows_a_proof():
    proof = check("allreduce", "ring", p=3)
    assert proof._repr_svg_() == picture(proof)
