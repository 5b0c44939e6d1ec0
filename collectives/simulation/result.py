"""The result of a simulation: the time, the traffic, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.registry import Algorithm
from collectives.simulation.networks import Topology
from collectives.text.words import count, size_text, time_text

# Messages are recorded by default if there are at most this many, over all segments.
RECORDED = 200_000

Times = NDArray[np.float64]


class Transfer(NamedTuple):
    """A message in simulated time.

    Attributes
    ----------
    source, target : int
    round, segment : int
        The round of the receiver, and the segment, both from 0.
    nbytes : float
    start, end : float
        Seconds at which it starts, and at which its last byte has arrived (with a delay, the byte
        has left the sender before).
    folded : float
        Seconds at which its fold is done; `end` if it is not folded.
    """

    source: int
    target: int
    round: int
    segment: int
    nbytes: float
    start: float
    end: float
    folded: float


@dataclass(frozen=True)
class Simulation:
    """The result of `simulate`.

    Attributes
    ----------
    algorithm : Algorithm
    nbytes, root, segments : int
        Bytes of the caller's array, the root, and the number of segments of each block.
    topology : Topology
    time : float
        Seconds until the last rank is done.
    finish : array of float64
        Seconds until each rank is done.
    rounds : array of float64
        Seconds until the last rank is done with each round, in its last segment. Each rank numbers
        its own rounds.
    messages : int
        Number of messages sent.
    sent : array of float64
        Bytes that each rank sent.
    links : dict
        Bytes over each shared link of the topology.
    transfers : list of Transfer
        Every message in order of its start, if they were recorded.
    critical_path : list of Transfer
        The chain of messages that determines `time`, in order of time, if they were recorded. Each
        starts when the one before it has left, has ended or is folded.
    """

    algorithm: Algorithm
    nbytes: int
    root: int
    segments: int
    topology: Topology
    time: float
    finish: Times
    rounds: Times
    messages: int
    sent: Times
    links: dict[Any, float]
    transfers: list[Transfer]
    critical_path: list[Transfer]

    def __str__(self) -> str:
        p = self.topology.p
        lines = [
            f"{self.algorithm.title(p, self.root)}, {size_text(self.nbytes)} on {self.topology!r}",
            f"  time      {time_text(self.time, 4)}; the first rank is done after "
            f"{time_text(float(self.finish.min()), 4)}",
            f"  messages  {count(self.messages, 'message')} of {size_text(self.sent.sum())} in "
            f"all, {size_text(self.sent.max())} from the busiest rank",
        ]
        if self.segments > 1:
            lines.append(f"  segments  {self.segments}")
        if any(self.links.values()):
            name, most = max(self.links.items(), key=lambda item: item[1])
            lines.append(f"  links     most on {_link_text(name)}: {size_text(most)}")
        if self.critical_path:
            path = self.critical_path
            way = " ".join(f"{each.source}>{each.target}" for each in path[:12])
            more = f" and {len(path) - 12} more" if len(path) > 12 else ""
            lines.append(f"  longest   {count(len(path), 'message')}: {way}{more}")
        return "\n".join(lines)


def _link_text(name: Any) -> str:
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
