"""The desk of a server: which gradients wait, and what the next update is made of."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from math import isnan
from typing import Any, NamedTuple

from collectives.errors import ArgumentError
from collectives.server.policies import Policy
from collectives.text.words import shown


class Push(NamedTuple):
    """A gradient that a worker has sent.

    Attributes
    ----------
    worker : int
        The number of the worker.
    call : int
        How many gradients the worker had sent before.
    base : int
        The version of the parameters that it was computed from.
    weight : float
        Its weight in a mean; NaN if it was not finite, and only its number counts.
    codes : ndarray
        The bytes that were sent.
    release : callable
        Called when they are not needed any more.
    """

    worker: int
    call: int
    base: int
    weight: float
    codes: Any
    release: Callable[[], object]


class Desk:
    """What a server knows of its workers, by a policy. No communication, no arrays.

    Attributes
    ----------
    version : int
        The number of updates so far.
    steps : dict
        For each worker that has not left, the number of gradients that it has sent.
    waiting : deque of Push
        What came, and is in no update yet.
    dropped, refused, pushed : Counter
        The number of gradients of each worker that were dropped, that were not finite, and that
        came.
    staleness : dict of int to Counter
        How many gradients of each worker were applied to parameters by so many updates newer than
        their own.
    """

    def __init__(self, policy: Policy, workers: int) -> None:
        self.policy, self.total = policy, workers
        self.version = 0
        self.steps = dict.fromkeys(range(workers), 0)
        self.waiting: deque[Push] = deque()
        self.dropped: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.pushed: Counter[int] = Counter()
        self.staleness: dict[int, Counter[int]] = {}
        self.lost: dict[int, str] = {}

    @property
    def slowest(self) -> int:
        """The number of steps of the slowest worker."""
        return min(self.steps.values(), default=0)

    @property
    def missing(self) -> list[int]:
        """The workers whose gradients the next update waits for, without those that the policy
        holds because another one is slow.
        """
        came = {each.worker for each in self.waiting}
        bound = self.policy.bound
        if bound is not None:
            came |= {each for each, steps in self.steps.items() if steps - bound > self.slowest}
        return [worker for worker in self.steps if worker not in came]

    def arrive(self, push: Push) -> bool:
        """Note that a gradient has come; return False if it is dropped. Local."""
        self.pushed[push.worker] += 1
        if isnan(push.weight):
            self.refused[push.worker] += 1
        if push.worker in self.steps:
            self.steps[push.worker] += 1
        if self.policy.drops_late and push.base < self.version:
            self.dropped[push.worker] += 1
            return False
        self.waiting.append(push)
        return True

    def take(self) -> list[Push]:
        """Return the gradients of the next update in the order of the workers, and count it; an
        empty list if it waits for more. Local.
        """
        if not self.waiting:
            return []
        # Who has left after its last gradient counts as long as that waits.
        present = self.steps.keys() | {push.worker for push in self.waiting}
        quorum = self.policy.quorum(len(present), self.total)
        if not isinstance(quorum, int) or quorum < 1:
            raise ArgumentError(
                f"{self.policy!r}.quorum({len(present)}, {self.total}) returned {shown(quorum)}, "
                f"and must return a number of gradients from 1 on"
            )
        if len(self.waiting) < quorum:
            return []
        taken = [self.waiting.popleft() for _ in range(quorum)]
        for each in taken:
            found = self.staleness.setdefault(each.worker, Counter())
            found[self.version - each.base] += 1
        self.version += 1
        return sorted(taken, key=lambda push: push.worker)

    def leave(self, worker: int) -> None:
        """Note that a worker has finished. Local."""
        self.steps.pop(worker, None)

    def lose(self, worker: int, why: str) -> bool:
        """Note that a worker is lost; return whether the others can go on. Local."""
        self.leave(worker)
        self.lost[worker] = why
        return self.policy.survives(self.total - len(self.lost), self.total)


class Board:
    """The pieces of one batch, and who gets which."""

    def __init__(self, count: int, workers: int, pieces: int) -> None:
        self.count = count
        self.left = [self._cut(worker, workers, pieces) for worker in range(workers)]

    def _cut(self, worker: int, workers: int, pieces: int) -> deque[tuple[int, int]]:
        first, last = share(self.count, worker, workers)
        bounds = [first + (last - first) * piece // pieces for piece in range(pieces + 1)]
        return deque(pair for pair in pairwise(bounds) if pair[0] < pair[1])

    def claim(self, worker: int) -> tuple[int, int] | None:
        """Return the bounds of a piece of the batch for a worker: of its own part, or the last
        piece of the worker that has most left; None if there is none. Local.
        """
        if self.left[worker]:
            return self.left[worker].popleft()
        richest = max(self.left, key=len)
        return richest.pop() if richest else None


def share(count: int, worker: int, workers: int) -> tuple[int, int]:
    """Return the bounds of a worker's part of `count` examples. Local."""
    return count * worker // workers, count * (worker + 1) // workers
