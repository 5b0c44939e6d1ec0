"""The alpha-beta-gamma model: the time of an algorithm by its cost formulas, and its parameters.

`select` compares the `seconds` of algorithms where nothing was measured, and reports them as
predictions. `probe` measures the parameters on the ranks of a communicator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from collectives.algorithms.bits import ANY
from collectives.algorithms.composition import Composition
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import Algorithm, get
from collectives.choice.timing import block
from collectives.plans.schedule import compile

# The size of a segment in bytes, where none was measured.
SEGMENT = 128 << 10
PAYLOADS, RESULTS, LENDS, MEMCPY = 1, 2, 4, 8  # bits of ways to store: _core/shared/segment.h


@dataclass(frozen=True)
class Parameters:
    """The parameters of the cost formulas.

    Attributes
    ----------
    alpha, beta, gamma : float
        Seconds for a message, for a byte sent, and for a byte folded.
    origin : str
        The source of the values, in words.
    assumed : tuple of str
        The names of the parameters that were not measured, and have the library's defaults.
    gap : float or None
        Seconds by which a message between hosts follows another one of the same host, where this
        was measured.
    """

    alpha: float
    beta: float
    gamma: float
    origin: str
    assumed: tuple[str, ...] = ()
    gap: float | None = None

    def measured(self) -> dict[str, float]:
        """Return the parameters that were measured, by name. Local."""
        every = {"alpha": self.alpha, "gap": self.gap, "beta": self.beta, "gamma": self.gamma}
        return {
            name: value
            for name, value in every.items()
            if value is not None and name not in self.assumed
        }

    def text(self) -> str:
        """Return the measured parameters, and the names of those not fitted, as text. Local."""
        missing = "".join(f", {name} could not be fitted" for name in self.assumed)
        return _text(self.measured()) + missing

    def __str__(self) -> str:
        found = f"{_text(self.measured())} of {self.origin}"
        if not self.assumed:
            return found
        others = {name: getattr(self, name) for name in self.assumed}
        return f"{found}, {_text(others)} of {DEFAULT.origin}"


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {1e6 * x:.3g} us" if name in ("alpha", "gap") else f"{name} {1e9 * x:.3g} ns/B"
        for name, x in values.items()
    )


# Open MPI took 0.65 us, 0.05 ns and 0.022 ns, MPICH 4.7 us, 0.07 ns and 0.023 ns (medians of 3 runs
# on 2 ranks; 2 cores, AMD EPYC, 2026-11-20).
DEFAULT = Parameters(1e-6, 0.06e-9, 0.022e-9, "the library's defaults")


# Between two network namespaces with 1 Gbit/s, MPICH took 25.8 us and 8.52 ns, Open MPI 29.2 us and
# 8.56 ns (EPYC, 2026-11-23).
NETWORK = replace(DEFAULT, alpha=27e-6, beta=8.5e-9, origin="the library's defaults between hosts")


# The part of alpha for which a message keeps the port, so that the next message of a round waits,
# where the gap between messages was not measured.
# `simulate` calls this part alpha and the rest of it the delay. An allreduce of 8 bytes between
# network namespaces, under MPICH 5.0.2 and Open MPI 5.0.11 (collectives bench allreduce -b 8 -e 8
# --repeat 5 --algorithm ...; EPYC, 2026-11-23):
#
# - 4 of 1 rank: two rounds of one message (butterfly) 79 and 79 us, one of three (all_to_all) 108
#   and 95: each message behind the first takes 0.87 and 0.7 of the time of a round.
#   With 1 KiB, 83 and 92, 117 and 110: the time of the bytes is added.
# - 2 of 2 ranks: one message from each host (leaders) 46 and 62, four (all_to_all) 84 and 83: 0.3
#   and 0.1.
#
# A longer latency than that of this network is delay. With 100 us more, the time of the port named
# an algorithm within 10 % of the best at 82 % of the points, 0.6 of alpha at 34 %.
#
# On one host there is no card that sends one message after the other, and in shared memory all
# ranks read what one has published. There, 0 named a better algorithm than 0.3, 0.6 or 1 on 4 and 8
# ranks, under MPICH 5.0.2 and Open MPI 5.0.11 (2 cores, AMD EPYC, 2026-11-21).
GAP = 0.6  # a value between those of the measurements
COUNTED = 64  # ranks up to which messages of hosts are counted; more would take too long

# Seconds per byte of a core that moves 1000 GB/s, which none does. Smaller values are noise.
IMPOSSIBLE = 1e-12


def fitted(
    alpha: float,
    beta: float | None,
    gamma: float | None,
    origin: str,
    gap: float | None = None,
) -> Parameters:
    """Return parameters, with the library's defaults for None and impossible values. Local."""
    numbers = {"beta": beta, "gamma": gamma}
    known = {name: x for name, x in numbers.items() if x is not None and x > IMPOSSIBLE}
    return Parameters(
        alpha,
        known.get("beta", DEFAULT.beta),
        known.get("gamma", DEFAULT.gamma),
        origin,
        tuple(name for name in numbers if name not in known),
        None if gap is None or gap < 0 else gap,
    )


def seconds(
    algorithm: Algorithm,
    p: int,
    nbytes: int,
    known: Parameters,
    segment: int = SEGMENT,
    groups: Groups | None = None,
) -> float:
    """Return the seconds of an algorithm by its cost formulas; inf where it states no cost. Local.

    The phases of a composition follow each other. Those inside groups take the library's defaults
    for shared memory. Those between groups take `known`, which holds when all ranks send: with
    fewer lanes, each has more of the network that the ranks of a host share.
    """
    if isinstance(algorithm, Composition):
        return _composed(algorithm, p, nbytes, known, segment)
    if groups is None or groups.number == 1:
        return _seconds(algorithm, p, nbytes, known, segment, 0.0)
    totals = algorithm.totals(p)
    gap = _gap(known)
    if not groups.are_nested or p > COUNTED or totals is None:
        return _seconds(algorithm, p, nbytes, known, segment, gap)
    queued, inner = crossings(algorithm, groups)
    # A round inside hosts takes the latency of shared memory.
    saved = inner * max(0.0, known.alpha - DEFAULT.alpha)
    return _seconds(algorithm, p, nbytes, known, segment, gap, totals[0] + queued) - saved


def _gap(known: Parameters) -> float:
    """Return the part of alpha for which a message keeps the port, between hosts."""
    if known.gap is not None:
        return min(1.0, known.gap / known.alpha)
    return GAP * min(1.0, NETWORK.alpha / known.alpha)


def _composed(
    algorithm: Composition, p: int, nbytes: int, known: Parameters, segment: int
) -> float:
    groups = algorithm.on(p)
    lanes = groups.sizes[0] if algorithm.has_lanes else 1
    between = replace(known, beta=known.beta * lanes / groups.sizes[-1])
    total = 0.0
    for phase in algorithm.phases(p):
        part = phase.row, phase.ranks, round(nbytes * phase.share)
        if phase.near:
            total += _seconds(*part, DEFAULT, segment, 0.0)
        else:
            messages, _, _ = phase.row.factors(phase.ranks) or (0.0, 0.0, 0.0)
            total += _seconds(*part, between, segment, _gap(known), lanes * messages)
    return total


def _seconds(
    algorithm: Algorithm,
    p: int,
    nbytes: int,
    known: Parameters,
    segment: int,
    gap: float,
    messages: float | None = None,
) -> float:
    """Return the seconds of an algorithm that is no composition, with `messages` in sequence.

    The first segment of each block takes the whole path. Each later segment adds the time that the
    busiest rank needs to send or receive it, or to fold it.
    """
    totals, factors = algorithm.totals(p), algorithm.factors(p)
    if totals is None or factors is None:
        return math.inf
    rounds, sent, folded = totals
    alphas, betas, gammas = factors
    messages = alphas if messages is None else messages
    pieces = max(1, math.ceil(nbytes / algorithm.array_blocks(p) / segment)) if segment else 1
    piece = nbytes / pieces
    moving = betas * piece * known.beta
    way = (
        known.alpha * ((1 - gap) * rounds + gap * messages) + moving + gammas * piece * known.gamma
    )
    if pieces == 1 or not betas:
        return way
    busy = max(sent, folded, algorithm.collective.received(p)) / betas
    next_one = max(busy * (gap * known.alpha * messages + moving), folded * piece * known.gamma)
    return way + (pieces - 1) * next_one


@lru_cache(maxsize=4096)
def crossings(algorithm: Algorithm, groups: Groups) -> tuple[int, int]:
    """Return the numbers of messages that wait behind another, and of rounds inside hosts.

    They are counted on the host of rank 0. In most algorithms, the other hosts have equal numbers,
    or wait for that host.
    """
    host = groups.members[0]
    rounds: list[list[int]] = []  # for each, the messages to the host, from it, and inside it
    for rank in host:
        for number, each in enumerate(compile(algorithm, groups.p, rank, merged=False).rounds):
            if number == len(rounds):
                rounds.append([0, 0, 0])
            for message in each.messages:
                rounds[number][2 if message.peer in host else message.send] += 1
    most = [max(received, sent) for received, sent, _ in rounds]
    inner = sum(not n and inside > 0 for n, (_, _, inside) in zip(most, rounds, strict=True))
    return sum(max(0, n - 1) for n in most), inner


# The probe: bytes of a long array; numbers of consecutive calls with a short and with a long array;
# and how often these are repeated. Short calls are repeated as often as there is time. Long calls
# are not repeated if short ones are slow, as when ranks share cores. On 2 ranks the probe took 0.2
# to 2.2 ms (2 cores, AMD EPYC, 2026-11-21). On 4 network namespaces with 1 Gbit/s, it took 22 to 47
# ms with one rank on each, and 60 to 160 ms with two (`probe` on 15 communicators, with messages of
# MPICH, Open MPI and UCX; 2 cores, AMD EPYC of family 25, 2026-11-27).
LONG = 256 << 10
SHORTS, LONGS = 8, 2
TIMES = 4
ENOUGH = 4e-3  # seconds for short ones
SLOW = 50e-6  # seconds


def probe(comm: Any) -> Parameters:
    """Measure alpha, beta and gamma on the ranks of a communicator, in a few ms, and the gap if
    they are on several hosts. Collective.

    Two collectives with known cost formulas are timed with a short and a long array, and the
    formulas are solved for the parameters. So these hold for the transport in use, with all ranks
    at work. The gap is that of an allgather in which each rank sends to all others at once.
    """
    p, groups = comm.size, comm._chooser.groups
    part = max(1, LONG // 4 // p)
    x, out = np.ones(part * p, np.float32), np.zeros(part * p, np.float32)

    def agreed(call: Callable[[], Any], number: int, times: int) -> float:
        slowest: float = max(comm._meeting.allgather(_least(call, number, times)))
        return slowest

    def shortly(name: str) -> float:
        call = partial(comm.allgather, x[:1], out[:p], algorithm=name)
        agreed(call, SHORTS, 1)  # the first messages to a rank take longer than all later ones
        short = agreed(call, SHORTS, 1)
        again = min(TIMES, int(ENOUGH / (SHORTS * short)))
        return min(short, agreed(call, SHORTS, again)) if again else short

    short = shortly("bruck")
    times = TIMES if short < SLOW else 1
    gathered = agreed(lambda: comm.allgather(x[:part], out, algorithm="bruck"), LONGS, times)
    scattered = agreed(
        lambda: comm.reduce_scatter(x, out[:part], algorithm="bruck", bits=ANY), LONGS, times
    )
    found = solved(p, x.nbytes, short, gathered, scattered, "the start-up probe")
    queued = _queued(groups)
    if not queued:
        return found
    return replace(found, gap=max(0.0, shortly("direct") - found.alpha) / queued)


def _queued(groups: Groups) -> int:
    """Return the number of messages of a host that wait behind another if each rank sends to all
    others at once; 0 on one host, and on more ranks than are COUNTED.
    """
    if groups.number == 1 or groups.p > COUNTED:
        return 0
    return crossings(get("allgather", "direct"), groups)[0]


def solved(
    p: int, nbytes: int, short: float, gathered: float, scattered: float, origin: str
) -> Parameters:
    """Return the parameters that explain three measured times. Local.

    A parameter that is smaller than the noise is left out: it has the library's default.
    """
    gather, scatter = (
        get(name, "bruck").totals(p) or (1.0, 1.0, 1.0) for name in ("allgather", "reduce_scatter")
    )
    alpha = short / gather[0]
    beta = (gathered - short) / (gather[1] * nbytes)
    if beta <= IMPOSSIBLE:
        return fitted(alpha, None, None, origin)
    rest = scattered - scatter[0] * alpha - scatter[1] * nbytes * beta
    return fitted(alpha, beta, rest / (scatter[2] * nbytes), origin)


def _least(call: Callable[[], Any], number: int, times: int) -> float:
    """Return the seconds of a call: the least mean of `number` consecutive calls."""
    call()
    return min(block([call], number) for _ in range(times))
