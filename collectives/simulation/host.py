"""A host whose ranks share memory, or at least its cores, as a machine to simulate on.

What takes time there are passes over memory, flags that are waited for, and turns on a core; links
there are none. `shared` has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Union

from collectives.errors import ArgumentError
from collectives.simulation.networks import Topology, seconds
from collectives.text.words import count

__all__ = ["MessageHost", "PassRate", "SharedMemory"]

# Seconds per byte: a number, or rows of (bytes, alone, at once): where as many bytes are gone over,
# with one core at work, and with all.
PassRate = Union[float, Sequence["tuple[float, float, float]"]]


class SharedMemory(Topology):
    """A host whose ranks share memory.

    Parameters
    ----------
    p : int
        Number of ranks.
    cores : int
        Number of cores that they have together.
    call : float
        Seconds of a call beside the steps of its program.
    step : float
        Seconds of a step beside its bytes.
    alpha : float
        Seconds until a rank on another core sees a flag.
    switch : float
        Seconds in which a rank looks and gives way to the next on its core.
    read, write : float or rows of (bytes, alone, at once)
        Seconds for each byte that a step reads in (and folds), or writes to, memory of the rank:
        with one core at work, and with all, where the arrays of a rank have so many bytes together.
        Between two rows it goes by the logarithm of the bytes.
    fetch, publish : float or rows of (bytes, alone, at once)
        Seconds for each byte that a step reads of another rank's publication, or publishes: where
        the publication has so many bytes.
    lane : int
        Bytes that a rank has for what it publishes of one segment.

    Notes
    -----
    The defaults are round figures, for examples: 8 bytes from core to core in 50 ns, and copies of
    10 to 20 GB/s.
    """

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
        self.switch = seconds("switch", switch)
        self.read, self.write = _Rows("read", read), _Rows("write", write)
        self.fetch, self.publish = _Rows("fetch", fetch), _Rows("publish", publish)

    def __repr__(self) -> str:
        return f"SharedMemory({count(self.p, 'rank')} on {count(self.cores, 'core')})"


class MessageHost(SharedMemory):
    """A host whose ranks send each other messages, as an MPI does it there.

    Nobody's network card helps: a message takes time on the core of its sender, and then, with its
    bytes, on that of its receiver.

    Parameters
    ----------
    p, cores : int
        As of `SharedMemory`, like all that is not said here.
    call : float
    send, receive : float
        Seconds of a message for its sender, and for its receiver, beside its bytes.
    beta : float or rows of (bytes, alone, at once)
        Seconds for each byte of a message of so many, for its receiver.
    step, alpha, switch : float
    read, write : float or rows of (bytes, alone, at once)
    """

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
        self.bytes = _Rows("beta", beta)

    def __repr__(self) -> str:
        return f"MessageHost({count(self.p, 'rank')} on {count(self.cores, 'core')})"


class _Rows:
    """Seconds per byte, by the bytes that are gone over, with one core at work and with all."""

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
        self.rows = [(math.log2(size), alone, at_once) for size, alone, at_once in rows]

    def __call__(self, nbytes: float) -> tuple[float, float]:
        """Return the seconds per byte with one core at work, and with all."""
        place = math.log2(max(nbytes, 1.0))
        before = self.rows[0]
        for row in self.rows:
            if row[0] >= place:
                if row[0] == before[0]:
                    return row[1], row[2]
                part = (place - before[0]) / (row[0] - before[0])
                return (
                    before[1] + part * (row[1] - before[1]),
                    before[2] + part * (row[2] - before[2]),
                )
            before = row
        return before[1], before[2]
