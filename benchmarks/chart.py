"""Draw the figure of `docs/results/today.md` from the runs in `results`; `tables.py` writes it.

A panel for each machine and state has a line for each MPI: its time over that of this library.
"""

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from collectives.picture.sheet import Part, element, key, sheet, text_at
from collectives.text.words import size_text

WIDTH, HEIGHT = 390, 220  # of the lines of a panel, in pixels
LEFT, HEAD, FOOT, GAP = 34, 24, 22, 34  # beside them, above and below, and between panels
SIZES = 3, 26  # the exponents of the smallest and the largest size
FACTORS = -1, 3  # and of the factors: a half to 8
COLUMNS = 2


class Panel(NamedTuple):
    """Lines of one machine: for each MPI, the factors by bytes."""

    heading: str
    lines: dict[str, dict[int, float]]


def across(nbytes: float) -> float:
    return LEFT + WIDTH * (log2(nbytes) - SIZES[0]) / (SIZES[1] - SIZES[0])


def down(factor: float) -> float:
    inside = min(max(log2(factor), FACTORS[0]), FACTORS[1])
    return HEAD + HEIGHT * (FACTORS[1] - inside) / (FACTORS[1] - FACTORS[0])


def grid() -> list[str]:
    """Return the lines and numbers behind the lines of a panel."""
    found = []
    for k in range(FACTORS[0], FACTORS[1] + 1):
        y = down(2.0**k)
        ends = {"x1": LEFT, "x2": LEFT + WIDTH, "y1": y, "y2": y}
        found.append(element("line", class_="new" if k == 0 else "lane", **ends))
        found.append(text_at(f"{2.0**k:g}", LEFT - 8, y + 4, text_anchor="end"))
    for k in range(SIZES[0], SIZES[1] + 1, 3):
        y = HEAD + HEIGHT + FOOT - 4
        found.append(text_at(size_text(1 << k), across(1 << k), y, class_="content"))
    return found


def drawn(panel: Panel, peers: Sequence[str]) -> list[str]:
    """Return the elements of a panel."""
    found = [text_at(panel.heading, LEFT, HEAD - 10), *grid()]
    for number, peer in enumerate(peers):
        factors = sorted(panel.lines.get(peer, {}).items())
        at = [f"{across(n):.1f},{down(each):.1f}" for n, each in factors]
        if at:
            found.append(element("polyline", class_=f"c{number} arrow", points=" ".join(at)))
        spots = (each.split(",") for each in at)
        dots = [element("circle", class_="fill", cx=x, cy=y, r="2.5") for x, y in spots]
        found.append(element("g", "".join(dots), class_=f"c{number}"))
    return found


def figure(panels: Sequence[Panel], peers: Sequence[str]) -> str:
    """Return the figure as SVG, with colours for light and dark pages."""
    wide, high = LEFT + WIDTH + GAP, HEAD + HEIGHT + FOOT + GAP
    elements = []
    for number, panel in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        inside = "".join(drawn(panel, peers))
        at = f"translate({column * wide} {row * high})"
        elements.append(element("g", inside, transform=at))
    rows = -(-len(panels) // COLUMNS)
    samples = [
        (element("line", class_=f"c{n} arrow", x1=0, x2=28, y1=0, y2=0), peer)
        for n, peer in enumerate(peers)
    ]
    marks = key(samples, rows * high, COLUMNS * wide)
    height = rows * high + 20
    said = "Time of MPI divided by the time of this library: above 1, this library is faster."
    return sheet(
        ("allreduce of float32 beside three MPIs", said),
        ("allreduce of float32 beside three MPIs", f"{said} The table below has the numbers."),
        Part(COLUMNS * wide - GAP, height, [*elements, *marks.elements]),
    )
