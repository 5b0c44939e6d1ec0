"""``COLLECTIVES_TUNE=online``: try alternatives in a program's calls, and keep the fastest.

A *class* of calls is given by the collective, the number of bits of its size in bytes, the root,
and whether rank order must be kept. Every 20th blocking call of a class runs an alternative to the
choice, and the call before it is timed with the choice itself. A barrier precedes each of the two.
So at most 5 % of the calls are trials. After 5 trials of each alternative, the next call settles
the class: a small allreduce finds the median time of each on its slowest rank, and an alternative
that is faster by at least a tenth replaces the choice for the rest of the program. The number of a
call alone decides whether it is a trial, so the ranks agree without communication. A trial is a
complete, correct call. But two algorithms may fold in different orders, and then the last bits of
floating-point sums differ.

Planned calls and nonblocking calls use the settled choice and try nothing, because their time is
not the time of one collective alone. They are not counted. With trials, a program must therefore
not make the same call in the blocking form on one rank and in one of these forms on another, which
is otherwise allowed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from collectives._core import Choice
from collectives.choice.ranks import Ranks
from collectives.choice.select import Decision, Timing
from collectives.reductions import MAX
from collectives.text.words import count

# The collective, the number of bits of the size, the root, and whether rank order must be kept.
Class = tuple[str, int, int, bool]

PERIOD = 20  # one in so many calls is a trial: 5 %
FIRST = PERIOD - 1  # the first call that is timed
TIMES = 5  # trials of each alternative
ALTERNATIVES = 4  # those with the least time by the cost formulas
GAIN = 0.9  # an alternative replaces the choice if it takes at most this part of its time


def turn(call: int, others: int) -> tuple[int, int]:
    """Return which candidate a call times, and the number of the next call to ask about. Local."""
    last = PERIOD * TIMES * others
    if call > last:
        return -1, call
    if call % PERIOD:
        return 0, call + 1
    return 1 + (call // PERIOD - 1) % others, call + (1 if call == last else PERIOD - 1)


class Planner(Protocol):
    """The methods of a `Chooser` that trials use."""

    settled: dict[Class, Decision]

    def ranks(self) -> Ranks | None:
        """Return the communicator, if it is still there. Local."""

    def decide(self, collective: str, name: str | None, nbytes: int) -> Decision:
        """Return what `collective` runs for `name` and `nbytes`. Local."""

    def planned(self, decision: Decision, root: int, vector: bool) -> Choice:
        """Return the plan of a `decision` for `root`, in the `vector` form or not. Local."""


class Trials:
    """The trials of one class, on one rank."""

    def __init__(
        self, planner: Planner, place: Class, decisions: Sequence[Decision], vector: bool
    ) -> None:
        self._planner = weakref.ref(planner)
        self.place, self.decisions, self.vector = place, decisions, vector
        self.times: list[list[float]] = [[] for _ in decisions]

    def begin(self, call: int, timeout: float | None) -> tuple[int, Choice | None, int]:
        """Return what a call of the class runs, and settle the class if it is time. Collective."""
        planner = self._planner()
        ranks = None if planner is None else planner.ranks()
        if planner is None or ranks is None or ranks.mpi is None:
            return -1, None, call
        slot, due = turn(call, len(self.decisions) - 1)
        if slot < 0:
            return slot, self._settle(planner, ranks, timeout), due
        # Times can be compared only if all ranks begin together.
        ranks.barrier(algorithm="dissemination", timeout=timeout)
        return slot, self._choice(planner, slot) if slot else None, due

    def _choice(self, planner: Planner, slot: int) -> Choice:
        """Return the plan of the choice or of an alternative."""
        return planner.planned(self.decisions[slot], self.place[2], self.vector)

    def note(self, slot: int, seconds: float) -> None:
        """Record the `seconds` of the choice, `slot` 0, or of an alternative. Local."""
        self.times[slot].append(seconds)

    def _settle(self, planner: Planner, ranks: Ranks, timeout: float | None) -> Choice:
        """Agree on the fastest, and return its plan. Collective."""
        times = np.array([sorted(each)[len(each) // 2] for each in self.times])
        # With a name, this call belongs to no class that has trials.
        name = planner.decide("allreduce", None, times.nbytes).algorithm.name
        ranks.allreduce(times, out=times, op=MAX, algorithm=name, timeout=timeout)
        slot = int(times.argmin())
        if times[slot] > GAIN * times[0]:
            slot = 0
        planner.settled[self.place] = self._decision(slot, times.tolist())
        return self._choice(planner, slot)

    def _decision(self, slot: int, times: list[float]) -> Decision:
        """Return the settled choice, with its reason."""
        won, first = self.decisions[slot], self.decisions[0]
        alternatives = count(len(times) - 1, "alternative")
        if slot:
            text = (
                f"tried online: {times[slot] / times[0]:.2f} of the time of {first.algorithm.name}"
            )
        else:
            text = f"{won.reason}; tried online, it stays"
        text += f", among {alternatives}"
        timing = Timing(times[slot], won.nbytes, won.p, "tried online")
        return replace(won, reason=text, measured=timing)
