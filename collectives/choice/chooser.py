"""The algorithm and plan of each class of a communicator's calls: chosen once, then kept.

``COLLECTIVES_TUNE=online`` tries alternatives in a program's calls, and keeps the fastest.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collectives import _core
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import Algorithm, get
from collectives.choice import select
from collectives.choice.model import Parameters
from collectives.choice.profile import Section
from collectives.choice.select import Decision, Timing
from collectives.errors import ArgumentError, CommunicatorError
from collectives.plans import program, schedule
from collectives.plans.lending import LENT
from collectives.reductions import MAX
from collectives.text.words import count

# What is kept on the way of ``algorithm=``, from a call down:
#
# - the engine: a `Choice` for each class of calls (_core/calls/engine.pxi);
# - `Chooser`: a plan for each algorithm and root, and what trials have settled for each class;
# - `select` and `profile`: the table that comes with the library, and the user's file;
# - `model.crossings`: the messages of an algorithm between hosts;
# - `program.publications`: what the ranks of a host publish for each other;
# - `proof`: that the cost formulas of a user's algorithm hold;
# - `registry`: rows that are made from a name; `composition` and `Groups`: what such rows need.
#
# The engine, `Chooser` and `registry` forget when an algorithm is registered. All others are kept
# by the row of an algorithm, and a new algorithm is another row.

# A user's algorithm is proven on its first use, if there are at most this many ranks. On 128 ranks,
# the proofs of the included algorithms take up to 4.3 s (round_robin), growing with the cube of p
# (python -m timeit on check("allreduce", "round_robin", p=128, record=False); EPYC, 2026-11-20).
PROVEN_SIZE = 128

# Ranks of a host up to which a program is packed with lending from LENT bytes on. The time to pack
# grows with their square, as each rank needs the programs of all: an allreduce by round_robin takes
# 0.6 ms on 2 ranks instead of 0.3, 11 ms on 8 instead of 1.5, 1.3 s on 64 instead of 41 ms (Xeon
# Sapphire Rapids, 2026-11-25, throw-away program). On more, blocks have to have LENT bytes.
FEW = 16

# The collective, the number of bits of the size, the root, and whether rank order must be kept.
Class = tuple[str, int, int, bool]

PERIOD = 20  # one in so many calls is a trial: 5 %
FIRST = PERIOD - 1  # the first call that is timed
TIMES = 5  # trials of each alternative
ALTERNATIVES = 4  # those with the least time by the cost formulas
GAIN = 0.9  # an alternative replaces the choice if it takes at most this part of its time

# For each host whose ranks share memory: its ranks, the bytes of a lane, the lines of a lane.
Lane = tuple[tuple[int, ...], int, int]


class Chooser:
    """The decisions and plans of one communicator, on one rank.

    Attributes
    ----------
    family : str
        How the ranks communicate, as for `select.decide`.
    lanes : sequence of Lane
        The lanes of all hosts. All ranks know them, so that all cut messages between hosts in the
        same way.
    measured : Section or None
        What the profile has on this transport.
    parameters : Parameters or None
        The alpha, beta and gamma that were measured here.
    groups : Groups
        The ranks of each host.
    settled : dict
        For each class, the choice that trials have found to be the fastest.
    """

    def __init__(
        self,
        comm: Any,
        rank: int,
        groups: Groups,
        tune: str,
        family: str,
        lanes: Sequence[Lane],
        measured: Section | None,
    ) -> None:
        self._comm = weakref.ref(comm)
        self._rank, self._size, self._tune = rank, comm.size, tune
        self.groups, self._local = groups, groups.members[groups.of[rank]]
        self._plans: dict[tuple[str, str, int, bool, bool], _core.Plan] = {}
        self.family, self.lanes = family, lanes
        self.measured = measured
        self.parameters: Parameters | None = None
        if measured is not None:
            self.parameters = measured.model(self._size)
        self.settled: dict[Class, Decision] = {}
        select.measured()  # read it while files can be opened, and not in the middle of a program

    def weakly(self) -> Callable[..., _core.Choice]:
        """Return `choose` with a weak reference to this object, for the engine to keep. Local."""
        reference = weakref.WeakMethod(self.choose)

        def choose(*arguments: Any) -> _core.Choice:
            method = reference()
            if method is None:
                raise CommunicatorError("the communicator does not exist any more")
            return method(*arguments)

        return choose

    def communicator(self) -> Any:
        """Return the communicator, a `Communicator`, or None if it is not there any more. Local."""
        return self._comm()

    def choose(
        self,
        collective: str,
        name: str | None,
        nbytes: int,
        root: int,
        ordered: bool,
        vector: bool,
        by_messages: bool,
    ) -> _core.Choice:
        """Return the plan for a class of calls; the core asks once for each. Local."""
        decision = self.decide(collective, name, nbytes, ordered, vector)
        if by_messages:
            return self.planned(decision, root, vector, by_messages)
        place = (collective, nbytes.bit_length(), root, ordered)
        tries = name is None and "online" in self._tune and self._size > 1
        # In an alltoallv no rank knows the total size, so calls of all sizes are one class.
        if not tries or (vector and collective == "alltoall"):
            return self.planned(decision, root, vector)
        settled = self.settled.get(place)
        if settled is not None and _is_registered(settled.algorithm):
            return self.planned(settled, root, vector)
        choice = self.planned(decision, root, vector)
        others = select.alternatives(decision, ALTERNATIVES, ordered=ordered)
        if others:
            choice.trials = Trials(self, place, [decision, *others], vector)
            choice.due = FIRST
        return choice

    def decide(
        self,
        collective: str,
        name: str | None,
        nbytes: int,
        ordered: bool = False,
        vector: bool = False,
    ) -> Decision:
        """Return what a class of calls runs, according to what all ranks know. Local."""
        return select.decide(
            collective,
            name,
            p=self._size,
            nbytes=nbytes,
            family=self.family,
            ordered=ordered,
            vector=vector,
            profile=self.measured,
            parameters=self.parameters,
            groups=self.groups,
        )

    def explain(self, collective: str, name: str | None, nbytes: int) -> Decision:
        """Return what a call runs now, with the results of trials. Local.

        The call has root 0 and a commutative operation.
        """
        settled = self.settled.get((collective, nbytes.bit_length(), 0, False))
        if name is not None or settled is None:
            return self.decide(collective, name, nbytes)
        named = self.decide(collective, settled.algorithm.name, nbytes)
        return replace(
            named, segment=settled.segment, reason=settled.reason, measured=settled.measured
        )

    def planned(
        self, decision: Decision, root: int, vector: bool, by_messages: bool = False
    ) -> _core.Choice:
        """Return the plan of a decision. Local."""
        algorithm = decision.algorithm
        collective = algorithm.collective.name
        # In an alltoallv no rank knows how long the messages of the others are.
        shares = not (by_messages or (vector and collective == "alltoall"))
        least = LENT if len(self._local) <= FEW else LENT * self._size
        lends = decision.nbytes >= least
        key = collective, algorithm.name, root, shares, lends
        plan = self._plans.get(key)
        if plan is None or plan.source.algorithm is not algorithm:
            if not algorithm.included and self._size <= PROVEN_SIZE:
                from collectives.plans.proof import check  # few programs need this slow import

                check(algorithm, p=self._size, root=root, record=False)
            source = schedule.compile(algorithm, self._size, self._rank, root)
            plan = self._plans[key] = self._packed(source, shares, lends)
        if vector and collective == "alltoall" and plan.source.workspace():
            raise ArgumentError(
                f"algorithm is {algorithm.name!r}, in which blocks pass through ranks that do not "
                f"know their counts; alltoallv takes 'direct' or 'pairwise'"
            )
        return _core.Choice(plan, decision.segment, decision.reason)

    def _packed(self, source: schedule.Plan, shares: bool, lends: bool) -> _core.Plan:
        """Return a plan as programs for the core; those of an alltoallv use no shared memory."""
        local: Sequence[int] = []
        rooms = []
        for ranks, lane_bytes, most in self.lanes if shares else ():
            lines = program.most_publications(source, ranks)
            if 0 < lines <= most:
                rooms.append(lane_bytes // lines & ~63)
                if source.rank in ranks:
                    local = self._local
        whole, split = (
            program.pack(source, whole=w, local=local, lend=lends) for w in (True, False)
        )
        return _core.Plan(source, whole, split, min(rooms, default=0))


def turn(call: int, others: int) -> tuple[int, int]:
    """Return which candidate a call times, and the number of the next call to ask about. Local."""
    last = PERIOD * TIMES * others
    if call > last:
        return -1, call
    if call % PERIOD:
        return 0, call + 1
    return 1 + (call // PERIOD - 1) % others, call + (1 if call == last else PERIOD - 1)


class Trials:
    """The trials of one class, on one rank."""

    def __init__(
        self, chooser: Chooser, place: Class, decisions: Sequence[Decision], vector: bool
    ) -> None:
        self._chooser = weakref.ref(chooser)
        self.place, self.decisions, self.vector = place, decisions, vector
        self.times: list[list[float]] = [[] for _ in decisions]

    def begin(self, call: int, timeout: float | None) -> tuple[int, _core.Choice | None, int]:
        """Return what a call of the class runs, and settle the class if it is time. Collective."""
        chooser = self._chooser()
        comm = None if chooser is None else chooser.communicator()
        if chooser is None or comm is None or comm.mpi is None:
            return -1, None, call
        slot, due = turn(call, len(self.decisions) - 1)
        if slot < 0:
            return slot, self._settle(chooser, comm, timeout), due
        # Times can be compared only if all ranks begin together.
        comm.barrier(algorithm="dissemination", timeout=timeout)
        return slot, self._choice(chooser, slot) if slot else None, due

    def _choice(self, chooser: Chooser, slot: int) -> _core.Choice:
        """Return the plan of the choice or of an alternative."""
        return chooser.planned(self.decisions[slot], self.place[2], self.vector)

    def note(self, slot: int, seconds: float) -> None:
        """Record the `seconds` of the choice, `slot` 0, or of an alternative. Local."""
        self.times[slot].append(seconds)

    def _settle(self, chooser: Chooser, comm: Any, timeout: float | None) -> _core.Choice:
        """Agree on the fastest, and return its plan. Collective."""
        times = np.array([sorted(each)[len(each) // 2] for each in self.times])
        # With a name, this call belongs to no class that has trials.
        name = chooser.decide("allreduce", None, times.nbytes).algorithm.name
        comm.allreduce(times, out=times, op=MAX, algorithm=name, timeout=timeout)
        slot = int(times.argmin())
        if times[slot] > GAIN * times[0]:
            slot = 0
        chooser.settled[self.place] = self._decision(slot, times.tolist())
        return self._choice(chooser, slot)

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


def _is_registered(row: Algorithm) -> bool:
    """Return whether an algorithm is still registered under its name."""
    try:
        return get(row.collective.name, row.name, row.groups).generate is row.generate
    except ArgumentError:
        return False
