"""The fastest algorithm by numbers of ranks and bytes, from simulated times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, isnan, nan

from collectives.algorithms.registry import Algorithm
from collectives.algorithms.schedule import exceeds
from collectives.errors import ArgumentError
from collectives.simulation.graph import Graph
from collectives.simulation.networks import Network, Topology
from collectives.simulation.simulate import Kept, segments_of, simulate_again
from collectives.simulation.topology_text import Machine
from collectives.text.words import count

# If the time at the middle of two sizes is on the straight line between them, up to this relative
# error, the sizes in between are interpolated. Time is a maximum of sums that are linear in the
# size, hence convex, and a convex function that touches such a line in between is equal to it. This
# holds for one number of segments: another one has other messages. It does not hold where messages
# share links, because the order in which they get them may change with the size (an exscan on hosts
# of 2 ranks would be 4.6 % off). There, every size is simulated.
LINE = 1e-3


@dataclass(frozen=True)
class Grid:
    """The times of algorithms: ``times[p][name]`` has one for each size, or nan.

    Attributes
    ----------
    collective : str
        The collective that was simulated.
    machine : Machine or Graph
    names, ranks, sizes : list
        Algorithms, numbers of ranks, and bytes.
    times : dict
        Seconds; nan where an algorithm could not be simulated.
    left_out : list of str
        The algorithms that could not be simulated, each with the reason.
    """

    collective: str
    machine: Machine | Graph
    names: list[str]
    ranks: list[int]
    sizes: list[int]
    times: dict[int, dict[str, list[float]]]
    left_out: list[str]

    def winner(self, p: int, k: int) -> str | None:
        """Return the fastest algorithm on `p` ranks at size number `k`, or None. Local."""
        ran = {name: times[k] for name, times in self.times[p].items() if not isnan(times[k])}
        # If several are equal except for the last bits, take the first.
        return next((name for name in ran if ran[name] <= min(ran.values()) * (1 + 1e-9)), None)

    def regions(self, p: int) -> list[tuple[str | None, float]]:
        """Return the fastest algorithms on `p` ranks, each with the size at which it ends. Local.

        The size of the last one is inf.
        """
        found: list[tuple[str | None, float]] = []
        for k, size in enumerate(self.sizes):
            name = self.winner(p, k)
            if found and found[-1][0] == name:
                continue
            if found:
                found[-1] = found[-1][0], self.crossing(p, found[-1][0], name, k) or size
            found.append((name, inf))
        return found

    def crossing(self, p: int, before: str | None, after: str | None, k: int) -> float | None:
        """Return the size at which two algorithms take equally long, or None. Local."""
        if before is None or after is None:
            return None
        a, b = self.times[p][before], self.times[p][after]
        low, high = b[k - 1] - a[k - 1], a[k] - b[k]
        if isnan(low + high) or low + high <= 0:
            return None
        return self.sizes[k - 1] + (self.sizes[k] - self.sizes[k - 1]) * low / (low + high)


def simulated(
    rows: Sequence[Algorithm],
    machine: Machine | Graph,
    ranks: list[int],
    sizes: list[int],
    *,
    root: int = 0,
    segment: int = 0,
    limit: int,
    tell: Callable[[float, str], None] = lambda part, text: None,
) -> Grid:
    """Simulate algorithms on all numbers of ranks and at all sizes. Local."""
    times: dict[int, dict[str, list[float]]] = {}
    left_out = []
    done, steps = 0, len(rows) * len(ranks)
    for p in ranks:
        times[p] = {row.name: [nan] * len(sizes) for row in rows}
        try:
            topology = machine.make(p)
        except ArgumentError as error:
            if p == ranks[0]:
                raise
            left_out.append(str(error))
            continue
        for row in rows:
            tell(done / steps, f"{row.name} on {count(p, 'rank')}")
            done += 1
            placed = row if topology.groups is None else row.placed(topology.groups)
            refusal = placed.refusal(p) or too_long(placed, p, root, limit)
            if refusal:
                left_out.append(refusal)
                continue
            times[p][row.name] = _times(placed, topology, sizes, root, segment)
    collective = rows[0].collective.name
    names = [row.name for row in rows]
    return Grid(collective, machine, names, ranks, sizes, times, left_out)


def too_long(row: Algorithm, p: int, root: int, limit: int) -> str | None:
    """Return a text if an algorithm sends more than `limit` messages, or None. Local."""
    if not exceeds(row, p, root, limit):
        return None
    return f"{row.title(p, root)}, more than {limit} messages (--limit N simulates it all the same)"


def _times(
    row: Algorithm, topology: Topology, sizes: list[int], root: int, segment: int
) -> list[float]:
    """Return the time at each size."""

    kept = Kept() if len(sizes) > 1 else None

    def run(k: int) -> float:
        return simulate_again(
            kept,
            row.collective.name,
            row,
            sizes[k],
            topology,
            root=root,
            segment=segment,
            record=False,
        ).time

    if not isinstance(topology, Network) or topology.names:
        return [run(k) for k in range(len(sizes))]
    rows = [row.at(topology.p, size) for size in sizes]
    cuts = [
        (each, segments_of(each, topology.p, size, segment))
        for each, size in zip(rows, sizes, strict=True)
    ]
    found: dict[int, float] = {}

    def fill(low: int, high: int) -> None:
        for k in {low, high} - found.keys():
            found[k] = run(k)
        if high - low < 2:
            return
        middle = (low + high) // 2
        found[middle] = run(middle)

        def line(k: int) -> float:
            part = (sizes[k] - sizes[low]) / (sizes[high] - sizes[low])
            return found[low] + part * (found[high] - found[low])

        if abs(line(middle) - found[middle]) <= LINE * found[middle]:
            for k in range(low + 1, high):
                found.setdefault(k, line(k))
        else:
            fill(low, middle)
            fill(middle, high)

    for _, same in groupby(range(len(sizes)), cuts.__getitem__):
        alike = list(same)
        fill(alike[0], alike[-1])
    return [found[k] for k in range(len(sizes))]
