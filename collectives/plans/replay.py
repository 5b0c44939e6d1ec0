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

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

from collectives.algorithms.exchange import Fold
from collectives.algorithms.schedule import Schedule
from collectives.errors import ProofError
from collectives.plans.rounds import IN, OUT, WORK, Round, Run, Step
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
        known = self.index.get(key)
        if known is not None:
            return known
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


Cells = list[tuple[int, int]]
Changes = list[tuple[Run, list[int]]]


class _Shape:
    """The blocks of memory that rounds of one kind touch, with OUT as the space `output`.

    Attributes
    ----------
    takes : list of (Run, list of cell, Run, bool)
        Each receive: its run with the blocks of it, their home, and whether they are folded.
    sends : list of (Run, list of cell)
        Each send: its run with the blocks of it.
    steps : list of (Step, list of cell, list of cell, list of cell, bool)
        Each step with the blocks that it writes and reads, and whether its result is at home.
    inputs : list of cell
        The places in the output of the blocks that the round reads in the input.
    crosses : bool
        Whether it reads a block of the input behind a write to the same block of the output.
    danger : str or None
        The access that conflicts with a message of the round.
    """

    def __init__(self, each: Round, output: int) -> None:
        self.takes = [
            (run, run.cells(output), home, fold)
            for send, _, run, home, fold in each.messages
            if not send
        ]
        self.sends = [(run, run.cells(output)) for send, _, run, _, _ in each.messages if send]
        self.steps = [
            (
                step,
                step.dst.cells(output),
                step.left.cells(output),
                step.right.cells(output) if step.right else [],
                step.dst == step.home,
            )
            for step in each.steps
        ]
        self.danger = hazards(each)
        written = {cell for _, cells, _, _ in self.takes for cell in cells}
        self.inputs = [(OUT, b) for _, cells in self.sends for space, b in cells if space == IN]
        self.crosses = False
        for _, made, left, right, _ in self.steps:
            taken = [(OUT, b) for space, b in left + right if space == IN]
            self.crosses |= not written.isdisjoint(taken)
            self.inputs += taken
            written.update(made)


class _Rank:
    """One rank of the replay: its plan, its memory, and its current round.

    Attributes
    ----------
    crosses : bool
        Whether it reads a block of its input behind a write to the same block of its output. If
        not, the same values are read with both in the same place.
    """

    def __init__(
        self,
        plan: Plan,
        rows: tuple[Sequence[int], Sequence[int]],
        expressions: Expressions,
        shapes: dict[object, _Shape],
        in_place: bool = False,
    ) -> None:
        self.plan = plan
        self.expressions = expressions
        self.shapes = shapes
        self.in_place = in_place
        self.output = IN if in_place else OUT
        # The rows of its receives and sends in the schedule, and those of its current round.
        self.rows = rows
        self.begun = 0, 0  # of the rows, before its next round
        self.taken: Sequence[int] = ()
        self.given: Sequence[int] = ()
        self.memory: dict[tuple[int, int], int] = {}
        for b in plan.held():
            self.memory[IN, b] = expressions.leaf(plan.rank, b)
        self.round = -1
        self.open: _Shape | None = None  # the shape of its current round, until that is finished
        self.crosses = False
        self.clock = 0
        self.arrival = 0
        self.waiting = 0
        self.sent = 0
        self.folded = 0
        # If it is recorded: the blocks at the start, the changes of each round, those of this one.
        self.held: list[int] | None = None
        self.changes: list[tuple[int, Changes]] = []
        self.changed: Changes = []

    def write(self, run: Run, cells: Cells, values: list[int], held: bool) -> None:
        """Write values; `held` is false for values that are still to be folded."""
        if len(cells) == 1:
            self.memory[cells[0]] = values[0]
        else:
            self.memory.update(zip(cells, values, strict=True))
        if held and self.held is not None:
            self.changed.append((run, values))

    def read(self, run: Run, cells: Cells, verb: str) -> list[int]:
        memory = self.memory
        try:
            return [memory[cells[0]]] if len(cells) == 1 else [memory[cell] for cell in cells]
        except KeyError:
            raise ProofError(f"{verb} {run}, which holds nothing yet") from None

    def enter(self) -> _Shape:
        """Enter the next round, and find the rows of its messages."""
        self.round += 1
        each = self.plan.rounds[self.round]
        shape = self.shapes.get(each.kind)
        if shape is None:
            shape = _Shape(each, self.output)
            if each.kind is not None:
                self.shapes[each.kind] = shape
        self.open = shape
        if shape.danger:
            raise ProofError(shape.danger)
        if shape.inputs:
            self.crosses |= shape.crosses or not self.memory.keys().isdisjoint(shape.inputs)
        a, b = self.begun
        self.begun = c, d = a + len(shape.takes), b + len(shape.sends)
        self.taken, self.given = self.rows[0][a:c], self.rows[1][b:d]
        return shape

    def fold(self, shape: _Shape, values: Sequence[list[int]]) -> None:
        """Store what has come, and run the steps of the round."""
        self.open = None
        for (run, cells, _, is_folded), row in zip(shape.takes, self.taken, strict=True):
            self.write(run, cells, values[row], not is_folded)
        for (dst, left, right, *_), made, first, second, is_home in shape.steps:
            operands = self.read(left, first, "reads")
            if right is not None:
                others = self.read(right, second, "folds")
                operands = list(map(self.expressions.fold, operands, others))
                self.folded += len(operands)
            self.write(dst, made, operands, is_home)

    def holdings(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return its blocks after each round, from those of the start and their changes."""
        plan, (mask, block) = self.plan, (self.expressions.mask, self.expressions.block)
        held = list(self.held or ())
        found = [(0, tuple(held))]
        for time, changed in self.changes:
            for run, values in changed:
                first = plan.nblocks if plan.is_scratch(run) else 0
                for k, value in enumerate(values):
                    b = run.first + k if run.space == OUT else block[value]
                    held[first + b] = mask[value]
            found.append((time, tuple(held)))
        return found


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
        self.shapes: tuple[dict[object, _Shape], ...] = {}, {}  # with the output apart, in place
        self.ranks = [self._rank(plan) for plan in plans]
        for rank in self.ranks if record else ():
            rank.held = [0] * (rank.plan.nblocks << rank.plan.scratch)
            for b in rank.plan.held():
                rank.held[b] = 1 << rank.plan.rank
        # For each message: its values, the rank that has posted it with the home of the blocks, and
        # the step that it arrives in.
        self.values: list[list[int]] = [[]] * rows
        self.posted: list[tuple[_Rank, Run] | None] = [None] * rows
        self.arrivals: list[int] = [0] * rows
        self.ready: deque[_Rank] = deque(self.ranks)

    def _rank(self, plan: Plan, in_place: bool = False) -> _Rank:
        rows = self.schedule.taken[plan.rank], self.schedule.sent[plan.rank]
        return _Rank(plan, rows, self.expressions, self.shapes[in_place], in_place)

    @property
    def events(self) -> Sequence[Event]:
        """Every message that has arrived, in order of arrival."""
        return Later(partial(_events, self.schedule, self.arrivals, self.plans[0].nblocks))

    @property
    def history(self) -> list[Sequence[tuple[int, tuple[int, ...]]]]:
        """The blocks of each rank after each of its rounds, if they are recorded."""
        return [[] if rank.held is None else Later(rank.holdings) for rank in self.ranks]

    def run(self) -> None:
        """Run all rounds of all ranks. Local.

        Raises
        ------
        ProofError
            If a round is wrong, or the ranks wait for each other for ever.
        """
        while self.ready:
            rank = self.ready.popleft()
            try:
                self._advance(rank)
            except ProofError as error:
                raise self._told(rank, error) from None
        stuck = [rank for rank in self.ranks if rank.waiting]
        if stuck:
            texts = []
            for rank in stuck[:8]:
                me, at = rank.plan.rank, rank.round
                rows = iter(rank.taken), iter(rank.given)
                messages = [(m, next(rows[m.send])) for m in rank.plan.rounds[at].messages]
                message = next(each for each, row in messages if row < 0 or not self.arrivals[row])
                verb = "to receive" if message.send else "to send"
                peer = self.ranks[message.peer]
                ended = "" if peer.waiting else f", but rank {message.peer} has ended"
                texts.append(
                    f"rank {me} in round {at + 1} waits for rank {message.peer} {verb}{ended}"
                )
            raise ProofError(f"{self.title}: deadlock: {'; '.join(texts)}")

    def again(self, merged: Iterable[Plan]) -> None:
        """Run each rank by itself on the values of this replay, merged and in place: it must send
        the same values, and end with the same results.

        A merged plan posts no message later, so it does not deadlock where that as written does
        not. With input and output in the same place, only a rank that crosses can differ.
        """
        for rank, plan, wanted in zip(self.ranks, merged, self.results(), strict=True):
            forms = [rank]
            if plan.rounds != rank.plan.rounds:
                forms.append(self._alone(plan, wanted, in_place=False))
            for each in forms:
                if each.crosses:
                    self._alone(each.plan, wanted, in_place=True)

    def _alone(self, plan: Plan, wanted: dict[int, int], in_place: bool) -> _Rank:
        """Run a plan of one rank on the values of this replay."""
        rank = self._rank(plan, in_place)
        try:
            for _ in plan.rounds:
                shape = rank.enter()
                for (run, cells), row in zip(shape.sends, rank.given, strict=True):
                    if rank.read(run, cells, "sends") != self.values[row]:
                        raise ProofError(f"{self.title}: {DEPENDS}")
                rank.fold(shape, self.values)
        except ProofError as error:
            raise self._told(rank, error) from None
        if self._results([rank]) != [wanted]:
            raise ProofError(f"{self.title}: {DEPENDS}")
        return rank

    def _told(self, rank: _Rank, error: ProofError) -> ProofError:
        """Return an error whose text begins with the algorithm, the rank and the round."""
        return error if str(error).startswith(self.title) else self._fail(rank, str(error))

    def _fail(self, rank: _Rank, text: str) -> ProofError:
        return ProofError(f"{self.title}: rank {rank.plan.rank}, round {rank.round + 1}: {text}")

    def _advance(self, rank: _Rank) -> None:
        """Finish each round that has all its messages, and post the next one."""
        while not rank.waiting:
            if rank.open is not None:
                self._fold(rank, rank.open)
            if rank.round + 1 == len(rank.plan.rounds):
                return
            self._post(rank)

    def _fold(self, rank: _Rank, shape: _Shape) -> None:
        rank.fold(shape, self.values)
        rank.clock = rank.arrival
        if rank.held is not None:
            rank.changes.append((rank.clock, rank.changed))
            rank.changed = []

    def _post(self, rank: _Rank) -> None:
        shape = rank.enter()
        rank.waiting = len(shape.takes) + len(shape.sends)
        for (_, _, home, _), row in zip(shape.takes, rank.taken, strict=True):
            if row < 0:
                continue  # nobody sends it
            other = self.posted[row]
            if other is None:
                self.posted[row] = rank, home
            else:
                self._arrive(row, other[0], rank, home)
        for (run, cells), row in zip(shape.sends, rank.given, strict=True):
            self.values[row] = rank.read(run, cells, "sends")
            other = self.posted[row]
            if other is None:
                self.posted[row] = rank, run
            else:
                self._arrive(row, rank, *other)

    def _arrive(self, row: int, giver: _Rank, taker: _Rank, home: Run) -> None:
        """Handle a message whose two ends are posted."""
        block_of = self.expressions.block
        blocks = [block_of[value] for value in self.values[row]]
        is_one = home.length == 1 and home.space != WORK
        expected = [home.first] if is_one else [*taker.plan.numbers(home)]
        if blocks != expected:
            raise self._fail(
                taker,
                f"expects {named(expected, 'block')} from rank {giver.plan.rank}, which sends "
                f"{named(blocks, 'block')}",
            )
        time = 1 + (giver.clock if giver.clock > taker.clock else taker.clock)
        self.arrivals[row] = time
        giver.sent += len(blocks)
        for rank in (giver, taker):
            rank.waiting -= 1
            if time > rank.arrival:
                rank.arrival = time
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
