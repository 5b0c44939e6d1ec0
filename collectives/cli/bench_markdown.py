"""``collectives bench --markdown``: the library's times divided by MPI's, in one table.

With ``--peers`` there is also a table for each operation, with the times of all peers.
"""

from __future__ import annotations

from typing import Any

from collectives.measuring import state
from collectives.measuring.bench import PEERS
from collectives.text.words import size_text

# Ratios to MPI's time above this are printed in bold.
SLOW = 1.3


def lines(run: dict[str, Any]) -> list[str]:
    """Return a table in Markdown, with a row for each size and a column for each operation. Local.

    A cell has the time of the library's choice divided by MPI's. If another algorithm was faster,
    its ratio and name follow after a comma.
    """
    rows = run["rows"]
    names = list(dict.fromkeys(row["collective"] for row in rows))
    sizes = sorted({row["asked"] for row in rows})
    cells: dict[tuple[str, int], str] = {}
    worst: dict[str, tuple[float, str]] = {}
    for name in names:
        for size in sizes:
            here = [
                row
                for row in rows
                if (row["collective"], row["asked"]) == (name, size)
                and row["algorithm"] not in PEERS
            ]
            told = [row for row in here if row["ratio"] is not None]
            cells[name, size] = _cell(told) if told else "-" if here else ""
            where = name if size == 0 else f"{name} of {size_text(size)}"
            for what, each in (("default", _default(told)), ("best", _best(told))):
                if each is not None:
                    worst[what] = max(worst.get(what, (0.0, "")), (each["ratio"], where))
    head = [
        f"{run['mpi']}, {_ranks(run['ranks'])}: the default's time over that of MPI's own; after a "
        f"comma the best algorithm's, where it is another; above {SLOW} in bold.",
        "",
        f"| bytes | {' | '.join(names)} |",
        "|---" * (1 + len(names)) + "|",
    ]
    body = [
        f"| {bytes_text(size)} | {' | '.join(cells[name, size] for name in names)} |"
        for size in sizes
    ]
    tail = [f"Largest, {what}: {ratio:.2f} ({where})." for what, (ratio, where) in worst.items()]
    return [*head, *body, "", *tail]


def peer_lines(run: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return a table in Markdown for each operation: our times and those of all peers. Local.

    Our time is that of the library's choice, or, if that was not measured, of the fastest
    algorithm.
    """
    rows = run["rows"]
    peers = [peer for peer in PEERS if any(row["algorithm"] == peer for row in rows)]
    commit = f", commit {here['commit']}" if here["commit"] else ""
    texts = [
        f"{run['mpi']}, thread level {run['thread_level']}; {_ranks(run['ranks'])} on "
        f"{run['usable_cores']} cores, {here['cpu']}; collectives {here['collectives']}{commit}. "
        f"gloo: {run['gloo']}. Times in us."
    ]
    head = ["bytes", "ours", *peers, *(f"x {peer}" for peer in peers), "limit", "reached"]
    for name in dict.fromkeys(row["collective"] for row in rows):
        table = [row for row in rows if row["collective"] == name]
        trips = {row["asked"]: row["round_trip_ns"] for row in table}
        known = [1e-9 * trip for trip in trips.values() if trip is not None]
        where = f": {state.text(known)}" if run["ranks"] > 1 else ""
        texts += ["", f"{name}, {table[0]['dtype']}{where}.", ""]
        texts += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        texts += [
            f"| {' | '.join(_peer_cells(size, table, peers))} |"
            for size in dict.fromkeys(row["asked"] for row in table)
        ]
    return texts


def _peer_cells(size: int, rows: list[dict[str, Any]], peers: list[str]) -> list[str]:
    """Return the cells of one size: times, ratios, the limit, and which part of it is reached."""
    here = [row for row in rows if row["asked"] == size]
    own = [row for row in here if row["algorithm"] not in PEERS]
    ours = _default(own) or min(own, key=lambda row: row["median_us"])
    times = {row["algorithm"]: row["median_us"] for row in here}
    ratios = [ours["ratios"].get(peer) for peer in peers]
    return [
        bytes_text(size),
        _figure(ours["median_us"], ".2f"),
        *(_figure(times.get(peer), ".2f") for peer in peers),
        *(_figure(ratio, ".2f") for ratio in ratios),
        _figure(ours["limit_us"], ".2f"),
        _figure(ours["of_limit"], ".0%"),
    ]


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _default(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((row for row in rows if row["algorithm"].partition("/")[0] == "auto"), None)


def _best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(rows, key=lambda row: row["ratio"], default=None)


def _cell(rows: list[dict[str, Any]]) -> str:
    default, best = _default(rows), _best(rows)
    assert best is not None
    if default is None:
        return f"{_ratio(best)} {best['algorithm']}"
    if best["algorithm"] == default["algorithm"] or best["chosen"] == default["chosen"]:
        return _ratio(default)
    return f"{_ratio(default)}, {_ratio(best)} {best['algorithm']}"


def _ratio(row: dict[str, Any]) -> str:
    text = f"{row['ratio']:.2f}"
    return f"**{text}**" if row["ratio"] > SLOW else text


def _ranks(p: int) -> str:
    return f"{p} rank{'s' * (p != 1)}"


def bytes_text(size: int) -> str:
    """Write a number of bytes for a table. Local."""
    return size_text(size).removesuffix(" B").removesuffix("B") if size else "-"
