"""The colour of each algorithm, the same in pictures, plots and the explorer.

Each family of algorithms has a colour, and each algorithm has that of its family. More colours
would be hard to distinguish. So lines of one plot that share a colour differ in their dashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

# Eleven colours on white, and the same eleven on black. Any two have a CIELAB distance of over 25,
# and of over 12 for readers who lack one kind of cone; each has a contrast of at least 3 with the
# ground.
LIGHT = (
    *("#fd1f48", "#df6706", "#504e16", "#6b1cec", "#a12456"),
    *("#4676f9", "#1c5393", "#449047", "#22038d", "#ab73b8", "#380048"),
)
DARK = (
    *("#c90636", "#a64b05", "#b48806", "#af63fa", "#c50076"),
    *("#1b9fe2", "#006e82", "#10c341", "#8e15f3", "#c05ab3", "#e1fecf"),
)
MARKS = "osD^v<>pPXH"  # of the same eleven

# The families, by the places of their colours and marks. A new algorithm joins one.
FAMILIES = (
    ("butterfly", "recursive", "dissemination", "multiplying", "doubling", "doubling_123"),
    ("kary",),
    ("double_tree",),
    ("halving_doubling", "reduce_scatter_gather", "scatter_allgather", "swing", "generalised"),
    ("all_to_all", "direct"),
    ("ring", "chain"),
    ("master_worker", "flat"),
    ("tree", "bine"),
    ("bruck", "circulant", "pat", "trivance", "stragglar"),
    ("round_robin", "pairwise"),
    ("near_halving", "near_tree", "rank_order", "windows"),
)
NUMBERS = {name: number for number, family in enumerate(FAMILIES) for name in family}

# Lines that are not of one algorithm: colour on white, mark, dashes. The library's choice is black.
PEERS = {
    "auto": ("#1b1f24", "*", "-"),
    "MPI": ("#1b1f24", "h", "--"),
    "gloo": ("#767e88", "d", "--"),
}
DASHES = (
    *("-", (0, (4, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5))),
    *((0, (9, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (1, 4))),
)


class Style(NamedTuple):
    """The style of a line of a plot, in Matplotlib's words."""

    color: str
    marker: str
    linestyle: str | tuple[float, tuple[float, ...]]


def number(name: str) -> int:
    """Return the place of an algorithm's family, and of its colour in `LIGHT` and `DARK`. Local."""
    base = name.partition("/")[0].partition(":")[0]
    return NUMBERS.get(base, crc32(base.encode()) % len(LIGHT))


def colour(name: str) -> str:
    """Return the colour of the algorithm `name` on a white ground. Local."""
    return LIGHT[number(name)]


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the style of the line of each of the `labels` of one plot. Local.

    No two are alike, except where more lines share a colour than there are `DASHES`.
    """
    found: dict[str, Style] = {}
    taken: dict[tuple[str, str], int] = {}
    for label in labels:
        peer = PEERS.get(label.partition("/")[0])
        tint, mark, dash = peer or (colour(label), MARKS[number(label)], DASHES[0])
        again = taken[tint, mark] = taken.get((tint, mark), -1) + 1
        found[label] = Style(tint, mark, DASHES[again % len(DASHES)] if again else dash)
    return found
