"""The benchmark's report: derived numbers, the table, and what was measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from collectives import __version__, _core, binding
from collectives.cli.operations import Operation
from collectives.errors import ArgumentError

__all__ = ["finish", "header", "host", "lines", "machine", "rows", "title"]

COLUMNS = (
    ("bytes", 11),
    ("count", 10),
    ("dtype", 10),
    ("algorithm", 25),
    ("min", 10),
    ("median", 10),
    ("max", 10),
    ("algbw", 8),
    ("busbw", 8),
    ("#wrong", 7),
    ("x MPI", 7),
)
UNITS = ("", "", "", "", "us", "us", "us", "GB/s", "GB/s", "", "")


def rows(
    measured: list[dict[str, Any]],
    operation: Operation,
    p: int,
    asked: int,
    count: int,
    dtype: Any,
) -> list[dict[str, Any]]:
    """Derive the report's rows from one size's measurements. Local.

    Bytes are those of the whole array: the larger side, where input and output differ. Times are
    in us, over the ranks. Bandwidths in GB/s = 1e9 B/s, from the median over ranks; ``ratio`` is
    that median over MPI's (below 1 is faster than MPI).

    Parameters
    ----------
    measured : list of dict
        Of `Bench.measure`.
    operation : Operation
    p, asked, count : int
        Number of ranks, bytes that were asked for, elements of the whole array.
    dtype : dtype
    """
    derived = []
    nbytes = count * dtype.itemsize
    medians = [statistics.median(row["seconds"]) for row in measured]
    mpi = next((t for row, t in zip(measured, medians, strict=True) if row["chosen"] == "MPI"), 0.0)
    # A time that vanished in the subtracted barrier is below what can be told.
    best = min((t for t in medians if t > 0), default=None)
    for row, median in zip(measured, medians, strict=True):
        algbw = nbytes / median / 1e9 if median > 0 else 0.0
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
                "ratio": median / mpi if mpi > 0 and median > 0 else None,
                "best": median == best,
                "iterations": row["iterations"],
                "noise_us": row["noise"] * 1e6,
                "blocks_us": [seconds * 1e6 for seconds in row["blocks"]],
            }
        )
    return derived


def title() -> list[str]:
    """Return the table's two head lines. Local."""
    names = [name.rjust(width) for name, width in COLUMNS]
    units = [unit.rjust(width) for unit, (_, width) in zip(UNITS, COLUMNS, strict=True)]
    return ["#" + "".join(names)[1:], "#" + "".join(units)[1:]]


def lines(derived: list[dict[str, Any]]) -> list[str]:
    """Return the table's lines of one size; ``*`` marks the fastest. Local."""
    texts = []
    for row in derived:
        label = row["algorithm"]
        if label.partition("/")[0] == "auto":
            label = f"{label}={row['chosen']}"
        cells = [
            str(row["bytes"]),
            str(row["count"]),
            row["dtype"],
            label,
            *(f"{row[key]:.2f}" for key in ("min_us", "median_us", "max_us")),
            *(f"{row[key]:.3f}" for key in ("algbw", "busbw")),
            "-" if row["wrong"] is None else str(row["wrong"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ]
        text = "".join(" " + cell.rjust(w - 1) for cell, (_, w) in zip(cells, COLUMNS, strict=True))
        texts.append(text + (" *" if row["best"] and len(derived) > 1 else ""))
    return texts


def host() -> dict[str, Any]:
    """Return the facts about this host and its software that need no MPI. Local."""
    return {
        "host": platform.node(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "isa": _core.kernels_isa(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "collectives": __version__,
        "commit": _commit(),
        "command": " ".join(sys.argv),
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
    ]


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:
        pass
    return platform.machine()


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
        if options.consistency:
            print("\n".join(consistency.lines(each["consistency"])), flush=True)
    wrong = sum(row["wrong"] or 0 for row in rows)
    if wrong:
        print(f"collectives: {wrong} wrong elements{os.linesep}", end="", file=sys.stderr)
    return int(wrong > 0)
