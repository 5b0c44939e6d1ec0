"""The gradients that wait on a server, and those of the next update."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from math import isnan

from collectives.errors import ArgumentError
from collectives.server.policies import Policy
from collectives.server.transport import Push
from collectives.text.words import shown


class UpdateQueue:
    """The state of the workers that a server knows, by a policy. No communication, no arrays."""

    steps: dict[int, int]
    policy: Policy
    total: int
    version: int

    def __init__(self, policy: Policy, workers: int) -> None:
        self.policy, self.total = policy, workers
        self.version = 0  # updates so far
        self.steps = dict.fromkeys(range(workers), 0)  # gradients of each that has not left
        self.waiting: deque[Push] = deque()  # the gradients that are in no update yet
        # For each worker, the numbers of gradients that arrived, were not finite, and were dropped;
        # and of those that were applied, by their staleness.
        self.pushed: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()
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
        # A worker that has left after its last gradient counts as long as that waits.
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
        """Note that a worker is lost; return whether the others can continue. Local."""
        self.leave(worker)
        self.lost[worker] = why
        return self.policy.survives(self.total - len(self.lost), self.total)


class BatchPieces:
    """The pieces of one batch, and their workers."""

    left: list[deque[tuple[int, int]]]

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
