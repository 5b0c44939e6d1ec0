"""``COLLECTIVES_TUNE=online``: alternatives are tried in a program's calls, and the best stays.

A *class* of calls is a collective, the sizes with equally many bits, a root, and whether the order
of ranks must be kept. Of the blocking calls of a class, every 20th runs an alternative to what was
chosen, and the one before it is timed, too, each after a barrier; so 5 % of them at most are
trials. After 5 trials of each alternative the next call settles the class: one small allreduce
finds the median time of the slowest rank, and what gains a tenth takes the place of the choice, for
good. Which call is a trial follows from its number alone, so the ranks agree without a word. A
trial is a whole correct call; but where two algorithms fold in another order, the last bits of
floating-point sums differ.

Planned calls and i-forms run what has settled, and try nothing: their time is not that of one
collective alone. They are not counted either, so a program must not have one rank make a call in
the blocking form that another makes in one of these, as it may without trials.
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

__all__ = ["ALTERNATIVES", "Class", "Planner", "Trials", "turn"]

# A collective, the bits of a number of bytes, the root, and whether ranks' order must be kept.
Class = tuple[str, int, int, bool]


PERIOD = 20  # calls, of which the last is a trial: 5 %
FIRST = PERIOD - 1  # the first call that is timed
TIMES = 5  # trials of each alternative
ALTERNATIVES = 4  # of least time by the cost formulas
GAIN = 0.9  # of the time of what was chosen, at most, makes another take its place


def turn(call: int, others: int) -> tuple[int, int]:
    """Return whose time a call adds to, and the next call to ask about. Local.

    Parameters
    ----------
    call : int
        Its number in its class, from 1 on: FIRST, or the one that was returned before.
    others : int
        How many alternatives there are.

    Returns
    -------
    slot, due : int
        0 is the choice, 1 the first alternative; -1 if all trials are done.
    """
    last = PERIOD * TIMES * others
    if call > last:
        return -1, call
    if call % PERIOD:
        return 0, call + 1
    return 1 + (call // PERIOD - 1) % others, call + (1 if call == last else PERIOD - 1)


class Planner(Protocol):
    """What trials ask of a `Chooser`."""

    settled: dict[Class, Decision]

    def ranks(self) -> Ranks | None:
        """Return the communicator, if it is still there. Local."""

    def decide(self, collective: str, name: str | None, nbytes: int) -> Decision:
        """Return what `collective` runs for `name` and `nbytes`. Local."""

    def planned(self, decision: Decision, root: int, vector: bool) -> Choice:
        """Return the plan of a `decision` for `root`, in its form of a `vector` or not. Local."""


class Trials:
    """The trials of one class, on one rank.

    Parameters
    ----------
    planner : Planner
        It is not kept alive.
    place : Class
    decisions : sequence of Decision
        What is chosen without them, and its alternatives.
    vector : bool
        Whether the class was met in its vector form.
    """

    def __init__(
        self, planner: Planner, place: Class, decisions: Sequence[Decision], vector: bool
    ) -> None:
        self._planner = weakref.ref(planner)
        self.place, self.decisions, self.vector = place, decisions, vector
        self.times: list[list[float]] = [[] for _ in decisions]

    def begin(self, call: int, timeout: float | None) -> tuple[int, Choice | None, int]:
        """Say what a call of the class does. Collective.

        Parameters
        ----------
        call : int
            Its number, from 1 on.
        timeout : float or None
            Seconds to wait for the others, as for the call.

        Returns
        -------
        slot : int
            Whose time this call adds to: 0 is the choice; -1 if it is settled now.
        choice : Choice or None
            What runs; None for what was chosen.
        due : int
            The next call to ask about.
        """
        planner = self._planner()
        ranks = None if planner is None else planner.ranks()
        if planner is None or ranks is None or ranks.mpi is None:
            return -1, None, call
        slot, due = turn(call, len(self.decisions) - 1)
        if slot < 0:
            return slot, self._settle(planner, ranks, timeout), due
        # Times compare where all ranks begin together.
        ranks.barrier(algorithm="dissemination", timeout=timeout)
        return slot, self._choice(planner, slot) if slot else None, due

    def _choice(self, planner: Planner, slot: int) -> Choice:
        """Return the plan of the choice or of an alternative."""
        return planner.planned(self.decisions[slot], self.place[2], self.vector)

    def note(self, slot: int, seconds: float) -> None:
        """Put down the `seconds` of the choice, `slot` 0, or of an alternative. Local."""
        self.times[slot].append(seconds)

    def _settle(self, planner: Planner, ranks: Ranks, timeout: float | None) -> Choice:
        """Agree on the fastest, and return its plan. Collective."""
        times = np.array([sorted(each)[len(each) // 2] for each in self.times])
        # Asked for by name, it is of another class, and tries nothing itself.
        name = planner.decide("allreduce", None, times.nbytes).algorithm.name
        ranks.allreduce(times, out=times, op=MAX, algorithm=name, timeout=timeout)
        slot = int(times.argmin())
        if times[slot] > GAIN * times[0]:
            slot = 0
        planner.settled[self.place] = self._decision(slot, times.tolist())
        return self._choice(planner, slot)

    def _decision(self, slot: int, times: list[float]) -> Decision:
        """Return what was settled, with the reason."""
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
