"""The plot of a simulation: a map of the fastest algorithms, or times over the size."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

from collectives.picture.figures import save, short
from collectives.simulation.grid import Grid
from collectives.text.words import count

__all__ = ["draw"]

# Colours that are distinct for all kinds of colour vision (Okabe and Ito 2008), then others.
COLOURS = [
    *("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00"),
    *("#999999", "#b5cf6b", "#9c9ede", "#e7969c", "#17becf", "#bcbd22", "#8c564b"),
]


def draw(grid: Grid, path: str) -> None:
    """Write the plot of the times in `grid` to `path`. Local.

    Raises
    ------
    ArgumentError
        If the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.4), layout="constrained")
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(grid.names)}
    if len(grid.ranks) > 1 and len(grid.sizes) > 1:
        _map(axes, grid, colours)
        axes.set_ylabel("ranks")
        title = f"fastest {grid.collective}, simulated on {grid.machine}"
    else:
        _lines(axes, grid, colours)
        axes.set_ylabel("time (s)")
        where = f" on {count(grid.ranks[0], 'rank')}" if len(grid.ranks) == 1 else ""
        title = f"{grid.collective}{where}, simulated on {grid.machine}"
    axes.set_title(title, fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    save(figure, path)


def _size_axis(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[:: -(-len(sizes) // 11)])
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.minorticks_off()
    axes.set_xlabel("message (bytes)")


def _map(axes: Any, grid: Grid, colours: dict[str, str]) -> None:
    """Draw a map of the fastest algorithms, with the sizes at which two take equally long."""
    won: dict[str, None] = {}
    low, high = grid.sizes[0], grid.sizes[-1]
    edges = _edges(grid.ranks)
    borders: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for p, (bottom, top) in zip(grid.ranks, edges, strict=True):
        start: float = low
        regions = grid.regions(p)
        for k, (name, limit) in enumerate(regions):
            end = min(limit, high)
            if name is not None:
                won[name] = None
                axes.fill_between([start, end], bottom, top, color=colours[name], linewidth=0)
            if limit < inf and name is not None and regions[k + 1][0] is not None:
                borders.setdefault((name, regions[k + 1][0] or ""), []).append((end, bottom, top))
            start = end
    for steps in borders.values():
        x, y = [], []
        for k, (end, bottom, top) in enumerate(steps):
            if k and steps[k - 1][2] != bottom:  # the bands in between do not have this border
                x.append(nan)
                y.append(nan)
            x += [end, end]
            y += [bottom, top]
        axes.plot(x, y, color="black", linewidth=1.2)
    axes.set_yscale("log", base=2)
    axes.set_ylim(edges[0][0], edges[-1][1])
    axes.set_xlim(low, high)
    axes.set_yticks(grid.ranks)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    _size_axis(axes, grid.sizes)
    for name in (name for name in grid.names if name in won):
        axes.plot([], [], color=colours[name], linewidth=9, label=name)


def _edges(ranks: list[int]) -> list[tuple[float, float]]:
    """Return where the band of each number of ranks begins and ends, on a logarithmic axis."""
    middles = [(a * b) ** 0.5 for a, b in pairwise(ranks)]
    first = ranks[0] ** 1.5 / ranks[1] ** 0.5
    last = ranks[-1] ** 1.5 / ranks[-2] ** 0.5
    return list(zip([first, *middles], [*middles, last], strict=True))


def _lines(axes: Any, grid: Grid, colours: dict[str, str]) -> None:
    """Draw times over the sizes, or over the numbers of ranks if there is one size."""
    over_ranks = len(grid.ranks) > 1
    x = grid.ranks if over_ranks else grid.sizes
    for name in grid.names:
        if over_ranks:
            times = [grid.times[p][name][0] for p in grid.ranks]
        else:
            times = grid.times[grid.ranks[0]][name]
        if not all(map(isnan, times)):
            axes.plot(x, times, marker="o", markersize=4, color=colours[name], label=name)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    if over_ranks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(grid.ranks)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        return
    _size_axis(axes, grid.sizes)
    for _, limit in grid.regions(grid.ranks[0]):
        if limit < inf:
            axes.axvline(limit, color="black", linewidth=1, linestyle=":")
