"""The clock of bench, tune, the probe at the start and the scripts: calls back to back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

Calls = Sequence[Callable[[], Any]]


def nothing() -> None:
    """Do nothing."""


def block(
    calls: Calls, iterations: int, meet: Callable[[], Any] = nothing, ends: bool = False
) -> float:
    """Return this rank's seconds per call of `iterations` calls back to back, which begin with
    `meet` on all ranks; with `ends`, each call also ends with `meet`.
    """
    meet()
    start = time.perf_counter_ns()
    if ends:
        for call in islice(cycle(calls), iterations):
            call()
            meet()
    else:
        for call in islice(cycle(calls), iterations):
            call()
    return (time.perf_counter_ns() - start) / iterations * 1e-9
