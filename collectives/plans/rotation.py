"""The proof of an algorithm whose ranks do alike, from the plan of rank 0.

Theory of operation
-------------------
A *rotation* by s takes rank r to r + s, and each block to the one that it is for r + s; all numbers
wrap around. `replayed` first compares the rounds of every rank with those of rank 0, rotated, and
the contracts as well. If they are equal, and no message has several blocks, the plans of all ranks
are that of rank 0, rotated, except for the order of operands. So rank 0 is replayed alone: it
receives what it sends in the same round in the opposite direction, rotated.

A value is the result of a fold, rotated. Two values are only equal if the same fold of one rank has
made them; then the expressions are equal, too, whatever the order of operands. If anything here
fails, nothing is proven, and `proof` replays all ranks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from collectives.algorithms.exchange import Fold, Store, listed
from collectives.algorithms.registry import Algorithm
from collectives.algorithms.schedule import Schedule
from collectives.errors import ProofError
from collectives.plans.replay import Expressions, Replay
from collectives.plans.schedule import compile

Turn = Callable[[int, int], int]  # of a block, and the number of ranks to turn by


def replayed(algorithm: Algorithm, p: int, root: int) -> Replay | None:
    """Return the replay of rank 0, or None if it proves nothing for the other ranks. Local."""
    if not algorithm.cyclic or algorithm.scratch or algorithm.keeps_order:
        return None
    turn = _turn(algorithm, p)
    try:
        if not _rotates(algorithm, p, root, turn):
            return None
        replay = _Rotated(algorithm, p, root, turn)
        replay.run()
        replay.again([replay.plans[0].merged()])
    except Exception:  # the replay of all ranks reports it
        return None
    return replay


def _turn(algorithm: Algorithm, p: int) -> Turn:
    """Return the function that rotates blocks: by parts of the array, or of its rows and columns
    in an alltoall.
    """
    n = algorithm.blocks(p)
    if algorithm.collective.parts(p) == p * p:
        cut = n // (p * p)
        row = cut * p

        def both(b: int, s: int) -> int:
            return (b // row + s) % p * row + (b % row // cut + s) % p * cut + b % cut

        return both
    cut = n // p
    if n == p:
        return lambda b, s: (b + s) % p
    return lambda b, s: (b // cut + s) % p * cut + b % cut if cut * p == n else b


def _mask(mask: int, s: int, p: int) -> int:
    """Return a bit mask of ranks, rotated."""
    return (mask << s | mask >> p - s) & (1 << p) - 1


def _rotates(algorithm: Algorithm, p: int, root: int, turn: Turn) -> bool:
    """Return whether the rounds and the contract of each rank are those of rank 0, rotated."""
    contract = algorithm.collective
    cut = algorithm.blocks(p) // contract.parts(p)
    first = [
        ([(q, b) for q, (b,) in each.send], [(type(m), m.peer, *m.blocks) for m in each.recv])
        for each in algorithm.rounds(0, p, root)
    ]

    def blocks(parts: Iterable[int]) -> Iterator[int]:
        return (part * cut + k for part in parts for k in range(cut))

    def promised(r: int, s: int) -> tuple[Any, Any]:
        """Return the blocks that rank `r` starts with, and those that it ends with, rotated."""
        outputs = contract.outputs(r, p, root)
        due = ((part, _mask(contract.sources(part, r, p, root), s, p)) for part in outputs)
        held = sorted(turn(b, s) for b in blocks(contract.inputs(r, p, root)))
        return held, sorted((turn(b, s), mask) for part, mask in due for b in blocks([part]))

    for r in range(1, p):
        if promised(0, r) != promised(r, 0):
            return False
        # Rounds that are equal need no other check.
        rounds = list(islice(algorithm.run(r, p, root), len(first) + 1))
        if len(rounds) != len(first) or any(each.both for each in rounds):
            return False
        for (sends, receives), each in zip(first, rounds, strict=True):
            sent = [((q + r) % p, turn(b, r)) for q, b in sends]
            if sent != [(q, b) for q, (b,) in listed(each.send)]:
                return False
            taken = [(kind, (q + r) % p, turn(b, r)) for kind, q, b in receives]
            pairs = Fold if each.fold else Store
            came = [(pairs if type(m) is tuple else type(m), *m) for m in listed(each.recv)]
            if taken != [(kind, q, b) for kind, q, (b,) in came]:
                return False
    return True


class _Values(Expressions):
    """The values of rank 0 as expressions, and those of other ranks as these, rotated."""

    def __init__(self, idempotent: bool, p: int, turn: Turn) -> None:
        super().__init__(idempotent)
        self.p, self.turn = p, turn
        self.once = True  # no two folds may have the same operands
        self.of: list[tuple[int, int]] = []  # for each value, one of rank 0, and the rotation
        self.rotated: dict[tuple[int, int], int] = {}

    def _add(self, key: tuple[int, int, int], mask: int, block: int, ordered: bool) -> int:
        number = super()._add(key, mask, block, ordered)
        if number == len(self.of):
            self.of.append((number, 0))
            self.rotated[number, 0] = number
        return number

    def leaf(self, rank: int, block: int) -> int:
        return self.turned(super().leaf(0, self.turn(block, self.p - rank)), rank)

    def fold(self, left: int, right: int) -> int:
        if self.once and (left, right, 0) in self.index:
            raise ProofError("folds the same operands twice")
        return super().fold(left, right)

    def turned(self, value: int, s: int) -> int:
        """Return what a value is for the rank that is `s` behind. Local."""
        number, before = self.of[value]
        place = number, (before + s) % self.p
        if place not in self.rotated:
            self.rotated[place] = len(self.mask)
            self.of.append(place)
            self.mask.append(_mask(self.mask[number], place[1], self.p))
            self.block.append(self.turn(self.block[number], place[1]))
            self.ordered.append(False)
        return self.rotated[place]


class _Rotated(Replay):
    """The replay of rank 0, which receives what it sends, rotated."""

    expressions: _Values

    def __init__(self, algorithm: Algorithm, p: int, root: int, turn: Turn) -> None:
        rounds = list(algorithm.rounds(0, p, root))
        schedule = Schedule(algorithm, p, root, [rounds])
        plan = compile(algorithm, p, 0, root, merged=False, rounds=rounds)
        taken = len(schedule.taken[0])
        schedule.taken[0] = [*range(len(schedule), len(schedule) + taken)]
        super().__init__(schedule, [plan], _Values(algorithm.collective.idempotent, p, turn))
        self.values += [[]] * taken

    def run(self) -> None:
        (rank,) = self.ranks
        p, values = self.schedule.p, self.expressions
        for each in rank.plan.rounds:
            shape = rank.enter()
            given: dict[int, deque[int]] = defaultdict(deque)
            peers = [message.peer for message in each.messages if message.send]
            for peer, (run, cells), row in zip(peers, shape.sends, rank.given, strict=True):
                self.values[row] = rank.read(run, cells, "sends")
                self.arrivals[row] = rank.clock + 1
                rank.sent += run.length
                given[p - peer].append(row)
            peers = [message.peer for message in each.messages if not message.send]
            for peer, (_, _, home, _), row in zip(peers, shape.takes, rank.taken, strict=True):
                sent = self.values[given[peer].popleft()]
                self.values[row] = [values.turned(value, peer) for value in sent]
                if [values.block[v] for v in self.values[row]] != [*rank.plan.numbers(home)]:
                    raise ProofError("expects other blocks")
            if any(given.values()):
                raise ProofError("sends what is not received in this round")
            rank.fold(shape, self.values)
            rank.clock += bool(each.messages)
        values.once = False

    def results(self) -> list[dict[int, int]]:
        """Check the results as those of all ranks, and compare them with each other. Local."""
        (found,) = super().results()
        same: dict[int, tuple[int, int]] = {}
        if self.schedule.algorithm.same_bits:
            for b, value in found.items():
                number, before = self.expressions.of[value]
                for r in range(self.schedule.p):
                    place = number, (before + r) % self.schedule.p
                    if same.setdefault(self.expressions.turn(b, r), place) != place:
                        raise ProofError("ranks end with different expressions")
        return [found]
