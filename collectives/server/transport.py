"""What servers and workers need of a transport: a `Line` on the side of a worker, a `Port` on that
of a server. Shared memory (`shared`) and messages (`messages`) are the two that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.errors import (
    CollectivesError,
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    PeerLostError,
    StallError,
)
from collectives.process.waiting import Naps
from collectives.server.desk import Push

Bytes = NDArray[np.uint8]

KINDS: tuple[type[CollectivesError], ...] = (
    CommunicatorError,
    PeerLostError,
    StallError,
    PeerAbortedError,
    MismatchError,
)
FAILURE_BYTES = 1000

NAPS = Naps(yields=20, brief=0.05, short=5e-5, nap=5e-4)  # of servers and workers


class Claim(NamedTuple):
    """A worker asks for a piece of a batch."""

    worker: int
    step: int
    examples: int
    answer: Callable[[tuple[int, int] | None], object]


class Left(NamedTuple):
    """A worker has finished, or has given up for a reason."""

    worker: int
    pulls: int
    pulled_bytes: int
    why: str


Event = Push | Claim | Left

Wait = Callable[[Callable[[], Any], str], Any]
"""Wait until a function returns something true, and return that; a text says what for."""


class Line(Protocol):
    """The connection of a worker to a server."""

    def push(self, numbers: tuple[int, int, float], write: Callable[[Bytes], object]) -> None:
        """Send a gradient. Local; it waits while two are on their way."""
        ...

    def ask(self, version: int, slowest: int) -> None:
        """Ask for parameters. Local."""
        ...

    def arriving(self) -> Generator[tuple[int, int, Bytes], None, None]:
        """Yield what has come of the parameters that were asked for, until all of them have: their
        version, how many bytes, and the memory, which is valid until the next step. Local.
        """
        ...

    def claim(self, step: int, count: int) -> tuple[int, int] | None:
        """Return a piece of a batch of `count` examples, in a `step`; None if there is none left.
        Local.
        """
        ...

    def leave(self, pulls: int, pulled_bytes: int, why: str) -> None:
        """Say that this worker has finished, or `why` it gives up; `pulls` and `pulled_bytes` say
        how much it has pulled. Local.
        """
        ...

    def failure(self) -> CollectivesError | None:
        """Return the error that the server has failed with, if it has. Local."""
        ...


class Port(Protocol):
    """The connection of a server to its workers."""

    def events(self) -> Iterable[Event]:
        """Return what has come. Local."""
        ...

    def publish(self, version: int, slowest: int, values: Bytes, has_changed: bool) -> None:
        """Let workers have new parameters. Local."""
        ...

    def fail(self, error: CollectivesError) -> None:
        """Have the workers raise an `error`. Local."""
        ...

    def is_quiet(self) -> bool:
        """Return whether nothing is on its way to a worker. Local."""
        ...


def failure_text(error: BaseException) -> bytes:
    """Return an `error` as bytes. Local."""
    kind = next((k for k, each in enumerate(KINDS) if isinstance(error, each) and k), 0)
    return bytes([kind + 1]) + str(error).encode(errors="backslashreplace")[: FAILURE_BYTES - 1]


def failure_of(text: bytes) -> CollectivesError:
    """Return the error of a `text` of `failure_text`. Local."""
    return KINDS[text[0] - 1](text[1:].rstrip(b"\0").decode(errors="replace"))
