"""Neighbourhoods: sources and destinations of ranks, and collectives between neighbours.

Each rank has a list of sources and a list of destinations. Their entries are *slots*, one for each
block of its arrays. An empty slot (None) stands for a neighbour beyond the end of a grid; its block
is neither sent nor written. A rank may be its own neighbour, and a neighbour several times.

A neighbourhood has contracts and rows of algorithms of its own, which are no part of the registry.
A part of an alltoall goes from a slot of one rank to a slot of another. A part of an allgather goes
from a rank to all its destinations; if it belongs in several slots of one rank, it is received once
and copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from zlib import crc32

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.registry import Algorithm
from collectives.algorithms.spec import Collective
from collectives.errors import ArgumentError, MismatchError
from collectives.process.advice import alone
from collectives.text.words import count

Slots = tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Contract(Collective):
    """The contract of a collective between neighbours, for one number of ranks.

    Attributes
    ----------
    total : int
        Parts of all ranks together.
    widest : int
        The most blocks that an array of one rank has.
    """

    total: int = 0
    widest: int = 0

    def parts(self, p: int) -> int:
        return self.total

    def per_array(self, p: int) -> int:
        return max(1, self.widest)

    @property
    def replicates(self) -> bool:
        return False


class Neighborhood:
    """The neighbours of all ranks.

    `arrivals` has, for each rank and each of its destinations, the slot where its block arrives.
    """

    def __init__(
        self,
        sources: Sequence[Slots],
        destinations: Sequence[Slots],
        arrivals: Sequence[Sequence[int]],
    ) -> None:
        self.size: int = len(sources)
        self.sources: Sequence[Slots] = sources
        self.destinations: Sequence[Slots] = destinations
        self.arrivals: Sequence[Sequence[int]] = arrivals
        self._first = [0, *accumulate(map(len, sources))]
        self.has_gaps: bool = any(None in each for each in sources)
        self.widest: int = max(map(len, [*sources, *destinations]))

    @cached_property
    def checksum(self) -> int:
        """A number by which ranks compare neighbourhoods."""
        return crc32(repr((self.sources, self.destinations, self.arrivals)).encode())

    @cached_property
    def is_connected(self) -> bool:
        """True if links, in either direction, connect all ranks."""
        near = defaultdict(set)
        for r, slots in enumerate(self.destinations):
            for d in slots:
                if d is not None:
                    near[r].add(d)
                    near[d].add(r)
        found, new = {0}, [0]
        while new:
            more = near[new.pop()] - found
            found |= more
            new += more
        return len(found) == self.size

    @cached_property
    def is_symmetric(self) -> bool:
        """True if every rank sends to each rank as often as it receives from it."""
        return all(
            Counter(s) == Counter(d) for s, d in zip(self.sources, self.destinations, strict=True)
        )

    def repeated(self, rank: int) -> dict[int, int]:
        """Return the first slot of a source for each later slot of that source. Local."""
        first: dict[int, int] = {}
        slots = ((k, s) for k, s in enumerate(self.sources[rank]) if s is not None)
        return {k: first[s] for k, s in slots if first.setdefault(s, k) != k}

    @cached_property
    def alltoall(self) -> Algorithm:
        """The row of an alltoall, in which each destination gets another block."""
        origins = [-1 if s is None else s for slots in self.sources for s in slots]
        inputs: list[tuple[int, ...]] = []
        for r, slots in enumerate(self.destinations):
            parts = []
            for d, slot in zip(slots, self.arrivals[r], strict=True):
                parts.append(len(origins) if d is None else self._first[d] + slot)
                if d is None:
                    origins.append(-1)
            inputs.append(tuple(parts))
        outputs = [range(*pair) for pair in pairwise(self._first)]
        # Two ranks that share several slots must receive in the order in which they send.
        place = {part: k for each in inputs for k, part in enumerate(each)}

        def alltoall_direct(r: int, p: int) -> Iterator[Exchange]:
            """Every rank sends each of its destinations the block that is for it, all at once."""
            self._check(p)
            sends = [
                (d, part)
                for d, part in zip(self.destinations[r], inputs[r], strict=True)
                if d is not None and d != r
            ]
            recvs = [(origins[part], part) for part in outputs[r] if origins[part] not in (-1, r)]
            recvs.sort(key=lambda pair: place[pair[1]])
            yield Exchange(send=sends, recv=recvs)

        return self._row("neighbor_alltoall", inputs, outputs, origins, {}, alltoall_direct)

    @cached_property
    def allgather(self) -> Algorithm:
        """The row of an allgather, in which all destinations get the same block."""
        origins = list(range(self.size))
        repeats: dict[int, int] = {}
        outputs: list[tuple[int, ...]] = []
        for r, slots in enumerate(self.sources):
            again = self.repeated(r)
            parts = []
            for k, s in enumerate(slots):
                parts.append(len(origins) if s is None or k in again else s)
                if s is None:
                    origins.append(-1)
                elif k in again:
                    repeats[len(origins)] = s
                    origins.append(s)
            outputs.append(tuple(parts))
        inputs = [range(r, r + 1) for r in range(self.size)]

        def allgather_direct(r: int, p: int) -> Iterator[Exchange]:
            """Every rank sends all its destinations its block, at once."""
            self._check(p)
            destinations, sources = (
                [q for q in dict.fromkeys(each[r]) if q is not None and q != r]
                for each in (self.destinations, self.sources)
            )
            yield Exchange(send=[(d, r) for d in destinations], recv=[(s, s) for s in sources])

        return self._row("neighbor_allgather", inputs, outputs, origins, repeats, allgather_direct)

    def _check(self, p: int) -> None:
        if p != self.size:
            raise ArgumentError(f"the neighbourhood is one of {count(self.size, 'rank')}, not {p}")

    def _row(
        self,
        name: str,
        inputs: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        origins: Sequence[int],
        repeats: dict[int, int],
        generate: Callable[[int, int], Iterator[Exchange]],
    ) -> Algorithm:
        """Return an algorithm with a contract of its own, of one part at least."""
        origins = origins or [-1]
        contract = Contract(
            name,
            lambda r, p, root: inputs[r],
            lambda r, p, root: outputs[r],
            lambda part, r, p, root: 1 << origins[part] if origins[part] >= 0 else 0,
            vector=True,
            repeats=repeats,
            total=len(origins),
            widest=max(map(len, [*inputs, *outputs])),
        )
        return Algorithm(
            collective=contract,
            name="direct",
            generate=generate,
            blocks=lambda p: len(origins),
            cost=None,
            source="",
            requires=(),
            same_bits=True,
            keeps_order=True,
            included=True,
        )


def of_lists(
    sources: Sequence[Sequence[int]], destinations: Sequence[Sequence[int]]
) -> Neighborhood:
    """Return the neighbourhood in which each rank has these neighbours. Local.

    If a rank names another several times, blocks arrive in the order in which they are sent. Raise
    a MismatchError if a rank names a neighbour that does not name it as often.
    """
    sent = Counter((r, d) for r, slots in enumerate(destinations) for d in slots)
    received = Counter((s, r) for r, slots in enumerate(sources) for s in slots)
    for s, d in sorted(sent | received):
        if sent[s, d] != received[s, d]:
            raise MismatchError(
                f"rank {s} lists rank {d} as a destination {count(sent[s, d], 'time')}, but rank "
                f"{d} lists rank {s} as a source {count(received[s, d], 'time')}; the two numbers "
                f"must be equal"
            )
    slots: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for r, each in enumerate(sources):
        for k, s in enumerate(each):
            slots[s, r].append(k)
    arrivals = [[slots[r, d].popleft() for d in each] for r, each in enumerate(destinations)]
    return Neighborhood(list(map(tuple, sources)), list(map(tuple, destinations)), arrivals)


class Grid:
    """Ranks as places of a grid, numbered with the last dimension running fastest.

    Attributes
    ----------
    dims : tuple of int
    periods : tuple of bool
        For each dimension, whether its last place is a neighbour of its first one.
    """

    def __init__(self, dims: tuple[int, ...], periods: tuple[bool, ...]) -> None:
        self.dims: tuple[int, ...] = dims
        self.periods: tuple[bool, ...] = periods
        self.size: int = prod(dims)

    def coords(self, rank: int) -> tuple[int, ...]:
        """Return the place of a rank. Local."""
        found: list[int] = []
        for n in reversed(self.dims):
            rank, k = divmod(rank, n)
            found.insert(0, k)
        return tuple(found)

    def rank(self, coords: Sequence[int]) -> int | None:
        """Return the rank of a place, or None if that is beyond an end. Local."""
        rank = 0
        for k, n, wraps in zip(coords, self.dims, self.periods, strict=True):
            if not wraps and not 0 <= k < n:
                return None
            rank = rank * n + k % n
        return rank

    def shifted(self, rank: int, dim: int, by: int) -> int | None:
        """Return the rank `by` places further in a dimension, or None beyond an end. Local."""
        coords = list(self.coords(rank))
        coords[dim] += by
        return self.rank(coords)

    def neighborhood(self) -> Neighborhood:
        """Return the neighbours before and after each rank in each dimension. Local.

        Data for the rank before arrives there as the block of the rank after, even if both are the
        same rank.
        """
        steps = [(dim, by) for dim in range(len(self.dims)) for by in (-1, 1)]
        slots = [tuple(self.shifted(r, dim, by) for dim, by in steps) for r in range(self.size)]
        return Neighborhood(slots, slots, [[k ^ 1 for k in range(len(steps))]] * self.size)


def balanced(size: int, dims: Sequence[int]) -> tuple[int, ...]:
    """Return `dims` with zeros replaced, as equally as possible, for a product of `size`. Local."""
    fixed = prod(n for n in dims if n)
    free = [k for k, n in enumerate(dims) if not n]
    if size % fixed or (not free and fixed != size):
        raise ArgumentError(
            f"dims is {tuple(dims)}, which is a grid of "
            f"{f'{fixed} times some ranks' if free else count(fixed, 'rank')}, "
            f"and the communicator has {size}; split() makes one of fewer{alone(fixed - 1)}"
        )
    shapes = _factored(size // fixed, len(free))
    best = min(shapes, key=lambda found: (found[0] - found[-1], found), default=())
    result = list(dims)
    for k, n in zip(free, best, strict=True):
        result[k] = n
    return tuple(result)


def _factored(size: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all products of `parts` factors that are `size`, with the factors in falling order."""
    if parts <= 1:
        if parts:
            yield (size,)
        return
    for last in range(1, size + 1):
        if size % last == 0 and last**parts <= size:
            for rest in _factored(size // last, parts - 1):
                if rest[-1] >= last:
                    yield *rest, last
