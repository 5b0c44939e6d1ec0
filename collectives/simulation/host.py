"""A host whose ranks share memory, or at least its cores, as a machine to simulate on.

Time is spent on passes over memory, on waiting for flags, and on waiting for a turn on a core.
There are no links. `shared` has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Union

import numpy as np

from collectives.errors import ArgumentError
from collectives.simulation.networks import Topology, seconds
from collectives.text.words import count

# Seconds per byte: a number, or rows of (bytes, alone, at once). A row has the seconds per byte in
# memory of that many bytes, with one core at work, and with all.
PassRate = Union[float, Sequence["tuple[float, float, float]"]]


class SharedMemory(Topology):
    """A host whose ranks share memory.

    Parameters
    ----------
    p : int
        Number of ranks.
    cores : int
        Number of cores that the ranks share.
    call : float
        Seconds of a call without the steps of its program.
    step : float
        Seconds of a step without its bytes.
    alpha : float
        Seconds until a rank on another core sees a flag.
    switch : float
        Seconds in which a rank polls once and yields the core to the next rank.
    read, write : float or rows of (bytes, alone, at once)
        Seconds for each byte that a step reads (and folds) from, or writes to, memory of the rank.
        A row has the total bytes of the arrays of a rank, and the seconds with one core at work and
        with all. Between rows, the seconds are interpolated over the logarithm of the bytes.
    fetch, publish : float or rows of (bytes, alone, at once)
        Seconds for each byte that a step reads from another rank's publication, or publishes. The
        bytes of a row are those of the publication.
    lane : int
        Bytes of memory that a rank has for the publications of one segment.

    Notes
    -----
    The defaults are round numbers for examples: 8 bytes go from core to core in 50 ns, and memory
    is copied at 10 to 20 GB/s.
    """

    cores: int
    lane: int
    step: float
    alpha: float
    read: _Rows
    write: _Rows
    fetch: _Rows
    publish: _Rows

    def __init__(
        self,
        p: int,
        cores: int,
        call: float = 0.5e-6,
        step: float = 20e-9,
        alpha: float = 50e-9,
        switch: float = 1e-6,
        read: PassRate = 0.02e-9,
        write: PassRate = 0.03e-9,
        fetch: PassRate = 0.02e-9,
        publish: PassRate = 0.01e-9,
        lane: int = 1 << 20,
    ) -> None:
        super().__init__(p, call)
        for name, number in (("cores", cores), ("lane", lane)):
            if not isinstance(number, int) or number < 1:
                raise ArgumentError(f"{name} is {number!r}, and must be a positive integer")
        self.cores, self.lane = cores, lane
        self.step, self.alpha = seconds("step", step), seconds("alpha", alpha)
        self.switch: float = seconds("switch", switch)
        self.read, self.write = _Rows("read", read), _Rows("write", write)
        self.fetch, self.publish = _Rows("fetch", fetch), _Rows("publish", publish)

    def __repr__(self) -> str:
        return f"SharedMemory({count(self.p, 'rank')} on {count(self.cores, 'core')})"


class MessageHost(SharedMemory):
    """A host whose ranks send each other messages, as MPI does on one host.

    No network card does the work: a message takes time on the core of its sender, and then, with
    its bytes, on the core of its receiver.

    Parameters
    ----------
    p, cores : int
        As for `SharedMemory`, like all parameters without a description here.
    call : float
    send, receive : float
        Seconds of a message for its sender, and for its receiver, without its bytes.
    beta : float or rows of (bytes, alone, at once)
        Seconds for each byte of a message, for its receiver. The bytes of a row are those of the
        message.
    step, alpha, switch : float
    read, write : float or rows of (bytes, alone, at once)
    """

    send: float
    receive: float

    def __init__(
        self,
        p: int,
        cores: int,
        call: float = 0.5e-6,
        send: float = 0.1e-6,
        receive: float = 0.1e-6,
        beta: PassRate = 0.05e-9,
        step: float = 20e-9,
        alpha: float = 50e-9,
        switch: float = 1e-6,
        read: PassRate = 0.02e-9,
        write: PassRate = 0.03e-9,
    ) -> None:
        super().__init__(p, cores, call, step, alpha, switch, read, write)
        self.send, self.receive = seconds("send", send), seconds("receive", receive)
        self.bytes: _Rows = _Rows("beta", beta)

    def __repr__(self) -> str:
        return f"MessageHost({count(self.p, 'rank')} on {count(self.cores, 'core')})"


class _Rows:
    """Seconds per byte as a function of the bytes, with one core at work and with all."""

    def __init__(self, what: str, rate: PassRate) -> None:
        rows = [(1.0, rate, rate)] if isinstance(rate, int | float) else [tuple(r) for r in rate]
        good = bool(rows) and all(
            len(row) == 3 and row[0] > 0 and all(0 <= each < math.inf for each in row)
            for row in rows
        )
        if not good or any(a[0] >= b[0] for a, b in pairwise(rows)):
            raise ArgumentError(
                f"{what} is {rate!r}, and must be seconds per byte, or rows (bytes, alone, at "
                f"once) with rising bytes"
            )
        sizes, self.alone, self.at_once = np.array(rows).T
        self.sizes = np.log2(sizes)

    def __call__(self, nbytes: float) -> tuple[float, float]:
        """Return the seconds per byte with one core at work, and with all."""
        place = math.log2(max(nbytes, 1.0))
        alone, at_once = (np.interp(place, self.sizes, of) for of in (self.alone, self.at_once))
        return float(alone), float(at_once)
