"""The common part of the transports between workers and servers: events, waits and failures.

There are two, shared memory (`shared`) and messages (`messages`). Each has a link on the side of a
worker and an endpoint on that of a server, with the same methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
from collectives.text.words import from_record, to_record

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


class Push(NamedTuple):
    """A gradient that a worker has sent."""

    worker: int  # the number of the worker
    call: int  # the number of gradients that it had sent before
    base: int  # the version of the parameters that it was computed from
    weight: float  # in a mean; NaN if the gradient was not finite, and only its number counts
    codes: Any  # the sent bytes
    release: Callable[[], object]  # called when they are not needed any more


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
"""Wait until a function returns a true value, and return it; the text describes the wait."""


def failure_text(error: BaseException) -> bytes:
    """Return an `error` as bytes. Local."""
    kind = next((k for k, each in enumerate(KINDS) if isinstance(error, each) and k), 0)
    return bytes([kind + 1]) + to_record(str(error), FAILURE_BYTES - 1)


def failure_of(text: bytes) -> CollectivesError:
    """Return the error of a `text` of `failure_text`. Local."""
    return KINDS[text[0] - 1](from_record(text[1:]))
