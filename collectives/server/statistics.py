"""What became of a training: counts of gradients and bytes."""

from __future__ import annotations

from typing import NamedTuple

from collectives.text.words import time_text


class Statistics(NamedTuple):
    """What a server has done, or a worker: ``ps.statistics`` on each rank.

    Attributes
    ----------
    updates : int
        On a server, how often it has changed the parameters; on a worker, the version that it
        pulled last.
    pushed, dropped : dict
        On a server, the number of gradients that came from each worker, by its number, and how many
        of these were too late for their update. On a worker, its own.
    staleness : dict
        On a server, how many gradients were applied to parameters that were so many updates newer
        than those which the gradient was computed from.
    lost : dict
        On a server, what became of the workers that were dropped.
    received_bytes, sent_bytes : int
        On a server, the bytes of gradients that came, and of parameters that its workers have
        pulled. On a worker, of parameters and of gradients.
    waited : float
        On a worker, the seconds that it has waited for servers.
    staleness_of : dict
        On a server, `staleness` for each worker alone, by its number.
    refused : dict
        The number of gradients of each worker, by its number, that were not finite. They count as
        pushed, and are left out of the mean.
    """

    updates: int
    pushed: dict[int, int]
    dropped: dict[int, int]
    staleness: dict[int, int]
    lost: dict[int, str]
    received_bytes: int
    sent_bytes: int
    waited: float
    staleness_of: dict[int, dict[int, int]]
    refused: dict[int, int]

    @property
    def mean_staleness(self) -> float:
        """The mean of `staleness`; 0 if no gradient was applied."""
        total = sum(late * count for late, count in self.staleness.items())
        return total / max(1, sum(self.staleness.values()))

    def __str__(self) -> str:
        parts = [f"{self.updates} updates", f"{sum(self.pushed.values())} gradients"]
        if self.dropped:
            parts.append(f"{sum(self.dropped.values())} dropped")
        if self.refused:
            parts.append(f"{sum(self.refused.values())} not finite")
        if self.staleness:
            rows = ", ".join(f"{late}: {count}" for late, count in sorted(self.staleness.items()))
            parts.append(f"staleness {{{rows}}}")
        parts.append(f"{self.received_bytes} bytes received, {self.sent_bytes} sent")
        if self.waited:
            parts.append(f"{time_text(self.waited)} of waiting")
        parts += [f"worker {worker} was lost: {why}" for worker, why in self.lost.items()]
        return "; ".join(parts)
