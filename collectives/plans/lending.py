"""Publications that may stay in the callers' arrays, and results that may be written there.

If a caller's array is in shared memory, other ranks can read a block in place (it is *lent*), and
write their results into it (they *push* them). Both depend on the order of steps: a place may be
written when no rank needs its old contents. A program has no locks; a rank infers the order from
the publications that it has waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.plans.rounds import IN, OUT, Message, Run
from collectives.plans.schedule import Plan

# Bytes of a block from which on it may be lent: LENT in _core/executor/steps.pxi.
LENT = 4096

SLOT = 4  # the space of publications of other ranks, beside IN, OUT, WORK and TMP

# Conditions for lending or pushing a block: the input and the output of its owner are separate
# arrays, or the same array.
APART, IN_PLACE = 1, 2

Cell = tuple[int, int]


class Push(NamedTuple):
    """A result that goes into the output of another rank.

    Attributes
    ----------
    peer : int
        The number of that rank on this host.
    publication : int
        A publication of the peer, after which no rank needs the memory any more.
    when : int
        Bits APART and IN_PLACE: the conditions on the peer's arrays under which the push is safe.
    """

    peer: int
    publication: int
    when: int


@dataclass
class Operand:
    run: Run  # in TMP, the blocks of a message; in SLOT, the numbers of the publications
    peer: int = -1  # the owner of the publication, by its number on this host
    need: int = -1  # the message that brings it, by its number in the round
    # The number of folds of the last two values after it; if -1, one with this value on the left.
    folds: int = 0


@dataclass
class ProgramStep:
    dst: Run | None
    home: Run
    operands: list[Operand]
    after_sends: bool = False
    publication: int = -1
    is_final: bool = False
    lends: int = 0  # bits: APART, IN_PLACE
    pushes: list[Push] = field(default_factory=list)

    def reads(self) -> set[Cell]:
        return {cell for operand in self.operands for cell in memory(operand.run)}

    def writes(self) -> set[Cell]:
        return memory(self.dst) if self.dst is not None else set()


@dataclass
class ProgramRound:
    messages: list[Message] = field(default_factory=list)
    steps: list[ProgramStep] = field(default_factory=list)


def memory(run: Run) -> set[Cell]:
    """Return the blocks of memory in a run, if input and output are the same array."""
    return set() if run.space == SLOT else set(run.shared())


class Host:
    """The programs of all ranks of a host, from which a rank infers the progress of the others.

    A rank that has waited for a publication knows that its owner has run all steps before that one.
    (The steps of a segment run in the order of the program.) After the last step, a rank that lends
    waits for all others.
    """

    messages: list[list[Message]]
    programs: list[list[ProgramStep]]

    def __init__(self, me: int, ranks: Sequence[tuple[Plan, Sequence[ProgramRound]]]) -> None:
        self.me = me
        self.outputs: list[list[int]] = [plan.wanted() for plan, _ in ranks]
        self.messages = [[m for each in rounds for m in each.messages] for _, rounds in ranks]
        self.programs = [[step for each in rounds for step in each.steps] for _, rounds in ranks]
        # For each rank, its step that makes each publication, and the last one that reads each.
        self.published: list[dict[int, int]] = [
            {step.publication: at for at, step in enumerate(steps) if step.publication >= 0}
            for steps in self.programs
        ]
        self.read: list[dict[tuple[int, int], int]] = [
            {
                (o.peer, o.run.first): at
                for at, step in enumerate(steps)
                for o in step.operands
                if o.run.space == SLOT
            }
            for steps in self.programs
        ]

    def readers(self, of: int, publication: int) -> set[int]:
        """Return the ranks that read a publication of a rank. Local."""
        return {q for q, reads in enumerate(self.read) if (of, publication) in reads}

    def mark_lent(self) -> None:
        """Mark the steps whose publications may stay in the caller's array. Local.

        A publication may stay if no rank still reads it when a later step writes to the same place.
        This is the case if that step, or one before it, has waited for something that each reader
        published after reading.
        """
        mine = self.programs[self.me]
        landing = [message.run for message in self.messages[self.me] if not message.send]
        for at, step in enumerate(mine):
            run = step.dst if step.dst is not None else step.operands[0].run
            if step.publication < 0 or run.space not in (IN, OUT):
                continue
            if step.dst is None and len(step.operands) > 1:
                continue  # the result of the fold is stored only in the publication
            readers = self.readers(self.me, step.publication)
            for bit, cells_of in ((APART, Run.cells), (IN_PLACE, Run.shared)):
                cells = set(cells_of(run))
                if any(not cells.isdisjoint(cells_of(each)) for each in landing):
                    continue
                known: set[int] = set()
                for later in mine[at + 1 :]:
                    for o in later.operands:
                        if o.run.space == SLOT and o.peer in readers:
                            done = self.read[o.peer][self.me, step.publication]
                            if self.published[o.peer][o.run.first] >= done:
                                known.add(o.peer)
                    overwrites = later.dst is not None and not cells.isdisjoint(cells_of(later.dst))
                    if overwrites and known != readers:
                        break
                else:
                    step.lends |= bit

    def mark_pushed(self) -> None:
        """Mark the steps whose results this rank also writes to the outputs of all readers. Local.

        All readers must only copy the publication into their outputs, where it stays. When this
        rank runs the step, it must know that no rank needs the old contents of these outputs.
        """
        if any(self.messages):
            return
        for at, step in enumerate(self.programs[self.me]):
            if step.publication < 0 or not step.is_final:
                continue
            readers = sorted(self.readers(self.me, step.publication))
            pushes = [self._push(at, step, q) for q in readers]
            step.pushes = [push for push in pushes if push is not None and push.when]
            if len(step.pushes) < len(readers):
                step.pushes = []

    def _push(self, at: int, step: ProgramStep, q: int) -> Push | None:
        """Return the push of a step's result to rank `q`, or None if it is never safe."""
        theirs = self.programs[q]
        uses = [k for k, each in enumerate(theirs) if _takes(each, self.me, step)]
        if len(uses) != 1 or self.outputs[q] != self.outputs[self.me]:
            return None
        copy = theirs[uses[0]]
        if copy.dst is None or copy.dst != step.dst:
            return None
        if len(copy.operands) != 1 or copy.publication >= 0 or not copy.is_final:
            return None
        when, after = 0, -1
        for bit, cells_of in ((APART, Run.cells), (IN_PLACE, Run.shared)):
            cells = set(cells_of(copy.dst))
            last = max(
                (k for k in range(uses[0]) if _touches(theirs[k], cells, cells_of)), default=-1
            )
            if self._waited(at, q, last) and self._all_read(at, step, q, uses[0], cells, cells_of):
                when |= bit
                after = max(after, last)
        waited = self._waited(at, q, after)
        return Push(q, min(waited), when) if when else None

    def _waited(self, at: int, q: int, done: int) -> set[int]:
        """Return the publications of rank `q` for which this one has waited in its steps up to
        `at`, and which `q` makes in its step `done` or later.
        """
        return {
            o.run.first
            for step in self.programs[self.me][: at + 1]
            for o in step.operands
            if o.run.space == SLOT and o.peer == q and self.published[q][o.run.first] >= done
        }

    def _all_read(
        self,
        at: int,
        step: ProgramStep,
        q: int,
        end: int,
        cells: set[Cell],
        cells_of: Callable[[Run], Iterable[Cell]],
    ) -> bool:
        """Return whether all publications that rank `q` makes from its `cells` before its step
        `end`, and may have lent, are known to be read when this rank runs its step `at`.
        """
        for each in self.programs[q][:end]:
            run = each.dst if each.dst is not None else each.operands[0].run
            if each.publication < 0 or run.space == SLOT or cells.isdisjoint(cells_of(run)):
                continue
            for r in self.readers(q, each.publication):
                done = self.read[r][q, each.publication]
                if r != self.me:
                    if not self._waited(at, r, done):
                        return False
                # A step may read what it overwrites, element by element.
                elif done > at or (done == at and set(cells_of(run)) != cells):
                    return False
        return True


def _takes(each: ProgramStep, peer: int, step: ProgramStep) -> bool:
    """Return whether a step reads a publication that a peer makes in its own `step`."""
    numbers = range(step.publication, step.publication + step.home.length)
    return any(
        o.run.space == SLOT and o.peer == peer and not set(numbers).isdisjoint(_numbers(o.run))
        for o in each.operands
    )


def _numbers(run: Run) -> range:
    return range(run.first, run.first + run.length)


def _touches(
    step: ProgramStep, cells: set[Cell], cells_of: Callable[[Run], Iterable[Cell]]
) -> bool:
    """Return whether a step reads or writes some of the `cells`."""
    runs = [o.run for o in step.operands if o.run.space != SLOT]
    runs += [step.dst] if step.dst is not None else []
    return any(not cells.isdisjoint(cells_of(run)) for run in runs)
