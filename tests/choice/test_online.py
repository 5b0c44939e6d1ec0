"""Which calls are trials, by their numbers."""

import pytest

from collectives.choice import chooser


def course(others):
    """Return for each call of a class, until it settles, whose time it adds to, or None."""
    slots, due = [], chooser.FIRST
    call = 0
    while True:
        call += 1
        if call < due:
            slots.append(None)
            continue
        slot, due = chooser.turn(call, others)
        assert due > call or slot < 0
        if slot < 0:
            return slots
        slots.append(slot)


@pytest.mark.parametrize("others", [1, 2, 3, 4])
def test_never_more_than_a_twentieth_are_trials(others):
    slots = course(others)
    for calls in range(1, len(slots) + 1):
        assert sum(bool(slot) for slot in slots[:calls]) <= 0.05 * calls
    for slot in range(1, others + 1):
        assert slots.count(slot) == chooser.TIMES
    # The choice is timed beside each of them.
    assert slots.count(0) == chooser.TIMES * others
    assert all(slots[i - 1] == 0 for i, slot in enumerate(slots) if slot)
    assert len(slots) == chooser.PERIOD * chooser.TIMES * others
