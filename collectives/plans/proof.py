"""The proof of an algorithm: its plans, replayed symbolically on all ranks (`replay`).

Theory of operation
-------------------
The plans of all ranks, as written and with input and output apart, are replayed on the schedule.
Then each rank runs its plan again by itself, merged, and with both in the same place where it reads
its input behind a write to its output; it must send the same values. A merged plan posts no message
later than the plan as written, so it does not deadlock where that does not. The proof fails for:

- a deadlock (or a message that no rank receives), or a message whose blocks are not those that its
  receive expects, because blocks differ in size;
- a block that is sent, folded or copied before it has a value, or written or received into while a
  message of the same round still reads it;
- a contribution that is folded twice, a block that is folded into another, or a result that lacks a
  contribution;
- ranks that end with different expressions, or with contributions out of rank order, where the
  registry promises otherwise; a merged plan that ends with other expressions than the plan as
  written;
- another depth, or other amounts sent and folded, than those of the cost formulas.

On many ranks that do alike, one stands for all (`rotation`).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import islice
from math import isclose
from typing import ClassVar, NamedTuple

from collectives.algorithms import Algorithm, get
from collectives.algorithms.exchange import Normal
from collectives.algorithms.groups import Groups
from collectives.algorithms.schedule import Schedule
from collectives.errors import ArgumentError, ProofError
from collectives.plans import rotation
from collectives.plans.garbage import no_garbage
from collectives.plans.program import are_alike
from collectives.plans.replay import Event, Expressions, Replay
from collectives.plans.schedule import Plan, compile
from collectives.text.words import count

# The numbers of ranks on which the cost formulas of a user's algorithm are compared with its proof,
# for every root.
COMPARED = range(2, 9)

# On more ranks, a rank stands for all where they do alike (`rotation`).
MOST_REPLAYED = 64

MOST_ROUNDS = 10_000  # of a rank, in the replay of a wrong algorithm


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
        The parts of an array that each rank sends and folds.
    links : dict
        The part of an array that one rank sends to another: ``{(source, target): Fraction}``.
    events : sequence of Event
        Every message, in order of arrival.
    history : list of sequence of (int, tuple)
        For each rank, its blocks after each of its rounds: (time, set of contributors as a bit
        mask for each block, 0 for a block that it does not hold). Scratch blocks follow the others.
    schedule : Schedule or None
        All messages and rounds; ``print(proof.schedule)`` lists them with the lines that yield
        them.
    arrivals : list of int
        The step in which each message of the schedule arrives.

    Notes
    -----
    Links, events, history, schedule and arrivals are empty where they were not recorded.
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
    events: Sequence[Event]
    history: list[Sequence[tuple[int, tuple[int, ...]]]]
    schedule: Schedule | None = field(default=None, compare=False)
    arrivals: list[int] = field(default_factory=list, compare=False)

    _repr_svg_: ClassVar[Callable[[Proof], str] | None] = None  # set by `collectives.picture`

    def __repr__(self) -> str:
        rounds = count(self.depth, "round")
        return (
            f"<Proof of {self.algorithm.title(self.p, self.root)}: {rounds}; a rank sends up to "
            f"{max(self.sent)} and folds up to {max(self.folded)} of the array>"
        )

    @property
    def traffic(self) -> Fraction:
        """The sum of the blocks that all ranks send."""
        return sum(self.sent, Fraction(0))

    def held(self, time: int, scratch: bool = False) -> list[tuple[int, ...]]:
        """Return the contributors of each block of each rank after step `time`, as in `history`;
        with `scratch`, those of its scratch blocks. Local.
        """
        lasts = (bisect_right(each, time, key=lambda entry: entry[0]) for each in self.history)
        side = slice(self.nblocks, None) if scratch else slice(self.nblocks)
        return [each[last - 1][1][side] for each, last in zip(self.history, lasts, strict=True)]

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


def check(
    collective: str | Algorithm,
    name: str | None = None,
    *,
    p: int,
    root: int = 0,
    groups: Sequence[int] | None = None,
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
    groups : sequence of int, optional
        The number of the group of each rank, for an algorithm that depends on it, such as
        ``hierarchical(direct,ring)``; by default the first and the second half of the ranks.
    record : bool
        Whether to record every message, and the blocks of every rank after every round. Pictures
        need this. For an alltoall of many ranks it takes much memory.

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
    On more than 64 ranks, if nothing is recorded, the plan of one rank may stand for those of all:
    where the rounds of all ranks are compared and found to be alike, which is faster.

    Examples
    --------
    >>> from collectives.check import check
    >>> proof = check("allreduce", "ring", p=4)
    >>> proof.depth, proof.sent[0], proof.folded[0]
    (6, Fraction(3, 2), Fraction(3, 4))
    """
    algorithm = collective if isinstance(collective, Algorithm) else get(collective, name or "")
    if groups is not None:
        algorithm = algorithm.placed(Groups.read(groups))
    proof = _proven(algorithm, p, root, record)
    if not algorithm.included and not are_alike(algorithm, p, root):
        promise = "cyclic=True" if algorithm.cyclic else "alike="
        raise ProofError(
            f"{algorithm.title(p, root)}: not all ranks do as rank 0, as {promise} says"
        )
    _compare_counts([proof], every_root=not algorithm.collective.rooted)
    compare_cost(algorithm)
    return proof


def compare_cost(algorithm: Algorithm) -> None:
    """Compare the cost formulas of a user's algorithm with its proof on 2 to 8 ranks, once. Local.

    The tests do this for the included algorithms.
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
        _compare_counts(proofs, every_root=True)


def _compare_counts(proofs: Sequence[Proof], every_root: bool) -> None:
    """Compare the counts of proofs for one p with the cost formulas.

    Unless there is a proof for every root, the counts may be less than the formulas.
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
    """Replay an algorithm for one p and root; return its proof."""
    try:
        with no_garbage():
            return _replayed(algorithm, p, root, record)
    except ProofError as error:
        may_need_it = not algorithm.included and p & (p - 1)
        if not may_need_it or not all(_is_right(algorithm, q, root % q) for q in (2, 4)):
            raise
        raise ProofError(
            f"{error}. It is right on 2 and 4 ranks: if it needs a power of two, register it with "
            f"requires=('power_of_two',)"
        ) from error


def _is_right(algorithm: Algorithm, p: int, root: int) -> bool:
    try:
        _replayed(algorithm, p, root, record=False)
    except (ArgumentError, ProofError):
        return False
    return True


def _replayed(algorithm: Algorithm, p: int, root: int, record: bool) -> Proof:
    if p > MOST_REPLAYED and not record and (of_one := rotation.replayed(algorithm, p, root)):
        return _counted(of_one, record)
    schedule = Schedule(algorithm, p, root)
    written = [
        compile(algorithm, p, r, root, merged=False, rounds=schedule.rounds[r]) for r in range(p)
    ]
    replay = Replay(schedule, written, Expressions(algorithm.collective.idempotent), record=record)
    replay.run()
    replay.again(plan.merged() for plan in written)
    return _counted(replay, record)


class Remains(NamedTuple):
    """The actions of a wrong algorithm before its error.

    Attributes
    ----------
    schedule : Schedule
        The rounds before the first that is wrong in itself.
    arrivals : list of int
        The step in which each message of the schedule arrived; 0 for one that did not.
    rounds : list of int
        The number of rounds that each rank entered.
    stuck : list of int
        The ranks that did not finish the last of these.
    """

    schedule: Schedule
    arrivals: list[int]
    rounds: list[int]
    stuck: list[int]


def remains(algorithm: Algorithm, p: int, root: int = 0) -> Remains:
    """Replay an algorithm that `check` refuses, up to the error. Local."""
    plans, rounds = zip(*(_beginning(algorithm, p, r, root) for r in range(p)), strict=True)
    schedule = Schedule(algorithm, p, root, list(rounds))
    expressions = Expressions(algorithm.collective.idempotent)
    replay = Replay(schedule, plans, expressions)
    with contextlib.suppress(ProofError):
        replay.run()
    return Remains(
        schedule,
        replay.arrivals,
        # A plan may end with a round of its own, which only copies.
        [min(rank.round + 1, len(own)) for rank, own in zip(replay.ranks, rounds, strict=True)],
        [r for r, rank in enumerate(replay.ranks) if rank.open is not None],
    )


def _beginning(algorithm: Algorithm, p: int, rank: int, root: int) -> tuple[Plan, list[Normal]]:
    """Return the plan of the rounds of a rank before the first that is wrong in itself, and these
    rounds.
    """
    rounds: list[Normal] = []

    def some() -> Iterator[Normal]:
        for each in islice(algorithm.rounds(rank, p, root), MOST_ROUNDS):
            rounds.append(each)
            yield each

    try:
        return compile(algorithm, p, rank, root, merged=False, rounds=some()), rounds
    except ProofError:
        pass
    while True:
        try:
            return compile(algorithm, p, rank, root, merged=False, rounds=rounds), rounds
        except ProofError:
            if not rounds:
                raise
            rounds.pop()


def _counted(replay: Replay, record: bool) -> Proof:
    """Return the proof with the counts of a replay."""
    plan, schedule = replay.plans[0], replay.schedule
    p = schedule.p
    alike = p // len(replay.plans)  # the ranks that each one stands for
    n = plan.algorithm.collective.per_array(p) * plan.cut
    links: Counter[tuple[int, int]] = Counter()
    for source, _, target, _, blocks, _ in schedule if record else ():
        links[source, target] += len(blocks)
    return Proof(
        algorithm=plan.algorithm,
        p=p,
        root=plan.root,
        nblocks=plan.nblocks,
        depth=max(replay.arrivals, default=0),
        messages=[len(rows) for rows in schedule.sent] * alike,
        sent=[Fraction(rank.sent, n) for rank in replay.ranks] * alike,
        folded=[Fraction(rank.folded, n) for rank in replay.ranks] * alike,
        links={pair: Fraction(count, n) for pair, count in links.items()},
        events=replay.events if record else [],
        history=replay.history * alike,
        schedule=schedule if record else None,
        arrivals=replay.arrivals if record else [],
    )
