"""Matplotlib figures of times over sizes; Matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from collectives.errors import ArgumentError
from collectives.text import files

FONT = 8  # points, of the labels of lines


def check() -> None:
    """Raise an ArgumentError if Matplotlib is missing. Local."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install matplotlib") from None


def subplots(*grid: int, **options: Any) -> Any:
    """Return a figure and its axes as pyplot does, without a screen. Local."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "collectives"  # names in the file do not change
    from matplotlib import pyplot

    return pyplot.subplots(*grid, layout="constrained", **options)


def save(figure: Any, path: str) -> None:
    """Write a `figure` of pyplot to `path`, and close it. Local."""
    from matplotlib import pyplot

    path = path if Path(path).suffix else f"{path}.png"
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=130, format=Path(path).suffix[1:])
        files.write(path, picture.getvalue())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--plot {path}: {error}") from error
    finally:
        pyplot.close(figure)


def short(value: float) -> str:
    """Format `value` bytes for an axis: ``64K``. Local."""
    for unit in ("", "K", "M"):
        if value < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}G"


def label_ends(figure: Any, axes: Sequence[Any]) -> None:
    """Write the label of each line of `axes` at its right end, without overlaps. Local.

    Call it when everything is drawn and limits are final.
    """
    figure.canvas.draw()  # makes the layout, which determines the heights of the axes
    for each in axes:
        each.set_ylim(each.get_ylim())
        each.set_xlim(each.get_xlim())
        ends = []
        for line in each.get_lines():
            if not line.get_label().startswith("_"):
                points = [(x, y) for x, y in zip(*line.get_data(), strict=True) if isfinite(y)]
                if points:
                    ends.append((line, each.transLimits.transform(_scaled(each, points[-1]))))
        high = 1.35 * FONT * figure.dpi / 72 / each.get_window_extent().height
        places = spread([float(end[1]) for _, end in ends], high, 0.0, 1.0)
        for (line, end), place in zip(ends, places, strict=True):
            each.annotate(
                line.get_label(),
                xy=(float(end[0]), float(end[1])),
                xycoords="axes fraction",
                xytext=(1.05, place),
                textcoords="axes fraction",
                color=line.get_color(),
                fontsize=FONT,
                va="center",
                arrowprops={
                    "arrowstyle": "-",
                    "color": line.get_color(),
                    "linewidth": 0.6,
                    "relpos": (0, 0.5),
                    "shrinkA": 1,
                    "shrinkB": 2,
                },
                annotation_clip=False,
            )


def _scaled(axes: Any, point: tuple[float, float]) -> Any:
    return axes.transScale.transform(point)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places near the `wanted` ones that are at least `gap` apart. Local."""
    if len(wanted) > 1:
        gap = min(gap, (high - low) / (len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    # Without the gaps, places need only rise: neighbours that would fall get their mean.
    groups: list[tuple[float, int]] = []
    for n, k in enumerate(order):
        mean, many = wanted[k] - n * gap, 1
        while groups and groups[-1][0] > mean:
            before, count = groups.pop()
            mean, many = (before * count + mean * many) / (count + many), count + many
        groups.append((mean, many))
    rising = [mean for mean, many in groups for _ in range(many)]
    last = high - (len(wanted) - 1) * gap
    found = [0.0] * len(wanted)
    for n, k in enumerate(order):
        found[k] = min(max(rising[n], low), last) + n * gap
    return found
