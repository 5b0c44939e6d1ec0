"""Totals of a program: how often each call was made, and how long it took.

With ``COLLECTIVES_REPORT=1``, which ``collectives run --report`` sets, communicators report their
calls here as they do to traces (`trace`), and `mpi4py.report` adds calls of MPI. Rank 0 prints the
table when its program ends.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from typing import Any

from collectives import _core
from collectives.process import abort
from collectives.records import trace
from collectives.text.table import aligned
from collectives.text.words import size_text, time_text

HERE = "here"
HEADS = "call", "bytes up to", "ran", "calls", "time", "each"
TITLE = "collectives: the calls of rank 0"


class Totals:
    """The numbers of calls and their seconds, by name, place and class of sizes."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, str], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, nbytes: int, ran: str, seconds: float) -> None:
        """Add a call on arrays of so many bytes, 0 if it has none. Local."""
        key = name, 1 << (nbytes - 1).bit_length() if nbytes else 0, ran
        with self._lock:
            calls, before = self._rows.get(key, (0, 0.0))
            self._rows[key] = calls + 1, before + seconds

    def _take(self, label: tuple[Any, ...], nbytes: int, start: float, seconds: float) -> None:
        self.add(label[1], nbytes, HERE, seconds)

    def lines(self) -> list[str]:
        """Return the lines of the table. Local."""
        rows = [HEADS]
        for (name, most, ran), (calls, seconds) in sorted(self._rows.items()):
            size = size_text(most) if most else ""
            cells = str(calls), time_text(seconds), time_text(seconds / calls)
            rows.append((name, size, ran, *cells))
        return [TITLE, *aligned(rows, {0, 2})]

    def _print(self) -> None:
        if self._rows and not (_core.is_forked() or abort.has_reported()):
            print("\n".join(self.lines()), file=sys.stderr, flush=True)


TOTALS = Totals()  # of this process


@functools.cache
def print_at_end() -> None:
    """Print the totals when this process, which is rank 0, ends. Local."""
    atexit.register(TOTALS._print)


def watch(engine: _core.Engine) -> None:
    """Add the calls of an engine from now on. Local."""
    trace.watch(engine, TOTALS, True)


def leave_out(comm: Any) -> None:
    """Do not add the calls on a communicator, which serves calls that are counted. Local."""
    trace.watch(comm._engine, TOTALS, False)
