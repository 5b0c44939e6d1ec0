"""The proof of an algorithm: its plans, replayed symbolically on all ranks.

Theory of operation
-------------------
A value is an *expression*: a leaf (the contribution of one rank to one block) or the fold of two
expressions. Expressions are interned, so that equal expressions have equal numbers. The replay runs
the plans of all ranks over first-in-first-out queues, one for each ordered pair of ranks. A send
completes only when its receive is posted (a rendezvous), so a plan that does not deadlock here does
not deadlock anywhere. Because every receive names its source, one order of events stands for all
orders.

The replay is done with input and output apart and with both in the same place, on the plan as
written and on the merged plan. The proof fails for:

- a deadlock (or a message that no rank receives), or a message whose blocks are not those that its
  receive expects, because blocks differ in size;
- a block that is sent, folded or copied before it has a value, or written or received into while a
  message of the same round still reads it;
- a contribution that is folded twice, a block that is folded into another, or a result that lacks a
  contribution;
- ranks that end with different expressions, or with contributions out of rank order, where the
  registry promises otherwise; a merged plan that ends with other expressions than the plan as
  written;
- another depth, or other amounts sent and folded, than the cost formulas say.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from math import isclose
from typing import Any, NamedTuple

from collectives.algorithms import Algorithm, get
from collectives.errors import ProofError
from collectives.plans.schedule import IN, OUT, Plan, Round, Run, compile
from collectives.text.words import count, ranks, spans

__all__ = ["Event", "Proof", "Remains", "check", "compare_cost", "remains"]

# The numbers of ranks on which the cost formulas of a user's algorithm are compared with its proof,
# for every root.
COMPARED = range(2, 9)

MOST_ROUNDS = 10_000  # of a rank of an algorithm that is wrong


class Event(NamedTuple):
    """A message: its time of arrival (in steps), ranks and blocks, and whether it is folded."""

    time: int
    source: int
    target: int
    blocks: tuple[int, ...]
    fold: bool


@dataclass(frozen=True, repr=False)
class Proof:
    """The result of a successful replay of an algorithm.

    Sizes are in units of the message: 1 is the caller's whole array.

    Attributes
    ----------
    algorithm : Algorithm
    p, root, nblocks : int
    depth : int
        The longest chain of rounds that wait for each other: the factor of alpha.
    messages : list of int
        Messages sent by each rank.
    sent, folded : list of Fraction
        What each rank sends and folds.
    links : dict
        How much one rank sends to another: ``{(source, target): Fraction}``.
    events : list of Event
        Every message, in order of arrival.
    history : list of list of (int, tuple)
        For each rank, its blocks after each of its rounds: (time, set of contributors as a bit
        mask for each block, 0 for a block that it does not hold).

    Notes
    -----
    Links, events and history are empty where they were not recorded.
    """

    algorithm: Algorithm
    p: int
    root: int
    nblocks: int
    depth: int
    messages: list[int]
    sent: list[Fraction]
    folded: list[Fraction]
    links: dict[tuple[int, int], Fraction]
    events: list[Event]
    history: list[list[tuple[int, tuple[int, ...]]]]

    def __repr__(self) -> str:
        rounds = count(self.depth, "round")
        return (
            f"<Proof of {self.algorithm.title(self.p, self.root)}: {rounds}; a rank sends up to "
            f"{max(self.sent)} and folds up to {max(self.folded)} of the array>"
        )

    @property
    def traffic(self) -> Fraction:
        """How much all ranks send together."""
        return sum(self.sent, Fraction(0))

    def held(self, time: int) -> list[tuple[int, ...]]:
        """Return what each rank holds after step `time`, as entries of `history` do. Local."""
        lasts = (bisect_right(each, time, key=lambda entry: entry[0]) for each in self.history)
        return [each[last - 1][1] for each, last in zip(self.history, lasts, strict=True)]

    def due(self, rank: int, block: int) -> int:
        """Return, as a bit mask, the contributors of `block` that `rank` must end with. Local."""
        contract = self.algorithm.collective
        part = block * contract.parts(self.p) // self.nblocks
        return contract.sources(part, rank, self.p, self.root)

    def wanted(self, rank: int) -> list[int]:
        """Return the numbers of the blocks that `rank` must end with. Local."""
        contract = self.algorithm.collective
        cut = self.nblocks // contract.parts(self.p)
        parts = contract.outputs(rank, self.p, self.root)
        return [part * cut + k for part in parts for k in range(cut)]


class _Expressions:
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
        return self._add((-1, rank, block), 1 << rank, block, True)

    def fold(self, left: int, right: int) -> int:
        a, b = self.mask[left], self.mask[right]
        if self.block[left] != self.block[right]:
            raise ProofError(f"folds block {self.block[right]} into block {self.block[left]}")
        if a & b and not self.idempotent:
            raise ProofError(f"folds the contribution of {ranks(a & b)} twice")
        rising = a.bit_length() <= (b & -b).bit_length() - 1
        ordered = self.ordered[left] and self.ordered[right] and rising
        return self._add((left, right, 0), a | b, self.block[left], ordered)


def named(blocks: Sequence[int]) -> str:
    """Write the numbers of blocks, in their order, as text: ``block 3``, ``blocks 0-2, 7``."""
    return f"block{'s' if len(blocks) != 1 else ''} {spans(blocks)}"


def hazards(each: Round) -> str | None:
    """Return which access of the round `each` conflicts with a message in it, or None. Local."""
    sources = {cell for m in each.messages if m.send for cell in m.run.shared()}
    targets = [(i, m.run) for i, m in enumerate(each.messages) if not m.send]
    landing = Counter(cell for _, run in targets for cell in run.shared())
    for _, run in targets:
        cells = run.shared()
        if not sources.isdisjoint(cells):
            return f"receives into {run} while it is being sent"
        if any(landing[cell] > 1 for cell in cells):
            return f"receives twice into {run}"
    pending = {cell: i for i, run in targets for cell in run.shared()}
    # In place, a copy from input to output does nothing; apart, it writes to memory outside IN.
    apart = {cell for m in each.messages if m.send for cell in m.run.cells()}
    for step in each.steps:
        for i in step.needs:
            for cell in each.messages[i].run.shared():
                pending.pop(cell, None)
        touched = [cell for run in step[:3] if run is not None for cell in run.shared()]
        waited = [pending[cell] for cell in touched if cell in pending] if pending else []
        if waited:
            return f"reads or writes {each.messages[min(waited)].run} while it is being received"
        if not step.after_sends:
            if step.right is None and step.left.shared() == step.dst.shared():
                clash = not apart.isdisjoint(step.dst.cells())
            else:
                clash = not sources.isdisjoint(step.dst.shared())
            if clash:
                return f"overwrites {step.dst} while it is being sent"
    return None


class _Rank:
    """One rank of the replay: its plan, its memory, and its current round."""

    def __init__(self, plan: Plan, expressions: _Expressions, in_place: bool, record: bool) -> None:
        self.plan = plan
        self.expressions = expressions
        self.record = record
        self.output = IN if in_place else OUT
        self.memory: dict[tuple[int, int], int] = {}
        self.held = [0] * plan.nblocks if record else []
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

    def cells(self, run: Run) -> list[tuple[int, int]]:
        return run.cells(self.output)

    def write(self, run: Run, values: list[int], held: bool) -> None:
        """Write values; `held` says that the rank holds them now, not that they will be folded."""
        self.memory.update(zip(self.cells(run), values, strict=True))
        if self.record and held:
            for value in values:
                self.held[self.expressions.block[value]] = self.expressions.mask[value]

    def read(self, run: Run, verb: str) -> list[int]:
        try:
            return [self.memory[cell] for cell in self.cells(run)]
        except KeyError:
            raise ProofError(f"{verb} {run}, which holds nothing yet") from None


class _Replay:
    """All ranks, their queues, and the loop that runs them until there is no more progress."""

    def __init__(
        self, plans: Sequence[Plan], expressions: _Expressions, in_place: bool, record: bool = False
    ) -> None:
        self.plans = plans
        self.in_place = in_place
        self.record = record
        self.expressions = expressions
        self.title = plans[0].algorithm.title(len(plans), plans[0].root)
        self.ranks = [_Rank(plan, self.expressions, in_place, record) for plan in plans]
        self.sends: dict[tuple[int, int], deque[tuple[int, list[int], int]]] = {}
        self.recvs: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self.events: list[Event] = []
        self.messages = [0] * len(plans)
        self.sent = [0] * len(plans)
        self.folded = [0] * len(plans)
        self.depth = 0
        self.ready = deque(range(len(plans)))

    def fail(self, rank: int, text: str) -> ProofError:
        number = self.ranks[rank].round + 1
        return ProofError(f"{self.title}: rank {rank}, round {number}: {text}")

    def run(self) -> None:
        while self.ready:
            number = self.ready.popleft()
            try:
                self.advance(self.ranks[number])
            except ProofError as error:
                if str(error).startswith(self.title):
                    raise
                raise self.fail(number, str(error)) from None
        stuck = [rank for rank in self.ranks if rank.waiting]
        if stuck:
            texts = []
            for rank in stuck[:8]:
                me, at = rank.plan.rank, rank.round
                message = rank.plan.rounds[at].messages[min(rank.waiting)]
                verb = "to take what it sends" if message.send else "to send"
                texts.append(f"rank {me} in round {at + 1} waits for rank {message.peer} {verb}")
            raise ProofError(f"{self.title}: deadlock: {'; '.join(texts)}")

    def advance(self, rank: _Rank) -> None:
        """Finish each round that has all its messages, and post the next one."""
        while not rank.waiting:
            if rank.open:
                self.fold(rank)
                rank.open = False
            if rank.round + 1 == len(rank.plan.rounds):
                return
            rank.round += 1
            rank.open = True
            self.post(rank)

    def fold(self, rank: _Rank) -> None:
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

    def post(self, rank: _Rank) -> None:
        each = rank.plan.rounds[rank.round]
        # Hazards are the same with the output in place; the replay with it apart comes first.
        danger = None if self.in_place else hazards(each)
        if danger:
            raise ProofError(danger)
        me = rank.plan.rank
        pairs = []
        for index, message in enumerate(each.messages):
            rank.waiting.add(index)
            if message.send:
                pairs.append((me, message.peer))
                values = rank.read(message.run, "sends")
                self.sends.setdefault(pairs[-1], deque()).append((index, values, rank.clock))
            else:
                pairs.append((message.peer, me))
                self.recvs.setdefault(pairs[-1], deque()).append((index, rank.clock))
        for pair in pairs:
            self.match(*pair)

    def match(self, source: int, target: int) -> None:
        sends, recvs = self.sends.get((source, target)), self.recvs.get((source, target))
        giver, taker = self.ranks[source], self.ranks[target]
        block_of = self.expressions.block
        while sends and recvs:
            index, values, sent = sends.popleft()
            slot, posted = recvs.popleft()
            message = taker.plan.rounds[taker.round].messages[slot]
            run = message.run
            blocks = [block_of[value] for value in values]
            expected = taker.plan.numbers(message.home)
            if blocks != list(expected):
                raise self.fail(
                    target,
                    f"expects {named(expected)} from rank {source}, which sends {named(blocks)}",
                )
            taker.write(run, values, not message.fold)
            time = 1 + (sent if sent > posted else posted)
            if time > self.depth:
                self.depth = time
            self.messages[source] += 1
            self.sent[source] += len(blocks)
            if self.record:
                self.events.append(Event(time, source, target, tuple(blocks), message.fold))
            for rank, done in ((giver, index), (taker, slot)):
                rank.waiting.discard(done)
                if time > rank.arrival:
                    rank.arrival = time
                if not rank.waiting:
                    self.ready.append(rank.plan.rank)

    def results(self) -> list[dict[int, int]]:
        """Check the final memory against the contract; return each rank's expressions by block."""
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
                if value is None:
                    raise ProofError(f"{self.title}: rank {me} ends without block {b}")
                mask, due = (
                    self.expressions.mask[value],
                    contract.sources(b // plan.cut, me, p, root),
                )
                if mask != due:
                    raise ProofError(
                        f"{self.title}: rank {me} ends with block {b} of {ranks(mask)}, "
                        f"wanted {ranks(due)}"
                    )
                if self.expressions.block[value] != b:
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

    def proof(self) -> Proof:
        plan = self.plans[0]
        p = len(self.plans)
        n = plan.algorithm.collective.per_array(p) * plan.cut
        links: Counter[tuple[int, int]] = Counter()
        for event in self.events:
            links[event.source, event.target] += len(event.blocks)
        return Proof(
            algorithm=plan.algorithm,
            p=p,
            root=plan.root,
            nblocks=plan.nblocks,
            depth=self.depth,
            messages=self.messages,
            sent=[Fraction(count, n) for count in self.sent],
            folded=[Fraction(count, n) for count in self.folded],
            links={pair: Fraction(count, n) for pair, count in links.items()},
            events=sorted(self.events),
            history=[rank.history for rank in self.ranks],
        )


def check(
    collective: str | Algorithm,
    name: str | None = None,
    *,
    p: int,
    root: int = 0,
    record: bool = True,
) -> Proof:
    """Prove that an algorithm is correct for one p and root, or raise an error. Local.

    Parameters
    ----------
    collective : str or Algorithm
        The collective's name (with `name`), or a row of the registry.
    name : str, optional
        The algorithm's name.
    p, root : int
        Number of ranks, and the root of a rooted collective.
    record : bool
        Whether to keep every message, and what every rank holds after every round. Pictures need
        this. For an alltoall of many ranks it takes much memory.

    Returns
    -------
    Proof
        Depth, messages, traffic and history of the algorithm as written.

    Raises
    ------
    ProofError
        If a promise is broken; the text has the rank, the round and the block.
    ArgumentError
        If there is no such algorithm, or it cannot run on this number of ranks.

    Notes
    -----
    The time is proportional to the number of messages and of blocks in them, about 10 us for each.

    Examples
    --------
    >>> from collectives.check import check
    >>> proof = check("allreduce", "ring", p=4)
    >>> proof.depth, proof.sent[0], proof.folded[0]
    (6, Fraction(3, 2), Fraction(3, 4))
    """
    algorithm = collective if isinstance(collective, Algorithm) else get(collective, name or "")
    proof = _proven(algorithm, p, root, record)
    _hold([proof], every_root=not algorithm.collective.rooted)
    compare_cost(algorithm)
    return proof


def compare_cost(algorithm: Algorithm) -> None:
    """Compare the cost formulas of a user's algorithm with its proof, once. Local.

    The tests do this for the included algorithms.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry. It is replayed on 2 to 8 ranks, except where it is wrong or cannot
        run.

    Raises
    ------
    ProofError
        If a formula gives another number than was counted; the text has both, and p.
    """
    if algorithm.cost is not None and not algorithm.included:
        _compare(algorithm)


@cache
def _compare(algorithm: Algorithm) -> None:
    for p in COMPARED:
        roots = range(p) if algorithm.collective.rooted else range(1)
        if algorithm.refusal(p):
            continue
        try:
            proofs = [_proven(algorithm, p, root, record=False) for root in roots]
        except ProofError:
            continue
        _hold(proofs, every_root=True)


def _hold(proofs: Sequence[Proof], every_root: bool) -> None:
    """Hold what was counted for one p against the cost formulas.

    If it was not counted for every root, it may be less than the formulas say.
    """
    algorithm, p = proofs[0].algorithm, proofs[0].p
    if algorithm.cost is None:
        return
    title = f"{algorithm.collective.name} {algorithm.name!r} on {count(p, 'rank')}"
    try:
        stated = [float(number) for number in algorithm.totals(p) or ()]
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ProofError(f"{title}: {algorithm.cost!r} cannot be evaluated: {told}") from error
    counted = (
        Fraction(max(proof.depth for proof in proofs)),
        max(amount for proof in proofs for amount in proof.sent),
        max(amount for proof in proofs for amount in proof.folded),
    )
    for name, says, was in zip(("rounds", "sent", "folded"), stated, counted, strict=True):
        if isclose(says, was, rel_tol=1e-9, abs_tol=1e-12) or (was < says and not every_root):
            continue
        raise ProofError(
            f"{title}: the cost has {name}={getattr(algorithm.cost, name)!r}, which is {says:g}, "
            f"and the proof counts {was}"
        )


def _proven(algorithm: Algorithm, p: int, root: int, record: bool) -> Proof:
    """Replay an algorithm for one p and root; return what was counted."""
    written = [compile(algorithm, p, r, root, merged=False) for r in range(p)]
    merged = [plan.merged() for plan in written]
    expressions = _Expressions(algorithm.collective.idempotent)
    first = _Replay(written, expressions, in_place=False, record=record)
    first.run()
    results = first.results()
    others = [(written, True)]
    if any(a.rounds != b.rounds for a, b in zip(written, merged, strict=True)):
        others += [(merged, False), (merged, True)]
    for plans, in_place in others:
        again = _Replay(plans, expressions, in_place)
        again.run()
        if again.results() != results:
            raise ProofError(f"{again.title}: the result depends on how the plan is run")
    return first.proof()


class Remains(NamedTuple):
    """What an algorithm that is wrong did before its error.

    Attributes
    ----------
    events : list of Event
        Every message that was received, in order of arrival.
    rounds : list of int
        How many rounds each rank entered.
    stuck : list of int
        The ranks that did not finish the last of these.
    """

    events: list[Event]
    rounds: list[int]
    stuck: list[int]


def remains(algorithm: Algorithm, p: int, root: int = 0) -> Remains:
    """Replay an algorithm that `check` refuses, up to the error. Local.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry.
    p, root : int
        As for `check`.

    Raises
    ------
    ProofError
        If not even the beginning of a rank's rounds can be replayed.
    """
    plans, rounds = zip(*(_beginning(algorithm, p, r, root) for r in range(p)), strict=True)
    expressions = _Expressions(algorithm.collective.idempotent)
    replay = _Replay(plans, expressions, in_place=False, record=True)
    with contextlib.suppress(ProofError):
        replay.run()
    return Remains(
        sorted(replay.events),
        # A plan may end with a round of its own, which only copies.
        [min(rank.round + 1, own) for rank, own in zip(replay.ranks, rounds, strict=True)],
        [r for r, rank in enumerate(replay.ranks) if rank.open],
    )


def _beginning(algorithm: Algorithm, p: int, rank: int, root: int) -> tuple[Plan, int]:
    """Return the plan of the rounds of a rank before the first that is wrong in itself, and how
    many these are.
    """
    limit = MOST_ROUNDS
    while True:
        count = 0

        def first(*place: int, limit: int = limit, **parameters: int) -> Any:
            nonlocal count
            for each in islice(algorithm.generate(*place, **parameters), limit):
                count += 1
                yield each

        try:
            some = replace(algorithm, generate=first)
            return compile(some, p, rank, root, merged=False), count
        except ProofError:
            if limit == 0:
                raise
            # The generator raised an error after so many rounds, or the last of them is wrong.
            limit = count if count < limit else limit - 1
