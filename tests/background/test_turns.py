"""The schedule: the next submission to run, the same on all ranks; without ranks."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from collectives.background.arrivals import Arrivals
from collectives.background.group import Group
from collectives.background.schedule import CHUNK, CHUNK_BETWEEN_HOSTS, Schedule


@dataclass
class Submission:
    """The fields of a task that a schedule reads."""

    name: str
    nbytes: int
    priority: int = 0
    fuses: object = "sum of float32"
    itemsize: int = 4
    position: int = 0
    number: int = 0
    codec: object = None
    steps: object = None
    takes_steps: bool = False

    def scheduled(self):
        pass


def taken(schedule):
    """Take everything out; return the names, and the elements of pieces."""
    batches = []
    while (batch := schedule.pick()) is not None:
        names = "+".join(each.name for each in batch.handles)
        batches.append((names, batch.first, batch.elements, batch.is_last))
    return batches


def whole(names):
    return names, 0, 0, True


def test_small_ones_run_as_one():
    """Up to the threshold, and only submissions of one kind."""
    schedule = Schedule(1000, 1)
    for k in range(5):
        schedule.add(Submission(str(k), 300))
        schedule.add(Submission(f"max {k}", 10, fuses="max of float32"))
    schedule.add(Submission("alone", 10, fuses=None))
    schedule.add(Submission("last", 10))
    assert taken(schedule) == [
        whole("0+1+2"),
        whole("max 0+max 1+max 2+max 3+max 4"),
        whole("3+4+last"),
        whole("alone"),
    ]


def test_nothing_fuses_with_a_threshold_of_nothing():
    schedule = Schedule(1, 1)
    for name in "abc":
        schedule.add(Submission(name, 8))
    assert taken(schedule) == [whole("a"), whole("b"), whole("c")]


def test_long_ones_go_alone_between_those_that_fuse():
    schedule = Schedule(4 << 20, 1)
    for name, nbytes in (("a", 100), ("long", 1 << 20), ("b", 100)):
        schedule.add(Submission(name, nbytes))
    assert taken(schedule) == [whole("a+b"), whole("long")]


def test_priorities_come_first_and_then_the_order():
    schedule = Schedule(1, 1)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5)):
        schedule.add(Submission(name, 8, priority))
    assert [names for names, *_ in taken(schedule)] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(("hosts", "chunk"), [(1, CHUNK), (2, CHUNK_BETWEEN_HOSTS)])
def test_pieces(hosts, chunk):
    """They cover a long array once, none is much shorter than a chunk, and others come between."""
    schedule = Schedule(1 << 20, hosts)
    total = 3 * chunk // 4 + 1000
    schedule.add(Submission("long", 4 * total))
    first = schedule.pick()
    schedule.add(Submission("urgent", 8, 1))
    assert (first.first, first.elements, first.is_last) == (0, chunk // 4, False)
    urgent, *rest = taken(schedule)
    assert urgent == whole("urgent")
    assert rest == [
        ("long", chunk // 4, chunk // 4, False),
        ("long", chunk // 2, chunk // 4 + 1000, True),
    ]
    assert len(schedule) == 0


def test_a_long_one_that_cannot_be_cut():
    schedule = Schedule(1 << 20, 1)
    schedule.add(Submission("alltoall", 10 * CHUNK, fuses=None))
    assert taken(schedule) == [whole("alltoall")]


def test_what_is_in_flight_is_waited_for_by_its_name():
    group = object.__new__(Group)
    group.rank, group.missing, group.negotiation = 0, {}, None
    group.submitted, group.arrivals = [], Arrivals(None)
    group.unfinished = [SimpleNamespace(key="x")]
    assert group.situation(2) == "rank 0 has waited 2 s for the others to finish 'x'"
    group.submitted = group.unfinished
    assert group.situation(2) == "rank 0 has waited 2 s for the others to submit 'x'"
