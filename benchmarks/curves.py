"""Draw what a training has reached over time, with a line for each way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from collectives.picture import colours, plots

Line = tuple[Iterable[float], Iterable[float]]


def draw(lines: Mapping[str, Line], path: Any, black: str = "", **axes: Any) -> None:
    """Write the picture of lines by their labels, one of which is black; `axes` is for its axes."""
    figure, drawn = plots.subplots(figsize=(8, 4.4))
    for k, (label, (x, y)) in enumerate(lines.items()):
        tint = "#1b1f24" if label == black else colours.LIGHT[k]
        drawn.plot(list(x), list(y), color=tint, linewidth=1.3, label=label)
    drawn.set(**axes)
    drawn.grid(alpha=0.3)
    plots.label_ends(figure, [drawn])
    plots.save(figure, path)
