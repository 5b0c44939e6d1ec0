"""The algorithm and plan of each class of a communicator's calls: chosen once, then kept.

`lessons` has the other settings that calls of a class may run, and their times.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from collectives import _core
from collectives.algorithms.bits import ANY, checked
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import get, watch
from collectives.choice import select
from collectives.choice.lessons import Class, Lesson, gives_same_bits
from collectives.choice.model import Parameters, probe
from collectives.choice.profile import remember
from collectives.choice.sections import Learned, Section
from collectives.choice.select import Decision, Timing
from collectives.errors import ArgumentError, CommunicatorError
from collectives.plans import program, schedule
from collectives.plans.lending import LENT
from collectives.text import logs
from collectives.text.words import size_text

# The caches on the way of ``algorithm=``, from a call down:
#
# - the engine: a `Choice` for each class of calls (_core/calls/engine.pxi), and its course;
# - `Chooser`: a plan for each algorithm and root, and the learned setting of each class;
# - `select` and `profile`: the table that comes with the library, and the user's file;
# - `model.crossings`: the messages of an algorithm between hosts;
# - `program.publications`: what the ranks of a host publish for each other;
# - `proof`: the algorithms of users whose cost formulas hold;
# - `registry`: rows that are made from a name, with the phases of `composition` and the properties
#   of `Groups`.
#
# The engine, `Chooser` and `registry` forget when an algorithm is registered. All others have the
# row of an algorithm as their key, and a new algorithm is another row.

# A user's algorithm is proven on its first use, if there are at most this many ranks. On 128 ranks,
# the proofs of the included algorithms take up to 1.9 s (allreduce/pat) of CPU time
# (time.process_time around check("allreduce", "pat", p=128, record=False); EPYC, 2026-11-29).
PROVEN_SIZE = 128

PLANNING = 1e-3  # seconds that a plan is assumed to take before one was made

# For each host whose ranks share memory: its ranks, the bytes of a lane, the lines of a lane.
Lane = tuple[tuple[int, ...], int, int]


class Chooser:
    """The decisions and plans of one communicator, on one rank.

    Attributes
    ----------
    family : str
        The transport of the ranks, as for `select.decide`.
    lanes : sequence of Lane
        The lanes of all hosts. All ranks know them, so that all cut messages between hosts in the
        same way.
    measured : Section or None
        The measurements of the profile for this transport.
    parameters : Parameters or None
        The alpha, beta and gamma that were measured here.
    groups : Groups
        The ranks of each host.
    learned : dict
        For each class, the setting that trials have found to be the fastest.
    meets, any_order, by_rules, reads : bool
        Whether ranks meet before a trial, whether trials include algorithms that fold in another
        order, whether the environment sets the way to store blocks, and whether private arrays may
        be lent.
    planning : float
        Seconds that the last new plan took.
    bits : str
        The quantities that bits may depend on in calls without their own `bits`, as for `decide`.
    """

    any_order: bool
    by_rules: bool
    reads: bool
    groups: Groups
    family: str
    lanes: Sequence[Lane]

    def __init__(
        self,
        comm: Any,
        rank: int,
        groups: Groups,
        tune: str,
        family: str,
        lanes: Sequence[Lane],
        measured: Section | None,
        by_rules: bool = False,
        reads: bool = False,
        bits: str = ANY,
    ) -> None:
        self._comm = weakref.ref(comm)
        self._rank, self._size = rank, comm.size
        self.bits = bits
        self.any_order, self.by_rules, self.reads = "online" in tune, by_rules, reads
        self.meets: bool = family != "shm"
        self._probes = comm.size > 1 and "probe" in tune
        self._learns = comm.size > 1 and tune != "0" and (self.any_order or not self.meets)
        self.groups, self._local = groups, groups.members[groups.of[rank]]
        self._plans: dict[tuple[str, str, str, int, bool, bool, bool], _core.Plan] = {}
        self.family, self.lanes = family, lanes
        self.measured = measured
        self.parameters: Parameters | None = None
        if measured is not None:
            self.parameters = measured.model(self._size)
        self.learned: dict[Class, Decision] = {}
        self.planning: float = PLANNING
        select.measured()  # read it while files can be opened, and not in the middle of a program

    def begin(self) -> None:
        """Watch the registry, and measure alpha, beta and gamma if the environment asks for it.
        Collective.
        """
        comm = self.communicator()
        watch(comm)
        if self._probes:
            self.parameters = probe(comm)

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
        """Return the `Communicator`, or None if it no longer exists. Local."""
        return self._comm()

    def choose(
        self,
        collective: str,
        name: str | None,
        bits: str,
        nbytes: int,
        root: int,
        ordered: bool,
        vector: bool,
        ragged: bool,
        by_messages: bool,
    ) -> _core.Choice:
        """Return the plan for a class of calls; the core asks once for each. Local."""
        if ragged and collective != "alltoall":
            name = "flat"  # each block goes straight to its rank
        decision = self.decide(collective, name, bits, nbytes, ordered, vector, root)
        # If no rank knows the total size, calls of all sizes are one class.
        if not self._learns or by_messages or ragged:
            return self.planned(decision, root, ragged, by_messages)
        place = (collective, name, nbytes.bit_length(), root, ordered, bits)
        before, past = self._before(place, decision)
        choice = self.planned(before or decision, root)
        lesson = Lesson(self, place, decision, vector, past)
        if lesson:
            choice.lesson = lesson
        return choice

    def _before(self, place: Class, decision: Decision) -> tuple[Decision | None, Learned | None]:
        """Return the setting that an earlier program learned, and its entry in the profile."""
        collective, _, length, _, ordered, _ = place
        known = self.measured and self.measured.learned_of(collective, self._size, length, ordered)
        if decision.bits != ANY:
            return None, None  # settings are learned in calls without this demand
        if not known or decision.is_given or known.default != decision.algorithm.name:
            return None, None
        try:
            row = get(collective, known.algorithm, self.groups)
        except ArgumentError:
            return None, None
        if not row.included or row.refusal(self._size) or self.by_rules or self.meets:
            return None, None
        # The setting may have been learned with another root, for which both fold alike.
        if not self.any_order and not gives_same_bits(decision, row, place[3]):
            return None, None
        timing = Timing(known.seconds, decision.nbytes, self._size, "learned before")
        return replace(
            decision,
            algorithm=row,
            segment=known.segment,
            ways=known.ways,
            reason="learned by an earlier program",
            measured=timing,
        ), known

    def learn(self, place: Class, first: Decision, learned: Decision, is_far: bool) -> None:
        """Keep the fastest setting of a class, also for later programs where possible. Local."""
        collective, name, length, _, ordered, _ = place
        self.learned[place] = learned
        is_other = learned.algorithm.name != first.algorithm.name
        if is_other:
            logs.note(
                "INFO",
                f"{collective} of less than {size_text(1 << length)} on {self._size} ranks runs "
                f"{learned.algorithm.name} instead of {first.algorithm.name} from now on",
            )
        if (
            self._rank
            or name
            or first.bits != ANY
            or self.meets
            or not learned.measured
            or (is_other and self.any_order)
        ):
            return
        entry = Learned(
            length,
            ordered,
            first.algorithm.name,
            learned.algorithm.name,
            learned.segment,
            learned.ways,
            is_far,
            learned.measured.seconds,
            learned.measured.nbytes,
        )
        remember(collective, self._size, entry)

    def decide(
        self,
        collective: str,
        name: str | None,
        bits: str | None,
        nbytes: int,
        ordered: bool = False,
        vector: bool = False,
        root: int = 0,
    ) -> Decision:
        """Return the decision for a class of calls, from values that all ranks have; None for
        `bits` are those of the communicator. Local.
        """
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
            bits=self.bits if bits is None else bits,
            root=root,
        )

    def explain(self, collective: str, name: str | None, bits: str | None, nbytes: int) -> Decision:
        """Return the decision for a call now, with the learned setting of its class. Local.

        The call has root 0 and a commutative operation.
        """
        bits = self.bits if bits is None else checked(bits)
        decision = self.decide(collective, name, bits, nbytes)
        place = (collective, name, nbytes.bit_length(), 0, False, bits)
        learned = self.learned.get(place)
        if learned is None and self._learns:
            learned, _ = self._before(place, decision)
        return decision if learned is None else replace(learned, nbytes=nbytes)

    def planned(
        self, decision: Decision, root: int, ragged: bool = False, by_messages: bool = False
    ) -> _core.Choice:
        """Return the plan of a decision; in a `ragged` call, ranks do not know the lengths of each
        other's blocks. Local.
        """
        algorithm = decision.algorithm
        collective = algorithm.collective.name
        shares = not by_messages
        lends = ragged or decision.nbytes >= LENT
        key = collective, algorithm.name, algorithm.order, root, shares, lends, ragged
        plan = self._plans.get(key)
        if plan is None or plan.source.algorithm is not algorithm:
            if not algorithm.included and self._size <= PROVEN_SIZE:
                from collectives.plans.proof import check  # few programs need this slow import

                check(algorithm, p=self._size, root=root, record=False)
            if ragged and schedule.passes_on(algorithm, self._size, root):
                raise ArgumentError(
                    f"algorithm is {algorithm.name!r}, in which blocks pass through ranks that do "
                    f"not know their counts; alltoallv takes 'direct' or 'pairwise'"
                )
            began = perf_counter()
            source = schedule.compile(algorithm, self._size, self._rank, root)
            plan = self._plans[key] = self._packed(source, shares, lends, ragged)
            self.planning = perf_counter() - began
        return _core.Choice(plan, decision.segment, decision.reason, decision.ways, decision.bits)

    def packed(self, source: schedule.Plan, nbytes: int, shares: bool) -> _core.Plan:
        """Return a plan for arrays of `nbytes`, which uses shared memory if it `shares` it.
        Local.
        """
        return self._packed(source, shares, nbytes >= LENT)

    def _packed(
        self, source: schedule.Plan, shares: bool, lends: bool, ragged: bool = False
    ) -> _core.Plan:
        """Return a plan as programs for the core, which use shared memory if it `shares` it."""
        local: Sequence[int] = []
        rooms = []
        for ranks, lane_bytes, most in self.lanes if shares else ():
            row, root = source.algorithm, source.root
            lines = program.most_published(row, source.p, root, frozenset(ranks))
            if 0 < lines <= most:
                rooms.append(lane_bytes // lines & ~63)
                if source.rank in ranks:
                    local = self._local
        whole, split = program.pack_both(source, local=local, lend=lends, ragged=ragged)
        return _core.Plan(source, whole, split, min(rooms, default=0))
