"""Compare what `collectives synthesize` finds on a suite of networks with bounds and the library.

    python benchmarks/measure_synthesis.py [--only NAME,...] [--seconds 50] [--json FILE]

Each network is made from a seed or from its description, so that every run has the same ones. The
times are simulated. The table has a line for each network; the manual quotes it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from collectives.simulation.graph import machine
from collectives.synthesis.search import Search
from collectives.text.files import write_json
from collectives.text.table import markdown
from collectives.text.words import size_text, time_text

Links = list[list[Any]]
ALPHA = "2us"


def star(speeds: list[float]) -> Links:
    return [["switch", rank, f"{speed:g}Gbit/s"] for rank, speed in enumerate(speeds)]


def torus(rows: int, columns: int, numbers: list[int], broken: int = 0) -> Links:
    """Return the cables of a torus with 10 Gbit/s each, of which the first `broken` are missing."""
    links: Links = []
    for row in range(rows):
        for column in range(columns):
            here = numbers[row * columns + column]
            right = numbers[row * columns + (column + 1) % columns]
            below = numbers[(row + 1) % rows * columns + column]
            links += [[here, right, "10Gbit/s"], [here, below, "10Gbit/s"]]
    return links[broken:]


def hosts(ranks: list[int]) -> Links:
    """Return hosts with so many ranks each, and a card of 10 Gbit/s each, below one switch."""
    links: Links = []
    rank = 0
    for number, here in enumerate(ranks):
        links.append(["switch", f"host {number}", "10Gbit/s"])
        links += [[f"host {number}", rank + k, "100Gbit/s"] for k in range(here)]
        rank += here
    return links


def regular(p: int, degree: int, seed: int) -> Links:
    """Return the cables of a random regular graph: random pairings of ends, until one is simple."""
    random = np.random.default_rng(seed)
    while True:
        ends = random.permutation(np.repeat(np.arange(p), degree)).reshape(-1, 2)
        pairs = {(min(a, b), max(a, b)) for a, b in ends.tolist() if a != b}
        if len(pairs) == p * degree // 2:
            return [[a, b, "10Gbit/s"] for a, b in sorted(pairs)]


def islands(p: int) -> Links:
    """Return two halves, each below a switch, and a cable between these with half of the speed."""
    half = p // 2
    links: Links = [[f"switch {r // half}", r, "10Gbit/s"] for r in range(p)]
    return [*links, ["switch 0", "switch 1", "5Gbit/s"]]


def shuffled(p: int, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).permutation(p).tolist()
    return found


def unequal(p: int, seed: int) -> list[float]:
    found: list[float] = np.random.default_rng(seed).uniform(5, 10, p).round(1).tolist()
    return found


# Name, what it is, ranks, bytes, and the network: a text, or the links of a file.
SUITE: list[tuple[str, str, int, int, str | Callable[[], Links]]] = [
    ("flat", "all pairs equally distant", 16, 64 << 20, "flat"),
    ("slow", "one cable at a quarter of 1 Gbit/s", 8, 64 << 20, lambda: star([1] * 7 + [0.25])),
    ("unequal", "cables of 5 to 10 Gbit/s, seed 1", 16, 64 << 20, lambda: star(unequal(16, 1))),
    ("torus", "4 x 4 x 4", 64, 64 << 20, "torus=4x4x4"),
    (
        "broken",
        "torus 8 x 8 without one cable",
        64,
        256 << 20,
        lambda: torus(8, 8, [*range(64)], 1),
    ),
    (
        "shuffled",
        "torus 4 x 4, ranks by seed 2",
        16,
        64 << 20,
        lambda: torus(4, 4, shuffled(16, 2)),
    ),
    ("regular", "random, 4 cables a rank, seed 3", 16, 64 << 20, lambda: regular(16, 4, 3)),
    ("islands", "two switches, a thin cable between", 16, 64 << 20, lambda: islands(16)),
    ("hosts", "4 x 4, cards of 10 Gbit/s", 16, 256 << 20, lambda: hosts([4, 4, 4, 4])),
    ("uneven", "hosts of 5, 3, 2 and 6 ranks", 16, 256 << 20, lambda: hosts([5, 3, 2, 6])),
    ("fast cards", "hosts of 8, cards as fast as ranks", 64, 64 << 20, "hosts=8"),
    ("fat tree", "8 x 4, half of it in the core", 32, 64 << 20, "fattree=4,per_switch=4"),
    ("large torus", "8 x 8 x 8", 512, 1 << 30, "torus=8x8x8"),
]


def measured(only: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each network of the suite."""
    with tempfile.TemporaryDirectory() as folder:
        for name, what, p, nbytes, network in SUITE:
            if only and name not in only:
                continue
            text = network if isinstance(network, str) else f"{folder}/{name}.json"
            if not isinstance(network, str):
                document = {"ranks": p, "links": network(), "alpha": ALPHA}
                Path(text).write_text(json.dumps(document), encoding="utf-8")
            start = time.monotonic()
            search = Search("allreduce", machine(text).make(p), nbytes, 0, seconds)
            search.run()
            assert search.bound is not None
            assert search.best is not None
            yield {
                "name": name,
                "what": what,
                "ranks": p,
                "bytes": nbytes,
                "bound": search.bound.seconds,
                "found": search.best.seconds,
                "how": search.best.how,
                "library": search.shipped,
                "search": time.monotonic() - start,
            }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table."""
    bound = row["bound"]
    seconds, name = row["library"] or (float("nan"), "none in time")
    return (
        f"{row['name']}: {row['what']}",
        f"{row['ranks']}",
        size_text(row["bytes"]),
        time_text(bound, 4),
        f"{row['found'] / bound:.3f}",
        row["how"],
        f"{seconds / bound:.3f} ({name})",
        f"{row['search']:.0f}",
    )


HEADS = (
    "network",
    "ranks",
    "array",
    "bound",
    "found / bound",
    "kind",
    "library / bound",
    "search, s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for row in measured([name for name in options.only.split(",") if name], options.seconds):
        rows.append(row)
        print("  ".join(cells(row)), flush=True)
    print("\n".join(markdown(HEADS, [cells(row) for row in rows])))
    if options.json:
        document = {
            "command": f"python {' '.join(sys.argv)}",
            "python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores",
            "rows": rows,
        }
        write_json(options.json, document)


if __name__ == "__main__":
    main()
