"""The exact search: on few ranks, the fewest bytes for each number of rounds, with a proof.

The model is that of SCCL (Cai et al., Synthesizing optimal collective algorithms, PPoPP 2021, doi
10.1145/3437801.3441620), with one port each way instead of a bandwidth for each link: in a round, a
rank sends one message and receives one, over links that lead to no other rank on their way. A round
takes as long as its largest message, so a schedule has two costs: its rounds, and the sum over
rounds of the blocks of the largest message. CP-SAT of OR-Tools minimises the second for each number
of rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

from collectives.algorithms.exchange import Exchange
from collectives.errors import ArgumentError
from collectives.plans.proof import check
from collectives.simulation.networks import Topology
from collectives.synthesis.hops import Hop, Slots, reversed_in_time
from collectives.synthesis.matrices import Matrices
from collectives.synthesis.search import Found, Search
from collectives.text.words import count

MOST_RANKS = 9  # a torus of 3 x 3; with more, the solver seldom ends
MOST_BLOCKS = 128  # of all ranks together
BLOCKS = 4  # of a broadcast, whose front has one point if the array is one block

Pair = tuple[int, int]
Tell = Callable[[float, str], None]


class Point(NamedTuple):
    """A schedule that no other one found beats in both rounds and blocks.

    `sent` is the sum over rounds of the blocks of the largest message, `optimal` says that fewer
    are impossible in so many rounds.
    """

    rounds: int
    sent: int
    optimal: bool
    slots: Slots
    seconds: float = 0.0  # the simulated time


class Spread:
    """Blocks that spread from a rank each to all others, over some pairs of ranks.

    `shared` are pairs that cross the same link, with the number of messages that it carries in a
    round.
    """

    def __init__(self, matrices: Matrices, holders: list[int]) -> None:
        p = self.p = matrices.p
        self.holders = holders
        ways = {
            (u, v): frozenset(matrices.ways[u, v].tolist()) - {len(matrices.capacities) - 1}
            for u in range(p)
            for v in range(p)
            if u != v
        }
        self.pairs: list[Pair] = [pair for pair in ways if not _relayed(ways, pair)]
        self.into: list[list[int]] = [[u for u, w in self.pairs if w == v] for v in range(p)]
        self.shared: list[tuple[int, list[Pair]]] = []
        for link, rate in enumerate(matrices.capacities[:-1]):
            crossing = [pair for pair in self.pairs if link in ways[pair]]
            slowest = max((matrices.seconds_per_byte[pair] for pair in crossing), default=rate)
            room = max(1, int(slowest / rate + 1e-9)) if rate else p
            if min(len({pair[end] for pair in crossing}) for end in (0, 1)) > room:
                self.shared.append((room, crossing))  # others: ports forbid more messages

    def least_rounds(self) -> int:
        """Return a lower bound: ranks that have a block double, and it takes each hop a round."""
        far = (self.p - 1).bit_length()
        for holder in set(self.holders):
            reached, hops = {holder}, 0
            while len(reached) < self.p:
                reached |= {v for v in range(self.p) if reached.intersection(self.into[v])}
                hops += 1
            far = max(far, hops)
        return far

    def most_held(self) -> int:
        """Return the most blocks that one rank has at the start."""
        return max(map(self.holders.count, self.holders))

    def least_sent(self) -> int:
        """Return a lower bound for any number of rounds.

        The blocks that some ranks lack come over as many messages a round as they, or the ranks
        that can send to them, have ports. And a schedule can send its blocks one by one: the last
        block leaves its rank after the others, and then needs as many rounds as one alone.
        """
        best = self.most_held() - 1 + self.least_rounds()
        for size in range(1, self.p + 1):
            for ranks in combinations(range(self.p), size):
                lacked = sum(holder != v for v in ranks for holder in self.holders)
                near = {u for v in ranks for u in self.into[v]}
                outside = near.difference(ranks)
                entering = sum(holder not in ranks for holder in self.holders)
                doors = sum(bool(outside.intersection(self.into[v])) for v in ranks)
                best = max(best, -(-lacked // min(size, len(near))))
                if entering:
                    best = max(best, -(-entering // min(doors, len(outside))))
        return best


def _relayed(ways: dict[Pair, frozenset[int]], pair: Pair) -> bool:
    """Return whether a message goes to a third rank, and from there on."""
    u, v = pair
    third = (w for w, x in ways if x == v and w != u)
    parts = ((ways[u, w], ways[w, v]) for w in third)
    return any(a and b and not a & b and a | b == ways[pair] for a, b in parts)


class _Model:
    """A schedule of so many rounds as a model of CP-SAT; it sends `least` to `most` blocks."""

    def __init__(self, spread: Spread, rounds: int, least: int, most: int) -> None:
        from ortools.sat.python import cp_model

        self.spread = spread
        self.model = model = cp_model.CpModel()
        blocks, ranks = range(len(spread.holders)), range(spread.p)
        known = model.new_constant(0), model.new_constant(1)

        def variable(t: int, v: int, k: int) -> Any:
            if t in (0, rounds) or spread.holders[k] == v:
                return known[t == rounds or spread.holders[k] == v]
            return model.new_bool_var("")

        # True if a rank has a block: before each round, and after the last one.
        self.has: list[list[list[Any]]] = [
            [[variable(t, v, k) for k in blocks] for v in ranks] for t in range(rounds + 1)
        ]
        self.used: list[dict[Pair, Any]] = []
        sizes = [model.new_int_var(1, len(blocks), "") for _ in range(rounds)]
        for size, before, after in zip(sizes, self.has, self.has[1:], strict=False):
            used = {pair: model.new_bool_var("") for pair in spread.pairs}
            self.used.append(used)
            for v in ranks:
                model.add_at_most_one(used[u, v] for u in spread.into[v])
                model.add_at_most_one(each for (u, _), each in used.items() if u == v)
                model.add(sum(after[v]) - sum(before[v]) <= size)
            for k, v in product(blocks, ranks):
                old, new = before[v][k], after[v][k]
                model.add_implication(old, new)
                model.add_bool_or(~new, old, *(used[u, v] for u in spread.into[v]))
                for u in spread.into[v]:
                    model.add_bool_or(~new, old, ~used[u, v], before[u][k])
            for room, crossing in spread.shared:
                model.add(sum(used[pair] for pair in crossing) <= room)
            # Blocks of one rank can be exchanged; the first ones reach a certain other rank first.
            for k, (holder, other) in enumerate(pairwise(spread.holders)):
                if holder == other:
                    near = (holder + 1) % spread.p
                    model.add_implication(after[near][k + 1], after[near][k])
        model.add_linear_constraint(sum(sizes), least, most)
        model.minimize(sum(sizes))
        self._hasten(sizes)

    def _hasten(self, sizes: list[Any]) -> None:
        """Add conditions that all schedules meet, and that the solver would find out slowly."""
        spread, model, rounds = self.spread, self.model, len(sizes)
        p, holders = spread.p, len(set(spread.holders))
        for t in range(rounds):
            # Ranks with a block double in a round at most, and in the end all have it.
            for has in zip(*self.has[t], strict=True):
                model.add_linear_constraint(sum(has), -(-p >> (rounds - t)), 1 << t)
        # The last block of a rank leaves early enough, and comes to a rank that had none before.
        far, most = spread.least_rounds(), spread.most_held()
        model.add(sum(sizes[: rounds - far + 1]) >= most)
        if holders == 1:
            model.add(sum(sizes[far - 1 :]) >= most)

    def slots(self, value: Callable[[Any], int]) -> list[list[Hop]]:
        """Return the hops of a solution."""
        found: list[list[Hop]] = []
        for used, before, after in zip(self.used, self.has, self.has[1:], strict=False):
            found.append([])
            for (u, v), each in used.items():
                new = [k for k, old in enumerate(before[v]) if value(after[v][k]) > value(old)]
                found[-1] += [Hop(u, v, k, False) for k in new if value(each)]
        return found


class Exact(Search):
    """The search for the front of one collective on one network, step by step.

    Attributes
    ----------
    points : list of Point
        The front, with rising numbers of rounds and falling numbers of blocks.
    open : list of int
        Numbers of rounds for which the time was too short to find a schedule, or that there is
        none that belongs to the front.
    ended : bool
        Whether the time was over before more rounds than these were tried.
    least : int
        Blocks that a rank sends at least, in any number of rounds.
    cut : int
        Blocks of the array, or of each part.
    """

    def __init__(
        self,
        collective: str,
        topology: Topology,
        nbytes: int,
        root: int,
        seconds: float,
        cut: int | None = None,
        workers: int = 2,
    ) -> None:
        check_ranks(topology.p)
        super().__init__(collective, topology, nbytes, root, seconds)
        self.cut: int = cut or (BLOCKS if self.contract.rooted else 1)
        if self.blocks > MOST_BLOCKS:
            raise ArgumentError(
                f"an exact search takes {MOST_BLOCKS} blocks at most, not {self.blocks}"
            )
        self.workers = workers
        self.stopped: bool = False
        self.least: int = 0
        self.points: list[Point] = []
        self.open: list[int] = []
        self.ended: bool = False

    @property
    def blocks(self) -> int:
        """The number of blocks of the caller's array."""
        return self.cut * (1 if self.contract.rooted else self.p)

    def run(self, tell: Tell = lambda part, text: None) -> None:
        """Search until the front is known or the time is over; `tell` is told as by `Search`."""
        self._shipped(tell)
        roots = range(self.p) if self.roots is None else self.roots
        holders = [root for root in roots for _ in range(self.cut)]
        spread = Spread(self.matrices, holders)
        self.least = spread.least_sent()
        if not self.both:
            for point in self._front(spread, self.until, tell):
                back = reversed_in_time(point.slots) if self.back else point.slots
                self._keep(point._replace(slots=back))
            return
        other = Spread(self.matrices.transposed(), holders)
        self.least += other.least_sent()
        down: list[Point] = []
        if set(spread.pairs) == set(other.pairs) and not spread.shared:
            up, half = down, self.until  # the sums take the way of the results, back
        else:
            up, half = [], (self.until + time.monotonic()) / 2
        for point in self._front(spread, half, tell):
            down.append(point)
            self._join(up, down)
        for point in self._front(other, self.until, tell) if up is not down else ():
            up.append(point)
            self._join(up, down)

    def _front(self, spread: Spread, until: float, tell: Tell) -> Iterator[Point]:
        """Yield the points of the front of a broadcast or an allgather, from the fewest rounds."""
        least, rounds = spread.least_sent(), spread.least_rounds()
        best: int | None = None
        while best is None or best > max(least, rounds):
            left = until - time.monotonic()
            if self.stopped or (left <= 0 and best is not None):
                self.open.append(rounds)
                self.ended = True
                if self.stopped:
                    raise KeyboardInterrupt
                return
            most = len(spread.holders) * rounds if best is None else best - 1
            model = _Model(spread, rounds, max(least, rounds), most)
            share = max(left / max(1, least - rounds + 1), 1.0)
            point = self._solve(model, rounds, share, tell)
            if point is not None:
                best = point.sent
                yield point
            rounds += 1

    def _solve(self, model: _Model, rounds: int, seconds: float, tell: Tell) -> Point | None:
        """Return the best schedule of so many rounds, or None where none is found.

        The solver runs in a thread of its own, because only this one hears of Ctrl-C.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = 1
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.catch_sigint_signal = False
        told = f"the front has {count(len(self.points), 'point')}; {count(rounds, 'round')}"
        with ThreadPoolExecutor(1) as pool:
            solved = pool.submit(solver.solve, model.model)
            while not solved.done():
                try:
                    wait([solved], 0.1)
                    tell(self._part(), told)
                except KeyboardInterrupt:
                    self.stopped = True
                if self.stopped:
                    solver.stop_search()
        status = solved.result()
        if status == cp_model.UNKNOWN:
            self.open.append(rounds)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        sent = round(solver.objective_value)
        return Point(rounds, sent, status == cp_model.OPTIMAL, model.slots(solver.value))

    def _join(self, up: list[Point], down: list[Point]) -> None:
        """Keep the front of all reduce_scatters with all allgathers after them."""
        self.points, self.best = [], None
        joined = [
            Point(
                a.rounds + b.rounds,
                a.sent + b.sent,
                a.optimal and b.optimal,
                [*reversed_in_time(a.slots), *b.slots],
            )
            for a, b in product(up, down)
        ]
        for point in sorted(joined, key=lambda point: point[:2]):
            if not self.points or point.sent < self.points[-1].sent:
                self._keep(point)

    def _keep(self, point: Point) -> None:
        """Prove and simulate a schedule, and keep it."""
        each = _exchanges(self.p, point.slots)
        blocks = self.blocks if self.both else self.cut
        row = self._row(each, blocks)
        check(row, p=self.p, root=self.root, record=False)
        seconds, segment = self._fastest(row)
        self.points.append(point._replace(seconds=seconds))
        if self.best is None or seconds < self.best.seconds:
            rounds, sent = count(point.rounds, "round"), count(point.sent, "block")
            how = f"{rounds} that send {sent} of {self.blocks}"
            self.best = Found(how, blocks, segment, seconds, each)


def check_ranks(p: int) -> None:
    """Refuse more ranks than the solver can take."""
    if p > MOST_RANKS:
        raise ArgumentError(
            f"an exact search for {count(p, 'rank')} is not possible: it takes {MOST_RANKS} at "
            "most. Without --exact, the search takes more; or search for the ranks of one host, "
            "and compose the result with hierarchical(inside,between)"
        )


def _exchanges(p: int, slots: Slots) -> list[list[Exchange]]:
    """Return the rounds of each rank, of at most one message each way."""
    found: list[list[Exchange]] = [[] for _ in range(p)]
    for slot in slots:
        sends: list[dict[int, list[int]]] = [{} for _ in range(p)]
        receives: list[dict[int, list[int]]] = [{} for _ in range(p)]
        for each in slot:
            sends[each.source].setdefault(each.target, []).append(each.block)
            receives[each.target].setdefault(each.source, []).append(each.block)
        folds = any(each.fold for each in slot)
        for own, *sides in zip(found, sends, receives, strict=True):
            if any(sides):
                give, take = ([(q, b if b[1:] else b[0]) for q, b in s.items()] for s in sides)
                own.append(Exchange(give, take, folds and bool(take)))
    return found
