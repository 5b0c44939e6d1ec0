"""The table of messages: its text, and the columns that simulations read."""

import dataclasses

import pytest

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.algorithms.schedule import Schedule
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.simulation.columns import columns

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]


def test_text_has_the_lines_of_the_generator():
    schedule = check("reduce", "tree", p=5, root=2).schedule
    head, first, second = str(schedule).splitlines()
    assert head == "reduce 'tree' on 5 ranks, root 2"
    assert first.startswith("round 1  tree.py:")
    assert first.endswith("  fold   0 -[0]-> 4   1 -[0]-> 2 in round 3   3 -[0]-> 2")
    assert second.endswith("  fold   4 -[0]-> 2")


def test_message_that_nobody_takes_is_in_no_round():
    def speaks_twice(r, p):
        yield Exchange(send=(1 - r, 0))
        yield Exchange(send=(1 - r, 0), recv=(1 - r, 0), fold=True)

    row = dataclasses.replace(algorithms.get("allreduce", "butterfly"), generate=speaks_twice)
    found = [(each.sent_in, each.taken_in, each.fold) for each in Schedule(row, 2)]
    assert found == [(0, 1, 1), (1, -1, 0)] * 2


@pytest.mark.usual(2, 5)
@pytest.mark.parametrize("p", range(2, 12))
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_columns_have_the_rows(collective, name, p):
    """Arrays of all ranks, and the generators one by one, make the same table."""
    row = algorithms.get(collective, name)
    if row.refusal(p):
        return
    for root in {0, p - 1} if row.collective.rooted else {0}:
        table = columns(row, p, root)
        rows = Schedule(row, p, root)
        numbers = [
            table.first[r] + j * table.stride[r]
            for r, sent in enumerate(rows.sent)
            for j in range(len(sent))
        ]
        senders = table.senders()
        found = [
            (senders[k], table.target[k], table.due[k], table.size[k], table.fold[k])
            for k in numbers
        ]
        assert found == [
            (each.source, each.target, each.taken_in, len(each.blocks), each.fold) for each in rows
        ]
