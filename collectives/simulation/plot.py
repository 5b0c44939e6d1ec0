"""The plot of a simulation: a map of the fastest algorithms, or times over the size."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

from collectives.picture import colours
from collectives.picture.plots import label_ends, save, short, subplots
from collectives.simulation.grid import Grid
from collectives.text.words import count

HATCHES = (None, "//", "..", "xx", "||", "--", "oo")  # of areas, as `colours.DASHES` are of lines


def draw(grid: Grid, path: str) -> None:
    """Write the plot of the times in `grid` to `path`. Local."""
    figure, axes = subplots(figsize=(9, 5.4))
    ranks = count(grid.ranks[-1], "rank")
    if len(grid.ranks) > 1:
        ranks = f"{grid.ranks[0]} to {ranks}"
    what = f"{grid.collective} on {ranks}"
    is_map = len(grid.ranks) > 1 and len(grid.sizes) > 1
    if is_map:
        what = f"Fastest {what}"
        _map(axes, grid)
        axes.set_ylabel("ranks")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    else:
        _lines(axes, grid)
        axes.set_ylabel("time (s)")
    axes.set_title(f"{what}, simulated\n{grid.machine.numbers()}", fontsize=10)
    if not is_map:
        label_ends(figure, [axes])
    save(figure, path)


def _size_axis(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[:: -(-len(sizes) // 11)])
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.minorticks_off()
    axes.set_xlabel("message (bytes)")


def _map(axes: Any, grid: Grid) -> None:
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
                axes.fill_between([start, end], bottom, top, **_area(grid, name))
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
        axes.fill_between([], [], label=name, **_area(grid, name))


def _area(grid: Grid, name: str) -> dict[str, Any]:
    """Return the fill of the area of an algorithm, hatched if another has the same colour."""
    style = colours.styles(grid.names)[name]
    hatch = HATCHES[colours.DASHES.index(style.linestyle)]
    return {"facecolor": style.color, "edgecolor": "white", "hatch": hatch, "linewidth": 0}


def _edges(ranks: list[int]) -> list[tuple[float, float]]:
    """Return the ends of the band of each number of ranks, on a logarithmic axis."""
    middles = [(a * b) ** 0.5 for a, b in pairwise(ranks)]
    first = ranks[0] ** 1.5 / ranks[1] ** 0.5
    last = ranks[-1] ** 1.5 / ranks[-2] ** 0.5
    return list(zip([first, *middles], [*middles, last], strict=True))


def _lines(axes: Any, grid: Grid) -> None:
    """Draw times over the sizes, or over the numbers of ranks if there is one size."""
    over_ranks = len(grid.ranks) > 1
    x = grid.ranks if over_ranks else grid.sizes
    styles = colours.styles(grid.names)
    for name in grid.names:
        if over_ranks:
            times = [grid.times[p][name][0] for p in grid.ranks]
        else:
            times = grid.times[grid.ranks[0]][name]
        if not all(map(isnan, times)):
            axes.plot(x, times, markersize=4.5, label=name, **styles[name]._asdict())
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
