"""Tensors of torch on accelerators, and their copies in host memory, by torch's functions.

The background has a `TensorCopies` for each submission. Copies run on a `Lane`: a stream of the
device for copies alone. The copy to the host waits for the work that was on the caller's stream.
The copy back follows on the lane when the collective is complete, and the stream of the thread that
takes the result waits for it. So the host waits for the device only until the elements have come,
and only in the thread that submits them to the other ranks.

A device whose streams torch does not know, or which has none, is copied from and to while the host
waits. torch is not imported here: a program that has such a tensor has imported it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

from collectives.arrays import frameworks
from collectives.errors import ArgumentError, CommunicatorError
from collectives.text.words import plain

Tensor = Any  # torch.Tensor
UNABLE = AttributeError, NotImplementedError, RuntimeError, TypeError  # raised where torch cannot

# Kinds whose result has the shape of `x`, so that it can take its place in host memory.
IN_PLACE = "allreduce", "broadcast"


def is_on_accelerator(x: Any) -> bool:
    """Return whether `x` is a tensor of torch whose elements are not in host memory. Local."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(x, kind) and not (x.is_cpu or x.is_meta)


class Lane:
    """The stream for copies from and to one device."""

    def __init__(self, device: Any) -> None:
        self.torch: Any = sys.modules["torch"]
        self.device = device
        self.stream: Any = None  # if there is none, the host waits for each copy
        self.pins: bool = True
        self.keeping: threading.Lock = threading.Lock()
        self.kept: deque[tuple[Any, Tensor]] = deque()  # tensors that a copy in flight may use
        try:
            stream = self.torch.Stream(device=device)
            stream.wait_event(self.current().record_event(self._event()))
            with stream:
                self.stream = stream
        except UNABLE:
            self.stream = None
        try:
            self.torch.empty(1, pin_memory=True)
        except UNABLE:
            self.pins = False

    def current(self) -> Any:
        """Return the stream on which this thread works now. Local."""
        return self.torch.accelerator.current_stream(self.device)

    def _event(self) -> Any:
        return self.torch.Event(device=self.device, blocking=True)

    def after_the_current(self) -> Any:
        """Return an event after the work that is on the current stream, if there are streams."""
        return None if self.stream is None else self.current().record_event(self._event())

    def after_its_own(self) -> Any:
        """Return an event after the work that is on its stream. Local."""
        return self.stream.record_event(self._event())

    def host(self, shape: Any, dtype: Any) -> Tensor:
        """Return a new tensor in host memory, pinned if that is possible. Local."""
        if self.pins:
            try:
                return self.torch.empty(shape, dtype=dtype, pin_memory=True)
            except UNABLE:  # pinned memory is exhausted
                pass
        return self.torch.empty(shape, dtype=dtype)

    def empty(self, shape: Any, dtype: Any) -> Tensor:
        """Return a new tensor of the device. Local."""
        try:
            return self.torch.empty(shape, dtype=dtype, device=self.device)
        except (MemoryError, RuntimeError) as error:
            if not _is_for_lack_of_memory(error):  # of earlier work on the device
                raise
            raise no_memory(
                self.device, self.torch.Size(shape).numel() * dtype.itemsize, error
            ) from error

    def copy(self, target: Tensor, source: Tensor, after: Any) -> Any:
        """Copy between host and device after an event; return the event of its end, or None if the
        host has waited for it. Local.
        """
        inference = target.is_inference()  # such a tensor can be written in that mode alone
        with self.torch.inference_mode() if inference else self.torch.no_grad():
            if self.stream is None:
                target.copy_(source)
                return None
            with self.stream:
                self.stream.wait_event(after)
                target.copy_(source, non_blocking=True)
                ended = self.after_its_own()
        self.keep(source if target.is_cpu else target, ended)
        return ended

    def fetch(self, source: Tensor) -> Tensor:
        """Return a tensor of the device in host memory; the host waits for it. Local."""
        host = self.host(source.shape, source.dtype)
        copied = self.copy(host, source, self.after_the_current())
        if copied is not None:
            copied.synchronize()
        return host

    def store(self, target: Tensor, source: Tensor, after: Any) -> None:
        """Copy to the device after an event; the host waits for it, so that any stream sees it.
        Local.
        """
        copied = self.copy(target, source, after)
        if copied is not None:
            copied.synchronize()

    def keep(self, tensor: Tensor, ended: Any) -> None:
        """Keep the memory of a tensor from being used again before its work has ended. Local."""
        try:
            tensor.record_stream(self.stream)
        except UNABLE:
            with self.keeping:
                while self.kept and self.kept[0][0].query():
                    self.kept.popleft()
                self.kept.append((ended, tensor))


def _is_for_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error is about a lack of memory, by its text: torch has no class of errors
    for that on most devices. Local.
    """
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def no_memory(device: Any, nbytes: int, error: BaseException) -> CommunicatorError:
    """Return the error for a device without enough memory. Local."""
    return CommunicatorError(f"{device} has no memory of {nbytes} bytes: {plain(error)}")


_lanes: dict[Any, Lane] = {}
_making = threading.Lock()


def lane_of(device: Any) -> Lane:
    """Return the lane of a device. Local."""
    with _making:
        if device not in _lanes:
            _lanes[device] = Lane(device)
        return _lanes[device]


class TensorCopies:
    """The tensors of a submission, `x` and `out`, in host memory, and the copies to and from it.

    Attributes
    ----------
    x, out : Tensor or None
        The submitted arrays, in host memory; `x` may be on its way there.
    """

    is_held = True

    def __init__(self, kind: str, x: Any, out: Any, is_read: bool, is_written: bool) -> None:
        self.device: Any = common_device(x, out)
        lane = lane_of(self.device)
        self.lane: Lane = lane
        self._wanted = wanted = out
        if out is None and kind in IN_PLACE:
            self._wanted = wanted = lane.empty(x.shape, x.dtype)
        is_kept = kind == "broadcast" and is_read and out is x  # the root has it there
        self._is_written = wanted is not None and is_written and not is_kept
        self._after = lane.after_the_current()
        self._copied: Any = None
        self._returned: Any = None
        self._made: Any = None
        self.x: Tensor | None = None if x is None else lane.host(x.shape, x.dtype)
        if x is not None and is_read:
            self._copied = lane.copy(self.x, x, self._after)
        self.out = None if wanted is None else self.x
        if wanted is not None and not is_in_place(kind, x, wanted):
            self.out = lane.host(wanted.shape, wanted.dtype)

    def is_there(self) -> bool:
        """Return whether the elements of `x` have come; raise the device's errors. Local."""
        return self._copied is None or bool(self._copied.query())

    def wait(self) -> None:
        """Wait until the elements of `x` have come; raise the device's errors. Local."""
        if self._copied is not None:
            self._copied.synchronize()

    def begin_return(self) -> None:
        """Begin to copy the result to the device, if its place there is known. Local."""
        if self._is_written:
            self._returned = self.lane.copy(self._wanted, self.out, self._after)

    def settle(self) -> None:
        """Wait until the result is on the device, so that any stream sees it. Local."""
        if self._returned is not None:
            self._returned.synchronize()

    def give_up(self) -> None:
        """Do nothing: torch's allocator keeps memory that copies use. Local."""

    def taken(self, result: Any) -> Any:
        """Return the result of a collective in host memory as a tensor of the device, in order of
        this thread's stream. Local.
        """
        if isinstance(result, tuple):  # an alltoallv, with numbers that stay
            return self.taken(result[0]), *result[1:]
        if result is None:
            return None
        if self._returned is not None:
            self.lane.current().wait_event(self._returned)
        if self._wanted is not None:
            return self._wanted
        if self._made is None:
            self._made = self.lane.empty(result.shape, result.dtype).copy_(result)
        return self._made


def common_device(x: Any, out: Any) -> Any:
    """Return the device of the arrays of a call. Local."""
    given = [each for each in (x, out) if each is not None]
    for name, each in (("x", x), ("out", out)):
        if is_on_accelerator(each) and frameworks.torch_remedy(each, name):
            raise frameworks.unexported(each, name, "torch", "it is no plain memory")
        if is_on_accelerator(each) and each.numel() and not each.untyped_storage().nbytes():
            raise frameworks.unexported(each, name, "torch", "it has no memory")
    devices = [str(each.device) if is_on_accelerator(each) else "the host" for each in given]
    if len(set(devices)) > 1:
        raise ArgumentError(
            f"x is on {devices[0]} and out on {devices[1]}, and both must be on the same device"
        )
    return given[0].device


def is_in_place(kind: str, x: Any, out: Any) -> bool:
    """Return whether the result takes the place of `x` in host memory. Local."""
    if kind not in IN_PLACE or x is None:
        return False
    return bool(x.shape == out.shape and x.dtype == out.dtype)
