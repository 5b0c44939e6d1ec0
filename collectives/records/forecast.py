"""Forecasts: the steps of a recorded program, replayed on more ranks and another network.

Theory of operation
-------------------
1. The computing of a step is that of the recording: the mean of the ranks, and for each rank its
   deviation from this mean in a step that is drawn at random. Rank r has the deviations of the
   recorded rank r modulo p. So no rank is later than the latest one of the recording. A recording
   of one rank has the deviations of its steps from their mean.
2. With strong scaling, computing is divided by the growth of the number of ranks.
3. A collective begins when the last rank has made the call, and takes the time of its simulation,
   by the algorithm that the library chooses for this machine, or that the caller has named.
4. Calls between neighbours take the time of one message with all their bytes.
5. With one deviation less, all ranks alike, there is no straggler: the difference is its share.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.choice.model import Parameters
from collectives.choice.select import decide
from collectives.errors import ArgumentError
from collectives.records.steps import REQUEST, SUBMITTED, Carried, Recording
from collectives.simulation.graph import Graph
from collectives.simulation.grid import too_long
from collectives.simulation.networks import Hosts, Network
from collectives.simulation.simulate import simulate
from collectives.simulation.topology_text import Machine
from collectives.text.words import count

WEAK, STRONG = "weak", "strong"
STEPS = 200  # steps of a replay
MESSAGES = 20_000_000  # the most messages of a simulated call: a few seconds

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """The mean step on one number of ranks; its parts sum up to `seconds`.

    Attributes
    ----------
    ranks : int
    seconds : float
    computing, communication, straggler : float
        Seconds of a step: the mean computing of the ranks, the time in collectives after the last
        rank has made the call, and the waits for that rank.
    efficiency : float
        Beside the recorded step: the same time on more ranks, or a part of it with strong scaling.
    algorithms : list of str
        The algorithms of the calls of a step.
    """

    ranks: int
    seconds: float
    computing: float
    communication: float
    straggler: float
    efficiency: float
    algorithms: list[str] = field(default_factory=list)


def recorded(of: Recording) -> Row:
    """Return the recorded step. Local."""
    middle = _middle(of.times)
    step = float(of.times[middle].mean())
    computing = float((of.before + of.during).sum(axis=2).mean(axis=1)[middle].mean())
    late = float(of.late.sum(axis=1)[middle].mean())
    rest = max(0.0, step - computing - late)
    return Row(of.p, step, computing, rest, max(0.0, step - computing - rest), 1.0, of.algorithms)


def forecast(
    of: Recording, machine: Machine | Graph, p: int, scaling: str, grown: frozenset[str]
) -> Row:
    """Replay a recording on `p` ranks of a `machine`. Local.

    The arrays of the collectives in `grown` have as many bytes more as there are more ranks.
    """
    topology = machine.make(p)
    assert isinstance(topology, Network)
    growth = p / of.p
    calls = _Calls(of, machine, topology, scaling, growth, grown)
    costs = [sum(calls.seconds(each) for each in carried) for carried in of.calls]
    if of.p == 1:  # its calls have no messages: this is the time of the call itself
        own = np.median(of.transfers, axis=0)
        costs = [cost + float(more) for cost, more in zip(costs, own, strict=True)]
    part = 1 / growth if scaling == STRONG else 1.0
    times, even, computing = _replayed(of, p, costs, part)
    middle = _middle(times)
    step, alike = float(times[middle].mean()), float(even[middle].mean())
    busy = min(alike, float(computing[middle].mean()))
    ideal = recorded(of).seconds * part
    return Row(p, step, busy, alike - busy, step - alike, ideal / step, list(calls.names.values()))


def _middle(times: Seconds) -> NDArray[np.intp]:
    """Return the middle half of the steps by their time, whose mean no hiccup moves."""
    order = np.argsort(times, kind="stable")
    return order[len(order) // 4 : len(order) - len(order) // 4]


def _replayed(
    of: Recording, p: int, costs: list[float], part: float
) -> tuple[Seconds, Seconds, Seconds]:
    """Return the time of each step, the same with all ranks alike, and the computing."""
    number = len(of.times)
    both = np.stack([of.before, of.during])  # kind, step, rank, call
    mean = both.mean(axis=2, keepdims=True)
    if of.p == 1:
        mean = np.broadcast_to(mean.mean(axis=1, keepdims=True), mean.shape)
    deviations = both - mean
    rng = np.random.default_rng(0)
    every = np.arange(p) % of.p
    found = np.zeros((3, max(number, STEPS)))
    for step in range(found.shape[1]):
        drawn = deviations[:, rng.integers(number, size=p), every]
        usual = mean[:, step % number]
        lengths = np.maximum(usual + drawn, 0.0) * part
        found[0, step] = _step(of.waits, lengths, costs)
        # Clipped deviations have another mean.
        alike = lengths.mean(axis=1, keepdims=True)
        found[1, step] = _step(of.waits, alike, costs)
        found[2, step] = alike.sum()
    return found[0], found[1], found[2]


def _step(waits: list[str], lengths: Seconds, costs: list[float]) -> float:
    """Return the time of a step, whose computing is given by kind, rank and call."""
    time = np.zeros(lengths.shape[1])
    free = 0.0  # when the collectives in the background are done
    for k, (wait, cost) in enumerate(zip(waits, costs, strict=True)):
        if wait == SUBMITTED:
            time = time + lengths[0, :, k]
            free = max(free, float(time.max())) + cost
            continue
        time = np.maximum(time, free) + lengths[0, :, k]
        end = float(time.max()) + cost
        time = (
            np.maximum(time + lengths[1, :, k], end) if wait == REQUEST else np.full_like(time, end)
        )
    return max(free, float(time.max()))


class _Calls:
    """The times of collectives on a machine."""

    def __init__(
        self,
        of: Recording,
        machine: Machine | Graph,
        topology: Network,
        scaling: str,
        growth: float,
        grown: frozenset[str],
    ) -> None:
        self.topology, self.scaling, self.growth, self.grown = topology, scaling, growth, grown
        groups = topology.groups
        self.groups = groups if groups is not None and groups.number > 1 else None
        is_one_host = groups is not None and groups.number == 1
        self.family = "shm" if is_one_host else of.family
        self.parameters = _parameters(machine)
        self.times: dict[Carried, float] = {}
        self.names: dict[Carried, str] = {}

    def seconds(self, call: Carried) -> float:
        """Return the time of a collective after the last rank has called it. Local."""
        if call not in self.times:
            nbytes = call.nbytes
            if call.collective in self.grown:
                nbytes = round(nbytes * self.growth)
            elif call.collective == "alltoall" and self.scaling == STRONG:
                nbytes = round(nbytes / self.growth)  # of the array of one rank
            self.times[call] = self._simulated(call, nbytes)
        return self.times[call]

    def _simulated(self, call: Carried, nbytes: int) -> float:
        topology, p = self.topology, self.topology.p
        if p == 1:
            return 0.0
        if call.kind.startswith("neighbor_"):
            pair = np.array([0]), np.array([p - 1])
            rate = topology.beta(*pair, np.array([float(nbytes)]))
            message = topology.latency(*pair) + topology.delay(*pair) + nbytes * rate
            self.names[call] = "a message"
            return float(np.max(message))
        chosen = decide(
            call.collective,
            call.asked,
            p=p,
            nbytes=nbytes,
            family=self.family,
            vector=call.kind != call.collective,
            parameters=self.parameters,
            groups=self.groups,
        )
        reason = too_long(chosen.algorithm, p, 0, MESSAGES)
        if reason:
            raise ArgumentError(f"{reason.partition(' (')[0]}: {count(p, 'rank')} are too many")
        self.names[call] = chosen.algorithm.name
        done = simulate(
            call.collective,
            chosen.algorithm,
            nbytes,
            topology,
            segment=chosen.segment,
            record=False,
        )
        return done.time


def _parameters(machine: Machine | Graph) -> Parameters:
    """Return the parameters of the cost formulas for a machine."""
    if isinstance(machine, Graph):
        slowest = max(machine.links.values())
        return Parameters(machine.alpha + machine.delay, slowest, machine.gamma, machine.text)
    of = machine.values
    return Parameters(of["alpha"] + of["delay"], of["beta"], of["gamma"], machine.text)


def fitted(of: Recording) -> dict[str, float]:
    """Return the alpha and beta between hosts that explain the recorded calls. Local.

    There is no value for a recording of one host, and no beta if all calls are short.
    """
    if of.nodes < 2 or ranks_of(of) is None:
        return {}
    rows, times = [], []
    for k, carried in enumerate(of.calls):
        if of.waits[k] in (REQUEST, SUBMITTED):
            continue
        # A rank that makes a call early has sent some of its bytes when the last one begins.
        together = np.argsort(of.late[:, k], kind="stable")[: max(1, len(of.times) // 4)]
        time = float(np.median(of.transfers[together, k]))
        # An algorithm of a user's file is unknown here, unless it was loaded.
        with suppress(ArgumentError):
            row = [_factor(of, carried[0], k, *one) for one in ((1.0, 0.0), (0.0, 1.0))]
            if time > 0 and any(row):
                rows.append(row)
                times.append(time)
    if not rows:
        return {}
    # Each row is divided by its time, so that short calls count as much as long ones.
    a = np.array(rows) / np.array(times)[:, None]
    b = np.ones(len(times))
    found, *_ = np.linalg.lstsq(a, b, rcond=None)
    is_known = len({tuple(row) for row in rows}) > 1 and (found > 0).all()
    if is_known:
        return {"alpha": float(found[0]), "beta": float(found[1])}
    return {"alpha": float(a[:, 0].sum() / (a[:, 0] ** 2).sum())} if a[:, 0].any() else {}


def _factor(of: Recording, call: Carried, k: int, alpha: float, beta: float) -> float:
    """Return how often alpha or beta is on the critical path of a recorded call."""
    if call.kind.startswith("neighbor_"):
        return alpha + beta * call.nbytes
    p, each = of.p, of.p // of.nodes
    topology = Hosts(of.nodes, each, alpha, beta, 0.0, (0.0, 0.0))
    assert topology.p == p
    done = simulate(call.collective, of.algorithms[k], call.nbytes, topology, record=False)
    return done.time


def ranks_of(of: Recording) -> int | None:
    """Return the ranks on each recorded host, or None if hosts differ. Local."""
    names = list(dict.fromkeys(of.hosts))
    each = [of.hosts.count(name) for name in names]
    is_even = len(set(each)) == 1
    in_order = of.hosts == [name for name, n in zip(names, each, strict=True) for _ in range(n)]
    return each[0] if is_even and in_order else None


def summary(of: Recording) -> dict[str, Any]:
    """Return the facts about a recording for JSON. Local."""
    return {
        "ranks": of.p,
        "hosts": of.nodes,
        "steps": len(of.times),
        "calls": [[vars(each) for each in carried] for carried in of.calls],
        "waits": of.waits,
        "other_calls": of.other,
    }
