"""``collectives run --accelerate --report``: the calls of a program, printed at its end."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from collectives import _core
from collectives.errors import CollectivesError
from collectives.mpi4py import communicators
from collectives.mpi4py.calls import Served, _State
from collectives.mpi4py.savings import Saved
from collectives.process import abort
from collectives.text.table import aligned
from collectives.text.words import count, error_text, time_text

HEADS = "collective", "here", "in MPI", "compared", "saved"
NOTE = "saved: an estimate, from collectives of MPI and of this library timed at the end"


def install(module: Any) -> None:
    """Accelerate ``COMM_WORLD`` in ``mpi4py.MPI``, and have rank 0 report before MPI is finalised.
    Local.
    """
    _State.made = []
    communicators.install(module)
    module.Finalize = _reporting(module.Finalize)
    atexit.register(_report)  # behind the program's own functions, and before those of this library


def _reporting(finalize: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(finalize)
    def function() -> None:
        _report()
        finalize()

    return function


@functools.cache
def _report() -> None:
    """Print the calls of all communicators of rank 0, on its standard error. Collective."""
    if not MPI.Is_initialized() or MPI.Is_finalized() or _core.is_forked() or abort.has_reported():
        return
    world = communicators.accelerate(MPI.COMM_WORLD)
    states = list(_State.made or ())
    rows = [row for each in states if each.size == world.size for row in each.rows()]
    try:
        saved, problem = world._estimate(rows), ""
    except (CollectivesError, MPI.Exception) as error:
        saved, problem = {}, f"\nnothing could be compared: {error_text(error)}"
    if world.rank == 0:
        text = "\n".join(table([each.served() for each in states], saved))
        print(f"{text}{problem}", file=sys.stderr, flush=True)


def table(served: list[dict[str, Served]], saved: dict[str, Saved]) -> list[str]:
    """Return the lines of a report on the calls of some communicators."""
    names = sorted({name for each in served for name in each})
    title = f"collectives run: the collectives of rank 0 on {count(len(served), 'communicator')}"
    rows: list[tuple[str, ...]] = [HEADS]
    every = Served(0, 0)
    for name in names:
        found = [each[name] for each in served if name in each]
        both = Served(sum(each.here for each in found), sum(each.mpi for each in found))
        every = Served(every.here + both.here, every.mpi + both.mpi)
        rows.append(_row(name, both, saved.get(name)))
    whole = [sum(each) for each in zip(*saved.values(), strict=True)] or [0, 0.0]
    rows.append(_row("in all", every, Saved(int(whole[0]), whole[1])))
    return [title, *aligned(rows, {0}), *([NOTE] if saved else [])]


def _row(name: str, served: Served, saved: Saved | None) -> tuple[str, ...]:
    calls, seconds = ("0", "") if saved is None else (str(saved.calls), _signed(saved.seconds))
    return name, str(served.here), str(served.mpi), calls, seconds


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{time_text(abs(seconds))}"
