"""Curves of forecasts: the time of a step over the number of ranks, divided into its parts."""

from __future__ import annotations

from math import floor, log2, log10
from typing import TYPE_CHECKING

from collectives.picture.sheet import BASE, Part, element, key, sheet, text_at, tooltip
from collectives.text.words import count, time_text

if TYPE_CHECKING:
    from collectives.records.forecast import Row

# Lengths are in pixels.
WIDTH, HEIGHT = 460, 240
LEFT, TOP, BELOW = 64, 24, 52
GAP = 40  # between the charts
PARTS = "computing", "communication", "straggler"
TICKS = 5  # about so many


def curve(base: Row, tables: dict[str, list[Row]], machine: str) -> str:
    """Return the text of an SVG file: a chart for each scaling, from the recorded step on. Local.

    The areas below the curve are the parts of a step.
    """
    elements: list[str] = []
    for number, (scaling, rows) in enumerate(tables.items()):
        x = number * (LEFT + WIDTH + GAP) + LEFT
        elements += _chart(f"{scaling} scaling", [base, *rows], x)
    width = len(tables) * (LEFT + WIDTH + GAP) - GAP
    box = element("rect", class_="fill", x=6, y=-7, width=22, height=14)
    samples = [(element("g", box, class_=f"c{k}"), name) for k, name in enumerate(PARTS)]
    legend = key(samples, TOP + HEIGHT + BELOW, width)
    rows = [row for listed in tables.values() for row in listed]
    most = max(rows, key=lambda row: row.ranks)
    about = f"Up to {count(most.ranks, 'rank')}, from a recording of {count(base.ranks, 'rank')}."
    drawing = Part(width, legend.height, [*elements, *legend.elements])
    return sheet(("Time of a step", f"{about} On {machine}."), ("A forecast", about), drawing)


def _chart(title: str, rows: list[Row], left: float) -> list[str]:
    """Return the areas, the points and the axes of a scaling; the first row is the recorded one."""
    base, *others = rows
    if base.ranks not in {row.ranks for row in others}:
        others = sorted(rows, key=lambda row: row.ranks)
    top = max(row.seconds for row in rows) * 1.05
    low, high = (log2(end(row.ranks for row in rows)) for end in (min, max))
    bottom = TOP + HEIGHT

    def place(row: Row, seconds: float) -> tuple[float, float]:
        part = (log2(row.ranks) - low) / (high - low) if high > low else 0.5
        return left + WIDTH * part, bottom - HEIGHT * seconds / top

    made = [text_at(title, left, TOP - 10)]
    below = [0.0] * len(others)
    for number, name in enumerate(PARTS):
        above = [y + getattr(row, name) for y, row in zip(below, others, strict=True)]
        edge = list(map(place, others, above)) + list(map(place, others, below))[::-1]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        area = element("polygon", class_="fill", points=points)
        made.append(element("g", area, class_=f"c{number}"))
        below = above
    for seconds in _ticks(top):
        _, y = place(base, seconds)
        made.append(element("line", class_="lane", x1=left - 4, x2=left, y1=y, y2=y))
        label = time_text(seconds) if seconds else "0"
        made.append(text_at(label, left - 8, y + 12 * BASE, text_anchor="end"))
    made.append(element("line", class_="lane", x1=left, x2=left + WIDTH, y1=bottom, y2=bottom))
    for row in rows:
        x, y = place(row, row.seconds)
        kind = "recorded" if row is base else f"{row.efficiency:.0%} efficient"
        about = tooltip(f"{count(row.ranks, 'rank')}: {time_text(row.seconds)}, {kind}")
        dot = element("circle", class_="slot" if row is base else "fill", cx=x, cy=y, r=4)
        made.append(element("g", about + dot, class_="c4"))
        made.append(text_at(str(row.ranks), x, bottom + 18, text_anchor="middle"))
    made.append(text_at("ranks", left + WIDTH / 2, bottom + 36, text_anchor="middle"))
    return made


def _ticks(top: float) -> list[float]:
    """Return round numbers of seconds from 0 to `top`."""
    unit = 10 ** floor(log10(top))
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2) if each * unit * TICKS >= top * 0.8) * unit
    return [number * step for number in range(int(top / step) + 1)]
