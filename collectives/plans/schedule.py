"""Plans: the rounds of an algorithm as messages and steps, with places for all blocks.

Theory of operation
-------------------
An algorithm is a generator. For rank ``r`` of ``p`` it yields `Exchange` objects, one for each
round: block numbers to send, block numbers to receive, and whether received blocks are folded or
just stored. It knows nothing of memory.

`compile` gives each block its places. The first value of a block is in the caller's input
(``IN``). All later values are at the *home* of the block: in the caller's output (``OUT``) if the
rank gets the block as a result, else in a workspace (``WORK``). So nothing has to be copied before
the first round. A block that is received to be folded is stored in a temporary slot (``TMP``), and
a local step folds it.

Blocks that travel together are one message. If they are not adjacent in memory, they are packed
into a *parcel*: consecutive places at the end of the workspace, filled by local copies before they
are sent, or emptied by local steps after they are received.

**Folds happen in rank order.** All values of one block in one round, the rank's own and those
received, are folded from the lowest rank to the highest, or in pairs of neighbours, as the order of
the algorithm says. Two ranks that fold the same values therefore compute the same expression, and
get the same bits.

Each local step lists the messages that it needs; the executor runs it as soon as these have
arrived. A step that overwrites a block which the same round sends waits for the sends.

A *scratch block* is a second value of a block, if the algorithm has them. The first parcel is the
home of these values. The first value of a scratch block is in the caller's input as well, until the
block itself is about to replace it there.

`merge` then joins neighbouring rounds that do not depend on each other, so that their messages
are in flight at the same time. `program.pack` writes a plan as flat arrays for the executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from collectives.algorithms.bits import PAIRS
from collectives.algorithms.butterfly import folded_in_pairs
from collectives.algorithms.exchange import Fold, Normal
from collectives.algorithms.registry import Algorithm
from collectives.algorithms.schedule import require
from collectives.errors import ArgumentError, ProofError
from collectives.plans.garbage import no_garbage
from collectives.plans.rounds import (
    IN,
    MOST_KNOWN,
    OUT,
    TMP,
    WORK,
    Message,
    Round,
    Run,
    Step,
    merge,
    one,
    runs_of,
    shared,
    temporary,
)


@dataclass(frozen=True)
class Plan:
    """The work of one rank in one collective, for any count and dtype.

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
    scratch : bool
        Whether the first parcel has the scratch blocks.
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
    scratch: bool = False

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
        return replace(self, rounds=tuple(rounds), tmp=temporary(rounds))

    def is_scratch(self, run: Run) -> bool:
        """Return whether a run has scratch blocks. Local."""
        return self.scratch and run.space == WORK and 0 <= run.first - self.nblocks < self.nblocks

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
    for run in runs_of(plan.rounds):
        if run.space == WORK and run.first < plan.nblocks:
            yield from range(run.first, run.first + run.length)


# Rounds of at most one block in each direction, by the places of these (`_Builder.places`).
_KNOWN: dict[tuple[Any, ...], Round] = {}


class _Incoming(NamedTuple):
    """The place of blocks to be folded: a message of a round, and their offset in it."""

    peer: int
    number: int
    offset: int


class _Term(NamedTuple):
    """A value to be folded: its last rank, its place, and the messages that bring it."""

    peer: int
    run: Run
    needs: tuple[int, ...]


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
        self.in_pairs = algorithm.order == PAIRS
        self.scratch = self.nblocks if algorithm.scratch else 0
        if algorithm.scratch:
            self.where += self.where
            self.parcel(range(self.nblocks))

    def fail(self, text: str) -> ProofError:
        return ProofError(f"{self.title}: rank {self.r}, round {self.number}: {text}")

    def home(self, block: int) -> tuple[int, int]:
        """Return the place of the second and all later values of a block."""
        if block >= self.nblocks:
            return WORK, block
        return (OUT if block // self.cut in self.wanted else WORK), block

    def twin(self, block: int) -> int:
        """Return the scratch block of a block, or the block of a scratch block."""
        return block + self.scratch if block < self.nblocks else block - self.scratch

    def held(self, block: int, verb: str) -> tuple[int, int]:
        """Return the current place of a block."""
        place = self.where[block]
        if place is None:
            raise self.fail(f"{verb} block {block}, which it does not hold")
        return place

    def is_passed_on(self, block: int) -> bool:
        """Return whether a block belongs neither to the output nor to the scratch blocks."""
        return block < self.nblocks and self.home(block)[0] == WORK

    def twins(self, recvs: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[int, Sequence[int]]]:
        """Return the twins of received blocks, which a round with ``both=True`` folds, too."""
        if not self.scratch:
            raise self.fail("has both=True, which needs scratch=True of @algorithm")
        every = [b % self.nblocks for _, blocks in recvs for b in blocks]
        if len(set(every)) < len(every):
            raise self.fail("receives a block twice, which a round with both=True must not")
        return [(peer, [self.twin(b) for b in blocks]) for peer, blocks in recvs]

    def save_scratch(
        self,
        recvs: Sequence[tuple[int, Sequence[int]]],
        twins: Sequence[tuple[int, Sequence[int]]],
    ) -> None:
        """Copy scratch blocks out of the input before a round replaces them there.

        Scratch blocks that the round folds into need no copy.
        """
        if not self.scratch:
            return
        folded = {b for _, blocks in twins for b in blocks}
        pairs = []
        for _, blocks in recvs:
            for b in blocks:
                twin = self.twin(b)
                if b < self.nblocks and twin not in folded and self.where[twin] == (IN, b):
                    pairs.append(((IN, b), self.home(twin)))
                    self.where[twin] = self.home(twin)
        if pairs:
            self.rounds.append(Round([], list(_copies(pairs))))

    def parcel(self, blocks: Sequence[int]) -> Run:
        """Return new places, side by side, for blocks that travel together."""
        run = Run(WORK, self.nblocks + len(self.parcels), len(blocks))
        self.parcels += blocks
        return run

    def gather(self, blocks: Sequence[int]) -> Run:
        """Return places where blocks to be sent are side by side, after copying them if needed."""
        if len(blocks) == 1:
            return one(*self.held(blocks[0], "sends"))
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

    def places(self, exchange: Normal) -> tuple[Any, ...] | None:
        """Return all that a round depends on but its peers, if it has at most one block in each
        direction; else None.
        """
        sends, recvs = exchange.send, exchange.recv
        if self.scratch or exchange.both or len(sends) > 1 or len(recvs) > 1:
            return None
        given = own = home = below = None
        is_fold = False
        for _, blocks in sends:
            if len(blocks) > 1 or (given := self.where[blocks[0]]) is None:
                return None
        for message in recvs:
            peer, blocks = message
            if len(blocks) > 1:
                return None
            home = self.home(blocks[0])
            if is_fold := type(message) is Fold:
                own, below = self.where[blocks[0]], peer < self.r
                if own is None:
                    return None
        return given, home, is_fold, own, below

    def add(self, exchange: Normal) -> None:
        """Append one round, with the places of one that is like it if there is one."""
        key = self.places(exchange)
        like = _KNOWN.get(key) if key else None
        if key is None or like is None:
            before = len(self.rounds), len(self.parcels)
            self.place(exchange)
            if key and (len(self.rounds) - 1, len(self.parcels)) == before:
                if len(_KNOWN) >= MOST_KNOWN:
                    _KNOWN.clear()
                _KNOWN[key] = self.rounds[-1]
                self.rounds[-1].kind = object()
            return
        messages = [
            Message(send, other[0], run, home, fold)
            for (send, _, run, home, fold), other in zip(
                like.messages, exchange.recv + exchange.send, strict=True
            )
        ]
        self.rounds.append(Round(messages, like.steps, like.kind))
        for _, blocks in exchange.recv:
            self.where[blocks[0]] = key[1]

    def place(self, exchange: Normal) -> None:
        """Append one round, and find the places of its blocks."""
        sends, recvs = exchange.send, exchange.recv
        folds = [type(message) is Fold for message in recvs]
        groups = self.grouped(recvs, folds) if any(folds) else []
        twins = self.twins(recvs) if exchange.both else []
        self.save_scratch(recvs, twins)
        whole = {
            number
            for run, incoming in groups
            for _, number, _ in incoming
            if len(run) == len(recvs[number][1]) and not twins
        }
        if self.scratch:
            # Scratch blocks go first: their values may still be where the results of blocks go.
            groups += self.grouped(twins, [True] * len(twins))
            groups.sort(key=lambda each: each[0][0] < self.nblocks)
        sources = [self.gather(blocks) for _, blocks in sends]
        busy = shared(sources)
        own = [self.held(b, "folds into") for _, blocks in twins for b in blocks]
        taken = busy | shared(_joined(own))
        received: list[Message] = []
        steps: list[Step] = []
        unpacked: list[Step] = []
        slot = 0
        for number, (peer, blocks) in enumerate(recvs):
            homes = _joined([self.home(b) for b in blocks])
            if number in whole and len(homes) == 1 == len(self.adjacent(blocks)):
                run = one(TMP, slot) if len(blocks) == 1 else Run(TMP, slot, len(blocks))
                slot += len(blocks)
            elif not folds[number] and len(homes) == 1 and taken.isdisjoint(homes[0].shared()):
                run = homes[0]
            else:
                run = self.parcel(blocks)
                if not folds[number]:
                    unpacked += self.unpacked(number, run, blocks, busy)
            home = homes[0] if run.space == TMP else run
            received.append(Message(False, peer, run, home, folds[number]))
        for group, incoming in groups:
            offset = 0
            for part in self.adjacent(group):
                steps += self.folds(part, incoming, offset, received, busy)
                offset += len(part)
        steps += unpacked
        for _, blocks in twins:
            for b in blocks:
                self.where[b] = self.home(b)
        for (_, blocks), message in zip(recvs, received, strict=True):
            for k, b in enumerate(blocks):
                space, place = message.run.space, message.run.first + k
                forwarded = space == WORK and not message.fold and self.is_passed_on(b)
                self.where[b] = (WORK, place) if forwarded else self.home(b)
        sent = [
            Message(True, peer, run, run) for (peer, _), run in zip(sends, sources, strict=True)
        ]
        if received or sent:
            self.rounds.append(Round(received + sent, steps))

    def grouped(
        self, recvs: Sequence[tuple[int, Sequence[int]]], folds: Sequence[bool]
    ) -> list[tuple[list[int], list[_Incoming]]]:
        """Return the blocks that are folded into, in runs that arrive side by side from all peers.

        Each run has its places in the messages that bring it.
        """
        coming: dict[int, list[_Incoming]] = {}
        for number, (peer, blocks) in enumerate(recvs):
            for offset, b in enumerate(blocks) if folds[number] else ():
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

    def adjacent(self, blocks: Sequence[int]) -> list[list[int]]:
        """Split blocks into runs that are side by side, both now and at home."""
        if len(blocks) == 1:
            return [list(blocks)]
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
        """Yield the steps that copy the blocks of a received parcel to their homes.

        Blocks that are only passed on stay in the parcel.
        """
        pairs = []
        for k, b in enumerate(blocks):
            if not self.is_passed_on(b):
                pairs.append(((WORK, run.first + k), self.home(b)))
        for step in _copies(pairs):
            wait = not busy.isdisjoint(step.dst.shared())
            yield step._replace(needs=(number,), after_sends=wait)

    def folds(
        self,
        blocks: list[int],
        incoming: list[_Incoming],
        beyond: int,
        received: list[Message],
        busy: set[tuple[int, int]],
    ) -> list[Step]:
        """Return the steps that fold the received values and the rank's own, in rank order.

        The blocks begin `beyond` the offsets of `incoming`. Values of lower ranks, and in pairs the
        results of all folds but the last, are folded in a temporary slot, because the own value may
        already be in the place of the result.
        """
        pairs = self.in_pairs
        first, length = blocks[0], len(blocks)
        result = Run(*self.home(first), length)
        own = Run(*self.held(first, "folds into"), length)
        hazard = not busy.isdisjoint(result.shared())
        terms = [_Term(self.r, own, ())]
        for peer, number, offset in incoming:
            run = received[number].run
            if run.length > length:
                run = Run(run.space, run.first + offset + beyond, length)
            terms.append(_Term(peer, run, (number,)))
        terms.sort()
        steps: list[Step] = []

        def fold(left: _Term, right: _Term) -> _Term:
            dst = left.run if left.run != own else right.run
            if not pairs and right.peer >= self.r:
                dst = result
            needs = left.needs + right.needs
            steps.append(Step(dst, left.run, right.run, result, needs, hazard and dst == result))
            return _Term(right.peer, dst, ())

        (folded_in_pairs if pairs else reduce)(fold, terms)
        steps[-1] = Step(result, *steps[-1][1:5], hazard)
        return steps

    def finish(self) -> None:
        """Copy the blocks that the result still lacks to it, in the last round."""
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
            last = self.rounds.pop()
            copies = [step for each in groups for step in _copies(each)]
            self.rounds.append(Round(last.messages, copies + last.steps))
        self.repeat()

    def repeat(self) -> None:
        """Copy the parts that belong in several places of the result, in a round of their own."""
        steps = []
        for b in _blocks(filter(self.repeats.__contains__, self.wanted), self.cut):
            part, k = divmod(b, self.cut)
            dst = Run(OUT, b, 1)
            steps.append(Step(dst, Run(OUT, self.repeats[part] * self.cut + k, 1), None, dst))
        if steps:
            self.rounds.append(Round([], steps))


def _next(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[1] + 1


def _joined(places: Sequence[tuple[int, int]]) -> list[Run]:
    """Return places as runs of consecutive ones."""
    if len(places) == 1:
        return [one(*places[0])]
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


@lru_cache(maxsize=1024)  # it compiles the plans of all ranks, for each choice of an alltoallv
def passes_on(algorithm: Algorithm, p: int, root: int = 0) -> bool:
    """Return whether a rank passes on blocks of others, the same on all ranks. Local."""
    ranks = range(1 if algorithm.cyclic else p)
    return any(compile(algorithm, p, rank, root).workspace() for rank in ranks)


def compile(
    algorithm: Algorithm,
    p: int,
    rank: int,
    root: int = 0,
    *,
    merged: bool = True,
    rounds: Iterable[Normal] | None = None,
) -> Plan:
    """Return the plan of one rank. Local.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry.
    p, rank, root : int
        Size, this rank, and the root (of a rooted collective).
    merged : bool
        Whether to join neighbouring rounds that do not depend on each other.
    rounds : iterable of Exchange, optional
        The rounds of the rank, as ``algorithm.rounds`` yields them, by default these.

    Raises
    ------
    ArgumentError
        If p, rank or root is out of range, or p does not meet a requirement.
    ProofError
        If a round has a rank or block that does not exist, or a block that the rank does not hold.
    """
    if not 0 <= rank < p:
        raise ArgumentError(f"rank is {rank}, and must be in 0..{p - 1}")
    require(algorithm, p, root)
    builder = _Builder(algorithm, p, rank, root)
    each = algorithm.rounds(rank, p, root) if rounds is None else rounds
    with no_garbage():
        for number, exchange in enumerate(each, start=1):
            builder.number = number
            builder.add(exchange)
        builder.finish()
        joined = merge(builder.rounds) if merged else builder.rounds
    return Plan(
        algorithm=algorithm,
        p=p,
        rank=rank,
        root=root,
        nblocks=builder.nblocks,
        cut=builder.cut,
        rounds=tuple(joined),
        tmp=temporary(joined),
        parcels=tuple(builder.parcels),
        scratch=algorithm.scratch,
    )
