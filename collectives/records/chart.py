"""Pictures of timelines: a lane for each rank, a bar for each call, pale during its wait."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from collectives.picture.sheet import (
    BASE,
    LIGHT,
    WIDTH,
    Part,
    element,
    key,
    sheet,
    text_at,
    tooltip,
)
from collectives.records.summary import Event, Sum, arrivals, verdict
from collectives.text.words import count, time_text

TRACK, LANE = 14, 8  # pixels: the height of a track, and between lanes
LEFT, TOP = 130, 24
LEAST = 0.4  # pixels of a bar; calls that are closer to each other are one
TRACKS = 4  # the most tracks of a lane; calls on further ones are drawn on the last
TICKS = 6


def chart(events: list[Event], found: Sum) -> str:
    """Return the text of an SVG file with the calls in `events`, which `found` sums up. Local."""
    calls = [each for each in events if each["ph"] == "X" and "communicator" in each["args"]]
    scale = (WIDTH - LEFT) / (found.lasted or 1.0)
    kinds = sorted({each["cat"] for each in calls})
    lanes: dict[int, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for call, until, _ in sorted(arrivals(calls), key=lambda each: each[0]["ts"]):
        bars = lanes[call["pid"]][min(call["tid"], TRACKS - 1)]
        start = (call["ts"] - found.first) * scale
        end = max(start + LEAST, start + call["dur"] * scale)
        waits = min(end, (until - found.first) * scale)
        last = bars[-1] if bars else None
        if (
            last
            and last[0] == call["cat"]
            and start - last[2] < LEAST
            and end - last[1] < 3 * LEAST
        ):
            last[2], last[4] = max(end, last[2]), last[4] + 1
        else:
            bars.append([call["cat"], start, end, waits, 1, call])
    y, elements = float(TOP), _axis(found.lasted)
    for rank in sorted(found.ranks):
        tracks = lanes[rank]
        height = TRACK * (max(tracks, default=0) + 1)
        name = found.ranks[rank].name or f"rank {rank}"
        elements.append(text_at(name[:18], 0, y + TRACK / 2 + 12 * BASE))
        below = y + height + LANE / 2
        line = element("line", class_="lane", x1=LEFT, x2=WIDTH, y1=below, y2=below)
        elements.append(line)
        for track, bars in tracks.items():
            for bar in bars:
                elements.append(_bar(bar, kinds, y + TRACK * track))
        y += height + LANE
    sample: dict[str, Any] = {"x": 6, "y": -7, "width": 22, "height": 14, "class_": "fill"}
    samples = [
        (f'<g class="c{number % len(LIGHT)}">{element("rect", **sample)}</g>', kind)
        for number, kind in enumerate(kinds)
    ]
    pale = element("rect", **(sample | {"class_": "fill share"}))
    samples.append((f'<g class="c0">{pale}</g>', "pale: until the last rank has made the call"))
    legend = key(samples, y + 20, WIDTH)
    drawing = Part(WIDTH, legend.height, [*elements, *legend.elements])
    title = f"{count(len(found.ranks), 'rank')}, {time_text(found.lasted / 1e6)}"
    return sheet((title, verdict(found)), ("A timeline", f"{count(len(calls), 'call')}."), drawing)


def _axis(lasted: float) -> list[str]:
    """Return the times above the lanes."""
    made = []
    for number in range(TICKS):
        part = number / (TICKS - 1)
        x = LEFT + part * (WIDTH - LEFT)
        anchor = "end" if number == TICKS - 1 else "start"
        text = time_text(part * lasted / 1e6) if number else "0"
        made.append(text_at(text, x, 12, text_anchor=anchor))
    return made


def _bar(bar: list[Any], kinds: list[str], y: float) -> str:
    """Return a bar: pale until the last rank has made the call, and then full."""
    kind, start, end, waits, number, call = bar
    about = f"{kind} {call['args']['algorithm']!r}, {time_text(call['dur'] / 1e6)}"
    if number > 1:
        about = f"{count(number, 'call')}, the first: {about}"
    parts = [tooltip(about)]
    for first, last, shape in ((start, waits, "fill share"), (max(start, waits), end, "fill")):
        if last > first:
            x, width, height = LEFT + first, last - first, TRACK - 2
            parts.append(element("rect", class_=shape, x=x, y=y, width=width, height=height))
    return element("g", "".join(parts), class_=f"c{kinds.index(kind) % len(LIGHT)}")
