"""The rounds of plans: messages and local steps on runs of blocks, and the merging of rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

IN, OUT, WORK, TMP = range(4)
SPACES = ("in", "out", "work", "tmp")

# A merged round has at most this many temporary blocks. Each needs memory, once for each segment in
# flight.
MERGED_TMP_BLOCKS = 32
# It has at most this many messages. Each needs a request, once for each segment in flight.
MERGED_MESSAGES = 64


# At most so many rounds, and pairs of them, are known by the places of their blocks.
MOST_KNOWN = 1 << 16


class Run(NamedTuple):
    """`length` consecutive blocks from `first` on, in one memory space."""

    space: int
    first: int
    length: int

    def blocks(self) -> range:
        """Return the places of its blocks in its space. Local."""
        return range(self.first, self.first + self.length)

    def cells(self, output: int = OUT) -> list[tuple[int, int]]:
        """Return the blocks of memory that it covers, with ``OUT`` as the space `output`. Local."""
        space = output if self.space == OUT else self.space
        if self.length == 1:
            return [(space, self.first)]
        return [(space, b) for b in range(self.first, self.first + self.length)]

    def shared(self) -> list[tuple[int, int]]:
        """Return the blocks of memory that it covers if ``OUT`` is the same as ``IN``. Local."""
        return self.cells(IN)

    def __str__(self) -> str:
        last = self.first + self.length - 1
        return f"{SPACES[self.space]}[{self.first}{f'..{last}' if self.length > 1 else ''}]"


@lru_cache(maxsize=1 << 16)
def one(space: int, block: int) -> Run:
    """Return a run of one block: always the same object, because all ranks need most of them."""
    return Run(space, block, 1)


class Message(NamedTuple):
    """A send from, or a receive into, a run of blocks.

    `home` is the run itself, or, if the run is in temporary slots, the place where the blocks go;
    it determines the lengths of the blocks. With `fold`, they are received to be folded.
    """

    send: bool
    peer: int
    run: Run
    home: Run
    fold: bool = False


class Step(NamedTuple):
    """A local step: ``dst = left op right``, or ``dst = left`` where `right` is None.

    `home` is the final place of the blocks, which determines their lengths. `needs` are the
    messages of the round (by index) that must have arrived. With `after_sends`, the sends of the
    round must have completed, too, because one of them reads `dst`.
    """

    dst: Run
    left: Run
    right: Run | None
    home: Run
    needs: tuple[int, ...] = ()
    after_sends: bool = False


@dataclass
class Round:
    """Messages that are posted together, and the local steps that follow, in order.

    Rounds of one `kind` differ only in the peers of their messages; None is unlike any other.
    """

    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kind: object = field(default=None, compare=False, repr=False)


def runs_of(rounds: Iterable[Round]) -> Iterator[Run]:
    for each in rounds:
        for message in each.messages:
            yield message.run
        for step in each.steps:
            yield from (run for run in step[:3] if run is not None)


def shared(runs: Iterable[Run]) -> set[tuple[int, int]]:
    """Return the blocks of memory that runs cover if input and output are the same array."""
    return {cell for run in runs for cell in run.shared()}


def temporary(rounds: Iterable[Round]) -> int:
    """Return the number of temporary blocks into which the messages of rounds are received."""
    ends = [
        run.first + run.length
        for each in rounds
        for _, _, run, _, _ in each.messages
        if run.space == TMP
    ]
    return max(ends, default=0)


def merge(rounds: Sequence[Round]) -> list[Round]:
    """Join each round to the one before it where neither depends on the other.

    The order of folding does not change: the later round's steps follow the earlier one's.
    """
    merged: list[_Merged] = []
    for each in rounds:
        if not merged or _are_apart(merged[-1], each) or not merged[-1].joins(each):
            merged.append(_Merged(each))
    return [each.made() for each in merged]


# For two kinds of rounds, whether the second needs the first.
_APART: dict[tuple[object, object], bool] = {}


def _are_apart(before: _Merged, b: Round) -> bool:
    """Return whether round `b` needs the one before, to which none is joined yet."""
    if before.rounds:
        return False
    a = before.first
    if a.kind is None or b.kind is None:
        return _needs(b, a)
    pair = a.kind, b.kind
    if pair not in _APART:
        if len(_APART) >= MOST_KNOWN:
            _APART.clear()
        _APART[pair] = _needs(b, a)
    return _APART[pair]


def _needs(b: Round, a: Round) -> bool:
    """Return whether a message of round `b` has the very blocks that round `a` gets or makes.

    Most rounds need the one before. This is seen before sets of blocks are made.
    """
    made = {message.run for message in a.messages if not message.send}
    made.update([step.dst for step in a.steps])
    return any(message.run in made for message in b.messages if message.run.space != TMP)


class _Merged:
    """A round to which others are joined, with the blocks of memory that it touches so far."""

    def __init__(self, first: Round) -> None:
        self.first = first  # appended to the rounds when another one may join it
        self.rounds: list[Round] = []
        self.count = len(first.messages)
        self.slots = -1  # of the first, until they are counted

    def joins(self, b: Round) -> bool:
        """Append a round unless it depends on this one; return whether it was appended."""
        if self.slots < 0:
            self.slots = temporary([self.first])
        if self.slots + temporary([b]) > MERGED_TMP_BLOCKS:
            return False
        if self.count and b.messages and self.count + len(b.messages) > MERGED_MESSAGES:
            return False
        moving = [message for message in b.messages if message.run.space != TMP]
        runs = shared(message.run for message in moving)
        if not self.rounds:
            landed = (message.run for message in self.first.messages if not message.send)
            if not runs.isdisjoint(shared((*landed, *(step.dst for step in self.first.steps)))):
                return False
            self.messages: list[Message] = []
            self.steps: list[Step] = []
            self.landed: set[tuple[int, int]] = set()
            self.written: set[tuple[int, int]] = set()
            self.sent: set[tuple[int, int]] = set()
            self.read: set[tuple[int, int]] = set()  # by steps
            self.append(self.first)
        if not runs.isdisjoint(self.landed) or not runs.isdisjoint(self.written):
            return False
        runs = shared(message.run for message in moving if not message.send)
        if not runs.isdisjoint(self.sent) or not runs.isdisjoint(self.read):
            return False
        touched = (run for step in b.steps for run in step[:3] if run is not None)
        if not shared(run for run in touched if run.space != TMP).isdisjoint(self.landed):
            return False
        self.append(b)
        return True

    def append(self, b: Round) -> None:
        count, slots = len(self.messages), self.slots if self.rounds else 0

        def moved(run: Run) -> Run:
            return run._replace(first=run.first + slots) if run.space == TMP and slots else run

        for message in b.messages:
            run = moved(message.run)
            self.messages.append(message._replace(run=run, home=moved(message.home)))
            (self.sent if message.send else self.landed).update(run.shared())
            if run.space == TMP:
                self.slots = max(self.slots, run.first + run.length)
        for dst, left, right, home, needs, after_sends in b.steps:
            runs = moved(dst), moved(left), None if right is None else moved(right)
            needs = tuple(number + count for number in needs)
            self.steps.append(Step(*runs, home, needs, after_sends))
            self.written.update(runs[0].shared())
            self.read.update(shared(run for run in runs[1:] if run is not None))
        self.rounds.append(b)
        self.count = len(self.messages)

    def made(self) -> Round:
        """Return the joined round, whose steps wait for all sends of the blocks that they write."""
        if len(self.rounds) < 2:
            return self.first
        steps = [
            step._replace(after_sends=not self.sent.isdisjoint(step.dst.shared()))
            for step in self.steps
        ]
        return Round(self.messages, steps)
