"""From an algorithm's rounds to a plan: what is sent, received and folded, and where it lies.

Theory of operation
-------------------
An algorithm is a generator. For rank ``r`` of ``p`` it yields `Exchange` objects, one for each
round: block numbers to send, block numbers to receive, and whether what comes in is folded or
just stored. It never says where a block lies in memory.

`compile` says so. A block has its first value in the caller's input (``IN``) and every later
one in the caller's output (``OUT``), so nothing has to be copied before the first round. A rank
that gets no result has no output and keeps its later values in a workspace (``WORK``). What is
received to be folded lands in a temporary slot (``TMP``), and a local step folds it.

**Folds happen in rank order.** All values that meet in one block in one round, the rank's own
and those received, are folded from the lowest rank to the highest. Two ranks that fold the same
values therefore compute the same expression, and get the same bits.

Local steps name the messages that they need; the executor runs them as soon as those have
arrived. A step that overwrites a block which the same round sends waits for the sends.

`merge` then joins neighbouring rounds that do not depend on each other, so that their messages
are under way together. `pack` writes a plan as flat arrays of integers for the executor.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, Union

from collectives.errors import ArgumentError, ProofError
from collectives.registry import Algorithm

__all__ = ["IN", "OUT", "TMP", "WORK", "Exchange", "Message", "Plan", "Round", "Run", "Step"]

IN, OUT, WORK, TMP = range(4)
SPACES = ("in", "out", "work", "tmp")

# A merged round holds at most this many temporary blocks: they are memory, once for each
# segment in flight.
MERGED_TMP_BLOCKS = 32

Blocks = Union[int, range]
Messages = Union[tuple[int, Blocks], Sequence[tuple[int, Blocks]]]


class Exchange(NamedTuple):
    """One round of one rank.

    Parameters
    ----------
    send, recv : (peer, block) or a list of them
        What goes to whom and what comes from whom; a block is a number, or a ``range`` of
        consecutive numbers that travel together. All of a round is posted at once.
    fold : bool
        Whether what is received is folded into the block that the rank holds, in rank order,
        or replaces it.
    """

    send: Messages = ()
    recv: Messages = ()
    fold: bool = False


class Run(NamedTuple):
    """`length` consecutive blocks from `first` on, in one memory space."""

    space: int
    first: int
    length: int

    def cells(self, output: int = OUT) -> list[tuple[int, int]]:
        """Return the blocks of memory that it covers, where ``OUT`` is the space `output`."""
        space = output if self.space == OUT else self.space
        return [(space, b) for b in range(self.first, self.first + self.length)]

    def shared(self) -> list[tuple[int, int]]:
        """Return the blocks of memory that it covers in place: where ``OUT`` is ``IN``."""
        return self.cells(IN)

    def __str__(self) -> str:
        last = self.first + self.length - 1
        return f"{SPACES[self.space]}[{self.first}{f'..{last}' if self.length > 1 else ''}]"


class Message(NamedTuple):
    """A send from, or a receive into, a run of blocks; `block` is the first one's number.

    The number says how long the run is, which a temporary slot does not know.
    """

    send: bool
    peer: int
    run: Run
    block: int


class Step(NamedTuple):
    """A local step: ``dst = left op right``, or ``dst = left`` where `right` is None.

    `block` is the number of the first block that it folds. `needs` are the round's messages (by
    index) that must have arrived; `after_sends` says that the round's sends must have completed
    too, because `dst` is what one of them reads.
    """

    dst: Run
    left: Run
    right: Run | None
    block: int
    needs: tuple[int, ...] = ()
    after_sends: bool = False


@dataclass
class Round:
    """Messages that are posted together, and the local steps that follow, in order."""

    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What one rank does in one collective, for any count and dtype.

    `tmp` is the number of temporary blocks and `work` the number of workspace blocks that it
    needs.
    """

    algorithm: Algorithm
    p: int
    rank: int
    root: int
    nblocks: int
    rounds: tuple[Round, ...]
    tmp: int
    work: int


class _Builder:
    """The state of `compile`: where each block lies, and the rounds so far."""

    def __init__(self, algorithm: Algorithm, p: int, r: int, root: int) -> None:
        contract = algorithm.collective
        self.p, self.r = p, r
        self.nblocks = algorithm.blocks(p)
        self.title = f"{contract.name} {algorithm.name!r} on {p} ranks"
        if contract.rooted:
            self.title += f", root {root}"
        self.result = OUT if contract.receives(r, root) else WORK
        self.where: list[int | None] = [
            IN if contract.contributes(r, root) else None
        ] * self.nblocks
        self.rounds: list[Round] = []
        self.number = 0

    def fail(self, text: str) -> ProofError:
        return ProofError(f"{self.title}: rank {self.r}, round {self.number}: {text}")

    def parse(self, messages: Messages, verb: str) -> list[tuple[int, range]]:
        """Bring what a generator wrote into the form [(peer, range of blocks), ...]."""
        link = "to" if verb == "send" else "from"
        parsed = []
        for item in _listed(messages):
            try:
                peer, blocks = item
                peer = index(peer)
                run = (
                    blocks if isinstance(blocks, range) else range(index(blocks), index(blocks) + 1)
                )
            except (TypeError, ValueError):
                raise self.fail(f"{verb}s {item!r}, which is not a pair (peer, block)") from None
            if not 0 <= peer < self.p:
                raise self.fail(f"{verb}s {link} rank {peer}, and ranks are 0..{self.p - 1}")
            if peer == self.r:
                raise self.fail(f"{verb}s {link} itself")
            if run.step != 1 or not 0 <= run.start < run.stop <= self.nblocks:
                raise self.fail(f"{verb}s block {blocks}, and blocks are 0..{self.nblocks - 1}")
            parsed.append((peer, run))
        return parsed

    def locate(self, blocks: range, verb: str) -> Run:
        """Return where a run of blocks lies, bringing it together first if it is scattered."""
        spaces = {self.where[b] for b in blocks}
        if None in spaces:
            missing = next(b for b in blocks if self.where[b] is None)
            raise self.fail(f"{verb} block {missing}, which it does not hold")
        if len(spaces) > 1:
            first = [b for b in blocks if self.where[b] == IN]
            copies = [Step(Run(self.result, b, 1), Run(IN, b, 1), None, b) for b in first]
            self.rounds.append(Round([], copies))
            for b in first:
                self.where[b] = self.result
        return Run(self.where[blocks.start] or IN, blocks.start, len(blocks))

    def add(self, exchange: Exchange) -> None:
        """Append one round."""
        sends = self.parse(exchange.send, "send")
        recvs = self.parse(exchange.recv, "receive")
        groups: dict[range, list[tuple[int, int]]] = {}
        if exchange.fold:
            for number, (peer, blocks) in enumerate(recvs):
                groups.setdefault(blocks, []).append((peer, number))
            seen: set[int] = set()
            for blocks in groups:
                self.locate(blocks, "folds into")
                if seen & set(blocks):
                    raise self.fail("folds into runs of blocks that overlap but are not equal")
                seen |= set(blocks)
        sources = [self.locate(blocks, "sends") for _, blocks in sends]
        slots = [Run(self.result, blocks.start, len(blocks)) for _, blocks in recvs]
        if exchange.fold:
            slot = 0
            for number, (_, blocks) in enumerate(recvs):
                slots[number] = Run(TMP, slot, len(blocks))
                slot += len(blocks)
        received = [
            Message(False, peer, run, blocks.start)
            for (peer, blocks), run in zip(recvs, slots, strict=True)
        ]
        sent = [
            Message(True, peer, run, run.first)
            for (peer, _), run in zip(sends, sources, strict=True)
        ]
        steps: list[Step] = []
        for blocks, incoming in groups.items():
            steps += self.chain(blocks, incoming, slots, sources)
        for _, blocks in recvs:
            for b in blocks:
                self.where[b] = self.result
        if received or sent:
            self.rounds.append(Round(received + sent, steps))

    def chain(
        self, blocks: range, incoming: list[tuple[int, int]], slots: list[Run], sources: list[Run]
    ) -> Iterator[Step]:
        """Yield the steps that fold what came in, and the rank's own value, in rank order.

        What is folded before the rank's own value is gathered in a temporary slot, because the
        own value may lie where the result will.
        """
        result = Run(self.result, blocks.start, len(blocks))
        own = Run(self.where[blocks.start] or IN, blocks.start, len(blocks))
        hazard = not shared(sources).isdisjoint(result.shared())
        received = [(peer, slots[number], (number,)) for peer, number in incoming]
        terms: list[tuple[int, Run, tuple[int, ...]]] = sorted([*received, (self.r, own, ())])
        _, left, needs = terms[0]
        for peer, right, need in terms[1:]:
            dst = result if peer >= self.r else left
            yield Step(dst, left, right, blocks.start, needs + need, hazard and dst == result)
            left, needs = dst, ()

    def finish(self) -> None:
        """Copy what the result still lacks from the input, beside the last round's messages."""
        if self.result != OUT:
            return
        copies: list[Step] = []
        for b, space in enumerate(self.where):
            if space != IN:
                continue
            if copies and copies[-1].dst.first + copies[-1].dst.length == b:
                run = copies.pop().dst
                start, count = run.first, run.length + 1
            else:
                start, count = b, 1
            copies.append(Step(Run(OUT, start, count), Run(IN, start, count), None, start))
        if copies:
            if not self.rounds:
                self.rounds.append(Round())
            self.rounds[-1].steps[:0] = copies


def _listed(messages: Any) -> list[Any]:
    """Return a single message, or several, as a list."""
    if not isinstance(messages, list | tuple):
        return [messages]
    if messages and not isinstance(messages[0], list | tuple):
        return [messages]
    return list(messages)


def compile(algorithm: Algorithm, p: int, rank: int, root: int = 0, *, merged: bool = True) -> Plan:
    """Return the plan of one rank. Local.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry.
    p, rank, root : int
        Size, this rank, and the root (of a rooted collective).
    merged : bool
        Whether neighbouring rounds that do not depend on each other are joined.

    Raises
    ------
    ArgumentError
        If p, rank or root is out of range, or p does not meet a requirement.
    ProofError
        If a round names a rank or block that does not exist, or a block that is not held.
    """
    if not 0 <= rank < p:
        raise ArgumentError(f"rank is {rank}, and must be in 0..{p - 1}")
    if not 0 <= root < p:
        raise ArgumentError(f"root is {root}, and must be in 0..{p - 1}")
    refusal = algorithm.refusal(p)
    if refusal:
        raise ArgumentError(refusal)
    builder = _Builder(algorithm, p, rank, root)
    for number, exchange in enumerate(algorithm.rounds(rank, p, root), start=1):
        builder.number = number
        if not isinstance(exchange, Exchange):
            raise builder.fail(f"yields {exchange!r}, which is not an Exchange")
        builder.add(exchange)
    builder.finish()
    rounds = merge(builder.rounds) if merged else builder.rounds
    runs = list(_runs(rounds))
    return Plan(
        algorithm=algorithm,
        p=p,
        rank=rank,
        root=root,
        nblocks=builder.nblocks,
        rounds=tuple(rounds),
        tmp=_extent(runs, TMP),
        work=builder.nblocks if _extent(runs, WORK) else 0,
    )


def _runs(rounds: Iterable[Round]) -> Iterator[Run]:
    for each in rounds:
        for message in each.messages:
            yield message.run
        for step in each.steps:
            yield from (run for run in step[:3] if run is not None)


def shared(runs: Iterable[Run]) -> set[tuple[int, int]]:
    """Return the blocks of memory that runs cover, in place."""
    return {cell for run in runs for cell in run.shared()}


def _extent(runs: Iterable[Run], space: int) -> int:
    return max((run.first + run.length for run in runs if run.space == space), default=0)


def merge(rounds: Sequence[Round]) -> list[Round]:
    """Join each round to the one before it where neither depends on the other.

    The order of folding does not change: the later round's steps follow the earlier one's.
    """
    merged: list[Round] = []
    for each in rounds:
        joined = merged and _join(merged[-1], each)
        if joined:
            merged[-1] = joined
        else:
            merged.append(each)
    return merged


def _join(a: Round, b: Round) -> Round | None:
    """Return rounds `a` and `b` as one, or None if `b` depends on `a`."""
    shift = _extent((message.run for message in a.messages), TMP)
    if shift + _extent((message.run for message in b.messages), TMP) > MERGED_TMP_BLOCKS:
        return None
    landed = shared(message.run for message in a.messages if not message.send)
    read = shared(message.run for message in a.messages if message.send)
    read |= shared(run for step in a.steps for run in step[1:3] if run is not None)
    written = landed | shared(step.dst for step in a.steps)
    if not written.isdisjoint(shared(m.run for m in b.messages if m.run.space != TMP)):
        return None
    if not read.isdisjoint(shared(m.run for m in b.messages if not m.send and m.run.space != TMP)):
        return None
    touched = (run for step in b.steps for run in step[:3] if run is not None and run.space != TMP)
    if not landed.isdisjoint(shared(touched)):
        return None

    def moved(run: Run) -> Run:
        return run._replace(first=run.first + shift) if run.space == TMP else run

    count = len(a.messages)
    messages = a.messages + [m._replace(run=moved(m.run)) for m in b.messages]
    sources = shared(message.run for message in messages if message.send)
    steps = []
    for step in a.steps:
        steps.append(step._replace(after_sends=not sources.isdisjoint(step.dst.shared())))
    for step in b.steps:
        steps.append(
            Step(
                dst=moved(step.dst),
                left=moved(step.left),
                right=None if step.right is None else moved(step.right),
                block=step.block,
                needs=tuple(number + count for number in step.needs),
                after_sends=not sources.isdisjoint(moved(step.dst).shared()),
            )
        )
    return Round(messages, steps)


ROUND_FIELDS = 4  # first message, end of messages, first step, end of steps
MESSAGE_FIELDS = 6  # send, peer, space, first, count, block
STEP_FIELDS = (
    12  # dst, left, right as (space, first), count, block, two needs, after_sends, is_copy
)


def pack(plan: Plan, *, whole: bool) -> tuple[array[int], array[int], array[int]]:
    """Write a plan as three arrays of C ints: rounds, messages, steps.

    With ``whole=True`` a run of blocks is one message, as when a buffer travels in one segment;
    otherwise each of its blocks is a message of its own, because the segments of different
    blocks are not adjacent.
    """
    rounds, messages, steps = array("i"), array("i"), array("i")
    for each in plan.rounds:
        start = len(messages) // MESSAGE_FIELDS, len(steps) // STEP_FIELDS
        slots: list[range] = []
        for message in each.messages:
            pieces = _pieces(message.run, whole)
            number = len(messages) // MESSAGE_FIELDS - start[0]
            slots.append(range(number, number + len(pieces)))
            for k, run in enumerate(pieces):
                messages.extend((int(message.send), message.peer, *run, message.block + k))
        for step in each.steps:
            right = step.right if step.right is not None else step.left
            dsts, lefts, rights = (_pieces(run, whole) for run in (step.dst, step.left, right))
            for k, (d, a, b) in enumerate(zip(dsts, lefts, rights, strict=True)):
                needs = [slots[i][k] for i in step.needs] + [-1, -1]
                flags = (*needs[:2], int(step.after_sends), int(step.right is None))
                steps.extend((*d[:2], *a[:2], *b[:2], d.length, step.block + k, *flags))
        stop = len(messages) // MESSAGE_FIELDS, len(steps) // STEP_FIELDS
        rounds.extend((start[0], stop[0], start[1], stop[1]))
    return rounds, messages, steps


def _pieces(run: Run, whole: bool) -> list[Run]:
    if whole:
        return [run]
    return [Run(run.space, b, 1) for b in range(run.first, run.first + run.length)]
