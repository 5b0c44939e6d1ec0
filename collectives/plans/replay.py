"""The symbolic replay: the plans of all ranks, run on expressions instead of numbers.

A value is an *expression*: a leaf (the contribution of one rank to one block) or the fold of two
expressions. Expressions are interned, so that equal expressions have equal numbers. The replay runs
the plans of all ranks. Their schedule says which receive takes which message. A send completes only
when its receive is posted (a rendezvous), so a plan that does not deadlock here does not deadlock
anywhere. Because every receive names its source, one order of events stands for all orders.

Once the value of each message is known, another form of the same plan is run *again* on each rank
by itself: it must send the same values.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from operator import ne
from typing import Any, NamedTuple

from collectives.algorithms.exchange import Fold
from collectives.algorithms.schedule import Schedule
from collectives.errors import ProofError
from collectives.plans.rounds import IN, OUT, Message, Round, Run, Step
from collectives.plans.schedule import Plan
from collectives.text.words import named, ranks

DEPENDS = "the result depends on how the plan is run"


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
    return _hazards(tuple([(m.send, m.run) for m in each.messages]), tuple(each.steps))


@lru_cache(maxsize=1 << 14)  # many ranks have rounds that differ in their peers only
def _hazards(messages: tuple[tuple[bool, Run], ...], steps: tuple[Step, ...]) -> str | None:
    cells = [run.shared() for _, run in messages]
    sources = {c for (send, _), run in zip(messages, cells, strict=True) if send for c in run}
    pending: dict[tuple[int, int], int] = {}
    for number, (send, run) in enumerate(messages):
        if send:
            continue
        if not sources.isdisjoint(cells[number]):
            return f"receives into {run} while it is being sent"
        for cell in cells[number]:
            if pending.setdefault(cell, number) != number:
                return f"receives twice into {messages[pending[cell]][1]}"
    for dst, left, right, _, needs, after_sends in steps:
        for number in needs:
            for cell in cells[number]:
                pending.pop(cell, None)
        if pending:
            runs = (dst, left) if right is None else (dst, left, right)
            waited = [pending[cell] for run in runs for cell in run.shared() if cell in pending]
            if waited:
                _, run = messages[min(waited)]
                return f"reads or writes {run} while it is being received"
        if sources and not after_sends:
            if right is None and left.shared() == dst.shared():
                # In place, a copy from input to output does nothing; apart, it writes outside IN.
                apart = {cell for send, run in messages if send for cell in run.cells()}
                clash = not apart.isdisjoint(dst.cells())
            else:
                clash = not sources.isdisjoint(dst.shared())
            if clash:
                return f"overwrites {dst} while it is being sent"
    return None


class _Rank:
    """One rank of the replay: its plan, its memory, and its current round."""

    def __init__(
        self,
        plan: Plan,
        rows: tuple[Sequence[int], Sequence[int]],
        expressions: Expressions,
        in_place: bool,
    ) -> None:
        self.plan = plan
        self.expressions = expressions
        self.in_place = in_place
        self.output = IN if in_place else OUT
        # The rows of its receives and sends in the schedule, and those of its current round.
        self.rows = iter(rows[0]), iter(rows[1])
        self.current: list[int] = []
        self.memory: dict[tuple[int, int], int] = {}
        for b in plan.held():
            self.memory[IN, b] = expressions.leaf(plan.rank, b)
        self.round = -1
        self.open = False
        self.clock = 0
        self.arrival = 0
        self.waiting = 0
        self.folded = 0
        # If it is recorded: the blocks at the start, the changes of each round, those of this one.
        self.held: list[int] | None = None
        self.changes: list[tuple[int, dict[int, int]]] = []
        self.changed: dict[int, int] = {}

    def write(self, run: Run, values: list[int], held: bool) -> None:
        """Write values; `held` is false for values that are still to be folded."""
        if run.length == 1:
            self.memory[self.output if run.space == OUT else run.space, run.first] = values[0]
        else:
            self.memory.update(zip(run.cells(self.output), values, strict=True))
        if self.held is not None and held:
            first = self.plan.nblocks if self.plan.is_scratch(run) else 0
            for k, value in enumerate(values):
                b = run.first + k if run.space == OUT else self.expressions.block[value]
                self.changed[first + b] = self.expressions.mask[value]

    def read(self, run: Run, verb: str) -> list[int]:
        try:
            if run.length == 1:
                return [self.memory[self.output if run.space == OUT else run.space, run.first]]
            return [self.memory[cell] for cell in run.cells(self.output)]
        except KeyError:
            raise ProofError(f"{verb} {run}, which holds nothing yet") from None

    def enter(self) -> Round:
        """Enter the next round, and find the rows of its messages."""
        self.round += 1
        self.open = True
        each = self.plan.rounds[self.round]
        # Hazards are the same with the output in place; the replay with it apart comes first.
        danger = None if self.in_place else hazards(each)
        if danger:
            raise ProofError(danger)
        self.current = [next(self.rows[message.send], -1) for message in each.messages]
        return each

    def fold(self, values: Sequence[list[int]]) -> None:
        """Store what has come, and run the steps of the round."""
        self.open = False
        each = self.plan.rounds[self.round]
        for message, row in zip(each.messages, self.current, strict=True):
            if not message.send:
                self.write(message.run, values[row], not message.fold)
        fold = self.expressions.fold
        for dst, left, right, home, _, _ in each.steps:
            operands = self.read(left, "reads")
            if right is not None:
                others = self.read(right, "folds")
                operands = [fold(a, b) for a, b in zip(operands, others, strict=True)]
                self.folded += len(operands)
            self.write(dst, operands, dst == home)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Switch the garbage collector off while many objects are made that all stay in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Later(Sequence[Any]):
    """A list that is made when it is first read, because it is long."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make

    @cached_property
    def _all(self) -> list[Any]:
        return self._make()

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, k: Any) -> Any:
        return self._all[k]

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, Later) else other)

    def __repr__(self) -> str:
        return repr(self._all)

    __hash__ = None  # type: ignore[assignment]


def _holdings(
    held: list[int], changes: list[tuple[int, dict[int, int]]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the blocks of a rank after each round, from those of the start and their changes."""
    held = list(held)
    found = [(0, tuple(held))]
    for time, changed in changes:
        for b, mask in changed.items():
            held[b] = mask
        found.append((time, tuple(held)))
    return found


def _events(schedule: Schedule, arrivals: list[int], nblocks: int) -> list[Event]:
    """Return the messages of a schedule that arrive, in order of their arrival."""
    folds = {row: type(message) is Fold for row, _, message in schedule.takes()}
    return sorted(
        Event(time, row.source, row.target, tuple(b % nblocks for b in row.blocks), folds[number])
        for number, (row, time) in enumerate(zip(schedule, arrivals, strict=True))
        if time
    )


class Replay:
    """All ranks, and the loop that runs them until there is no more progress."""

    def __init__(
        self,
        schedule: Schedule,
        plans: Sequence[Plan],
        expressions: Expressions,
        *,
        record: bool = False,
    ) -> None:
        self.schedule, self.plans, self.expressions = schedule, plans, expressions
        self.title: str = schedule.algorithm.title(schedule.p, schedule.root)
        rows = len(schedule)
        self.ranks = self._ranks(plans, in_place=False)
        for rank in self.ranks if record else ():
            rank.held = [0] * (rank.plan.nblocks << rank.plan.scratch)
            for b in rank.plan.held():
                rank.held[b] = 1 << rank.plan.rank
        # For each message, its values, the rank that has posted it, and the step it arrives in.
        self.values: list[list[int]] = [[]] * rows
        self.posted: dict[int, tuple[_Rank, Message]] = {}
        self.arrivals: list[int] = [0] * rows
        self.messages: list[int] = [0] * len(plans)
        self.sent: list[int] = [0] * len(plans)
        self.depth: int = 0
        self.ready: deque[_Rank] = deque(self.ranks)

    def _ranks(self, plans: Sequence[Plan], in_place: bool) -> list[_Rank]:
        rows = zip(self.schedule.taken, self.schedule.sent, strict=True)
        return [
            _Rank(plan, own, self.expressions, in_place)
            for plan, own in zip(plans, rows, strict=True)
        ]

    @property
    def events(self) -> Sequence[Event]:
        """Every message that has arrived, in order of arrival."""
        return Later(partial(_events, self.schedule, self.arrivals, self.plans[0].nblocks))

    @property
    def history(self) -> list[Sequence[tuple[int, tuple[int, ...]]]]:
        """The blocks of each rank after each of its rounds, if they are recorded."""
        return [
            [] if rank.held is None else Later(partial(_holdings, rank.held, rank.changes))
            for rank in self.ranks
        ]

    def run(self) -> None:
        """Run all rounds of all ranks. Local.

        Raises
        ------
        ProofError
            If a round is wrong, or the ranks wait for each other for ever.
        """
        while self.ready:
            rank = self.ready.popleft()
            with self._told(rank):
                self._advance(rank)
        stuck = [rank for rank in self.ranks if rank.waiting]
        if stuck:
            texts = []
            for rank in stuck[:8]:
                me, at = rank.plan.rank, rank.round
                messages = zip(rank.plan.rounds[at].messages, rank.current, strict=True)
                message = next(each for each, row in messages if row < 0 or not self.arrivals[row])
                verb = "to receive" if message.send else "to send"
                peer = self.ranks[message.peer]
                ended = "" if peer.waiting else f", but rank {message.peer} has ended"
                texts.append(
                    f"rank {me} in round {at + 1} waits for rank {message.peer} {verb}{ended}"
                )
            raise ProofError(f"{self.title}: deadlock: {'; '.join(texts)}")

    def again(self, plans: Sequence[Plan], *, in_place: bool) -> list[dict[int, int]]:
        """Run other plans of the same schedule on the values of this replay; return their results.

        They post no message later than the first ones, so they do not deadlock where these do not.
        """
        ranks = self._ranks(plans, in_place)
        for rank in ranks:
            with self._told(rank):
                for _ in rank.plan.rounds:
                    each = rank.enter()
                    for message, row in zip(each.messages, rank.current, strict=True):
                        if message.send and rank.read(message.run, "sends") != self.values[row]:
                            raise ProofError(f"{self.title}: {DEPENDS}")
                    rank.fold(self.values)
        return self._results(ranks)

    @contextmanager
    def _told(self, rank: _Rank) -> Iterator[None]:
        """Begin the text of an error with the algorithm, the rank and the round."""
        try:
            yield
        except ProofError as error:
            if str(error).startswith(self.title):
                raise
            raise self._fail(rank, str(error)) from None

    def _fail(self, rank: _Rank, text: str) -> ProofError:
        return ProofError(f"{self.title}: rank {rank.plan.rank}, round {rank.round + 1}: {text}")

    def _advance(self, rank: _Rank) -> None:
        """Finish each round that has all its messages, and post the next one."""
        while not rank.waiting:
            if rank.open:
                self._fold(rank)
            if rank.round + 1 == len(rank.plan.rounds):
                return
            self._post(rank)

    def _fold(self, rank: _Rank) -> None:
        rank.fold(self.values)
        rank.clock = rank.arrival
        if rank.held is not None:
            rank.changes.append((rank.clock, rank.changed))
            rank.changed = {}

    def _post(self, rank: _Rank) -> None:
        each = rank.enter()
        rank.waiting = len(each.messages)
        for message, row in zip(each.messages, rank.current, strict=True):
            if message.send:
                values = rank.read(message.run, "sends")
                if row >= 0:
                    self.values[row] = values
            if row < 0:
                continue  # nobody is there for it
            other = self.posted.pop(row, None)
            if other is None:
                self.posted[row] = rank, message
            elif message.send:
                self._arrive(row, rank, *other)
            else:
                self._arrive(row, other[0], rank, message)

    def _arrive(self, row: int, giver: _Rank, taker: _Rank, message: Message) -> None:
        """Handle a message whose two ends are posted."""
        block_of = self.expressions.block
        blocks = [block_of[value] for value in self.values[row]]
        expected = taker.plan.numbers(message.home)
        if len(blocks) != len(expected) or any(map(ne, blocks, expected)):
            raise self._fail(
                taker,
                f"expects {named(expected, 'block')} from rank {giver.plan.rank}, which sends "
                f"{named(blocks, 'block')}",
            )
        time = 1 + max(giver.clock, taker.clock)
        self.arrivals[row] = time
        self.depth = max(self.depth, time)
        self.messages[giver.plan.rank] += 1
        self.sent[giver.plan.rank] += len(blocks)
        for rank in (giver, taker):
            rank.waiting -= 1
            rank.arrival = max(rank.arrival, time)
            if not rank.waiting:
                self.ready.append(rank)

    def results(self) -> list[dict[int, int]]:
        """Check the memory against the contract; return each rank's expressions by block. Local."""
        return self._results(self.ranks)

    def _results(self, ranks_of: Sequence[_Rank]) -> list[dict[int, int]]:
        algorithm, p, root = self.schedule.algorithm, self.schedule.p, self.schedule.root
        contract = algorithm.collective
        results = []
        same: dict[tuple[int, int], int] = {}
        for rank in ranks_of:
            plan, me = rank.plan, rank.plan.rank
            wanted = plan.wanted()
            touched = set(wanted) if rank.in_place else ()
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
