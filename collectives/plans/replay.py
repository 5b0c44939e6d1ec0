"""The symbolic replay: the plans of all ranks, run on expressions instead of numbers.

A value is an *expression*: a leaf (the contribution of one rank to one block) or the fold of two
expressions. Expressions are interned, so that equal expressions have equal numbers. The replay runs
the plans of all ranks over first-in-first-out queues, one for each ordered pair of ranks. A send
completes only when its receive is posted (a rendezvous), so a plan that does not deadlock here does
not deadlock anywhere. Because every receive names its source, one order of events stands for all
orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import ne
from typing import NamedTuple

from collectives.errors import ProofError
from collectives.plans.rounds import IN, OUT, Message, Round, Run
from collectives.plans.schedule import Plan
from collectives.text.words import named, ranks


class Event(NamedTuple):
    """A message: its time of arrival (in steps), ranks and blocks, and whether it is folded."""

    time: int
    source: int
    target: int
    blocks: tuple[int, ...]
    fold: bool


class Expressions:
    """Interned expressions: number -> contributors, block, order."""

    def __init__(self, idempotent: bool) -> None:
        self.idempotent = idempotent
        self.index: dict[tuple[int, int, int], int] = {}
        self.mask: list[int] = []
        self.block: list[int] = []
        self.ordered: list[bool] = []

    def _add(self, key: tuple[int, int, int], mask: int, block: int, ordered: bool) -> int:
        number = self.index.setdefault(key, len(self.mask))
        if number == len(self.mask):
            self.mask.append(mask)
            self.block.append(block)
            self.ordered.append(ordered)
        return number

    def leaf(self, rank: int, block: int) -> int:
        """Return the number of the contribution of `rank` to `block`. Local."""
        return self._add((-1, rank, block), 1 << rank, block, True)

    def fold(self, left: int, right: int) -> int:
        """Return the number of the fold of the expressions `left` and `right`. Local."""
        key = left, right, 0
        if key in self.index:
            return self.index[key]
        a, b = self.mask[left], self.mask[right]
        if self.block[left] != self.block[right]:
            raise ProofError(f"folds block {self.block[right]} into block {self.block[left]}")
        if a & b and not self.idempotent:
            raise ProofError(f"folds the contribution of {ranks(a & b)} twice")
        rising = a.bit_length() <= (b & -b).bit_length() - 1
        ordered = self.ordered[left] and self.ordered[right] and rising
        return self._add(key, a | b, self.block[left], ordered)


def hazards(each: Round) -> str | None:
    """Return the access of a round, `each`, that conflicts with a message of it, or None. Local."""
    cells = [message.run.shared() for message in each.messages]
    sources = {cell for m, run in zip(each.messages, cells, strict=True) if m.send for cell in run}
    pending: dict[tuple[int, int], int] = {}
    for number, message in enumerate(each.messages):
        if message.send:
            continue
        if not sources.isdisjoint(cells[number]):
            return f"receives into {message.run} while it is being sent"
        for cell in cells[number]:
            if pending.setdefault(cell, number) != number:
                return f"receives twice into {each.messages[pending[cell]].run}"
    for dst, left, right, _, needs, after_sends in each.steps:
        for number in needs:
            for cell in cells[number]:
                pending.pop(cell, None)
        if pending:
            runs = (dst, left) if right is None else (dst, left, right)
            waited = [pending[cell] for run in runs for cell in run.shared() if cell in pending]
            if waited:
                run = each.messages[min(waited)].run
                return f"reads or writes {run} while it is being received"
        if sources and not after_sends:
            if right is None and left.shared() == dst.shared():
                # In place, a copy from input to output does nothing; apart, it writes outside IN.
                apart = {cell for m in each.messages if m.send for cell in m.run.cells()}
                clash = not apart.isdisjoint(dst.cells())
            else:
                clash = not sources.isdisjoint(dst.shared())
            if clash:
                return f"overwrites {dst} while it is being sent"
    return None


class _Rank:
    """One rank of the replay: its plan, its memory, and its current round."""

    def __init__(self, plan: Plan, expressions: Expressions, in_place: bool, record: bool) -> None:
        self.plan = plan
        self.expressions = expressions
        self.record = record
        self.output = IN if in_place else OUT
        self.memory: dict[tuple[int, int], int] = {}
        self.held = [0] * (plan.nblocks << plan.scratch) if record else []
        for b in plan.held():
            self.memory[IN, b] = expressions.leaf(plan.rank, b)
            if record:
                self.held[b] = 1 << plan.rank
        self.round = -1
        self.open = False
        self.clock = 0
        self.arrival = 0
        self.waiting: set[int] = set()
        self.history = [(0, tuple(self.held))] if record else []

    def write(self, run: Run, values: list[int], held: bool) -> None:
        """Write values; `held` is false for values that are still to be folded."""
        if run.length == 1:
            self.memory[self.output if run.space == OUT else run.space, run.first] = values[0]
        else:
            self.memory.update(zip(run.cells(self.output), values, strict=True))
        if self.record and held:
            first = self.plan.nblocks if self.plan.is_scratch(run) else 0
            for k, value in enumerate(values):
                b = run.first + k if run.space == OUT else self.expressions.block[value]
                self.held[first + b] = self.expressions.mask[value]

    def read(self, run: Run, verb: str) -> list[int]:
        try:
            if run.length == 1:
                return [self.memory[self.output if run.space == OUT else run.space, run.first]]
            return [self.memory[cell] for cell in run.cells(self.output)]
        except KeyError:
            raise ProofError(f"{verb} {run}, which holds nothing yet") from None


# A posted message, its number in the rank's round, the rank's clock, and the values it sends.
_Posted = tuple[Message, int, int, list[int]]


class Replay:
    """All ranks, their queues, and the loop that runs them until there is no more progress."""

    ranks: list[_Rank]

    def __init__(
        self, plans: Sequence[Plan], expressions: Expressions, in_place: bool, record: bool = False
    ) -> None:
        self.plans = plans
        self.in_place = in_place
        self.record = record
        self.expressions = expressions
        self.title: str = plans[0].algorithm.title(len(plans), plans[0].root)
        self.ranks = [_Rank(plan, self.expressions, in_place, record) for plan in plans]
        # Messages from one rank to another that wait for their counterpart: all sends, or receives.
        self.posted: dict[tuple[int, int], list[_Posted]] = {}
        self.events: list[Event] = []
        self.messages: list[int] = [0] * len(plans)
        self.sent: list[int] = [0] * len(plans)
        self.folded: list[int] = [0] * len(plans)
        self.depth: int = 0
        self.ready: deque[int] = deque(range(len(plans)))

    def _fail(self, rank: int, text: str) -> ProofError:
        number = self.ranks[rank].round + 1
        return ProofError(f"{self.title}: rank {rank}, round {number}: {text}")

    def run(self) -> None:
        """Run all rounds of all ranks. Local.

        Raises
        ------
        ProofError
            If a round is wrong, or the ranks wait for each other for ever.
        """
        while self.ready:
            number = self.ready.popleft()
            try:
                self._advance(self.ranks[number])
            except ProofError as error:
                if str(error).startswith(self.title):
                    raise
                raise self._fail(number, str(error)) from None
        stuck = [rank for rank in self.ranks if rank.waiting]
        if stuck:
            texts = []
            for rank in stuck[:8]:
                me, at = rank.plan.rank, rank.round
                message = rank.plan.rounds[at].messages[min(rank.waiting)]
                verb = "to receive" if message.send else "to send"
                texts.append(f"rank {me} in round {at + 1} waits for rank {message.peer} {verb}")
            raise ProofError(f"{self.title}: deadlock: {'; '.join(texts)}")

    def _advance(self, rank: _Rank) -> None:
        """Finish each round that has all its messages, and post the next one."""
        while not rank.waiting:
            if rank.open:
                self._fold(rank)
                rank.open = False
            if rank.round + 1 == len(rank.plan.rounds):
                return
            rank.round += 1
            rank.open = True
            self._post(rank)

    def _fold(self, rank: _Rank) -> None:
        for step in rank.plan.rounds[rank.round].steps:
            values = rank.read(step.left, "reads")
            if step.right is not None:
                right = rank.read(step.right, "folds")
                values = [self.expressions.fold(a, b) for a, b in zip(values, right, strict=True)]
                self.folded[rank.plan.rank] += len(values)
            rank.write(step.dst, values, step.dst == step.home)
        rank.clock = rank.arrival
        if rank.record:
            rank.history.append((rank.clock, tuple(rank.held)))

    def _post(self, rank: _Rank) -> None:
        each = rank.plan.rounds[rank.round]
        # Hazards are the same with the output in place; the replay with it apart comes first.
        danger = None if self.in_place else hazards(each)
        if danger:
            raise ProofError(danger)
        me, clock = rank.plan.rank, rank.clock
        rank.waiting.update(range(len(each.messages)))
        for index, message in enumerate(each.messages):
            if message.send:
                pair = me, message.peer
                mine = message, index, clock, rank.read(message.run, "sends")
            else:
                pair = message.peer, me
                mine = message, index, clock, []
            waiting = self.posted.get(pair)
            if waiting is None:
                self.posted[pair] = [mine]
            elif waiting[0][0].send == message.send:
                waiting.append(mine)
            else:
                other = waiting.pop(0)
                if not waiting:
                    del self.posted[pair]
                self._match(*pair, *((mine, other) if message.send else (other, mine)))

    def _match(self, source: int, target: int, send: _Posted, recv: _Posted) -> None:
        giver, taker = self.ranks[source], self.ranks[target]
        _, given, sent, values = send
        (_, _, run, home, fold), got, posted, _ = recv
        block_of = self.expressions.block
        blocks = [block_of[value] for value in values]
        expected = taker.plan.numbers(home)
        if len(blocks) != len(expected) or any(map(ne, blocks, expected)):
            raise self._fail(
                target,
                f"expects {named(expected, 'block')} from rank {source}, which sends "
                f"{named(blocks, 'block')}",
            )
        taker.write(run, values, not fold)
        time = 1 + (sent if sent > posted else posted)
        if time > self.depth:
            self.depth = time
        self.messages[source] += 1
        self.sent[source] += len(blocks)
        if self.record:
            self.events.append(Event(time, source, target, tuple(blocks), fold))
        for rank, done in ((giver, given), (taker, got)):
            rank.waiting.discard(done)
            if time > rank.arrival:
                rank.arrival = time
            if not rank.waiting:
                self.ready.append(rank.plan.rank)

    def results(self) -> list[dict[int, int]]:
        """Check the memory against the contract; return each rank's expressions by block. Local."""
        p, algorithm, root = len(self.plans), self.plans[0].algorithm, self.plans[0].root
        contract = algorithm.collective
        results = []
        same: dict[tuple[int, int], int] = {}
        for rank in self.ranks:
            plan, me = rank.plan, rank.plan.rank
            wanted = plan.wanted()
            touched = set(wanted) if self.in_place else ()
            for b in plan.held():
                if b not in touched and rank.memory[IN, b] != self.expressions.leaf(me, b):
                    raise ProofError(f"{self.title}: rank {me} overwrites its input, block {b}")
            values = {}
            for b in wanted:
                value = rank.memory.get((rank.output, b))
                due = contract.sources(b // plan.cut, me, p, root)
                if value is None:
                    if not due:
                        continue
                    raise ProofError(f"{self.title}: rank {me} ends without block {b}")
                mask = self.expressions.mask[value]
                if mask != due:
                    raise ProofError(
                        f"{self.title}: rank {me} ends with block {b} of {ranks(mask)}, "
                        f"wanted {ranks(due)}"
                    )
                part, k = divmod(b, plan.cut)
                if self.expressions.block[value] != contract.repeats.get(part, part) * plan.cut + k:
                    raise ProofError(
                        f"{self.title}: rank {me} ends with block {self.expressions.block[value]} "
                        f"where block {b} belongs"
                    )
                if algorithm.keeps_order and not self.expressions.ordered[value]:
                    raise ProofError(f"{self.title}: rank {me} folds block {b} out of rank order")
                if algorithm.same_bits and same.setdefault((b, mask), value) != value:
                    raise ProofError(f"{self.title}: ranks end with different expressions")
                values[b] = value
            results.append(values)
        return results
