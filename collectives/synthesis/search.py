"""The search: candidates one after the other, simulated; the fastest is proven and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from collectives.algorithms import get, names
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import NOWHERE, Algorithm
from collectives.algorithms.spec import Collective
from collectives.algorithms.spec import collective as contract_of
from collectives.errors import ArgumentError
from collectives.plans.proof import check
from collectives.simulation.networks import Network, Topology
from collectives.simulation.simulate import simulate
from collectives.simulation.traffic import exceeds
from collectives.synthesis.bounds import Bound, Demand, best_prices, bound
from collectives.synthesis.machine import Machine
from collectives.synthesis.order import distance, order, ring_slots
from collectives.synthesis.packing import Packing, leaders
from collectives.synthesis.transfers import Transfer, reversed_in_time, rounds, slots
from collectives.text.words import count, known

SEARCHED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
TRANSFERS = 150_000  # most of one candidate with trees; more take too long to arrange
MESSAGES = 3_000_000  # most of one simulation
SEGMENTS = (1, 2, 4)  # into how many segments blocks are cut, by trial
LEAST_SEGMENT = 4096  # bytes; shorter ones only add latencies
MEET = 1e-6  # relative distance at which a time and its bound are the same


@dataclass(frozen=True)
class Found:
    """An algorithm, and its time on the simulated machine.

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
    """The search for one collective on one machine, step by step.

    Attributes
    ----------
    bound : Bound or None
        The time that no algorithm can beat, as soon as `run` knows it.
    shipped : (float, str) or None
        The time and the name of the fastest algorithm of the library.
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
        self.machine: Machine = Machine(topology, nbytes / p)
        if self.back:
            self.machine = self.machine.transposed()
        self.roots = [root] if self.contract.rooted else None if self.both else list(range(p))
        self.bound: Bound | None = None
        self.shipped: tuple[float, str] | None = None
        self.left_out: list[str] = []
        self.best: Found | None = None

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
        found, prices = best_prices(
            Demand(self.machine, self.roots), share, lambda _: tell(self._part(), "the bound")
        )
        root = self.root if self.contract.rooted else None
        self.bound = bound(self.machine, self.nbytes, found, prices, root)

    def _shipped(self, tell: Callable[[float, str], None]) -> None:
        """Simulate the algorithms of the library, as long as half of the time is left."""
        half = self.began + (self.until - self.began) / 2
        groups = self.network.groups
        for name in sorted(names(self.contract.name), key=lambda name: name != "ring"):
            row = get(self.contract.name, name)
            row = row if groups is None else row.placed(groups)
            if not row.included or row.chosen == NOWHERE or row.refusal(self.p):
                continue
            if time.monotonic() > half or exceeds(row, self.p, self.root, MESSAGES // 4):
                self.left_out.append(name)
                continue
            tell(self._part(), f"the library's {name}")
            seconds, _ = self._fastest(row)
            self.shipped = min(self.shipped or (seconds, name), (seconds, name))

    def _fastest(self, row: Algorithm) -> tuple[float, int]:
        """Return the least simulated time of an algorithm, and its segment."""
        blocks = row.array_blocks(self.p)
        block = -(-self.nbytes // blocks)
        times = []
        share = (self.until - self.began) / 20
        for parts in SEGMENTS:
            start = time.monotonic()
            segment = -(-block // parts)
            if parts > 1 and segment < LEAST_SEGMENT:
                break
            found = simulate(
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

    def _try(self, how: str, blocks: int, found: Sequence[Sequence[Transfer]]) -> None:
        """Simulate a candidate; if it is the fastest, prove it and keep it."""
        each = rounds(self.p, reversed_in_time(found) if self.back else found)
        row = self._row(each, blocks)
        seconds, segment = self._fastest(row)
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

    def _candidates(self) -> Iterator[tuple[str, int, Callable[[], Sequence[Sequence[Transfer]]]]]:
        """Yield candidates: a text, the blocks of the array or a part, a function that makes it."""
        assert self.bound is not None
        if not self.contract.rooted:
            yield "a ring in an order that was searched for", self.p if self.both else 1, self._ring
        for blocks in self._numbers_of_blocks():
            for allowed, where in ((None, ""), (leaders(self.machine), " between leaders")):
                if allowed is None and where:
                    continue
                how = f"{count(blocks, 'block')} over trees{where}"
                each = blocks if self.roots is None or self.contract.rooted else blocks // self.p
                yield how, each, partial(self._trees, blocks, allowed)

    def _numbers_of_blocks(self) -> list[int]:
        """Return into how many blocks to cut the array, by trial."""
        assert self.bound is not None
        p = self.p
        if self.roots is None or self.contract.rooted:
            able = [16, 32, 64, 128, 256]
            if self.bound.latency > 0.05 * self.bound.throughput:
                able = [1, 2, 4, 8, *able]
        else:
            able = [p * k for k in (1, 2, 4, 8)]
        ways = 2 * (p - 1) if self.both else p - 1
        fitting = [k for k in able if k * ways <= TRANSFERS and k <= self.nbytes]
        return fitting or able[:1]

    def _ring(self) -> Sequence[Sequence[Transfer]]:
        assert self.bound is not None
        spread = ring_slots(order(distance(self.machine, self.bound.prices)))
        return [*reversed_in_time(spread), *spread] if self.both else spread

    def _trees(self, blocks: int, allowed: Any) -> Sequence[Sequence[Transfer]]:
        assert self.bound is not None
        if self.contract.rooted:
            roots = [self.root] * blocks
        elif self.both:
            roots = [k * self.p // blocks if blocks < self.p else k % self.p for k in range(blocks)]
        else:
            roots = [k * self.p // blocks for k in range(blocks)]
        per_byte = self.bound.throughput / self.nbytes
        left = max(1.0, (self.until - time.monotonic()) / 3)
        packed = Packing(self.machine, roots, self.both, allowed).trees(per_byte, left)
        return slots(self.machine, packed, self.nbytes / blocks, up=self.both)
