"""Submissions that are not compared with those of the other ranks yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from collectives import _core
from collectives.background.copies import failed
from collectives.background.handle import Handle, called
from collectives.errors import CommunicatorError
from collectives.text.words import named


class Arrivals:
    """The submissions of this rank that are not compared yet, in the order of the program.

    A submission arrives after those before it, and when its arrays have come from their device:
    submissions without a name are matched by their place.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.entering = threading.Lock()
        self.copying: deque[Handle] = deque()  # with arrays in transfer, and later submissions
        self.arrived: deque[Handle] = deque()  # by any thread
        self.problem: CommunicatorError | None = None  # of a device

    def add(self, handle: Handle) -> None:
        """Add a submission. Local."""
        if not (self.copying or handle.is_held):
            self.arrived.append(handle)
            return
        with self.entering:
            if not (self.copying or handle.is_held):
                self.arrived.append(handle)
                return
            self.copying.append(handle)
        if handle.copies is not None and handle.is_held:
            self.engine.copier.add(handle.copies, partial(self._let_in, handle))

    def _let_in(self, handle: Handle, problem: CommunicatorError | None) -> None:
        """Let a submission arrive whose arrays have come, and those that wait only for it."""
        self.problem = self.problem or problem
        with self.entering:
            while self.copying and (self.copying[0] is handle or not self.copying[0].is_held):
                self.arrived.append(self.copying[0])
                self.copying.popleft()  # only now: see add()
        _core.summon()

    def failed(self, error: BaseException) -> CommunicatorError:
        """End all submissions, on all ranks, with an error of a device; return that error."""
        self.problem = self.problem or failed(error)
        _core.summon()
        return self.problem

    def waiting(self) -> list[Handle]:
        """Return all these submissions. Local."""
        return [*list(self.arrived), *list(self.copying)]

    def clear(self) -> None:
        """Forget all these submissions. Local."""
        with self.entering:
            self.copying.clear()
        self.arrived.clear()


def waits_for_device(rank: int, waited: float, handle: Handle) -> str:
    """Return the warning of a rank whose device is late, after `waited` seconds. Local."""
    return (
        f"rank {rank} has waited {waited:.{int(waited < 1)}f} s for its device to finish "
        f"the work before {called(handle.key)}"
    )


def waits_for_ranks(
    rank: int,
    waited: float,
    whom: Sequence[int],
    verb: str,
    keys: Sequence[str],
    missing: Mapping[str, Sequence[int]],
) -> str:
    """Return the warning of a rank that has waited for others, after `waited` seconds; `missing`
    has the ranks that have not submitted a key. Local.
    """
    names = [called(key) for key in keys[:3]]
    if len(keys) > 3:
        names.append(f"{len(keys) - 3} more")
    text = (
        f"rank {rank} has waited {waited:.{int(waited < 1)}f} s for "
        f"{named(whom) if whom else 'the others'} to {verb} {', '.join(names)}"
    )
    for key, ranks in islice(missing.items(), 3):
        if rank in ranks:
            text += f"; this rank has not submitted {called(key)}, which others have"
    return text
