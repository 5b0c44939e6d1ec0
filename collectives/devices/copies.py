"""Arrays of devices, and their copies in pinned memory, for submissions in the background.

`ArrayCopies` copies arrays of CuPy, JAX and other libraries by the driver, as
`accelerators.TensorCopies` copies tensors of torch. The copy to the host waits for the work on the
array's stream. The copy back follows when the collective is complete, and the stream of the thread
that takes the result waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.arrays import frameworks
from collectives.devices import runtime
from collectives.devices.accelerators import IN_PLACE, is_in_place
from collectives.devices.arrays import DeviceArray, read
from collectives.devices.calls import Devices
from collectives.devices.driver import Held
from collectives.devices.messages import Block


class ArrayCopies(Held):
    """The arrays of a submission, `x` and `out`, in pinned memory, and the copies to and from it.

    Attributes
    ----------
    x, out : ndarray or None
        The submitted arrays, in host memory; `x` may be on its way there.
    """

    is_held = True

    def __init__(
        self, engine: _core.Engine, kind: str, x: Any, out: Any, is_read: bool, is_written: bool
    ) -> None:
        self._devices: Devices = engine.devices()
        self._driver = runtime.driver_for("out" if x is None else "x")
        source, target = self._devices.arrays(x, out, False)
        self._finish = None
        if out is None and source is not None and kind in IN_PLACE:
            target, self._finish = self._devices.new(source, source.shape), source.finish
        given = [each for each in (source, target) if each is not None]
        self.device: int = given[0].device
        self._ring = self._devices.ring(self.device)
        self._blocks = self._devices.pinned(self.device)
        self._source, self._target = source, target
        self._making = threading.Lock()
        self._is_ordered = False  # whether a stream of the array's library waits for the result
        self._made: Any = None
        is_same = source is not None and target is not None and source.address == target.address
        is_kept = kind == "broadcast" and is_read and is_same  # the root has it there
        self._is_written = target is not None and is_written and not is_kept
        streams = {each.stream for each in given} - {None}
        self._before = [self._recorded(stream) for stream in streams]
        self._filled: int | None = None
        self._returned: Block | None = None
        self._taken: list[Block] = []
        self.x: NDArray[Any] | None = None if source is None else self._host(source)
        if source is not None and is_read:
            self._filled = self._copied_out(source)
        self.out = None if target is None else self.x
        if target is not None and not is_in_place(kind, source, target):
            self.out = self._host(target)

    def _host(self, array: DeviceArray) -> NDArray[Any]:
        """Return pinned memory for the elements of an array."""
        dtype = frameworks.numpy_dtype(array.dtype, array.name)
        block = self._blocks.take(array.nbytes)
        self._taken.append(block)
        made: NDArray[Any] = block.pinned.array[: array.nbytes].view(dtype).reshape(array.shape)
        return made

    @contextlib.contextmanager
    def _on(self) -> Iterator[None]:
        """Work on the device; after an error, its memory is not used again: the device may still
        read or write it.
        """
        try:
            with self._driver.on(self.device):
                yield
        except Exception:
            self._ring.is_lost = self._blocks.is_lost = True
            raise

    def _recorded(self, stream: int) -> int:
        """Return an event after the work that is on a stream."""
        event: int = self._ring.spare.take()
        with self._on():
            self._driver.record(event, stream)
        return event

    def _copied_out(self, source: DeviceArray) -> int:
        """Begin to copy an array to its place; return the event of the end."""
        block, reads = self._taken[0], self._ring.reads
        with self._on():
            self._ring.fetch(block.address, source, self._before)
            self._driver.record(block.emptied, reads)  # the block is in use until then
        return self._recorded(reads)

    def is_there(self) -> bool:
        """Return whether the elements of `x` have come; raise the device's errors. Local."""
        with self._on():
            return self._filled is None or self._driver.done(self._filled)

    def wait(self) -> None:
        """Wait until the elements of `x` have come; raise the device's errors. Local."""
        if self._filled is not None:
            with self._on():
                self._driver.synchronize(self._filled)

    def begin_return(self) -> None:
        """Begin to copy the result to the device, if its place there is known. Local."""
        if self._is_written:
            assert self._target is not None
            self._returned = self._taken[-1]
            self._copy_back(self._target, self._returned)
        self._give_events_back()
        for block in self._taken:  # the next `take` of a block waits until it is emptied
            self._blocks.give(block)
        self._taken = []

    def _give_events_back(self) -> None:
        for event in (*self._before, *([] if self._filled is None else [self._filled])):
            self._ring.spare.give(event)
        self._before, self._filled = [], None

    def _copy_back(self, target: DeviceArray, block: Block) -> None:
        with self._on():
            self._ring.store(target, block.address, self._before, block.emptied)

    def settle(self) -> None:
        """Wait until the result is on the device, so that any stream sees it. Local."""
        self._is_ordered = True
        if self._returned is not None and not self._blocks.is_closed:
            with self._on():
                self._driver.synchronize(self._returned.emptied)

    def taken(self, result: Any) -> Any:
        """Return the result of a collective in host memory as an array of the device, in order of
        this thread's stream. Local.
        """
        if isinstance(result, tuple):  # an alltoallv, with numbers that stay
            return self.taken(result[0]), *result[1:]
        if result is None:
            return None
        with self._making:
            if self._target is None:
                self._move(result)
        assert self._target is not None
        if self._finish is not None:
            self.settle()
            with self._making:
                if self._made is None:
                    self._made = self._finish(self._target.value)
            return self._made
        self._order(self._target)
        return self._target.value

    def _move(self, result: NDArray[Any]) -> None:
        """Begin to copy a result to the device whose shape was not known before."""
        assert self._source is not None
        target = self._devices.new(self._source, result.shape)
        self._finish = self._source.finish
        block = self._blocks.take(target.nbytes)
        block.pinned.array[: target.nbytes] = (
            np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        )
        if target.stream is not None:
            self._before = [self._recorded(target.stream)]  # its memory may have been another's
        self._copy_back(target, block)
        self._give_events_back()
        self._returned, self._target = block, target
        self._blocks.give(block)

    def _order(self, target: DeviceArray) -> None:
        """Have the current stream of the array's library wait for the copy."""
        if self._returned is None or self._blocks.is_closed:
            return
        now = target
        if target.stream is not None:
            now = read(target.value, "the result", self._driver, lambda _: 0) or target
        if now.stream is None:
            self.settle()
            return
        with self._on():
            self._driver.wait(now.stream, self._returned.emptied)
        self._is_ordered = True

    def give_up(self) -> None:
        """Give back the memory of a submission that has failed, if no copy is in flight. Local."""
        with contextlib.suppress(Exception):  # of a device that has failed
            if self.is_there():
                self._drop()

    def _drop(self) -> None:
        """Have the arrays' streams wait for the copies, so that the arrays may be freed."""
        if self._filled is not None and self._source is not None:
            if self._source.stream is None:
                self.wait()
            else:
                with self._on():
                    self._driver.wait(self._source.stream, self._filled)
        self._give_events_back()
        if not self._is_ordered and self._target is not None:
            self._order(self._target)
