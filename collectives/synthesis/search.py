"""The search: candidates one after the other, simulated; the fastest is proven and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collectives.algorithms import get, names
from collectives.algorithms.composition import candidates
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import NOWHERE, Algorithm
from collectives.algorithms.schedule import exceeds
from collectives.algorithms.spec import Collective
from collectives.algorithms.spec import collective as contract_of
from collectives.errors import ArgumentError
from collectives.plans.proof import check
from collectives.simulation.networks import Network, Topology
from collectives.simulation.simulate import Kept, simulate_again
from collectives.synthesis import trees
from collectives.synthesis.bounds import Bound, Demand, best_prices, bound
from collectives.synthesis.hops import (
    Hop,
    Trees,
    returned,
    reversed_in_time,
    rounds,
    slots,
    there_and_back,
)
from collectives.synthesis.matrices import Matrices
from collectives.synthesis.order import distance, order, ring_slots
from collectives.synthesis.packing import Packing, chains, hosts, shared_out, spread
from collectives.synthesis.trees import Parents, centered
from collectives.text.words import count, known

SEARCHED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
TRANSFERS = 150_000  # most of one candidate with trees; more take too long to arrange
MESSAGES = 3_000_000  # most of one simulation
# Into how many segments blocks are cut, by trial. The folds of one segment are hidden behind the
# messages of another, so that two are the first trial, and the only one if it takes long.
SEGMENTS = (2, 1, 4)
ALONE = (1, 2)  # the same for trees: messages of two segments share links
LEAST_SEGMENT = 4096  # bytes; shorter ones only add latencies
MOST_SPREAD = 128  # most ranks for whose trees a linear program is solved; it takes long for more
MANY_SPEEDS = 4
MIN_BLOCKS, MAX_BLOCKS = 32, 512  # along a ring of hosts
MEET = 1e-6  # relative distance at which a time and its bound are the same


@dataclass(frozen=True)
class Found:
    """An algorithm, and its time on the simulated network.

    Attributes
    ----------
    how : str
        Its kind, in words.
    blocks, segment : int
        Blocks of the array, or of each part; bytes of the segments that blocks are cut into.
    seconds : float
        The simulated time.
    rounds : list of list of Exchange
        The rounds of each rank.
    """

    how: str
    blocks: int
    segment: int
    seconds: float
    rounds: list[list[Exchange]]


class Search:
    """The search for one collective on one network, step by step.

    Attributes
    ----------
    bound : Bound or None
        The time that no algorithm can beat, as soon as `run` knows it.
    shipped : (float, str) or None
        The time and the name of the fastest algorithm of the library.
    tried : int
        The number of algorithms of the library that were simulated.
    left_out : list of str
        The algorithms of the library for whose simulation there was no time.
    best : Found or None
        The fastest that was found so far.
    """

    roots: list[int] | None
    network: Network
    nbytes: int
    root: int
    until: float
    began: float

    def __init__(
        self, collective: str, topology: Topology, nbytes: int, root: int, seconds: float
    ) -> None:
        if collective not in SEARCHED:
            told = known(collective, SEARCHED, "there is one for")
            raise ArgumentError(f"there is no search for {collective!r}; {told}")
        if not isinstance(topology, Network):
            raise ArgumentError(f"{topology!r} has no links; a search needs a network")
        self.p: int = topology.p
        p = self.p
        if p < 2:
            raise ArgumentError(f"a search needs two ranks at least, and p is {p}")
        if not 0 <= root < p:
            raise ArgumentError(f"root is {root}, and must be in 0..{p - 1}")
        if nbytes < 1:
            raise ArgumentError(f"a search needs a size, and the array has {count(nbytes, 'byte')}")
        self.contract: Collective = contract_of(collective)
        self.network, self.nbytes, self.root = topology, nbytes, root
        self.until, self.began = time.monotonic() + seconds, time.monotonic()
        # A reduction to a rank is found as a broadcast from there, on the way back.
        self.back: bool = collective in ("reduce", "reduce_scatter")
        self.both: bool = collective == "allreduce"
        self.matrices: Matrices = Matrices(topology, nbytes / p)
        if self.back:
            self.matrices = self.matrices.transposed()
        self.roots = [root] if self.contract.rooted else None if self.both else list(range(p))
        self.bound: Bound | None = None
        self.shipped: tuple[float, str] | None = None
        self.tried: int = 0
        self.left_out: list[str] = []
        self.best: Found | None = None
        self.segments: dict[str, tuple[int, ...]] = {}
        self.cheapest: list[Parents] = []  # trees that prove the bound
        self.parts: list[tuple[float, Parents]] | None = None  # those that `spread` found

    def run(self, tell: Callable[[float, str], None] = lambda part, text: None) -> None:
        """Search until the time is over; `tell` is called with the part that is done, and a text.

        The steps up to one candidate are always done.
        """
        self._bound(tell)
        self._shipped(tell)
        for how, blocks, make in self._candidates():
            if self.best is not None and time.monotonic() > self.until:
                return
            if self.best is not None and self._ratio(self.best.seconds) <= 1 + MEET:
                return
            tell(self._part(), f"{self._so_far()}; {how}")
            self._try(how, blocks, make())

    def _part(self) -> float:
        return (time.monotonic() - self.began) / max(self.until - self.began, 1e-9)

    def _ratio(self, seconds: float) -> float:
        return seconds / self.bound.seconds if self.bound and self.bound.seconds else float("inf")

    def _so_far(self) -> str:
        return f"{self._ratio(self.best.seconds):.3f} times the bound" if self.best else "searching"

    def _bound(self, tell: Callable[[float, str], None]) -> None:
        share = max(1.0, (self.until - self.began) / 4)
        found, prices, self.cheapest = best_prices(
            Demand(self.matrices, self.roots), share, lambda _: tell(self._part(), "the bound")
        )
        root = self.root if self.contract.rooted else None
        self.bound = bound(self.matrices, self.nbytes, found, prices, root)

    def _shipped(self, tell: Callable[[float, str], None]) -> None:
        """Simulate the algorithms of the library, for a third of the time."""
        third = self.began + (self.until - self.began) / 3
        groups, collective = self.network.groups, self.contract.name
        listed = sorted(names(collective), key=lambda name: name != "ring")
        rows = [get(collective, name, groups) for name in listed]
        if groups is not None and groups.are_nested:
            composed = (get(collective, name, groups) for name in candidates(collective))
            rows += [row for row in composed if row.chosen != NOWHERE]
        for row in rows:
            if not row.included or row.refusal(self.p):
                continue
            if time.monotonic() > third or exceeds(row, self.p, self.root, MESSAGES // 4):
                self.left_out.append(row.name)
                continue
            tell(self._part(), f"the library's {row.name}")
            seconds, _ = self._fastest(row)
            self.tried += 1
            self.shipped = min(self.shipped or (seconds, row.name), (seconds, row.name))

    def _fastest(self, row: Algorithm, trials: Sequence[int] = SEGMENTS) -> tuple[float, int]:
        """Return the least simulated time of an algorithm, and its segment."""
        blocks = row.array_blocks(self.p)
        block = -(-self.nbytes // blocks)
        times = list[tuple[float, int]]()
        share = (self.until - self.began) / 8
        kept = Kept() if len(trials) > 2 else None
        for parts in trials:
            start = time.monotonic()
            segment = -(-block // parts)
            if parts > 1 and segment < LEAST_SEGMENT:
                segment = block
            found = simulate_again(
                kept,
                self.contract.name,
                row,
                self.nbytes,
                self.network,
                root=self.root,
                segment=segment,
                record=False,
            )
            times.append((found.time, segment))
            if found.messages * 2 > MESSAGES or time.monotonic() - start > share:
                break
        return min(times)

    def _try(self, how: str, blocks: int, found: Sequence[Sequence[Hop]]) -> None:
        """Simulate a candidate; if it is the fastest, prove it and keep it.

        Candidates of one kind are cut into as many segments as was best for the first of them.
        """
        each = rounds(self.p, reversed_in_time(found) if self.back else found)
        row = self._row(each, blocks)
        kind = how.partition("block")[2]
        trials = ALONE if "trees" in kind else SEGMENTS
        seconds, segment = self._fastest(row, self.segments.get(kind, trials))
        self.segments[kind] = (round(self.nbytes / row.array_blocks(self.p) / segment),)
        if self.best is None or seconds < self.best.seconds:
            check(row, p=self.p, root=self.root, record=False)
            self.best = Found(how, blocks, segment, seconds, each)

    def _row(self, each: list[list[Exchange]], blocks: int) -> Algorithm:
        """Return rounds as an algorithm that is not in the registry."""

        def generate(r: Any, p: int, root: int = 0) -> Iterator[Exchange]:
            return iter(each[r])

        parts = self.contract.parts(self.p)
        return Algorithm(
            self.contract,
            "synthesized",
            generate,
            lambda p: parts * blocks,
            None,
            "",
            (),
            same_bits=True,
            keeps_order=False,
            included=False,
        )

    def _candidates(self) -> Iterator[tuple[str, int, Callable[[], Sequence[Sequence[Hop]]]]]:
        """Yield candidates: a text, the blocks of the array or a part, a function that makes it."""
        assert self.bound is not None
        if not self.contract.rooted:
            yield "a ring in an order that was searched for", self.p if self.both else 1, self._ring
        several = hosts(self.matrices)
        if several:
            yield from self._along(several)
        for blocks, room in self._numbers_of_blocks():
            how = f"{count(blocks, 'block')} over trees"
            each = blocks if self.roots is None or self.contract.rooted else blocks // self.p
            yield how, each, partial(self._trees, blocks, room)

    def _along(
        self, several: list[list[int]]
    ) -> Iterator[tuple[str, int, Callable[[], Sequence[Sequence[Hop]]]]]:
        """Yield candidates along a ring of hosts."""
        assert self.bound is not None
        heads = [host[0] for host in several]
        costs = distance(self.matrices, self.bound.prices)[np.ix_(heads, heads)]
        tour = [several[k] for k in order(costs)]
        turns = max(1, max(map(len, tour)) - 2)
        tops = [self.root if self.contract.rooted else host[0] for host in tour]
        # Of an allgather or reduce_scatter, each rank is a root.
        roots = tops * turns if self.both or self.contract.rooted else list(range(self.p))
        for each in (1, 2, 4, 8, 16, 32):
            blocks = each * len(roots)
            if MIN_BLOCKS <= blocks <= min(MAX_BLOCKS, self.nbytes):
                how = f"{count(blocks, 'block')} along a ring of hosts"
                yield (
                    how,
                    blocks // self.contract.parts(self.p),
                    partial(self._chains, tour, roots, each),
                )

    def _chains(
        self, tour: list[list[int]], roots: list[int], each: int
    ) -> Sequence[Sequence[Hop]]:
        nbytes = self.nbytes / (each * len(roots))
        if self.both:
            return there_and_back(self.matrices, chains(self.matrices, tour, roots, each), nbytes)
        back = self.matrices.transposed()
        return returned(slots(back, chains(back, tour, roots, each), nbytes))

    def _numbers_of_blocks(self) -> list[tuple[int, float]]:
        """Return into how many blocks to cut the array, by trial, and how many a slot has room for.

        If messages have many different speeds, slots are full only if they have room for many.
        """
        assert self.bound is not None
        p = self.p
        able: list[tuple[int, float]]
        if self.roots is None or self.contract.rooted:
            able = [(32, 1), (64, 1), (128, 1), (256, 1), (512, 1), (1024, 2)]
            if self._speeds() > MANY_SPEEDS:
                able = [(2048, 16), (4096, 16), (512, 8), (64, 1)]
            if self.bound.latency > 0.05 * self.bound.throughput:
                able = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), *able]
        else:
            able = [(p * k, 1) for k in (1, 2, 4, 8)]
        ways = 2 * (p - 1) if self.both else p - 1
        fitting = [k for k in able if k[0] * ways <= TRANSFERS and k[0] <= self.nbytes]
        return fitting or able[:1]

    def _speeds(self) -> int:
        """Return how many different speeds the messages of the cheapest trees have."""
        pairs = [trees.edges(tree) for tree in self.cheapest]
        used = np.concatenate([self.matrices.seconds_per_byte[pair] for pair in pairs])
        return len(np.unique(used.round(15)))

    def _ring(self) -> Sequence[Sequence[Hop]]:
        assert self.bound is not None
        spread = ring_slots(order(distance(self.matrices, self.bound.prices)))
        return [*reversed_in_time(spread), *spread] if self.both else spread

    def _trees(self, blocks: int, room: float) -> Sequence[Sequence[Hop]]:
        assert self.bound is not None
        per_byte = self.bound.throughput / self.nbytes
        left = max(1.0, (self.until - time.monotonic()) / 3)
        if self.both and self.p <= MOST_SPREAD and self.parts is None:
            self.parts = spread(self.matrices, self.cheapest, per_byte, left / 2)
        if self.parts:
            every = shared_out(self.parts, blocks)
        else:
            roots = [self.root] * blocks
            if not self.contract.rooted:
                roots = [k * self.p // blocks for k in range(blocks)]
            found = Packing(self.matrices, roots, self.both).trees(per_byte, left)
            up = [centered(tree) if self.both else None for tree in found]
            every = [
                Trees(u, tree if u is None else u, 1) for u, tree in zip(up, found, strict=True)
            ]
        return slots(self.matrices, every, self.nbytes / blocks, room)
