"""From an algorithm's rounds to a plan: what is sent, received and folded, and where it lies.

Theory of operation
-------------------
An algorithm is a generator. For rank ``r`` of ``p`` it yields `Exchange` objects, one for each
round: block numbers to send, block numbers to receive, and whether received blocks are folded or
just stored. It never says where a block is in memory.

`compile` decides this. The first value of a block is in the caller's input (``IN``). All later
values are at the *home* of the block: in the caller's output (``OUT``) if the rank gets the block
as a result, else in a workspace (``WORK``). So nothing has to be copied before the first round. A
block that is received to be folded is stored in a temporary slot (``TMP``), and a local step folds
it.

Blocks that travel together are one message. If they are not adjacent in memory, they are packed
into a *parcel*: consecutive places at the end of the workspace, filled by local copies before they
are sent, or emptied by local steps after they are received.

**Folds happen in rank order.** All values of one block in one round, the rank's own and those
received, are folded from the lowest rank to the highest. Two ranks that fold the same values
therefore compute the same expression, and get the same bits.

Each local step lists the messages that it needs; the executor runs it as soon as these have
arrived. A step that overwrites a block which the same round sends waits for the sends.

`merge` then joins neighbouring rounds that do not depend on each other, so that their messages
are in flight at the same time. `program.pack` writes a plan as flat arrays for the executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from collectives.algorithms.exchange import Exchange, Messages, listed
from collectives.algorithms.registry import Algorithm
from collectives.errors import ArgumentError, ProofError

IN, OUT, WORK, TMP = range(4)
SPACES = ("in", "out", "work", "tmp")

# A merged round has at most this many temporary blocks. Each needs memory, once for each segment in
# flight.
MERGED_TMP_BLOCKS = 32
# It has at most this many messages. Each needs a request, once for each segment in flight.
MERGED_MESSAGES = 64


class Run(NamedTuple):
    """`length` consecutive blocks from `first` on, in one memory space."""

    space: int
    first: int
    length: int

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


class Message(NamedTuple):
    """A send from, or a receive into, a run of blocks.

    `home` is the run itself, or, if the run is in temporary slots, the place where the blocks go;
    it tells the lengths of the blocks. `fold` says whether they are received to be folded.
    """

    send: bool
    peer: int
    run: Run
    home: Run
    fold: bool = False


class Step(NamedTuple):
    """A local step: ``dst = left op right``, or ``dst = left`` where `right` is None.

    `home` is where the blocks go in the end; it tells their lengths. `needs` are the messages of
    the round (by index) that must have arrived. `after_sends` says that the sends of the round must
    have completed, too, because one of them reads `dst`.
    """

    dst: Run
    left: Run
    right: Run | None
    home: Run
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

    Attributes
    ----------
    algorithm : Algorithm
    p, rank, root : int
    nblocks : int
        Number of blocks of all parts.
    cut : int
        Number of blocks of each part.
    rounds : tuple of Round
    tmp : int
        Number of temporary blocks.
    parcels : tuple of int
        For each place in parcels, the number of its block.
    """

    algorithm: Algorithm
    p: int
    rank: int
    root: int
    nblocks: int
    cut: int
    rounds: tuple[Round, ...]
    tmp: int
    parcels: tuple[int, ...]

    def inputs(self) -> Sequence[int]:
        """Return the parts in the input of this rank. Local."""
        return self.algorithm.collective.inputs(self.rank, self.p, self.root)

    def outputs(self) -> Sequence[int]:
        """Return the parts in the output of this rank. Local."""
        return self.algorithm.collective.outputs(self.rank, self.p, self.root)

    def held(self) -> list[int]:
        """Return the numbers of the blocks in the input of this rank. Local."""
        return _blocks(self.inputs(), self.cut)

    def wanted(self) -> list[int]:
        """Return the numbers of the blocks in the output of this rank. Local."""
        return _blocks(self.outputs(), self.cut)

    def workspace(self) -> list[int]:
        """Return the number of the block for each place in the workspace. Local."""
        parts = {b // self.cut for b in _homes(self)}
        return _blocks(sorted(parts), self.cut) + list(self.parcels)

    def merged(self) -> Plan:
        """Return the plan with rounds joined that do not depend on each other. Local."""
        rounds = merge(self.rounds)
        return replace(self, rounds=tuple(rounds), tmp=_extent(_runs(rounds), TMP))

    def numbers(self, run: Run) -> Sequence[int]:
        """Return the numbers of the blocks in `run`. Local.

        In a parcel they need not be consecutive. For a temporary slot they are not known; the home
        of its blocks has their numbers.
        """
        if run.space == WORK and run.first >= self.nblocks:
            return self.parcels[run.first - self.nblocks :][: run.length]
        return range(run.first, run.first + run.length)


def _blocks(parts: Iterable[int], cut: int) -> list[int]:
    return [part * cut + k for part in parts for k in range(cut)]


def _homes(plan: Plan) -> Iterator[int]:
    """Yield the blocks that have their home in the workspace of a plan."""
    for run in _runs(plan.rounds):
        if run.space == WORK and run.first < plan.nblocks:
            yield from range(run.first, run.first + run.length)


class _Incoming(NamedTuple):
    """Where blocks to be folded are: in which message of a round, from which place in it on."""

    peer: int
    number: int
    offset: int


class _Builder:
    """The state of `compile`: where each block lies, and the rounds so far."""

    def __init__(self, algorithm: Algorithm, p: int, r: int, root: int) -> None:
        contract = algorithm.collective
        self.p, self.r = p, r
        self.nblocks = algorithm.blocks(p)
        self.title = algorithm.title(p, root)
        parts = contract.parts(p)
        self.cut = self.nblocks // parts
        self.number = 0
        self.wanted = contract.outputs(r, p, root)
        self.repeats = contract.repeats
        # For each block, its space and its place there; places in parcels come after all blocks.
        self.where: list[tuple[int, int] | None] = [None] * self.nblocks
        self.given = contract.inputs(r, p, root)
        for b in _blocks(self.given, self.cut):
            self.where[b] = IN, b
        self.parcels: list[int] = []
        self.rounds: list[Round] = []

    def fail(self, text: str) -> ProofError:
        return ProofError(f"{self.title}: rank {self.r}, round {self.number}: {text}")

    def parse(self, messages: Messages, verb: str) -> list[tuple[int, Sequence[int]]]:
        """Convert what a generator yields to [(peer, numbers of blocks), ...], and check it."""
        link = "to" if verb == "send" else "from"
        try:
            parsed = listed(messages)
        except TypeError as error:
            raise self.fail(f"{verb}s {error}") from None
        for peer, run in parsed:
            if not 0 <= peer < self.p:
                raise self.fail(f"{verb}s {link} rank {peer}, and ranks are 0..{self.p - 1}")
            if peer == self.r:
                raise self.fail(f"{verb}s {link} itself")
            if not run or not all(0 <= b < self.nblocks for b in (min(run), max(run))):
                raise self.fail(
                    f"{verb}s block {_short(run)}, and blocks are 0..{self.nblocks - 1}; blocks= "
                    f"of @algorithm says how many there are"
                )
            if len(set(run)) < len(run):
                raise self.fail(f"{verb}s a block twice in {run}")
        return parsed

    def home(self, block: int) -> tuple[int, int]:
        """Return the place of the second and all later values of a block."""
        return (OUT if block // self.cut in self.wanted else WORK), block

    def held(self, block: int, verb: str) -> tuple[int, int]:
        """Return the current place of a block."""
        place = self.where[block]
        if place is None:
            raise self.fail(f"{verb} block {block}, which it does not hold")
        return place

    def parcel(self, blocks: Sequence[int]) -> Run:
        """Return new places, side by side, for blocks that travel together."""
        run = Run(WORK, self.nblocks + len(self.parcels), len(blocks))
        self.parcels += blocks
        return run

    def gather(self, blocks: Sequence[int]) -> Run:
        """Return places where blocks to be sent are side by side, after copying them if needed."""
        places = [self.held(b, "sends") for b in blocks]
        if len(runs := _joined(places)) == 1:
            return runs[0]
        homes = [self.home(b) for b in blocks]
        if len(joined := _joined(homes)) == 1:
            # Blocks that are elsewhere move to their homes, which are side by side.
            pairs = [(a, h) for a, h in zip(places, homes, strict=True) if a != h]
            for b, home in zip(blocks, homes, strict=True):
                self.where[b] = home
            run = joined[0]
        else:
            run = self.parcel(blocks)
            pairs = [(place, (WORK, run.first + k)) for k, place in enumerate(places)]
        self.rounds.append(Round([], list(_copies(pairs))))
        return run

    def add(self, exchange: Exchange) -> None:
        """Append one round."""
        sends = self.parse(exchange.send, "send")
        recvs = self.parse(exchange.recv, "receive")
        groups = self.grouped(recvs) if exchange.fold else []
        whole = {
            number
            for run, incoming in groups
            for _, number, _ in incoming
            if len(run) == len(recvs[number][1])
        }
        sources = [self.gather(blocks) for _, blocks in sends]
        busy = shared(sources)
        received: list[Message] = []
        steps: list[Step] = []
        slot = 0
        for number, (peer, blocks) in enumerate(recvs):
            homes = _joined([self.home(b) for b in blocks])
            if number in whole and len(homes) == 1 == len(self.ways(blocks)):
                run = Run(TMP, slot, len(blocks))
                slot += len(blocks)
            elif not exchange.fold and len(homes) == 1 and busy.isdisjoint(homes[0].shared()):
                run = homes[0]
            else:
                run = self.parcel(blocks)
                if not exchange.fold:
                    steps += self.unpacked(number, run, blocks, busy)
            home = homes[0] if run.space == TMP else run
            received.append(Message(False, peer, run, home, exchange.fold))
        for group, incoming in groups:
            offset = 0
            for part in self.ways(group):
                moved = [each._replace(offset=each.offset + offset) for each in incoming]
                steps += self.chain(part, moved, received, busy)
                offset += len(part)
        for (_, blocks), message in zip(recvs, received, strict=True):
            for k, b in enumerate(blocks):
                space, place = message.run.space, message.run.first + k
                forwarded = not exchange.fold and self.home(b)[0] == WORK and space == WORK
                self.where[b] = (WORK, place) if forwarded else self.home(b)
        sent = [
            Message(True, peer, run, run) for (peer, _), run in zip(sends, sources, strict=True)
        ]
        if received or sent:
            self.rounds.append(Round(received + sent, steps))

    def grouped(
        self, recvs: Sequence[tuple[int, Sequence[int]]]
    ) -> list[tuple[list[int], list[_Incoming]]]:
        """Return the blocks that are folded into, in runs that come side by side from all peers.

        With each run is where it begins in the messages that bring it.
        """
        coming: dict[int, list[_Incoming]] = {}
        for number, (peer, blocks) in enumerate(recvs):
            for offset, b in enumerate(blocks):
                coming.setdefault(b, []).append(_Incoming(peer, number, offset))
        groups: list[tuple[list[int], list[_Incoming]]] = []
        for b, incoming in coming.items():
            self.held(b, "folds into")
            if groups:
                run, begun = groups[-1]
                if incoming == [each._replace(offset=each.offset + len(run)) for each in begun]:
                    run.append(b)
                    continue
            groups.append(([b], incoming))
        return groups

    def ways(self, blocks: Sequence[int]) -> list[list[int]]:
        """Split blocks into runs that are side by side, both now and at home."""
        runs: list[list[int]] = []
        for b in blocks:
            place, home = self.held(b, "folds into"), self.home(b)
            if runs:
                last = runs[-1][-1]
                before, after = self.where[last] or home, self.home(last)
                if _next(before) == place and _next(after) == home:
                    runs[-1].append(b)
                    continue
            runs.append([b])
        return runs

    def unpacked(
        self, number: int, run: Run, blocks: Sequence[int], busy: set[tuple[int, int]]
    ) -> Iterator[Step]:
        """Yield the steps that copy those blocks of a received parcel that belong to the output.

        Blocks that are only passed on stay in the parcel.
        """
        pairs = []
        for k, b in enumerate(blocks):
            if self.home(b)[0] == OUT:
                pairs.append(((WORK, run.first + k), self.home(b)))
        for step in _copies(pairs):
            wait = not busy.isdisjoint(step.dst.shared())
            yield step._replace(needs=(number,), after_sends=wait)

    def chain(
        self,
        blocks: list[int],
        incoming: list[_Incoming],
        received: list[Message],
        busy: set[tuple[int, int]],
    ) -> Iterator[Step]:
        """Yield the steps that fold the received values and the rank's own, in rank order.

        The values before the rank's own are folded in a temporary slot, because the own value may
        already be in the place of the result.
        """
        first, length = blocks[0], len(blocks)
        result = Run(*self.home(first), length)
        own = Run(*self.held(first, "folds into"), length)
        hazard = not busy.isdisjoint(result.shared())
        terms: list[tuple[int, Run, tuple[int, ...]]] = [(self.r, own, ())]
        for peer, number, offset in incoming:
            run = received[number].run
            terms.append((peer, Run(run.space, run.first + offset, length), (number,)))
        terms.sort()
        _, left, needs = terms[0]
        for peer, right, need in terms[1:]:
            dst = result if peer >= self.r else left
            yield Step(dst, left, right, result, needs + need, hazard and dst == result)
            left, needs = dst, ()

    def finish(self) -> None:
        """Copy what the result still lacks from the input, in the last round."""
        pairs = []
        for b in _blocks(self.wanted, self.cut):
            place = self.where[b]
            if place is not None and place != (OUT, b):
                pairs.append((place, (OUT, b)))
        if pairs:
            if not self.rounds:
                self.rounds.append(Round())
            by_number = isinstance(self.given, range) and isinstance(self.wanted, range)
            groups = [pairs] if by_number else [[pair] for pair in pairs]
            self.rounds[-1].steps[:0] = [step for each in groups for step in _copies(each)]
        self.repeat()

    def repeat(self) -> None:
        """Copy what belongs in several places of the result, in a round of its own."""
        steps = []
        for part in self.wanted:
            for k in range(self.cut if part in self.repeats else 0):
                source, target = self.repeats[part] * self.cut + k, part * self.cut + k
                dst = Run(OUT, target, 1)
                steps.append(Step(dst, Run(OUT, source, 1), None, dst))
        if steps:
            self.rounds.append(Round([], steps))


def _next(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[1] + 1


def _joined(places: Sequence[tuple[int, int]]) -> list[Run]:
    """Return places as runs of consecutive ones."""
    runs: list[Run] = []
    for space, place in places:
        if runs and runs[-1].space == space and runs[-1].first + runs[-1].length == place:
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(Run(space, place, 1))
    return runs


def _copies(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> Iterator[Step]:
    """Yield the steps that copy from one place to another, as few as possible."""
    start = 0
    for end in range(1, len(pairs) + 1):
        if end < len(pairs):
            before, here = pairs[end - 1 : end + 1]
            if (_next(before[0]), _next(before[1])) == here:
                continue
        source, target = pairs[start]
        dst = Run(*target, end - start)
        yield Step(dst, Run(*source, end - start), None, dst)
        start = end


def _short(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else str(run)


def compile(algorithm: Algorithm, p: int, rank: int, root: int = 0, *, merged: bool = True) -> Plan:
    """Return the plan of one rank. Local.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry.
    p, rank, root : int
        Size, this rank, and the root (of a rooted collective).
    merged : bool
        Whether to join neighbouring rounds that do not depend on each other.

    Raises
    ------
    ArgumentError
        If p, rank or root is out of range, or p does not meet a requirement.
    ProofError
        If a round has a rank or block that does not exist, or a block that the rank does not hold.
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
    plan = Plan(
        algorithm=algorithm,
        p=p,
        rank=rank,
        root=root,
        nblocks=builder.nblocks,
        cut=builder.cut,
        rounds=tuple(builder.rounds),
        tmp=_extent(_runs(builder.rounds), TMP),
        parcels=tuple(builder.parcels),
    )
    return plan.merged() if merged else plan


def _runs(rounds: Iterable[Round]) -> Iterator[Run]:
    for each in rounds:
        for message in each.messages:
            yield message.run
        for step in each.steps:
            yield from (run for run in step[:3] if run is not None)


def shared(runs: Iterable[Run]) -> set[tuple[int, int]]:
    """Return the blocks of memory that runs cover if input and output are the same array."""
    return {cell for run in runs for cell in run.shared()}


def _extent(runs: Iterable[Run], space: int) -> int:
    return max((run.first + run.length for run in runs if run.space == space), default=0)


def merge(rounds: Sequence[Round]) -> list[Round]:
    """Join each round to the one before it where neither depends on the other.

    The order of folding does not change: the later round's steps follow the earlier one's.
    """
    merged: list[_Merged] = []
    for each in rounds:
        if not merged or not merged[-1].joins(each):
            merged.append(_Merged(each))
    return [each.made() for each in merged]


class _Merged:
    """A round to which others are joined, with the blocks of memory that it touches so far."""

    def __init__(self, first: Round) -> None:
        self.rounds: list[Round] = []
        self.messages: list[Message] = []
        self.steps: list[Step] = []
        self.slots = 0  # temporary blocks of its messages
        self.landed: set[tuple[int, int]] = set()
        self.written: set[tuple[int, int]] = set()
        self.sent: set[tuple[int, int]] = set()
        self.read: set[tuple[int, int]] = set()  # by steps
        self.append(first)

    def joins(self, b: Round) -> bool:
        """Append a round, unless it depends on this one; say whether it was."""
        if self.slots + _extent((message.run for message in b.messages), TMP) > MERGED_TMP_BLOCKS:
            return False
        count = len(self.messages) + len(b.messages)
        if self.messages and b.messages and count > MERGED_MESSAGES:
            return False
        moving = [message for message in b.messages if message.run.space != TMP]
        runs = shared(message.run for message in moving)
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
        count, slots = len(self.messages), self.slots

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

    def made(self) -> Round:
        """Return the round, whose steps wait for all sends from where they write."""
        if len(self.rounds) == 1:
            return self.rounds[0]
        steps = [
            step._replace(after_sends=not self.sent.isdisjoint(step.dst.shared()))
            for step in self.steps
        ]
        return Round(self.messages, steps)
