"""Learning from a program's own calls: the fastest setting of a class of calls.

A *class* of calls is given by the collective, the number of bits of its size in bytes, the root,
and whether rank order must be kept. A *setting* is an algorithm, the size of its segments, and the
way to store blocks: payloads and results to the cache or past it, copied by the loops of the core
or by memcpy, and private arrays copied or lent. The best one depends on the processor, on the
distance of its cores, and on the place of the arrays, so no table knows it. Some of the first calls
of a class are therefore *trials* of settings. They are complete, correct calls, timed on all ranks.
The fastest setting stays.

The core counts the calls and times the trials (``_core/calls/course.pxi``); this module selects the
settings to try, and finds the fastest. Settings that need no other plan come first: other ways to
store, and other segments. Other algorithms follow as soon as making their plans takes a small part
of the time of the class. There are new trials when the arrays or the distance of the cores have
changed, when long arrays take another time than was learned, and a few without such a reason. There
are none while other processes take the cores.

All settings give the same bits. With ``COLLECTIVES_TUNE=online``, there are also trials of
algorithms that fold in another order than the choice, and trials between hosts.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from collectives import _core
from collectives.algorithms.registry import Algorithm
from collectives.choice import select
from collectives.choice.model import LENDS, MEMCPY, PAYLOADS, RESULTS
from collectives.choice.sections import Learned
from collectives.choice.select import Decision, Timing
from collectives.plans.order import exchanges, order
from collectives.reductions import MAX

# The collective, the algorithm that the caller named, the number of bits of the size, the root,
# whether rank order must be kept, and the mode of the bits of results.
Class = tuple[str, str | None, int, int, bool, str]

RULES = -1  # the way to store by the rules of the core, without learning
CACHED = 0

STORED = 4 << 10  # bytes from which on there are several ways to store payloads
READ = 4 << 10  # bytes of a block from which on it may be lent: READ_LEAST of the core,
READ_FIRST = 32 << 10  # and from which on it is lent at first, if blocks are only moved
LARGE = 8 << 20  # bytes of all ranks from which on there are several ways to store results
SEGMENTS = 0, 32 << 10, 128 << 10, 512 << 10  # bytes
WHOLE = 512 << 10  # bytes up to which algorithms of one round also publish arrays as a whole
OTHERS = 4  # algorithms beside the choice
LOOKED_AT = 9  # algorithms to take these from, since some of them have the same exchanges
COMPARING = 2e-4  # seconds to compare the times of settings
# Seconds to allocate memory for copies if arrays were lent before: 1.1 ms for the rings of 2 ranks
# (Xeon Sapphire Rapids, 2026-11-25).
COPYING = 1e-3
COMPARED = 8  # ranks up to which the orders of folds are compared, which takes long on more
GAIN = 0.97  # a setting replaces the choice if it takes at most this part of its time
NEAR = 1.75  # settings that take more than this times the least time have no second round


class Lesson:
    """The learning of one class of calls, on one rank.

    Attributes
    ----------
    meets : bool
        Whether the ranks must meet before trials, because they share no memory.
    past : Learned or None
        The entry of the profile, if an earlier program learned the choice.
    nbytes : int
        Bytes of the class's first call.
    """

    place: Class
    vector: bool
    past: Learned | None
    nbytes: int
    meets: Any

    def __init__(
        self,
        chooser: Any,  # a `Chooser`
        place: Class,
        decision: Decision,
        vector: bool,
        past: Learned | None = None,
    ) -> None:
        self._chooser = weakref.ref(chooser)
        self.place, self._decision, self.vector, self.past = place, decision, vector, past
        self.nbytes = decision.nbytes
        self.meets, self._any_order = chooser.meets, chooser.any_order
        self._has_ways = not (self.meets or chooser.by_rules or decision.nbytes < STORED)
        self._reads = self._has_ways and chooser.reads and decision.nbytes >= READ
        self._every: list[Decision] | None = None

    def __bool__(self) -> bool:
        """Return whether there may be settings to try."""
        return self._has_ways or not self._decision.is_given

    @cached_property
    def _own(self) -> list[Decision]:
        """The settings of the chosen algorithm, made late because few programs make trials."""
        decision, ways = self._decision, [RULES]
        if self.meets:
            return [decision]
        if self._has_ways:
            is_large = decision.nbytes * decision.p >= LARGE
            ways = [CACHED, MEMCPY, PAYLOADS] + [RESULTS, PAYLOADS | RESULTS] * is_large
        block = decision.nbytes // decision.algorithm.array_blocks(decision.p)
        if self._reads:  # the first way is that of calls before trials: configure.pxi
            contract = decision.algorithm.collective
            moves = not contract.reduces or contract.name == "reduce_scatter"
            ways = [LENDS, *ways] if moves and block >= READ_FIRST else [*ways, LENDS]
        found = [replace(decision, ways=each) for each in ways]
        chosen = decision.segment if decision.segment < block else 0
        for segment in SEGMENTS:
            if segment != chosen and 2 * segment <= block and not decision.is_given:
                found.append(replace(decision, ways=_likely(ways), segment=segment))
        if ways[-1] == LENDS and not decision.is_given:  # segments are for copies
            found[len(ways) - 1] = replace(decision, ways=LENDS, segment=0)
        return _ordered(found)

    def _others(self) -> list[Decision]:
        """Return settings of other algorithms, which need plans of their own."""
        first = self._own[0]
        if first.is_given:
            return []
        *_, root, ordered, _ = self.place
        others = select.alternatives(first, LOOKED_AT, ordered=ordered, vector=self.vector)
        way = _likely([each.ways for each in self._own])
        seen = [first.algorithm]
        found: list[Decision] = []
        for each in others:
            if len(seen) > OTHERS:
                break
            if any(_are_alike(each.algorithm, other, first.p, root) for other in seen):
                continue
            if not (self._any_order or gives_same_bits(first, each.algorithm, root)):
                continue
            seen.append(each.algorithm)
            found.append(replace(each, ways=way))
            rounds, *_ = each.algorithm.totals(each.p) or (inf,)
            if rounds <= 1 and 0 < each.segment < each.nbytes <= WHOLE:
                found.append(replace(each, ways=way, segment=0))
            if self._reads and way != LENDS:
                found.append(replace(each, ways=LENDS, segment=0))
        return found

    def _of(self, which: int) -> list[Decision]:
        if which == 2 and self._every is None:
            self._every = _ordered(self._own + self._others())
        return self._own if which == 1 or self._every is None else self._every

    def settings(self, which: int) -> list[_core.Choice]:
        """Return the settings to try: with 1 those that need no other plan, with 2 all. Local."""
        chooser = self._chooser()
        assert chooser is not None, "the communicator is in a call"
        return [chooser.planned(each, self.place[3], False) for each in self._of(which)]

    def cost(self, which: int) -> float:
        """Return the approximate seconds that trials add to calls: with 1 trials of the settings
        that need no other plan, with 2 of all. Local.
        """
        chooser = self._chooser()
        if chooser is None or (which == 1 and len(self._own) < 2):
            return inf
        is_made = which == 1 or self._every is not None or self._own[0].is_given
        readying = COPYING if self._own[0].ways == LENDS else 0.0
        return COMPARING + readying + (0.0 if is_made else OTHERS * chooser.planning)

    def finalists(self, times: Sequence[Sequence[float]], most: int) -> list[int]:
        """Return the numbers of the settings for a second round, which include the choice, given
        the seconds of their trials in the first. Local.
        """
        each = [_usual(seconds) for seconds in times]
        fast = sorted(range(1, len(each)), key=lambda k: each[k])
        return sorted([0, *(k for k in fast[: most - 1] if each[k] <= NEAR * min(each))])

    def fastest(self, times: Sequence[Sequence[float]]) -> int:
        """Return the number of the setting that stays, given the seconds of trials. Local."""
        each = [_usual(seconds) for seconds in times]
        best = min(range(len(each)), key=lambda k: each[k])
        return best if each[best] <= GAIN * each[0] else 0

    def usual(self, seconds: Sequence[float]) -> float:
        """Return the time of a call, given the seconds of trials. Local."""
        return _usual(seconds)

    def meet(
        self, times: Sequence[Sequence[float]] | None, timeout: float | None
    ) -> list[list[float]] | None:
        """Wait for the other ranks, or return the `times` of the slowest. Collective."""
        chooser = self._chooser()
        assert chooser is not None, "the communicator is in a call"
        comm = chooser.communicator()
        if times is None:
            comm.barrier(algorithm="dissemination", timeout=timeout)
            return None
        values = np.array(times)
        # With a name, this call starts no trials of its own between hosts.
        name = chooser.decide("allreduce", None, None, values.nbytes).algorithm.name
        comm.allreduce(values, out=values, op=MAX, algorithm=name, timeout=timeout)
        return [list(map(float, each)) for each in values]

    def learn(
        self, which: int, winner: int, times: Mapping[int, Sequence[float]], is_far: bool
    ) -> None:
        """Record the winner of the `settings`, the seconds of trials in the last round, and whether
        cores are far from each other. Local.
        """
        chooser = self._chooser()
        if chooser is None:
            return
        every = self._of(which)
        won, first = every[winner], every[0]
        took = {k: _usual(each) for k, each in times.items() if each}
        reason, measured = first.reason, None
        if winner in took and 0 in took:
            if winner:
                reason = f"learned here: {took[winner] / took[0]:.2f} of the time of {first.name()}"
            else:
                reason = f"{first.reason}; the settings tried here are not faster"
            measured = Timing(took[winner], won.nbytes, won.p, "learned here")
        trials = tuple(sorted((seconds, every[k].name()) for k, seconds in took.items()))
        learned = replace(won, reason=reason, measured=measured, trials=trials)
        chooser.learn(self.place, first, learned, is_far)


def _ordered(settings: Sequence[Decision]) -> list[Decision]:
    """Move settings that write results past the cache behind the others, except the first: they
    make the next calls of other settings slower.
    """
    first, *rest = settings
    return [first, *sorted(rest, key=lambda each: each.ways > 0 and each.ways & RESULTS)]


def _likely(ways: Sequence[int]) -> int:
    """Return the way to store with which other segments and algorithms are tried."""
    return RESULTS if RESULTS in ways and ways[0] != LENDS else ways[0]


def _usual(seconds: Sequence[float]) -> float:
    """Return the lower quartile of the seconds of trials, or infinity without trials. Disturbances,
    also by data that another setting has left in the caches, only make trials longer.
    """
    return sorted(seconds)[len(seconds) // 4] if seconds else inf


def _are_alike(one: Algorithm, other: Algorithm, p: int, root: int) -> bool:
    """Return whether two algorithms have the same exchanges on `p` ranks. Local."""
    return p <= COMPARED and exchanges(one, p, root) == exchanges(other, p, root)


def gives_same_bits(decision: Decision, other: Algorithm, root: int) -> bool:
    """Return whether an algorithm gives the same bits as the algorithm of a decision. Local."""
    first, p = decision.algorithm, decision.p
    if first.name == other.name or not first.collective.reduces:
        return True
    return p <= COMPARED and order(first, p, root) == order(other, p, root)
