"""Two ranks measure the link between them: latency, bandwidth in each direction, clocks.

Unlike a collective, a measurement ends if the other rank does not answer, or a link is cut.
"""

from __future__ import annotations

import json
import statistics
import struct
import time
from typing import Any

import numpy as np

from collectives.process.meeting import completed
from collectives.process.waiting import MESSAGES, Wait

LENGTH = struct.Struct("=q")
HEADER = struct.Struct("=qq")  # the kind of the next message, and its bytes
PING, THERE, BACK, END = range(4)
CLOCK = struct.Struct("=d")

SHORTEST, LONGEST = 64 << 10, 16 << 20  # bytes of the messages that measure the bandwidth
WARM_UP, TRIPS = 3, 200
PATIENCE = 3.0  # seconds for a message

NAPS = MESSAGES._replace(eager=0)


class Messages:
    """Messages between ranks, with a timeout for each wait."""

    mpi: Any
    tag: int
    rank: Any
    size: Any

    def __init__(self, mpi: Any, tag: int = 7000) -> None:
        self.mpi, self.tag = mpi, tag
        self.rank, self.size = mpi.Get_rank(), mpi.Get_size()

    def apart(self, number: int) -> Messages:
        """Return messages that are independent of these, by a positive `number`. Local."""
        return Messages(self.mpi, self.tag + number)

    def send(self, data: Any, dest: int, seconds: float = PATIENCE) -> None:
        """Send bytes to a rank. Local."""
        self._wait(self.mpi.Isend(data, dest, self.tag), data, seconds)

    def recv(self, data: Any, source: int, seconds: float = PATIENCE) -> None:
        """Receive as many bytes as `data` has from a rank. Local."""
        self._wait(self.mpi.Irecv(data, source, self.tag), data, seconds)

    def tell(self, value: Any, dest: int, seconds: float = PATIENCE) -> None:
        """Send a value to a rank. Local."""
        data = json.dumps(value).encode()
        self.send(LENGTH.pack(len(data)), dest, seconds)
        self.send(data, dest, seconds)

    def heard(self, sources: set[int], seconds: float) -> tuple[int, Any]:
        """Return a rank that has sent a value, and the value. Local."""
        wait = Wait(NAPS, timeout=seconds)
        while True:
            for source in sorted(sources):
                if self.mpi.Iprobe(source, self.tag):
                    length = bytearray(LENGTH.size)
                    self.recv(length, source)
                    data = bytearray(LENGTH.unpack(length)[0])
                    self.recv(data, source)
                    return source, json.loads(data)
            if not wait.turn():
                raise TimeoutError

    def _wait(self, request: Any, data: Any, seconds: float) -> None:
        if not completed(request, seconds, lambda waited: None, data):
            raise TimeoutError


def measure(messages: Messages, peer: int, seconds: float) -> dict[str, float]:
    """Measure the link between this rank and another, which calls `serve`. Collective."""
    trips: list[float] = []
    clocks: list[tuple[float, float]] = []
    limit = time.perf_counter() + seconds / 5
    while len(trips) < WARM_UP + TRIPS:
        began = time.perf_counter()
        told, now = _asked(messages, peer, PING), time.time()
        trips.append(time.perf_counter() - began)
        clocks.append((trips[-1], told - now + trips[-1] / 2))
        if len(trips) > WARM_UP and time.perf_counter() > limit:
            break
    del trips[:WARM_UP], clocks[:WARM_UP]
    latency = statistics.median(trips) / 2
    shortest, clock = min(clocks)
    rates = {}
    for way, name in ((THERE, "there"), (BACK, "back")):
        nbytes = SHORTEST
        took = _took(messages, peer, way, nbytes)
        while nbytes < LONGEST and took < seconds / 8:
            nbytes *= 4
            took = _took(messages, peer, way, nbytes)
        took = min(took, _took(messages, peer, way, nbytes))
        rates[name] = nbytes / max(took - 2 * latency, took / 2)
    messages.send(HEADER.pack(END, 0), peer)
    return {"latency": latency, **rates, "clock": clock, "clock_error": shortest / 2}


def serve(messages: Messages, peer: int) -> None:
    """Answer the messages of a rank that calls `measure`. Collective."""
    header = bytearray(HEADER.size)
    data = np.zeros(0, np.uint8)
    while True:
        messages.recv(header, peer)
        kind, nbytes = HEADER.unpack(header)
        if kind == END:
            return
        if len(data) < nbytes:
            data = np.zeros(nbytes, np.uint8)
        if kind == THERE:
            messages.recv(data[:nbytes], peer)
        if kind == BACK:
            messages.send(data[:nbytes], peer)
        messages.send(CLOCK.pack(time.time()), peer)


def _asked(messages: Messages, peer: int, kind: int, nbytes: int = 0) -> float:
    """Send a header, and return the clock of the other rank from its answer."""
    messages.send(HEADER.pack(kind, nbytes), peer)
    answer = bytearray(CLOCK.size)
    if kind == PING:
        messages.recv(answer, peer)
    return float(CLOCK.unpack(answer)[0])


def _took(messages: Messages, peer: int, way: int, nbytes: int) -> float:
    """Return the seconds of a long message, and of short ones around it."""
    data = np.zeros(nbytes, np.uint8)
    began = time.perf_counter()
    _asked(messages, peer, way, nbytes)
    (messages.send if way == THERE else messages.recv)(data, peer)
    messages.recv(bytearray(CLOCK.size), peer)
    return time.perf_counter() - began
