"""The rows of ``collectives bench``, printed and written: tables, Markdown, JSON, a plot."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from collectives.cli import arguments
from collectives.measuring import state
from collectives.measuring.bench import PEERS
from collectives.measuring.measure import Row
from collectives.picture import colours, plots
from collectives.text.table import markdown
from collectives.text.words import count, size_text

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
TIMES = "min", "median", "max"  # the columns for which a time below the noise has words
NOISE = "below the noise"
LIMIT: tuple[Column, ...] = (("limit", "us", 10), ("reached", "%", 9))


# Ratios to MPI's time above this are printed in bold.
SLOW = 1.3


def plain(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report in the form of its JSON. Local."""
    return {**report, "rows": [asdict(row) for row in report["rows"]]}


def read(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report for its JSON. Local."""
    return {**report, "rows": [Row(**row) for row in report["rows"]]}


def columns(peers: Sequence[str], limit: bool) -> list[Column]:
    """Return the columns of a table. Local."""
    against = [(f"x {peer}", "", max(7, len(peer) + 3)) for peer in peers]
    return [*COLUMNS, *against, *(LIMIT if limit else ())]


def title(table: list[Column]) -> list[str]:
    """Return the two header lines of the table. Local."""
    names = [name.rjust(width) for name, _, width in table]
    units = [unit.rjust(width) for _, unit, width in table]
    return ["#" + "".join(names)[1:], "#" + "".join(units)[1:]]


def lines(derived: list[Row], table: list[Column]) -> list[str]:
    """Return the table's lines of one size; ``*`` marks the fastest. Local."""
    texts = []
    for row in derived:
        label = row.algorithm
        if row.is_default:
            label = f"{label}={row.chosen}"
        elif label.startswith("bits="):
            label = f"{label}: {row.chosen}"
        cells = {
            "bytes": str(row.bytes),
            "count": str(row.count),
            "dtype": row.dtype,
            "algorithm": label,
            **{key: f"{getattr(row, f'{key}_us'):.2f}" for key in TIMES},
            **{
                key: _number(None if row.is_noise else getattr(row, key), ".3f")
                for key in ("algbw", "busbw")
            },
            "#wrong": _number(row.wrong, "d"),
            **{f"x {peer}": f"{ratio:.2f}" for peer, ratio in row.ratios.items()},
            "limit": _number(row.limit_us, ".2f"),
            "reached": _number(row.of_limit, ".0%").removesuffix("%"),
        }
        parts = [" " + cells.get(name, "-").rjust(width - 1) for name, _, width in table]
        if row.is_noise:
            first, last = (k for k, (name, *_) in enumerate(table) if name in (TIMES[0], TIMES[-1]))
            parts[first : last + 1] = [NOISE.rjust(sum(map(len, parts[first : last + 1])))]
        text = "".join(parts)
        texts.append(text + (" *" if row.best and len(derived) > 1 else ""))
    return texts


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def header(facts: dict[str, Any], here: dict[str, Any], has_mpi: bool) -> list[str]:
    """Return the comment lines above all tables. Local."""
    ratio = "; x MPI: time / MPI's time" if has_mpi else ""
    bound = "-".join(map(str, facts["cores_per_rank"]))
    return [
        f"# {facts['mpi']}, thread level {facts['thread_level']}; collectives "
        f"{here['collectives']}, kernels {here['isa']}",
        f"# {count(facts['ranks'], 'rank')} on {count(facts['hosts'], 'host')}, "
        f"{facts['usable_cores']} cores, {bound} for each rank; {here['cpu']}",
        f"# time of one call: min, median and max over ranks, in us; GB/s = 1e9 B/s{ratio}",
        *_wishes(facts),
    ]


def _wishes(facts: dict[str, Any]) -> list[str]:
    """Return the header lines about the profile, arrays in shared memory, and more peers."""
    texts = []
    if facts["profile"]:
        texts.append("# auto: with the profile of this machine")
    if facts["buffers"] == "shared":
        texts.append("# arrays in shared memory; private ones for the peers")
    if "gloo" in facts:
        texts.append(f"# gloo: {facts['gloo']}")
        texts.append(
            "# limit: every rank at once copies as many bytes, private and past the cache; "
            "reached: limit / time"
        )
    return texts


def finish(options: argparse.Namespace, reports: list[dict[str, Any]]) -> int:
    """Write the requested output; return the exit status. Local."""
    rows = [row for each in reports for row in each["rows"]]
    here = state.host()
    if options.json:
        runs = [plain(each) for each in reports]
        arguments.write_json(
            options.json, {"version": arguments.JSON_VERSION, **here, "runs": runs}
        )
    if options.plot:
        plot(rows, options.plot, caption(options.dtype, reports, here))
    for each in reports:
        if options.markdown and any(row.ratio is not None for row in each["rows"]):
            print("\n".join(["", *markdown_lines(each)]), flush=True)
        if options.markdown and options.peers:
            print("\n".join(["", *peer_lines(each, here)]), flush=True)
    if options.plot:
        print(f"The picture is in {options.plot}")
    wrong = sum(row.wrong or 0 for row in rows)
    if wrong:
        print(f"collectives: {wrong} wrong elements{os.linesep}", end="", file=sys.stderr)
    return int(wrong > 0)


def caption(dtype: str, reports: Sequence[dict[str, Any]], here: dict[str, Any]) -> str:
    """Return the title of the plot: the measurement and the machine. Local."""
    ranks = ", ".join(str(each["ranks"]) for each in reports)
    hosts = max(each["hosts"] for each in reports)
    rows = [row for each in reports for row in each["rows"]]
    trips = [row.round_trip_ns for row in rows]
    known = [ns * 1e-9 for ns in dict.fromkeys(trips) if ns is not None]
    word = "rank" if ranks == "1" else "ranks"
    return (
        f"{dtype}, {ranks} {word} on {count(hosts, 'host')}, "
        f"{reports[0]['mpi']}, collectives {here['collectives']}\n"
        f"{here['cpu']}, {count(reports[0]['usable_cores'], 'core')}; state: {state.text(known)}"
    )


# -- Markdown ------------------------------------------------------------------------------------


def markdown_lines(run: dict[str, Any]) -> list[str]:
    """Return a table in Markdown, with a row for each size and a column for each operation. Local.

    A cell has the time of the library's choice divided by MPI's. If another algorithm was faster,
    its ratio and name follow after a comma.
    """
    rows = run["rows"]
    names = list(dict.fromkeys(row.collective for row in rows))
    sizes = sorted({row.asked for row in rows})
    cells: dict[tuple[str, int], str] = {}
    worst: dict[str, tuple[float, str]] = {}
    for name in names:
        for size in sizes:
            here = [
                row
                for row in rows
                if (row.collective, row.asked) == (name, size) and not row.is_peer
            ]
            told = [row for row in here if row.ratio is not None]
            cells[name, size] = _cell(told) if told else "-" if here else ""
            where = name if size == 0 else f"{name} of {size_text(size)}"
            for what, each in (("default", _default(told)), ("best", _best(told))):
                if each is not None:
                    worst[what] = max(worst.get(what, (0.0, "")), (each.ratio or 0.0, where))
    head = [
        f"{run['mpi']}, {count(run['ranks'], 'rank')}: the time of the default divided by MPI's; "
        f"after a comma the best algorithm's ratio, if it is another; above {SLOW} in bold.",
        "",
    ]
    body = [[bytes_text(size), *(cells[name, size] for name in names)] for size in sizes]
    tail = [f"Largest, {what}: {ratio:.2f} ({where})." for what, (ratio, where) in worst.items()]
    return [*head, *markdown(["bytes", *names], body), "", *tail]


def peer_lines(run: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return a table in Markdown for each operation: our times and those of all peers. Local.

    Our time is that of the library's choice, or, if that was not measured, of the fastest
    algorithm.
    """
    rows = run["rows"]
    peers = [peer for peer in PEERS if any(row.algorithm == peer for row in rows)]
    commit = f", commit {here['commit']}" if here["commit"] else ""
    texts = [
        f"{run['mpi']}, thread level {run['thread_level']}; {count(run['ranks'], 'rank')} on "
        f"{run['usable_cores']} cores, {here['cpu']}; collectives {here['collectives']}{commit}. "
        f"gloo: {run['gloo']}. Times in us."
    ]
    head = ["bytes", "ours", *peers, *(f"x {peer}" for peer in peers), "limit", "reached"]
    for name in dict.fromkeys(row.collective for row in rows):
        table = [row for row in rows if row.collective == name]
        trips = {row.asked: row.round_trip_ns for row in table}
        known = [1e-9 * trip for trip in trips.values() if trip is not None]
        where = f": {state.text(known)}" if run["ranks"] > 1 else ""
        texts += ["", f"{name}, {table[0].dtype}{where}.", ""]
        texts += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        texts += [
            f"| {' | '.join(_peer_cells(size, table, peers))} |"
            for size in dict.fromkeys(row.asked for row in table)
        ]
    return texts


def _peer_cells(size: int, rows: list[Row], peers: list[str]) -> list[str]:
    """Return the cells of one size: times, ratios, the limit, and its reached fraction."""
    here = [row for row in rows if row.asked == size]
    own = [row for row in here if not row.is_peer]
    ours = _default(own) or min(own, key=lambda row: (row.is_noise, row.median_us))
    times = {row.algorithm: row.median_us for row in here if not row.is_noise}
    ratios = [ours.ratios.get(peer) for peer in peers]
    return [
        bytes_text(size),
        NOISE if ours.is_noise else _figure(ours.median_us, ".2f"),
        *(_figure(times.get(peer), ".2f") for peer in peers),
        *(_figure(ratio, ".2f") for ratio in ratios),
        _figure(ours.limit_us, ".2f"),
        _figure(ours.of_limit, ".0%"),
    ]


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _default(rows: list[Row]) -> Row | None:
    return next((row for row in rows if row.is_default), None)


def _best(rows: list[Row]) -> Row | None:
    return min(rows, key=lambda row: row.ratio or 0.0, default=None)


def _cell(rows: list[Row]) -> str:
    default, best = _default(rows), _best(rows)
    assert best is not None
    if default is None:
        return f"{_ratio(best)} {best.algorithm}"
    if best.algorithm == default.algorithm or best.chosen == default.chosen:
        return _ratio(default)
    return f"{_ratio(default)}, {_ratio(best)} {best.algorithm}"


def _ratio(row: Row) -> str:
    ratio = row.ratio or 0.0
    return f"**{ratio:.2f}**" if ratio > SLOW else f"{ratio:.2f}"


def bytes_text(size: int) -> str:
    """Write a number of bytes for a table. Local."""
    return size_text(size).removesuffix(" B").removesuffix("B") if size else "-"


# -- the plot ------------------------------------------------------------------------------------


def plot(rows: list[Row], path: str, caption: str) -> None:
    """Write the plot. Local."""
    places = list(dict.fromkeys((row.collective, row.ranks) for row in rows))
    labels = list(dict.fromkeys(row.algorithm for row in rows))
    styles = colours.styles(labels)
    size = 13, 0.8 + 4.4 * len(places)
    figure, axes = plots.subplots(len(places), 2, figsize=size, squeeze=False)
    for (left, right), place in zip(axes, places, strict=True):
        here = [row for row in rows if (row.collective, row.ranks) == place]
        what = f"{place[0]} on {place[1]} ranks"
        for label in labels:
            points = [row for row in here if row.algorithm == label]
            if not points:
                continue
            x = [row.bytes for row in points]
            style: dict[str, Any] = {
                "label": label,
                "markersize": 4.5,
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
                "linewidth": 1.3,
                **styles[label]._asdict(),
            }
            nan = float("nan")
            left.plot(x, [nan if row.is_noise else row.median_us for row in points], **style)
            right.plot(x, [nan if row.is_noise else row.busbw for row in points], **style)
        _limit(left, right, here)
        left.set(yscale="log", ylabel="time (us)", title=f"{what}: time of one call")
        right.set(ylabel="bus bandwidth (GB/s)", title=f"{what}: bus bandwidth", ylim=(0, None))
        ticks = sorted({row.bytes for row in here})
        for panel in (left, right):
            if max(ticks) > 0:
                panel.set_xscale("log", base=2)
                panel.set_xticks(ticks[:: -(-len(ticks) // 10)])
                panel.xaxis.set_major_formatter(lambda value, _: plots.short(value))
            panel.minorticks_off()
            panel.set_xlabel("message (bytes)")
            panel.grid(alpha=0.3)
    figure.suptitle(caption, fontsize=10)
    plots.label_ends(figure, list(axes.flat))
    plots.save(figure, path)


def _limit(left: Any, right: Any, rows: list[Row]) -> None:
    """Draw the time of copies, if measured, and their speed if it is a limit."""
    times = {row.bytes: row.limit_us for row in rows if row.limit_us}
    speeds = {row.bytes: row.busbw / row.of_limit for row in rows if row.of_limit}
    style: dict[str, Any] = {"label": "limit: a copy", "color": "gray", "linestyle": ":"}
    for panel, values in ((left, times), (right, speeds)):
        if values:
            panel.plot(list(values), list(values.values()), marker=".", **style)
