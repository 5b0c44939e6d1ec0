"""Publications that may stay in the callers' arrays, and results that may be written there.

If a caller's array is in shared memory, other ranks can read a block in place (it is *lent*), and
write their results into it (they *push* them). Both depend on the order of steps: a place may be
written when no rank needs its old contents. A program has no locks; a rank infers the order from
the publications that it has waited for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from collectives.plans.rounds import IN, OUT, Message, Run
from collectives.plans.schedule import Plan

# Bytes of a block from which on it may be lent: LENT in _core/executor/steps.pxi.
LENT = 4096

# Most readers whose outputs a rank writes. It needs the program of each of them to know whether it
# may: without this limit, `pack(whole=True)` of round_robin for 64 ranks takes 0.52 s of CPU time
# instead of 0.07 (EPYC, Zen 4, 2026-11-28).
MOST_PUSHED = 16

SLOT = 4  # the space of publications of other ranks, beside IN, OUT, WORK and TMP

# Conditions for lending or pushing a block: the input and the output of its owner are separate
# arrays, or the same array.
APART, IN_PLACE = 1, 2
CELLS = {APART: Run.cells, IN_PLACE: Run.shared}

Cell = tuple[int, int]


class Push(NamedTuple):
    """A result that goes into the output of another rank.

    Attributes
    ----------
    peer : int
        The number of that rank on this host.
    after : int
        A publication of the peer, after which no rank needs the memory any more.
    when : int
        Bits APART and IN_PLACE: the conditions on the peer's arrays under which the push is safe.
    """

    peer: int
    after: int
    when: int


@dataclass(slots=True)
class Operand:
    run: Run  # in TMP, the blocks of a message; in SLOT, the numbers of the publications
    peer: int = -1  # the owner of the publication, by its number on this host
    need: int = -1  # the message that brings it, by its number in the round
    # The number of folds of the last two values after it; if -1, one with this value on the left.
    folds: int = 0


@dataclass(slots=True)
class ProgramStep:
    dst: Run | None
    home: Run
    operands: list[Operand]
    after_sends: bool = False
    publication: int = -1
    is_final: bool = False
    lends: int = 0  # bits: APART, IN_PLACE
    message: int = -1  # the one of its round that brings a block for which no page has room
    height: int = 1  # the most values that exist at the same time while its operands are folded
    pushes: list[Push] = field(default_factory=list)

    def reads(self) -> Set[Cell]:
        if len(self.operands) == 1:
            return memory(self.operands[0].run)
        return set().union(*(memory(o.run) for o in self.operands if o.run.space != SLOT))

    def writes(self) -> Set[Cell]:
        return memory(self.dst) if self.dst is not None else frozenset()


@dataclass
class ProgramRound:
    messages: list[Message] = field(default_factory=list)
    steps: list[ProgramStep] = field(default_factory=list)


@lru_cache(maxsize=1 << 16)
def memory(run: Run) -> Set[Cell]:
    """Return the blocks of memory in a run, if input and output are the same array."""
    return frozenset() if run.space == SLOT else frozenset(run.shared())


class RankSteps:
    """The steps of one rank of a host, and where it makes and reads publications."""

    def __init__(self, plan: Plan, rounds: Sequence[ProgramRound]) -> None:
        self.outputs = plan.wanted()
        self.messages = [message for each in rounds for message in each.messages]
        self.steps = [step for each in rounds for step in each.steps]
        # The step that makes each publication, and those that read each, in order.
        self.published: dict[int, int] = {}
        self.reads: dict[tuple[int, int], list[int]] = {}
        # For each rank that it reads from: the steps, and the publications that they read.
        self.waits: dict[int, tuple[list[int], list[int]]] = {}
        for at, step in enumerate(self.steps):
            if step.publication >= 0:
                self.published[step.publication] = at
            for o in step.operands:
                if o.run.space == SLOT:
                    self.reads.setdefault((o.peer, o.run.first), []).append(at)
                    steps, numbers = self.waits.setdefault(o.peer, ([], []))
                    steps.append(at)
                    numbers.append(o.run.first)
        self._uses: dict[int, dict[Cell, list[int]]] = {}

    def _used(self, bit: int) -> dict[Cell, list[int]]:
        """Return the steps that read or write each block of memory, under a condition."""
        if bit not in self._uses:
            found = self._uses[bit] = {}
            for at, step in enumerate(self.steps):
                runs = [o.run for o in step.operands if o.run.space != SLOT]
                runs += [step.dst] if step.dst is not None else []
                for cell in {cell for run in runs for cell in CELLS[bit](run)}:
                    found.setdefault(cell, []).append(at)
        return self._uses[bit]

    def last_use(self, cells: set[Cell], bit: int, end: int) -> int:
        """Return the last step before `end` that reads or writes some of the `cells`, or -1."""
        uses = (self._used(bit).get(cell, []) for cell in cells)
        return max((each[k - 1] for each in uses if (k := bisect_left(each, end))), default=-1)

    def lent(self, cells: set[Cell], bit: int, end: int) -> Iterator[tuple[int, bool]]:
        """Yield the publications that steps before `end` make from some of the `cells`; of each,
        whether it has all of these.
        """
        used = self._used(bit)
        for at in sorted({at for cell in cells for at in used.get(cell, ()) if at < end}):
            step = self.steps[at]
            run = step.dst if step.dst is not None else step.operands[0].run
            if step.publication >= 0 and run.space != SLOT:
                made = set(CELLS[bit](run))
                if not cells.isdisjoint(made):
                    yield step.publication, made == cells


class Heard:
    """The publications of rank `q` for which a rank waits in its steps after one, up to an end.

    It yields the latest first, because these say the most.
    """

    def __init__(self, mine: RankSteps, q: int, after: int, end: int) -> None:
        steps, self._numbers = mine.waits.get(q, ([], []))
        self._first, self._last = bisect_right(steps, after), bisect_right(steps, end)
        self._mine, self._place = mine, (q, after, end)

    def __bool__(self) -> bool:
        return self._first < self._last

    def __iter__(self) -> Iterator[int]:
        return (self._numbers[k] for k in range(self._last - 1, self._first - 1, -1))

    def __contains__(self, publication: int) -> bool:
        q, after, end = self._place
        return any(after < at <= end for at in self._mine.reads.get((q, publication), ()))


class Host:
    """The programs of the ranks of a host, from which a rank infers the progress of the others.

    A rank that has waited for a publication knows that its owner has run all steps before that one.
    (The steps of a segment run in the order of the program.) After the last step, a rank that lends
    waits for all others.

    The programs of other ranks are made when they are asked for. Most publications are not
    overwritten, or the rank has heard nothing of a reader; then none is needed.

    Parameters
    ----------
    me : int
        The number of this rank on the host.
    program : callable
        Returns the steps of a rank.
    readers : callable
        Returns the ranks that read a publication of a rank.
    tells : callable
        Returns whether some publications of a rank, for which this one has waited, tell that it has
        read a publication of this rank; None if only its program says so.
    passes_on : callable
        Returns whether a rank publishes a publication of this one again.
    """

    def __init__(
        self,
        me: int,
        program: Callable[[int], RankSteps],
        readers: Callable[[int, int], Sequence[int]],
        tells: Callable[[int, int, Heard], bool | None],
        passes_on: Callable[[int, int], bool],
    ) -> None:
        self.me, self.program, self.readers = me, program, readers
        self.tells, self.passes_on = tells, passes_on
        self.mine = program(me)

    def mark_lent(self) -> None:
        """Mark the steps whose publications may stay in the caller's array. Local.

        A publication may stay if no rank still reads it when a later step writes to the same place.
        This is the case if that step, or one before it, has waited for something that each reader
        published after reading.
        """
        mine = self.mine.steps
        landing = [message.run for message in self.mine.messages if not message.send]
        for bit, cells_of in CELLS.items():
            landed = {cell for run in landing for cell in cells_of(run)}
            written: dict[Cell, int] = {}  # by the steps behind a step: the next one
            for at in range(len(mine) - 1, -1, -1):
                step = mine[at]
                run = step.dst
                # With more operands, the result of the fold is stored only in the publication.
                if run is None and step.publication >= 0 and len(step.operands) < 2:
                    run = step.operands[0].run
                if run is None:
                    continue
                cells = cells_of(run)
                if step.publication >= 0 and run.space in (IN, OUT) and landed.isdisjoint(cells):
                    overwritten = min([written[c] for c in cells if c in written], default=None)
                    if overwritten is None or self._have_read(at, step, overwritten):
                        step.lends |= bit
                if step.dst is not None:
                    for cell in cells:
                        written[cell] = at

    def _have_read(self, at: int, step: ProgramStep, end: int) -> bool:
        """Return whether this rank knows in its step `end` that the publication of `step`, the one
        `at`, has been read by all its readers.
        """
        readers = self.readers(self.me, step.publication)
        every = [Heard(self.mine, q, at, end) for q in readers]
        if not all(every):
            return False
        for q, heard in zip(readers, every, strict=True):
            known = self.tells(q, step.publication, heard)
            if known is None:
                theirs = self.program(q)
                done = theirs.reads[self.me, step.publication][-1]
                known = any(theirs.published[number] >= done for number in heard)
            if not known:
                return False
        return True

    def mark_pushed(self) -> None:
        """Mark the steps whose results this rank also writes to the outputs of all readers. All
        ranks are on this host. Local.

        All readers must only copy the publication into their outputs, where it stays. When this
        rank runs the step, it must know that no rank needs the old contents of these outputs.
        """
        for at, step in enumerate(self.mine.steps):
            if step.publication < 0 or not step.is_final:
                continue
            readers = self.readers(self.me, step.publication)
            if len(readers) > MOST_PUSHED:
                continue
            if any(self.passes_on(q, step.publication) for q in readers):
                continue
            for q in sorted(readers):
                push = self._push(at, step, q)
                if push is None:
                    step.pushes = []
                    break
                step.pushes.append(push)

    def _push(self, at: int, step: ProgramStep, q: int) -> Push | None:
        """Return the push of a step's result to rank `q`, or None if it is never safe."""
        theirs = self.program(q)
        uses = theirs.reads[self.me, step.publication]
        if len(uses) != 1 or theirs.outputs != self.mine.outputs:
            return None
        copy = theirs.steps[uses[0]]
        if copy.dst is None or copy.dst != step.dst:
            return None
        if len(copy.operands) != 1 or copy.publication >= 0 or not copy.is_final:
            return None
        when, after = 0, -1
        for bit, cells_of in CELLS.items():
            cells = set(cells_of(copy.dst))
            last = theirs.last_use(cells, bit, uses[0])
            if self._waited(at, q, last) and self._all_read(at, q, uses[0], cells, bit):
                when |= bit
                after = max(after, last)
        waited = self._waited(at, q, after)
        return Push(q, min(waited), when) if when else None

    def _waited(self, at: int, q: int, done: int) -> set[int]:
        """Return the publications of rank `q` for which this one has waited in its steps up to
        `at`, and which `q` makes in its step `done` or later.
        """
        steps, numbers = self.mine.waits.get(q, ([], []))
        heard = numbers[: bisect_right(steps, at)]
        if not heard:
            return set()
        published = self.program(q).published
        return {number for number in heard if published[number] >= done}

    def _all_read(self, at: int, q: int, end: int, cells: set[Cell], bit: int) -> bool:
        """Return whether all publications that rank `q` makes from its `cells` before its step
        `end`, and may have lent, are known to be read when this rank runs its step `at`.
        """
        for publication, is_all in self.program(q).lent(cells, bit, end):
            for r in self.readers(q, publication):
                if r != self.me:
                    if r not in self.mine.waits:
                        return False
                    if not self._waited(at, r, self.program(r).reads[q, publication][-1]):
                        return False
                    continue
                done = self.mine.reads[q, publication][-1]
                # A step may read what it overwrites, element by element.
                if done > at or (done == at and not is_all):
                    return False
        return True
