"""Compare several ways, for the scripts in this folder: in turns, by the slowest rank.

Changes of the machine affect all of them alike. The clock is that of
``collectives bench``: calls back to back after a barrier.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from collectives.choice.timing import block, nothing
from collectives.cli.arguments import nbytes

FEW = 3  # calls that give the number for a block
Key = TypeVar("Key")


def alone(call: Callable[[], Any], calls: int = 1) -> float:
    """Return the seconds of one of some calls in a row, on this rank. Local."""
    return block([call], calls)


def slowest(call: Callable[[], Any], calls: int = 1) -> float:
    """Return the seconds of one of some calls in a row, on the slowest rank. Collective."""
    from mpi4py import MPI

    return longest(block([call], calls, MPI.COMM_WORLD.Barrier))


def longest(seconds: float) -> float:
    """Return the most seconds of all ranks. Collective."""
    from mpi4py import MPI

    return float(MPI.COMM_WORLD.allreduce(seconds, MPI.MAX))


def in_turns(
    ways: Mapping[Key, Any],
    turns: int,
    clock: Callable[[Any, int], Any] = slowest,
    *,
    warm: int = 1,
    calls: Mapping[Key, int] | None = None,
    fill: float = 0.0,
    seconds: float = 0.0,
    before: Callable[[], object] = nothing,
) -> dict[Key, list[Any]]:
    """Return what the clock says of each way in each turn, of which every second goes backwards.

    The clock takes a way and how many calls are in a row: one, or as many as `calls` says, or as
    last `fill` seconds. Some turns warm up. Then there are at least so many turns, and so many
    `seconds` of calls; `before` is called before each. Collective.
    """
    number = dict.fromkeys(ways, FEW if fill else 1) | dict(calls or {})
    times: dict[Key, list[Any]] = {name: [] for name in ways}
    turn, spent = -warm, 0.0
    while turn < turns or spent < seconds:
        if turn >= 0:
            before()
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            found = clock(ways[name], number[name])
            if turn >= 0:
                times[name].append(found)
                spent += found * number[name] if seconds else 0.0
            elif fill:
                number[name] = max(1, math.ceil(fill / max(found, 1e-9)))
        turn += 1
    return times


def medians(times: Mapping[Key, Sequence[float]], unit: float = 1.0) -> dict[Key, float]:
    """Return the median of each way, in a unit."""
    return {name: statistics.median(each) / unit for name, each in times.items()}


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of `ones` to `others`, turn by turn."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def options(text: str, **known: Any) -> argparse.Namespace:
    """Return the options of a script with this docstring.

    A list has the choices of an argument; a type is that of an argument; other values are defaults
    of options, which have the same type, or pairs of a type and a default. Numbers may be ``64K``.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=form)
    add = parser.add_argument
    for name, default in known.items():
        if isinstance(default, list):
            add(name, choices=default)
        elif isinstance(default, type):
            add(name, type=default)
        elif isinstance(default, bool):
            add(f"--{name}", action="store_true")
        else:
            kind = {int: nbytes, type(None): Path}.get(type(default), type(default))
            kind, value = default if isinstance(default, tuple) else (kind, default)
            add(f"--{name}", type=kind, default=value, help=f"default: {value}")
    return parser.parse_args()


def sizes(begin: int, end: int, factor: int) -> Iterator[int]:
    """Yield begin, begin * factor, ... up to end."""
    while begin <= end:
        yield begin
        begin *= factor


def say(text: str = "") -> None:
    """Print a line, on rank 0."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        print(text, flush=True)


def row(label: object, cells: Sequence[object], form: str = ".1f", width: int = 12) -> str:
    """Return a row of a table: numbers are formatted, texts are not."""
    texts = [each if isinstance(each, str) else format(each, form) for each in cells]
    return f"{label!s:<28}" + "".join(" " + each.rjust(width - 1) for each in texts)
