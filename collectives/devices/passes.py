"""The passes of one call: folds and copies of the executor, enqueued on the stream of the peers.

The executor (`_core/executor/device.pxi`) calls `Passes` for each step of a plan, after the steps
that it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collectives import _core
from collectives.devices import folds
from collectives.devices.peers import Peers


class _Value(NamedTuple):
    """The operands of a launch: sources, and whether each is left of those before it."""

    sources: list[int]
    is_left: list[bool]


class Passes:
    """The device's side of one call."""

    peers: Peers
    op: str
    dtype: str
    itemsize: int
    segment: _core.Segment | None

    def __init__(
        self, peers: Peers, op: str, dtype: str, itemsize: int, postscale: float | None
    ) -> None:
        self.peers, self.op, self.dtype, self.itemsize = peers, op, dtype, itemsize
        self.postscale = postscale
        self.segment = peers.segment
        self.error: BaseException | None = None  # the error of a failure
        self.blocks: list[int] = []
        # Memory for intermediate folds, with its bytes, and the part of it that is not in use.
        self.rooms: dict[int, int] = {}
        self.spare: list[int] = []
        self.marks: dict[int, int] = {}  # for each cursor that waits, the event that it waits for

    def arena(self, nbytes: int) -> int:
        """Return memory that belongs to the call until `release`. Local."""
        self.blocks.append(self.peers.take(nbytes))
        return self.blocks[-1]

    def release(self) -> None:
        """Give the memory of the call back; all that uses it is on the stream. Local."""
        while self.blocks:
            self.peers.give(self.blocks.pop())

    def settles(self, cursor: int) -> bool:
        """Return whether the device has done the work on which the next messages of a cursor
        depend. Local.
        """
        peers, driver = self.peers, self.peers.driver
        with peers.lock, driver.on(peers.device):
            if cursor not in self.marks:
                self.marks[cursor] = peers.spare.take()
                driver.record(self.marks[cursor], peers.stream)
            if not driver.done(self.marks[cursor]):
                return False
            peers.spare.give(self.marks.pop(cursor))
            return True

    def begin(self, page: int) -> None:
        """Order later work after all pages before `page`. Local."""
        with self.peers.lock, self.peers.driver.on(self.peers.device):
            self.peers.begin(page)

    def finish(self, page: int) -> None:
        """Record the end of the work of a page on the stream. Local."""
        with self.peers.lock, self.peers.driver.on(self.peers.device):
            self.peers.finish(page)

    def run(
        self,
        after: Sequence[tuple[int, int]],
        sources: list[int],
        number: list[int],
        dst: int,
        publication: int,
        count: int,
        is_scaled: bool,
        page: int | None,
    ) -> int:
        """Enqueue a pass; return the number of the event after it, or 0. Local.

        Each source is followed by a `number` of folds, as in ``cc_pass`` of the core.
        """
        peers = self.peers
        with peers.lock, peers.driver.on(peers.device):
            for rank, event in after:
                peers.after(rank, event)
            targets = {each for each in (dst, publication) if each}
            if len(sources) == 1 and not is_scaled and not (self.op and len(targets) == 2):
                for target in targets.difference(sources):
                    nbytes = count * self.itemsize
                    peers.driver.copy(target, sources[0], nbytes, peers.stream)
            elif targets:
                self._fold(sources, number, dst, publication, count, is_scaled)
            return 0 if page is None else peers.publish(page)

    def scale(self, address: int, count: int, factor: float) -> None:
        """Multiply elements by a factor in place. Local."""
        one = folds.Pass(count, [address], [False], address, is_prescaled=[True], prescale=factor)
        with self.peers.lock, self.peers.driver.on(self.peers.device):
            self._launch(one)

    def _fold(
        self,
        sources: list[int],
        number: list[int],
        dst: int,
        publication: int,
        count: int,
        is_scaled: bool,
    ) -> None:
        """Enqueue a fold, in several passes if it has too many sources or an order that no single
        pass has.
        """
        values: list[_Value] = []
        for source, after in zip(sources, number, strict=True):
            values.append(_Value([source], [False]))
            for _ in range(abs(after)):
                right, left = values.pop(), values.pop()
                values.append(self._chain(left, right, after < 0, count))
        (value,) = values
        postscale = self.postscale if is_scaled else None
        self._launch(folds.Pass(count, *value, dst, publication, postscale=postscale))
        self.spare = list(self.rooms)

    def _chain(self, left: _Value, right: _Value, is_swapped: bool, count: int) -> _Value:
        """Return the fold of two values as one chain: a single source joins the other's."""
        if len(left.sources) == 1 < len(right.sources):
            left, right, is_swapped = right, left, not is_swapped
        left, right = self._made(left, folds.MOST_PLACES - 1, count), self._made(right, 1, count)
        return _Value([*left.sources, *right.sources], [*left.is_left, is_swapped])

    def _made(self, value: _Value, most: int, count: int) -> _Value:
        """Return a value of at most `most` sources; one with more is folded into memory of the
        call.
        """
        if len(value.sources) <= most:
            return value
        nbytes = count * self.itemsize
        place = next((each for each in self.spare if self.rooms[each] >= nbytes), 0)
        if not place:
            place = self.arena(nbytes)
            self.rooms[place] = nbytes
            self.spare.append(place)
        self.spare.remove(place)
        self._launch(folds.Pass(count, *value, place))
        self.spare += self.rooms.keys() & set(value.sources)
        return _Value([place], [False])

    def _launch(self, one: folds.Pass) -> None:
        peers, driver = self.peers, self.peers.driver
        pair = self.op, self.dtype
        if pair not in peers.kernels:
            peers.kernels[pair] = driver.kernel(folds.source(*pair), folds.kernel_name(*pair))
        shape = folds.geometry(one.elements * self.itemsize, driver.processors())
        driver.launch(peers.kernels[pair], *shape, folds.packed(one), peers.stream)
