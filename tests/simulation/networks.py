"""Machines for the plain simulator: a function of two ranks returns the path between them.

The networks that `collectives.topology` keeps in arrays, described a second time, with names
for the links.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import inf, log2
from typing import NamedTuple

# Seconds per byte: the same for all messages, or a table of (bytes, seconds per byte).
Beta = float | Sequence[tuple[float, float]]


class Way(NamedTuple):
    """From one rank to another: seconds, seconds per byte, links that are shared, and seconds from
    when the last byte has left to when it is in.
    """

    latency: float
    beta: Beta
    links: tuple[Hashable, ...] = ()
    delay: float = 0.0


@dataclass
class Network:
    """Ranks and the links between them."""

    p: int
    gamma: Beta
    way: Callable[[int, int], Way]
    capacity: Mapping[Hashable, float] = field(default_factory=dict)  # bytes per second
    call: float = 0.0  # when all ranks begin


def rate(beta: float) -> float:
    """Return the bytes per second of `beta` seconds per byte."""
    return 1 / beta if beta else inf


def per_byte(beta: Beta, nbytes: int) -> float:
    """Return the seconds per byte of a message: in a table, on a line over the logarithm."""
    if isinstance(beta, float | int):
        return beta
    for (low, before), (high, after) in pairwise(beta):
        if low < nbytes < high:
            return before + (after - before) * log2(nbytes / low) / log2(high / low)
    return beta[0][1] if nbytes <= beta[0][0] else next(b for n, b in reversed(beta) if n <= nbytes)


def flat(p: int, alpha: float, beta: Beta, gamma: Beta) -> Network:
    """Every pair has a way of its own."""
    return Network(p, gamma, lambda s, d: Way(alpha, beta))


def hosts(
    count: int,
    ranks: int,
    alpha: float,
    beta: float,
    gamma: float,
    inside: tuple[float, Beta],
    memory: float | None = None,
) -> Network:
    """Hosts, each with one way out, one way in, and perhaps a memory that all its ranks share."""

    def way(s: int, d: int) -> Way:
        a, b = s // ranks, d // ranks
        if a == b:
            shared = (("memory", a),) if memory is not None else ()
            return Way(inside[0], inside[1], shared)
        return Way(alpha, beta, (("out", a), ("in", b)))

    capacity = {(name, h): rate(beta) for name in ("out", "in") for h in range(count)}
    if memory is not None:
        capacity |= {("memory", h): rate(memory) for h in range(count)}
    return Network(count * ranks, gamma, way, capacity)


def delayed(network: Network, delay: float, ranks: int = 1) -> Network:
    """Add a delay to all ways between hosts of so many ranks."""

    def way(s: int, d: int) -> Way:
        near = s // ranks == d // ranks
        return network.way(s, d)._replace(delay=0.0 if near else delay)

    return replace(network, way=way)


def fat_tree(
    count: int,
    ranks: int,
    per_switch: int,
    oversubscription: float,
    alpha: float,
    beta: float,
    gamma: float,
    inside: tuple[float, Beta],
    memory: float | None = None,
) -> Network:
    """Hosts on switches, which have less capacity up and down than their hosts could fill."""
    below = hosts(count, ranks, alpha, beta, gamma, inside, memory)

    def way(s: int, d: int) -> Way:
        a, b = (r // ranks // per_switch for r in (s, d))
        near = below.way(s, d)
        if a == b:
            return near
        return near._replace(links=(*near.links, ("up", a), ("down", b)))

    switches = range(-(-count // per_switch))
    trunk = rate(oversubscription * beta / per_switch)
    capacity = {(name, k): trunk for name in ("up", "down") for k in switches}
    return Network(below.p, gamma, way, {**below.capacity, **capacity})


def torus(
    shape: Sequence[int], alpha: float, beta: float, gamma: float, hop: float = 0.0
) -> Network:
    """A grid that is closed in each direction; one axis after the other, the short way round."""
    places = list(product(*(range(extent) for extent in shape)))

    def way(s: int, d: int) -> Way:
        place, goal = list(places[s]), places[d]
        links: list[Hashable] = []
        for axis, extent in enumerate(shape):
            forward = (goal[axis] - place[axis]) % extent
            step = 1 if 2 * forward <= extent else -1
            while place[axis] != goal[axis]:
                links.append((tuple(place), axis, step))
                place[axis] = (place[axis] + step) % extent
        return Way(alpha + len(links) * hop, beta, tuple(links))

    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    capacity = {
        (place, axis, step): rate(beta) for place in places for axis in axes for step in (1, -1)
    }
    return Network(len(places), gamma, way, capacity)
