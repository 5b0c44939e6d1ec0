"""The benchmark's plot: time and bus bandwidth over size, for each operation and n."""

from __future__ import annotations

from typing import Any

from collectives.picture import colours
from collectives.picture.figures import label_ends, save, short, subplots


def plot(rows: list[dict[str, Any]], path: str, caption: str) -> None:
    """Write the plot. Local."""
    places = list(dict.fromkeys((row["collective"], row["ranks"]) for row in rows))
    labels = list(dict.fromkeys(row["algorithm"] for row in rows))
    styles = colours.styles(labels)
    size = 13, 0.8 + 4.4 * len(places)
    figure, axes = subplots(len(places), 2, figsize=size, squeeze=False)
    for (left, right), place in zip(axes, places, strict=True):
        here = [row for row in rows if (row["collective"], row["ranks"]) == place]
        what = f"{place[0]} on {place[1]} ranks"
        for label in labels:
            points = [row for row in here if row["algorithm"] == label]
            if not points:
                continue
            x = [row["bytes"] for row in points]
            style: dict[str, Any] = {
                "label": label,
                "markersize": 4.5,
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
                "linewidth": 1.3,
                **styles[label]._asdict(),
            }
            # A time of zero after subtraction of the barrier cannot be on a logarithmic axis.
            left.plot(x, [row["median_us"] or float("nan") for row in points], **style)
            right.plot(x, [row["busbw"] for row in points], **style)
        _limit(left, right, here)
        left.set(yscale="log", ylabel="time (us)", title=f"{what}: time of one call")
        right.set(ylabel="bus bandwidth (GB/s)", title=f"{what}: bus bandwidth", ylim=(0, None))
        ticks = sorted({row["bytes"] for row in here})
        for panel in (left, right):
            if max(ticks) > 0:
                panel.set_xscale("log", base=2)
                panel.set_xticks(ticks[:: -(-len(ticks) // 10)])
                panel.xaxis.set_major_formatter(lambda value, _: short(value))
            panel.minorticks_off()
            panel.set_xlabel("message (bytes)")
            panel.grid(alpha=0.3)
    figure.suptitle(caption, fontsize=10)
    label_ends(figure, list(axes.flat))
    save(figure, path)


def _limit(left: Any, right: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the time of copies, if measured, and their speed where it is a limit."""
    points = {row["bytes"]: row for row in rows if row["limit_us"]}
    large = {size: row for size, row in points.items() if row["of_limit"]}
    style: dict[str, Any] = {"label": "limit: a copy", "color": "gray", "linestyle": ":"}
    if points:
        times = [row["limit_us"] for row in points.values()]
        left.plot(list(points), times, marker=".", **style)
    if large:
        speeds = [row["busbw"] / row["of_limit"] for row in large.values()]
        right.plot(list(large), speeds, marker=".", **style)
