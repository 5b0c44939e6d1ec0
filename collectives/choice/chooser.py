"""The algorithm and plan of each class of a communicator's calls: chosen once, then kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from collectives import _core
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import Algorithm, get
from collectives.choice import online, select
from collectives.choice.model import Parameters
from collectives.choice.online import Class
from collectives.choice.profile import Section
from collectives.choice.ranks import Ranks
from collectives.choice.select import Decision
from collectives.errors import ArgumentError, CommunicatorError
from collectives.plans import program, schedule

# A user's algorithm is proven on its first use, if there are at most this many ranks. On 128 ranks,
# the proofs of the included algorithms take up to 4.3 s (round_robin), growing with the cube of p
# (python -m timeit on check("allreduce", "round_robin", p=128, record=False); EPYC, 2026-11-20).
PROVEN_SIZE = 128

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
    lends : bool
        Whether other ranks may read arrays of this one in place.
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
        ranks: Ranks,
        rank: int,
        groups: Groups,
        tune: str,
        family: str,
        lanes: Sequence[Lane],
        measured: Section | None,
    ) -> None:
        self._ranks = weakref.ref(ranks)
        self._rank, self._size, self._tune = rank, ranks.size, tune
        self.groups, self._local = groups, groups.members[groups.of[rank]]
        self._plans: dict[tuple[str, str, int, bool], _core.Plan] = {}
        self.family, self.lanes, self.lends = family, lanes, False
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

    def ranks(self) -> Ranks | None:
        """Return the communicator, if it is still there. Local."""
        return self._ranks()

    def forget_plans(self) -> None:
        """Discard the plans: the next call of each class compiles its plan again. Local."""
        self._plans.clear()

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
        others = select.alternatives(
            decision, online.ALTERNATIVES, ordered=ordered, groups=self.groups
        )
        if others:
            choice.trials = online.Trials(self, place, [decision, *others], vector)
            choice.due = online.FIRST
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
        key = collective, algorithm.name, root, shares
        plan = self._plans.get(key)
        if plan is None or plan.source.algorithm is not algorithm:
            if not algorithm.included and self._size <= PROVEN_SIZE:
                from collectives.plans.proof import check  # few programs need this slow import

                check(algorithm, p=self._size, root=root, record=False)
            source = schedule.compile(algorithm, self._size, self._rank, root)
            plan = self._plans[key] = self._packed(source, shares)
        if vector and collective == "alltoall" and plan.source.workspace():
            raise ArgumentError(
                f"algorithm is {algorithm.name!r}, in which blocks pass through ranks that do not "
                f"know their counts; alltoallv takes 'direct' or 'pairwise'"
            )
        return _core.Choice(plan, decision.segment, decision.reason)

    def _packed(self, source: schedule.Plan, shares: bool) -> _core.Plan:
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
            program.pack(source, whole=w, local=local, lend=self.lends) for w in (True, False)
        )
        return _core.Plan(source, whole, split, min(rooms, default=0))


def _is_registered(row: Algorithm) -> bool:
    """Return whether an algorithm is still registered under its name."""
    try:
        return get(row.collective.name, row.name, row.groups).generate is row.generate
    except ArgumentError:
        return False
