"""The printed tables of the benchmark, and other output from a report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from collectives.errors import ArgumentError
from collectives.measuring import report, state
from collectives.text import files
from collectives.text.words import count

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


def columns(peers: Sequence[str], limit: bool) -> list[Column]:
    """Return the columns of a table. Local."""
    against = [(f"x {peer}", "", max(7, len(peer) + 3)) for peer in peers]
    return [*COLUMNS, *against, *(LIMIT if limit else ())]


def title(table: list[Column]) -> list[str]:
    """Return the two header lines of the table. Local."""
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
    """Return the header lines about the profile, arrays in shared memory, and more peers."""
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


def finish(options: argparse.Namespace, reports: list[dict[str, Any]]) -> int:
    """Write the requested output; return the exit status. Local."""
    from collectives.cli import bench_markdown
    from collectives.measuring import plot

    rows = [row for each in reports for row in each["rows"]]
    here = report.host()
    if options.json:
        document = {**here, "runs": reports}
        try:
            files.write_json(options.json, document)
        except OSError as error:
            raise ArgumentError(f"--json {options.json}: {error}") from error
    if options.plot:
        plot.plot(rows, options.plot, caption(options.dtype, reports, here))
    for each in reports:
        if options.markdown:
            print("\n".join(["", *bench_markdown.lines(each)]), flush=True)
            if options.peers:
                print("\n".join(["", *bench_markdown.peer_lines(each, here)]), flush=True)
        if options.consistency:
            print("\n".join(consistency_lines(each["consistency"])), flush=True)
    if options.plot:
        print(f"The picture is in {options.plot}")
    wrong = sum(row["wrong"] or 0 for row in rows)
    if wrong:
        print(f"collectives: {wrong} wrong elements{os.linesep}", end="", file=sys.stderr)
    return int(wrong > 0)


def caption(dtype: str, reports: Sequence[dict[str, Any]], here: dict[str, Any]) -> str:
    """Return the title of the plot: what was measured, and on which machine. Local."""
    ranks = ", ".join(str(each["ranks"]) for each in reports)
    hosts = max(each["hosts"] for each in reports)
    rows = [row for each in reports for row in each["rows"]]
    trips = [row["round_trip_ns"] for row in rows]
    known = [ns * 1e-9 for ns in dict.fromkeys(trips) if ns is not None]
    return (
        f"{dtype}, {ranks} rank{'s' * (ranks != '1')} on {count(hosts, 'host')}, "
        f"{reports[0]['mpi']}, collectives {here['collectives']}\n"
        f"{here['cpu']}, {count(reports[0]['usable_cores'], 'core')}; state: {state.text(known)}"
    )


def consistency_lines(judged: dict[str, Any]) -> list[str]:
    """Return the lines of text for the result of `consistency.judge`. Local."""
    texts = ["#", f"# self-consistency: what takes longer than {judged['tolerance']:g} times the"]
    texts[-1] += " time of what could stand in its place"
    for who, broken in judged["violations"].items():
        texts.append(f"# {who}: {len(broken)} of {judged['checked'][who]} relations are broken")
        width = max((len(each["left"]) for each in broken), default=0)
        for each in broken:
            texts.append(
                f"{who:5}{each['rule']:11}{each['left']:{width}} {each['left_us']:10.2f} us  >  "
                f"{each['right']} {each['right_us']:.2f} us, factor {each['factor']:.2f}"
            )
    return texts
