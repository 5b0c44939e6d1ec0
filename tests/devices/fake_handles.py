"""The handles of the fake driver, and the parts that all of its calls have in common."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from fake_errors import FakeGpuError, caller

if TYPE_CHECKING:
    from fake_gpu import FakeDriver
    from fake_memory import Allocation
    from fake_order import Op
    from fake_shared import SharedEvent

F = TypeVar("F", bound=Callable[..., Any])


class Accesses(NamedTuple):
    """Accesses of a launch to memory: address and bytes, or a `Span`; the places of pointers."""

    reads: Sequence[tuple[int, ...]] = ()
    writes: Sequence[tuple[int, ...]] = ()
    pointers: Sequence[int] = ()  # offsets in the bytes of the arguments


class Kernel(NamedTuple):
    """A compiled kernel."""

    name: str
    device: int
    run: Callable[[int, int, bytes], None]


class Event:
    """The work that an event of this process, or of another one, stands for."""

    def __init__(self, device: int, shared: SharedEvent | None = None) -> None:
        self.device, self.shared, self.where = device, shared, caller()
        self.op: Op | None = None

    @property
    def is_imported(self) -> bool:
        """True if another process made it."""
        return self.shared is not None and not self.shared.is_ours


class Graph:
    """Work that was captured from a stream, to be launched any number of times."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.calls: list[tuple[Any, ...]] = []

    def launch(self, stream: int) -> None:
        """Put all of it on a stream."""
        for each in self.calls:
            self.driver.communicate(*each, stream)


class Pinned:
    """Host memory that a device reads and writes; the host may not touch pages in flight."""

    def __init__(self, driver: FakeDriver, allocation: Allocation) -> None:
        self._driver = driver
        self.address = allocation.address
        memory = (ctypes.c_uint8 * allocation.nbytes).from_address(self.address)
        self.array = np.frombuffer(memory, np.uint8)

    def free(self) -> None:
        """Give it back."""
        self._driver.free_pinned(self.address)


def call(function: F) -> F:
    """Make a method a call of the driver: one at a time, and its faults are kept."""

    name = function.__name__.lstrip("_")

    @functools.wraps(function)
    def called(self: FakeDriver, *args: Any, **kwargs: Any) -> Any:
        with self.order.changed:
            self.calls[name] += 1
            try:
                self._begin(name)
                return function(self, *args, **kwargs)
            except Exception as error:
                if isinstance(error, FakeGpuError) and error not in self.faults:
                    self.faults.append(error)
                raise

    return called  # type: ignore[return-value]
