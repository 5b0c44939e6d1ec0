"""Traces: the calls on a communicator, their algorithms with the reasons, and their times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, overload

from collectives import _core
from collectives.text.table import aligned
from collectives.text.words import size_text


class TracedCall(NamedTuple):
    """A call that has ended.

    Attributes
    ----------
    collective, algorithm : str
    nbytes : int
        Bytes of the whole array, the larger one if input and output differ in size. For an
        ``alltoallv``, the bytes that this rank sends.
    segment : int
        Size in bytes of the segments that a block is sent in; 0 for whole blocks.
    transport : str
        ``"shm"``, the family of the MPI library (``"mpich"``), both joined by ``+``, or ``"none"``
        if nothing was sent.
    reason : str
        The reason for this algorithm; empty for messages.
    start : float
        Seconds since the trace began.
    seconds : float
        Seconds from the start of the call to its end. A nonblocking call ends when ``test`` or
        ``wait`` finds it complete.
    """

    collective: str
    algorithm: str
    nbytes: int
    segment: int
    transport: str
    reason: str
    start: float
    seconds: float


class Trace(Sequence[TracedCall]):
    """The calls of one communicator on this rank, in the order in which they ended.

    It is made by `Communicator.trace`. Print it to see a table.
    """

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine
        self._calls: list[TracedCall] = []
        self._start = 0.0
        self._is_on = False

    def __enter__(self) -> Trace:
        self._start = _core.now_seconds()
        self._is_on = True
        watch(self._engine, self, True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_on:
            self._is_on = False
            watch(self._engine, self, False)

    def _take(self, label: tuple[Any, ...], nbytes: int, start: float, seconds: float) -> None:
        _, collective, algorithm, segment, transport, reason = label
        self._calls.append(
            TracedCall(
                collective,
                algorithm,
                nbytes,
                segment,
                transport,
                reason,
                start - self._start,
                seconds,
            )
        )

    @overload
    def __getitem__(self, index: int) -> TracedCall: ...

    @overload
    def __getitem__(self, index: slice) -> list[TracedCall]: ...

    def __getitem__(self, index: int | slice) -> TracedCall | list[TracedCall]:
        return self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[TracedCall]:
        return iter(self._calls)

    def __repr__(self) -> str:
        return f"<Trace, {len(self)} calls>"

    def __str__(self) -> str:
        head = ("start s", "us", "collective", "algorithm", "bytes", "segment", "via", "why")
        rows = [head]
        for call in self._calls:
            rows.append(
                (
                    f"{call.start:.6f}",
                    f"{1e6 * call.seconds:.1f}",
                    call.collective,
                    call.algorithm,
                    size_text(call.nbytes),
                    size_text(call.segment) if call.segment else "whole",
                    call.transport,
                    call.reason,
                )
            )
        return "\n".join(aligned(rows, left=(2, 3, 6, 7)))


_lock = threading.Lock()


class Taker(Protocol):
    """An object that takes the label, bytes, start and seconds of each call."""

    def _take(
        self, label: tuple[Any, ...], nbytes: int, start: float, seconds: float, /
    ) -> None: ...


def watch(engine: _core.Engine, trace: Taker, on: bool) -> None:
    """Make the core report each call to a trace, or stop that."""
    with _lock:
        traces: tuple[Taker, ...] = getattr(engine.traced, "traces", ())
        others = tuple(each for each in traces if each is not trace)
        traces = (*others, trace) if on else others
        engine.traced = _All(traces) if traces else None


class _All:
    """A function that reports a call to all traces of a communicator."""

    def __init__(self, traces: tuple[Taker, ...]) -> None:
        self.traces = traces
        self._takers: list[Callable[..., None]] = [each._take for each in traces]

    def __call__(self, label: tuple[Any, ...], nbytes: int, start: float, seconds: float) -> None:
        for take in self._takers:
            take(label, nbytes, start, seconds)
