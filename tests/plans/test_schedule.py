"""Plans: where a block lies while it is sent, and how many requests a round posts."""

import broken

from collectives import algorithms
from collectives.plans.rounds import MERGED_MESSAGES, OUT, WORK, Run, Step
from collectives.plans.schedule import compile


def test_what_is_stored_over_a_block_that_is_being_sent_lands_beside_it():
    """The sends read the old value; the new one comes to its place when they have completed."""
    algorithm = broken.row("exscan", algorithms.get("exscan", "recursive").generate)
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
