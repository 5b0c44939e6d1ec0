"""Streams and events of the accelerator that is written in Python, as torch's names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import backend_registration

if TYPE_CHECKING:
    from fake_accelerator import Accelerator

NAME = "fake"
_now: list[Accelerator] = []  # the one that there is


def here() -> Accelerator:
    """Return the accelerator that there is."""
    return _now[-1]


def record(tensor: torch.Tensor, stream: Stream) -> None:
    """Stand for `torch.Tensor.record_stream`."""
    found = here().allocation(tensor)
    if found is not None:
        found.users.add(stream)


def unknown(*arguments: Any, **options: Any) -> Any:
    """Stand for a class that does not know the device."""
    raise RuntimeError("Backend doesn't support it")


class Stream:
    """A stand-in for `torch.Stream`; another one on the device, unless it has a `handle`."""

    def __init__(self, device: Any = None, *, handle: int | None = None) -> None:
        self.device = torch.device(NAME, 0)
        driver = here().driver
        if handle is None:
            handle = driver.stream()
        self.handle = handle
        self.stream = driver.stream_object(handle)
        self._before: list[Stream] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.stream is other.stream

    def __hash__(self) -> int:
        return hash(self.handle)

    def wait_event(self, event: Event) -> None:
        here().driver.wait(self.handle, event.handle)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        here().driver.drain(self.handle)

    def query(self) -> bool:
        last = self.stream.last
        return last is None or last.is_done

    def __enter__(self) -> Stream:
        self._before.append(here().current)
        here().use(self)
        return self

    def __exit__(self, *error: object) -> None:
        here().use(self._before.pop())


class Event:
    """A stand-in for `torch.Event`."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        self.handle = here().driver.event()

    def record(self, stream: Stream | None = None) -> None:
        here().driver.record(self.handle, (stream or here().current).handle)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or here().current).wait_event(self)

    def query(self) -> bool:
        return here().driver.done(self.handle)

    def synchronize(self) -> None:
        here().driver.synchronize(self.handle)


class Module(backend_registration._DummyBackendModule):  # type: ignore[misc]
    """A stand-in for `torch.cuda`: the module of a device, from which FSDP takes its streams."""

    Event = Event

    def Stream(self, priority: int = 0) -> Stream:
        return Stream()

    def current_stream(self, device: Any = None) -> Stream:
        return here().current

    def stream(self, stream: Stream) -> Stream:
        """Return what makes a stream the current one, which is the stream itself."""
        return stream

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()  # the kernels draw from the generator of the host

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)
