"""Machines to simulate on: the time of a message between two ranks, and the links that it crosses.

A network has four methods that take arrays of (source, target) pairs. They return the latency
before the first byte, the seconds per byte without other messages, the shared links that the bytes
cross, and the delay between the last byte's departure and its arrival. A link has a capacity, in
seconds per byte, which all messages that cross it at the same time share. Each rank also has a port
out and a port in, which take one message at a time. The ports belong to the simulation, and are not
links.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Union

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.groups import Groups
from collectives.errors import ArgumentError
from collectives.text.words import count

Ranks = NDArray[np.int64]
Numbers = NDArray[np.float64]
Route = Callable[[int, int], "tuple[float, Sequence[Hashable]]"]
# Seconds per byte: a number, or a table of (bytes, seconds per byte) with rising bytes.
Rate = Union[float, Sequence["tuple[float, float]"]]

# A network of 100 Gbit/s with remote direct memory access: 1 us, and 12.5 GB/s. A fold reads two
# operands and writes one result, at the speed of one core. Round numbers, for examples.
ALPHA, BETA, GAMMA = 1e-6, 0.08e-9, 0.05e-9


class _Table:
    """Seconds per byte, by the bytes of the message."""

    def __init__(self, what: str, rate: Rate) -> None:
        wanted = "seconds per byte, or pairs (bytes, seconds per byte) with rising bytes"
        try:
            pairs = [(1.0, rate)] if isinstance(rate, int | float) else list(rate)
            sizes = [float(size) for size, _ in pairs]
        except (TypeError, ValueError):
            raise ArgumentError(f"{what} is {rate!r}, and must be {wanted}") from None
        if not pairs or sizes[0] <= 0 or any(a >= b for a, b in pairwise(sizes)):
            raise ArgumentError(f"{what} is {rate!r}, and must be {wanted}")
        self.rates = np.array([seconds(what, value) for _, value in pairs])
        self.sizes = np.log2(sizes)

    def __call__(self, nbytes: Numbers) -> Numbers | float:
        if len(self.rates) == 1:
            return float(self.rates[0])
        rates: Numbers = np.interp(np.log2(np.maximum(nbytes, 1.0)), self.sizes, self.rates)
        return rates

    def __str__(self) -> str:
        low, high = self.rates.min(), self.rates.max()
        return f"{low:.3g}" if low == high else f"{low:.3g}..{high:.3g}"


class Topology:
    """A machine that `simulate` runs on; the base of `Network`.

    Parameters
    ----------
    p : int
        Number of ranks.
    call : float
        Seconds that the call itself takes, before a rank enters its first round.
    """

    def __init__(self, p: int, call: float) -> None:
        if p < 1:
            raise ArgumentError(f"a topology of {p} ranks, and there must be one at least")
        self.p = p
        self.call: float = seconds("call", call)

    @property
    def groups(self) -> Groups | None:
        """The ranks of each host, if the machine has hosts."""
        return None


class Network(Topology, ABC):
    """Ranks that send each other messages, each through its own ports; the base of all networks.

    Parameters
    ----------
    p : int
        Number of ranks.
    gamma : float or table
        Seconds to fold a byte.
    call : float
        Seconds before the first round.
    links : dict
        Seconds that a byte takes on each shared link, by its name.
    delay : float
        Seconds that a message is still in transit after its ports are free again.

    Attributes
    ----------
    names : list
        Names of the shared links, by their numbers.
    capacities : array of float64
        Seconds that a byte takes on each of them.

    Notes
    -----
    A rate in seconds per byte (except those of shared links) is a number, or a table of pairs
    (bytes of a message, seconds per byte), interpolated over the logarithm of the bytes. A table is
    useful because measured times are seldom linear in the bytes.
    """

    def __init__(
        self,
        p: int,
        gamma: Rate,
        call: float,
        links: Mapping[Any, float] | None = None,
        delay: float = 0.0,
    ) -> None:
        super().__init__(p, call)
        links = links or {}
        self._delay = seconds("delay", delay)
        self._gamma = _Table("gamma", gamma)
        self.names: list[Any] = list(links)
        self.capacities: NDArray[np.float64] = np.array(
            [seconds(f"link {name!r}", rate) for name, rate in links.items()], float
        )

    def gamma(self, nbytes: Numbers) -> Numbers | float:
        """Return the seconds per byte to fold messages of `nbytes`. Local."""
        return self._gamma(nbytes)

    @abstractmethod
    def latency(self, source: Ranks, target: Ranks) -> Numbers | float:
        """Return the seconds before the first byte from each `source` to its `target`. Local."""

    @abstractmethod
    def beta(self, source: Ranks, target: Ranks, nbytes: Numbers) -> Numbers | float:
        """Return the seconds per byte of `nbytes` from `source` to `target`, if alone. Local."""

    def delay(self, source: Ranks, target: Ranks) -> Numbers | float:
        """Return the seconds between the last byte's departure from each `source` and its arrival
        at its `target`. Local.
        """
        return self._delay

    def route(self, source: Ranks, target: Ranks) -> Ranks:
        """Return the links from each `source` to its `target`, a row of numbers each. Local.

        Rows are padded with -1.
        """
        return np.full((len(source), 0), -1)


def seconds(what: str, value: float) -> float:
    """Return `value` if it is a valid number of seconds; `what` is its name in errors. Local."""
    if not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise ArgumentError(f"{what} is {value!r}, and must be seconds, 0 or more")
    return float(value)


class Flat(Network):
    """A network in which all pairs of ranks are equally distant, as in the cost formulas.

    Parameters
    ----------
    p : int
        Number of ranks.
    alpha, beta, gamma : float
        Seconds for a message, for a byte sent, and for a byte folded.
    call : float
        Seconds before the first round.
    delay : float
        Seconds that a message is still in transit after its ports are free again.
    """

    def __init__(
        self,
        p: int,
        alpha: float = ALPHA,
        beta: Rate = BETA,
        gamma: Rate = GAMMA,
        call: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        super().__init__(p, gamma, call, delay=delay)
        self._alpha, self._beta = seconds("alpha", alpha), _Table("beta", beta)

    def latency(self, source: Ranks, target: Ranks) -> float:
        """Return alpha, from any `source` to any `target`. Local."""
        return self._alpha

    def beta(self, source: Ranks, target: Ranks, nbytes: Numbers) -> Numbers | float:
        """Return beta of `nbytes`, from any `source` to any `target`. Local."""
        return self._beta(nbytes)

    def __repr__(self) -> str:
        rates = f"beta={self._beta}, gamma={self._gamma}"
        more = f", delay={self._delay:.3g}" if self._delay else ""
        return f"Flat({self.p}, alpha={self._alpha:.3g}, {rates}{more})"


class Hosts(Network):
    """Hosts with several ranks each, and one network card for all ranks of a host.

    Rank ``r`` is on host ``r // ranks``. Messages from one host to another share the link out of
    the first, ``("out", host)``, and the link into the second, ``("in", host)``.

    Parameters
    ----------
    hosts, ranks : int
        Hosts, and ranks on each.
    alpha, beta, gamma : float
        Seconds for a message between hosts, for a byte sent, and for a byte folded. Beta applies to
        one rank, and to the network card that the ranks of a host share.
    inside : (float, float)
        Alpha and beta of a message within a host.
    memory : float, optional
        Seconds that a byte takes on the link ``("memory", host)``, which all messages within a host
        share. By default there is no such link, and they do not slow each other down.
    call : float
        Seconds before the first round.
    delay : float
        Seconds that a message between hosts is still in transit after its ports are free again.
    """

    # Consecutive ranks that share a link out of them and one into them: how many ranks, and the
    # seconds that a byte takes on each link. Both are products of options, or of their inverses
    # after "/". The explorer reads them, too.
    GROUPS: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("out", "in"): ("per_host", "beta")
    }

    def __init__(
        self,
        hosts: int,
        ranks: int,
        alpha: float = ALPHA,
        beta: Rate = BETA,
        gamma: Rate = GAMMA,
        inside: tuple[float, Rate] = (0.2e-6, 0.05e-9),
        memory: float | None = None,
        call: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        if hosts < 1 or ranks < 1:
            raise ArgumentError(f"{hosts} hosts of {ranks} ranks, and neither can be below 1")
        links: dict[Any, float] = {}
        self._between = seconds("alpha", alpha), _Table("beta", beta)
        self._inside = seconds("alpha inside", inside[0]), _Table("beta inside", inside[1])
        self.hosts: int = hosts
        self.ranks: int = ranks
        of = {**vars(self), "per_host": ranks, "beta": float(self._between[1].rates.min())}
        self._levels: list[tuple[int, int, int]] = []  # ranks of a group, groups, first link
        for sides, words in self.GROUPS.items():
            size, rate = (
                prod(1 / of[word[1:]] if word[0] == "/" else of[word] for word in each.split())
                for each in words
            )
            number = -(-hosts * ranks // size)
            self._levels.append((size, number, len(links)))
            links.update(((side, k), rate) for side in sides for k in range(number))
        self._memory = len(links) if memory is not None else -1
        if memory is not None:
            links.update((("memory", host), memory) for host in range(hosts))
        super().__init__(hosts * ranks, gamma, call, links, delay)

    @property
    def groups(self) -> Groups | None:
        """The ranks of each host."""
        return Groups.sized([self.ranks] * self.hosts)

    def _near(self, source: Ranks, target: Ranks) -> Any:
        return source // self.ranks == target // self.ranks

    def latency(self, source: Ranks, target: Ranks) -> Numbers:
        """Return the alpha from `source` to `target`, inside or between hosts. Local."""
        return np.where(self._near(source, target), self._inside[0], self._between[0])

    def beta(self, source: Ranks, target: Ranks, nbytes: Numbers) -> Numbers:
        """Return the beta of `nbytes` from `source` to `target`, inside or between. Local."""
        near = self._near(source, target)
        return np.where(near, self._inside[1](nbytes), self._between[1](nbytes))

    def delay(self, source: Ranks, target: Ranks) -> Numbers | float:
        """Return the delay from `source` to `target`, which is 0 inside a host. Local."""
        return np.where(self._near(source, target), 0.0, self._delay) if self._delay else 0.0

    def route(self, source: Ranks, target: Ranks) -> Ranks:
        """Return the links out of groups of `source` and into those of `target`. Local."""
        within = np.where(self._near(source, target), source // self.ranks + self._memory, -1)
        columns = [within] if self._memory >= 0 else []
        for size, number, first in self._levels:
            a, b = source // size, target // size
            columns += [np.where(a != b, a + first, -1), np.where(a != b, b + first + number, -1)]
        return np.stack(columns, axis=-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hosts} hosts of {count(self.ranks, 'rank')})"


class FatTree(Hosts):
    """Hosts below switches, and the switches below a core that may be oversubscribed.

    In addition to the links of `Hosts`, messages that leave a switch share its link
    ``("up", switch)``, and messages that enter it share ``("down", switch)``. Each of these links
    has the bandwidth of ``per_switch / oversubscription`` network cards.

    Parameters
    ----------
    hosts, ranks : int
        Hosts, and ranks on each.
    per_switch : int
        Number of hosts below one switch.
    oversubscription : float
        The bandwidth of the hosts below a switch over that of its link to the core; 1 is a full
        fat tree.
    alpha, beta, gamma, inside, memory, call, delay
        As in `Hosts`.
    """

    GROUPS: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        **Hosts.GROUPS,
        ("up", "down"): ("per_host per_switch", "beta oversubscription /per_switch"),
    }

    def __init__(
        self,
        hosts: int,
        ranks: int,
        per_switch: int,
        oversubscription: float = 2.0,
        alpha: float = ALPHA,
        beta: Rate = BETA,
        gamma: Rate = GAMMA,
        inside: tuple[float, Rate] = (0.2e-6, 0.05e-9),
        memory: float | None = None,
        call: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        if per_switch < 1 or not oversubscription > 0:
            raise ArgumentError(
                f"{per_switch} hosts below a switch, oversubscribed {oversubscription} times, and "
                f"both must be above 0"
            )
        self.per_switch: int = per_switch
        self.oversubscription: float = oversubscription
        super().__init__(hosts, ranks, alpha, beta, gamma, inside, memory, call, delay)


class Torus(Network):
    """A grid of ranks that is periodic in each dimension, as in many large machines.

    A message goes along one dimension after the other, by the shorter way (upward if both ways are
    equally long). At each step it crosses a link. The two directions have separate links.

    Parameters
    ----------
    shape : sequence of int
        Number of ranks along each dimension. Consecutive ranks are neighbours in the last one.
    alpha, beta, gamma : float
        Seconds for a message, for a byte sent, and for a byte folded.
    hop : float
        Seconds of latency for each link that a message crosses.
    call : float
        Seconds before the first round.
    delay : float
        Seconds that a message is still in transit after its ports are free again.
    """

    def __init__(
        self,
        shape: Sequence[int],
        alpha: float = ALPHA,
        beta: Rate = BETA,
        gamma: Rate = GAMMA,
        hop: float = 0.0,
        call: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        if not shape or min(shape) < 1:
            raise ArgumentError(f"a torus of shape {tuple(shape)}, and lengths must be 1 or more")
        self.shape: tuple[int, ...] = tuple(shape)
        places = list(np.ndindex(*self.shape))
        self._alpha, self._beta = seconds("alpha", alpha), _Table("beta", beta)
        card = float(self._beta.rates.min())
        links = {
            (place, axis, way): card
            for axis, length in enumerate(self.shape)
            if length > 1
            for way in (1, -1)
            for place in places
        }
        super().__init__(len(places), gamma, call, links, delay)
        self._hop = seconds("hop", hop)

    def _legs(self, source: Ranks, target: Ranks) -> list[tuple[Ranks, Ranks]]:
        """Return the coordinate of the source and the signed distance, for each dimension."""
        legs = []
        starts = np.unravel_index(source, self.shape)
        ends = np.unravel_index(target, self.shape)
        for length, a, b in zip(self.shape, starts, ends, strict=True):
            up = (b - a) % length
            legs.append((a, np.where(up <= length - up, up, up - length)))
        return legs

    def latency(self, source: Ranks, target: Ranks) -> Numbers:
        """Return alpha plus the latency of the hops from `source` to `target`. Local."""
        hops = np.sum([np.abs(far) for _, far in self._legs(source, target)], axis=0)
        return self._alpha + self._hop * np.asarray(hops, float)

    def beta(self, source: Ranks, target: Ranks, nbytes: Numbers) -> Numbers | float:
        """Return beta of `nbytes`, from any `source` to any `target`. Local."""
        return self._beta(nbytes)

    def route(self, source: Ranks, target: Ranks) -> Ranks:
        """Return the links from `source` to `target`, one dimension after the other. Local."""
        source, target = np.atleast_1d(source), np.atleast_1d(target)
        here = [np.array(c) for c in np.unravel_index(source, self.shape)]
        columns = []
        first = 0
        for axis, (_, far) in enumerate(self._legs(source, target)):
            length = self.shape[axis]
            if length == 1:
                continue
            up = far > 0
            for step in range(length // 2):
                going = step < np.abs(far)
                place = np.ravel_multi_index(here, self.shape)
                link = first + place + np.where(up, 0, self.p)
                columns.append(np.where(going, link, -1))
                moved = (here[axis] + np.where(up, 1, -1)) % length
                here[axis] = np.where(going, moved, here[axis])
            first += 2 * self.p
        return np.stack(columns, axis=-1) if columns else np.empty((len(source), 0), np.int64)

    def __repr__(self) -> str:
        return f"Torus({' x '.join(map(str, self.shape))})"


class Links(Network):
    """A network of your own: a list of links, and the route between each two ranks.

    Parameters
    ----------
    p : int
        Number of ranks.
    links : dict
        Seconds that a byte takes, for each link by its name.
    route : callable or dict
        ``route(source, target)``, or ``route[source, target]``: the latency in seconds, and the
        names of the links that a message crosses.
    gamma, call, delay : float
        Seconds to fold a byte, seconds before the first round, and seconds that a message is still
        in transit after its ports are free again.

    Examples
    --------
    Two pairs of ranks, joined by one slow cable:

    >>> from collectives.topology import Links
    >>> def route(source, target):
    ...     near = source // 2 == target // 2
    ...     return (1e-6, []) if near else (5e-6, ["cable"])
    >>> cable = Links(4, {"cable": 1e-9}, route)
    """

    def __init__(
        self,
        p: int,
        links: Mapping[Any, float],
        route: Route | Mapping[tuple[int, int], tuple[float, Sequence[Hashable]]],
        gamma: Rate = GAMMA,
        call: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        super().__init__(p, gamma, call, links, delay)
        self._route = route
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._known: dict[tuple[int, int], tuple[float, list[int]]] = {}

    def _way(self, source: int, target: int) -> tuple[float, list[int]]:
        """Return the latency and the numbers of the links between two ranks."""
        known = self._known.get((source, target))
        if known is None:
            pair = f"from rank {source} to rank {target}"
            try:
                route = self._route
                found = route(source, target) if callable(route) else route[source, target]
                latency, names = found
            except KeyError:
                raise ArgumentError(f"there is no route {pair}") from None
            except (TypeError, ValueError):
                raise ArgumentError(
                    f"the route {pair} is not a pair of a latency and a list of links"
                ) from None
            unknown = [name for name in names if name not in self._numbers]
            if unknown:
                raise ArgumentError(f"the route {pair} crosses {unknown[0]!r}, which is not a link")
            known = (
                seconds(f"the latency {pair}", latency),
                [self._numbers[name] for name in dict.fromkeys(names)],
            )
            self._known[source, target] = known
        return known

    def latency(self, source: Ranks, target: Ranks) -> Numbers:
        """Return the latency from each `source` to its `target`. Local."""
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        return np.array([self._way(*pair)[0] for pair in pairs], float)

    def beta(self, source: Ranks, target: Ranks, nbytes: Numbers) -> Numbers:
        """Return beta of the slowest link from `source` to `target`, for any `nbytes`. Local."""
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        ways = (self._way(*pair)[1] for pair in pairs)
        return np.array([max((self.capacities[k] for k in way), default=0.0) for way in ways])

    def route(self, source: Ranks, target: Ranks) -> Ranks:
        """Return the links from each `source` to its `target`. Local."""
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        ways = [self._way(*pair)[1] for pair in pairs]
        width = max(map(len, ways), default=0)
        return np.array([way + [-1] * (width - len(way)) for way in ways], np.int64).reshape(
            len(ways), width
        )

    def __repr__(self) -> str:
        return f"Links({count(self.p, 'rank')}, {count(len(self.names), 'link')})"
