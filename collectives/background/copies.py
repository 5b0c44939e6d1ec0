"""Copies of the arrays of submissions from devices to host memory, and of results back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from collectives import _core
from collectives.algorithms.spec import COLLECTIVES
from collectives.calls.grouped import paired
from collectives.devices.accelerators import TensorCopies, is_on_accelerator
from collectives.errors import ArgumentError, CollectivesError, CommunicatorError
from collectives.text.words import error_text

if TYPE_CHECKING:  # few programs need it
    from collectives.devices.copies import ArrayCopies


def failed(error: BaseException) -> CommunicatorError:
    """Return the error for a device that has failed. Local."""
    return CommunicatorError(f"the device has failed: {error_text(error)}")


def is_on_device(x: Any) -> bool:
    """Return whether an array is in the memory of any device. Local."""
    if x is None or isinstance(x, np.ndarray):
        return False
    if isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ())):
        return is_on_accelerator(x)
    try:
        _core.examine(x)
    except Exception as error:  # the reader of the array raises other errors again
        return hasattr(error, "device_shape")
    return False


def copies_of(group: Any, kind: str, x: Any, out: Any, root: Any = 0) -> CopiesOfOne | None:
    """Return the copies of arrays on a device, or None. If the device fails, all submissions of the
    group fail, on all ranks. Local.
    """
    first = x if is_on_device(x) else out if is_on_device(out) else None
    if first is None:
        return None
    group.check()
    contract = COLLECTIVES[kind.removesuffix("v")]
    place = group.rank, group.size, root
    is_read, is_written = bool(contract.inputs(*place)), bool(contract.outputs(*place))
    try:
        if is_on_accelerator(first) and not _is_of_another_library(out, "out", first):
            return TensorCopies(kind, x, out, is_read, is_written)
        from collectives.devices.copies import ArrayCopies  # few programs need it

        return ArrayCopies(group.data._engine, kind, x, out, is_read, is_written)
    except CollectivesError:  # for a wrong call, or lack of memory
        raise
    except RuntimeError as error:
        group.told = True
        raise group.arrivals.failed(error) from error


def _is_of_another_library(other: Any, name: str, tensor: Any) -> bool:
    """Return whether the other array of a tensor of torch is on a device, and no tensor. Local."""
    if is_on_accelerator(other) or not is_on_device(other):
        return False
    if tensor.device.type != "cuda":  # arrays on cuda can be read by other libraries
        raise ArgumentError(
            f"x is a tensor of torch on {tensor.device}, and {name} an array of another library on "
            f"a device: pass both of one library"
        )
    return True


class ManyCopies:
    """The copies of those arrays of a `submit_many` that are on one or more devices.

    Attributes
    ----------
    arrays, outs : list
        All arrays, in host memory, and the places of their results; None for new results.
    """

    is_held = True  # until the elements have come

    def __init__(self, group: Any, arrays: list[Any], out: list[Any] | None) -> None:
        self.arrays: list[Any] = []
        self.outs: list[Any] = []
        self._each: list[CopiesOfOne | None] = []
        for i, (x, place) in enumerate(zip(*paired(arrays, out), strict=True)):
            try:
                found = copies_of(group, "allreduce", x, place)
            except CollectivesError as error:
                raise type(error)(f"arrays[{i}]: {error}") from error
            self._each.append(found)
            self.arrays.append(x if found is None else found.x)
            self.outs.append(place if found is None else found.out)
        self._made = [each for each in self._each if each is not None]

    def is_there(self) -> bool:
        """Return whether all elements have come; raise the error of a failed device. Local."""
        return all(each.is_there() for each in self._made)

    def wait(self) -> None:
        """Wait until all elements have come; raise the error of a failed device. Local."""
        for each in self._made:
            each.wait()

    def begin_return(self) -> None:
        """Begin to copy the results to their devices. Local."""
        for each in self._made:
            each.begin_return()

    def settle(self) -> None:
        """Wait until the results are on their devices. Local."""
        for each in self._made:
            each.settle()

    def give_up(self) -> None:
        """Release the arrays that are not in flight. Local."""
        for each in self._made:
            each.give_up()

    def taken(self, results: list[Any]) -> list[Any]:
        """Return the results, each on the device of its array, for this thread's streams. Local."""
        pairs = zip(self._each, results, strict=True)
        return [one if each is None else each.taken(one) for each, one in pairs]


CopiesOfOne: TypeAlias = "TensorCopies | ArrayCopies"
Copies: TypeAlias = "CopiesOfOne | ManyCopies"
