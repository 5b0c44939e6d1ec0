"""A network as matrices: for each pair of ranks, how long a message occupies what it crosses.

The *resources* of a network are the ports out of the ranks, the ports into them, and the links, in
this order. Each can be busy for as long as a collective takes, and no longer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError
from collectives.simulation.networks import Network
from collectives.text.words import count

Matrix = NDArray[np.float64]
Numbers = NDArray[np.int64]

MOST_RANKS = 1024  # matrices of pairs take memory, and rounds that are spelled out take files


def check_ranks(p: int) -> None:
    """Refuse more ranks than a search can have."""
    if p > MOST_RANKS:
        raise ArgumentError(
            f"a search for {count(p, 'rank')} is not possible: it takes {MOST_RANKS} at most. "
            "Search for the ranks of one host or rack, and compose what is found with "
            "hierarchical(inside,between)"
        )


class Matrices:
    """The resources of a network, and the seconds that messages of `nbytes` need of them.

    ``seconds_per_byte[u, v]`` is the time of a byte in the ports of its ranks, ``latency[u, v]``
    that before the first byte, ``ways[u, v]`` the numbers of the links, padded with the number of a
    link that is infinitely fast.
    """

    def __init__(self, network: Network, nbytes: float) -> None:
        p = network.p
        self.p: int = p
        check_ranks(p)
        self.network = network
        self.ports: tuple[str, str] = "out of", "into"  # the first p of them, and the others
        source, target = (axis.reshape(-1) for axis in np.indices((p, p)))
        apart = source != target

        def matrix(values: Matrix | float) -> Matrix:
            full = np.zeros(p * p)
            full[apart] = values
            return full.reshape(p, p)

        pairs = source[apart], target[apart]
        sizes = np.full(len(pairs[0]), float(nbytes))
        alone = matrix(network.beta(*pairs, sizes))
        self.latency: Matrix = matrix(network.latency(*pairs))
        self.delay: Matrix = matrix(network.delay(*pairs))
        route = network.route(*pairs)
        links = len(network.names)
        ways = np.full((p * p, route.shape[1]), links)
        ways[apart] = np.where(route < 0, links, route)
        self.ways: NDArray[np.int64] = ways.reshape(p, p, route.shape[1])
        self.capacities: NDArray[np.float64] = np.append(network.capacities, 0.0)
        slowest = self.capacities[self.ways].max(axis=2, initial=0.0)
        self.seconds_per_byte: Matrix = np.maximum(alone, slowest)

    @property
    def resources(self) -> int:
        """The number of ports and links."""
        return 2 * self.p + len(self.capacities) - 1

    def costs(self, prices: Matrix) -> Matrix:
        """Return what a byte from each rank to each other costs at these prices of resources."""
        p = self.p
        ports = prices[:p, None] + prices[None, p : 2 * p]
        links = np.append(prices[2 * p :], 0.0) * self.capacities
        cost: Matrix = ports * self.seconds_per_byte + links[self.ways].sum(axis=2)
        return cost

    def loads(self, sources: Numbers, targets: Numbers) -> Matrix:
        """Return for how long a byte on each of these pairs occupies each resource."""
        p = self.p
        busy = self.seconds_per_byte[sources, targets]
        ways = self.ways[sources, targets]
        links = len(self.capacities)
        used = np.bincount(ways.reshape(-1), minlength=links) * self.capacities
        return np.concatenate(
            [
                np.bincount(sources, busy, minlength=p),
                np.bincount(targets, busy, minlength=p),
                used[: links - 1],
            ]
        )

    def name(self, resource: int) -> str:
        """Return a resource in words."""
        p = self.p
        if resource < 2 * p:
            return f"port {self.ports[resource // p]} rank {resource % p}"
        link = self.network.names[resource - 2 * p]
        return f"link {' '.join(map(str, link)) if isinstance(link, tuple) else link}"

    def transposed(self) -> Matrices:
        """Return the matrices of the other direction: what is gathered here is spread there."""
        other = object.__new__(Matrices)
        other.__dict__.update(self.__dict__)
        other.ports = self.ports[1], self.ports[0]
        other.seconds_per_byte = self.seconds_per_byte.T
        other.latency, other.delay = self.latency.T, self.delay.T
        other.ways = self.ways.transpose(1, 0, 2)
        return other
