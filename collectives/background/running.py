"""Runs: what goes on over several requests, a step whenever one of them is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collectives import _core
from collectives.background.handle import Handle
from collectives.background.schedule import Batch
from collectives.communicator import Communicator
from collectives.compression import Piece

Steps = Iterator[_core.Request]


class Run:
    """A generator of requests, each of which is yielded when it has started."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.request: _core.Request | None = None
        self.ended = False
        self.began = time.monotonic()

    def advance(self) -> bool:
        """Go on as far as that is possible without waiting; return whether it has ended. Local."""
        while not self.ended:
            if self.request is not None and not self.request.test():
                return False
            self.request = next(self.steps, None)
            self.ended = self.request is None
        return True

    def look(self, waited: float) -> None:
        """End the request under way if it has `waited` for too many seconds. Local."""
        if self.request is not None:
            self.request._look(waited)

    def awaited(self) -> list[int]:
        """Return the ranks that it waits for. Local."""
        return [] if self.request is None else self.request._awaited()


def run_batch(
    batch: Batch, comm: Communicator, memory: Any, ended: Callable[[Sequence[Handle]], None]
) -> Steps:
    """Run what was picked; a generator of requests. Collective."""
    first = batch.handles[0]
    if first.codec is not None:
        yield from _compressed(batch.handles, comm)
    elif first.what is not None:
        first.begun()
        first.value = yield from first.what.run(comm)
    elif len(batch.handles) > 1:
        bundle = _core.Bundle(batch.handles, memory)
        bundle.pack()
        yield bundle.start()
        bundle.unpack()
    elif batch.elements:
        yield first.start_piece(batch.first, batch.elements)
    else:
        yield first.start()
    if batch.is_last:
        ended(batch.handles)


def _compressed(handles: list[Handle], comm: Communicator) -> Steps:
    """Have a codec reduce some arrays. What has no name has one that comes again: its place."""
    pieces = [
        Piece(each.name or f"\0{place}", each.arrays.values, each.arrays.shape)
        for place, each in enumerate(handles)
    ]
    for each in handles:
        each.begun()
    yield from handles[0].codec.allreduce(comm, pieces)
    for each in handles:
        each.finish()
