"""The benchmark's report: derived numbers, the table, and what was measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectives import __version__, _core, binding, profile
from collectives.cli import state
from collectives.cli.measure import COPY, MPI_LABEL, PEERS
from collectives.cli.operations import Operation
from collectives.errors import ArgumentError

__all__ = ["columns", "finish", "header", "host", "lines", "machine", "rows", "title"]

Column = tuple[str, str, int]  # name, unit, width

COLUMNS: tuple[Column, ...] = (
    ("bytes", "", 11),
    ("count", "", 10),
    ("dtype", "", 10),
    ("algorithm", "", 25),
    ("min", "us", 10),
    ("median", "us", 10),
    ("max", "us", 10),
    ("algbw", "GB/s", 8),
    ("busbw", "GB/s", 8),
    ("#wrong", "", 7),
)
LIMIT: tuple[Column, ...] = (("limit", "us", 10), ("reached", "%", 9))

# Bytes from which on a time is held against the limit. Less may lie in a cache, where collectives
# work and which the copies pass by.
LARGE = 1 << 20


def rows(
    measured: list[dict[str, Any]],
    operation: Operation,
    p: int,
    asked: int,
    count: int,
    dtype: Any,
    trip: float | None = None,
) -> list[dict[str, Any]]:
    """Derive the report's rows from one size's measurements. Local.

    Bytes are those of the whole array: the larger side, where input and output differ. Times are
    in us, over the ranks. Bandwidths in GB/s = 1e9 B/s, from the median over ranks; ``ratios`` are
    that median over each peer's (below 1 is faster than the peer), ``ratio`` that over MPI's.
    ``limit_us`` is the time in which every rank copies as many bytes, and ``of_limit`` that time
    over the median, for large arrays; ``round_trip_ns`` and ``state`` are the machine's.

    Parameters
    ----------
    measured : list of dict
        Of `Bench.measure`.
    operation : Operation
    p, asked, count : int
        Number of ranks, bytes that were asked for, elements of the whole array.
    dtype : dtype
    trip : float, optional
        Seconds; of `state.round_trip`.
    """
    derived = []
    nbytes = count * dtype.itemsize
    medians = {row["algorithm"]: statistics.median(row["seconds"]) for row in measured}
    copy = medians.pop(COPY, None)
    # A time that vanished in the subtracted barrier is below what can be told.
    best = min((t for t in medians.values() if t > 0), default=None)
    for row in measured:
        if row["algorithm"] == COPY:
            continue
        median = medians[row["algorithm"]]
        algbw = nbytes / median / 1e9 if median > 0 else 0.0
        ratios = {
            peer: median / medians[peer]
            for peer in PEERS
            if medians.get(peer, 0.0) > 0 and median > 0
        }
        derived.append(
            {
                "collective": operation.name,
                "ranks": p,
                "asked": asked,
                "bytes": nbytes,
                "count": count,
                "dtype": dtype.name,
                "algorithm": row["algorithm"],
                "chosen": row["chosen"],
                "min_us": min(row["seconds"]) * 1e6,
                "median_us": median * 1e6,
                "max_us": max(row["seconds"]) * 1e6,
                "algbw": algbw,
                "busbw": algbw * operation.bus_factor(p),
                "wrong": row["wrong"],
                "ratio": ratios.get(MPI_LABEL),
                "ratios": ratios,
                "limit_us": None if copy is None else copy * 1e6,
                "of_limit": copy / median if copy and median > 0 and nbytes >= LARGE else None,
                "round_trip_ns": None if trip is None else trip * 1e9,
                "state": state.name(trip),
                "best": median == best,
                "iterations": row["iterations"],
                "noise_us": row["noise"] * 1e6,
                "blocks_us": [seconds * 1e6 for seconds in row["blocks"]],
            }
        )
    return derived


def columns(peers: Sequence[str], limit: bool) -> list[Column]:
    """Return the columns of a table. Local.

    Parameters
    ----------
    peers : sequence of str
        The labels of those that times are held against.
    limit : bool
        Whether that is also done with the time of copies.
    """
    against = [(f"x {peer}", "", max(7, len(peer) + 3)) for peer in peers]
    return [*COLUMNS, *against, *(LIMIT if limit else ())]


def title(table: list[Column]) -> list[str]:
    """Return the table's two head lines. Local."""
    names = [name.rjust(width) for name, _, width in table]
    units = [unit.rjust(width) for _, unit, width in table]
    return ["#" + "".join(names)[1:], "#" + "".join(units)[1:]]


def lines(derived: list[dict[str, Any]], table: list[Column]) -> list[str]:
    """Return the table's lines of one size; ``*`` marks the fastest. Local."""
    texts = []
    for row in derived:
        label = row["algorithm"]
        if label.partition("/")[0] == "auto":
            label = f"{label}={row['chosen']}"
        cells = {
            "bytes": str(row["bytes"]),
            "count": str(row["count"]),
            "dtype": row["dtype"],
            "algorithm": label,
            **{key: f"{row[f'{key}_us']:.2f}" for key in ("min", "median", "max")},
            **{key: f"{row[key]:.3f}" for key in ("algbw", "busbw")},
            "#wrong": _number(row["wrong"], "d"),
            **{f"x {peer}": f"{ratio:.2f}" for peer, ratio in row["ratios"].items()},
            "limit": _number(row["limit_us"], ".2f"),
            "reached": _number(row["of_limit"], ".0%").removesuffix("%"),
        }
        text = "".join(" " + cells.get(name, "-").rjust(width - 1) for name, _, width in table)
        texts.append(text + (" *" if row["best"] and len(derived) > 1 else ""))
    return texts


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def host() -> dict[str, Any]:
    """Return the facts about this host and its software that need no MPI. Local."""
    return {
        "host": platform.node(),
        "cpu": profile.machine()[0],
        "cores": profile.machine()[1],
        "isa": _core.kernels_isa(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "collectives": __version__,
        "commit": _commit(),
        "command": shlex.join(["collectives", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine(MPI: Any, mpi: Any) -> dict[str, Any]:
    """Return what only the ranks know: library, thread level, hosts and cores. Collective."""
    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    everybody = mpi.allgather((platform.node(), sorted(os.sched_getaffinity(0))))
    cores = {(name, core) for name, mask in everybody for core in mask}
    return {
        "mpi": binding.library_name(MPI),
        "ranks": mpi.Get_size(),
        "hosts": len({name for name, _ in everybody}),
        "usable_cores": len(cores),
        "cores_per_rank": sorted({len(mask) for _, mask in everybody}),
        "thread_level": levels[MPI.Query_thread()],
    }


def header(facts: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return the comment lines above all tables. Local."""
    bound = "-".join(map(str, facts["cores_per_rank"]))
    return [
        f"# {facts['mpi']}, thread level {facts['thread_level']}; collectives "
        f"{here['collectives']}, kernels {here['isa']}",
        f"# {facts['ranks']} rank{'s' * (facts['ranks'] > 1)} on {facts['hosts']} "
        f"host{'s' * (facts['hosts'] > 1)}, {facts['usable_cores']} cores, "
        f"{bound} for each rank; {here['cpu']}",
        "# time of one call: min, median and max over ranks, in us; GB/s = 1e9 B/s; x MPI: time / "
        "MPI's time",
        *_wishes(facts),
    ]


def _wishes(facts: dict[str, Any]) -> list[str]:
    """Return what the header says of the profile, arrays in shared memory, and more peers."""
    texts = []
    if facts["profile"]:
        texts.append("# auto: with the profile of this machine")
    if facts["buffers"] == "shared":
        texts.append("# arrays in memory that the ranks share, but private ones for the peers")
    if "gloo" in facts:
        texts.append(f"# gloo: {facts['gloo']}")
        texts.append(
            "# limit: every rank at once copies as many bytes, private and past the cache; "
            "reached: limit / time"
        )
    return texts


def _commit() -> str | None:
    """Return the commit of the checkout that this package lies in, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def finish(options: argparse.Namespace, reports: list[dict[str, Any]]) -> int:
    """Write what was asked for; return the exit status. Local."""
    from collectives.cli import consistency, plot, summary

    rows = [row for each in reports for row in each["rows"]]
    here = host()
    if options.json:
        document = {**here, "runs": reports}
        try:
            Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"--json {options.json}: {error}") from error
    if options.plot:
        caption = f"{options.dtype}, {reports[0]['mpi']}, {here['cpu']}"
        plot.plot(rows, options.plot, caption)
    for each in reports:
        if options.markdown:
            print("\n".join(["", *summary.lines(each)]), flush=True)
            if options.peers:
                print("\n".join(["", *summary.peer_lines(each, here)]), flush=True)
        if options.consistency:
            print("\n".join(consistency.lines(each["consistency"])), flush=True)
    wrong = sum(row["wrong"] or 0 for row in rows)
    if wrong:
        print(f"collectives: {wrong} wrong elements{os.linesep}", end="", file=sys.stderr)
    return int(wrong > 0)
