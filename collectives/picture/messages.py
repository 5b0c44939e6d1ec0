"""Messages in space and time: a lane for each rank, an arrow for each message.

Messages of one step do not wait for each other. If a rank sends or receives several of them, they
are drawn side by side in *strips* of the step, so that each arrow has ends of its own. The order of
the strips has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from collectives.picture.sheet import (
    BASE,
    KEY_MARK,
    LETTER,
    NARROWEST,
    RANK,
    WIDTH,
    Part,
    blocks_in_words,
    colour_class,
    element,
    key,
    text_at,
    tooltip,
)
from collectives.picture.text import between_pairs, blocks_text
from collectives.plans.proof import Proof
from collectives.plans.replay import Event
from collectives.text.words import count

HEAD = 26  # above the lanes, for the numbers of the steps
LONGEST = 11  # letters of a label


class Scale(NamedTuple):
    """The sizes of the elements of a diagram, for a number of ranks."""

    lane: float
    font: float
    mark: float
    labelled: bool

    @classmethod
    def of(cls, p: int) -> Scale:
        """Return the scale for p ranks. Local."""
        if p <= 8:
            return cls(46, 12, 7.5, True)
        return cls(32, 10, 6, True) if p <= 16 else cls(14, 0, 3.5, False)


class StepStrips(NamedTuple):
    """The strips of a step, and its width."""

    time: int
    strips: list[list[Event]]
    width: float


def diagram(proof: Proof, room: float = WIDTH) -> Part:
    """Draw the messages of all steps, in bands that are at most `room` wide if steps allow it."""
    scale = Scale.of(proof.p)
    if not proof.events:
        lines = [*_lanes(proof.p, scale, 0, RANK + 120), text_at("no messages", RANK, 17)]
        return Part(RANK + 120, HEAD + proof.p * scale.lane, lines)
    bands = _bands(_steps(proof, scale), room - RANK)
    lines = []
    y = 0.0
    for band in bands:
        lines += _band(proof, band, scale, y)
        y += HEAD + proof.p * scale.lane + 14
    width = RANK + max(_wide(band) for band in bands)
    marks = key(list(_samples(proof, scale)), y + 8, max(width, min(room, NARROWEST)))
    return Part(max(width, marks.width), marks.height, [*lines, *marks.elements])


def _steps(proof: Proof, scale: Scale) -> Iterator[StepStrips]:
    events: list[list[Event]] = [[] for _ in range(proof.depth)]
    for event in proof.events:
        events[event.time - 1].append(event)
    for time, each in enumerate(events, 1):
        strips = _strips(each, proof.p)
        wide, least = _strip_widths(proof, strips, scale)
        wide = max(least, min(wide, (WIDTH - RANK) / len(strips)))
        bands = ceil(len(strips) * wide / (WIDTH - RANK))
        most = ceil(len(strips) / bands)  # a step that is too wide continues below
        for first in range(0, len(strips), most):
            some = strips[first : first + most]
            yield StepStrips(time, some, len(some) * wide)


def _bands(steps: Iterable[StepStrips], room: float) -> list[list[StepStrips]]:
    """Put steps side by side, in as few bands as possible that are about equally wide."""
    steps = list(steps)
    bands = _filled(steps, room)
    least = max(step.width for step in steps)
    while (room := max(map(_wide, bands)) - 1) >= least:
        narrower = _filled(steps, room)
        if len(narrower) > len(bands):
            break
        bands = narrower
    return bands


def _filled(steps: Iterable[StepStrips], room: float) -> list[list[StepStrips]]:
    """Put steps side by side, as many in a band as fit."""
    bands: list[list[StepStrips]] = []
    for step in steps:
        if not bands or _wide(bands[-1]) + step.width > room:
            bands.append([])
        bands[-1].append(step)
    return bands


def _wide(band: Sequence[StepStrips]) -> float:
    return sum(step.width for step in band)


def _band(proof: Proof, band: Sequence[StepStrips], scale: Scale, y: float) -> list[str]:
    """Draw steps side by side; the marks at the ends of arrows are drawn above all arrows."""
    shades: list[str] = []
    lines: list[str] = []
    ends: list[str] = []
    x = float(RANK)
    for step in band:
        if step.time % 2:
            high = HEAD + proof.p * scale.lane
            shades.append(element("rect", class_="shade", x=x, y=y, width=step.width, height=high))
        text = f"step {step.time}"
        if len(text) * 12 * LETTER > step.width:
            text = str(step.time)
        lines.append(text_at(text, x + step.width / 2, y + 17, class_="step"))
        strip_width = step.width / len(step.strips)
        for strip in step.strips:
            for event in strip:
                line, end = _arrow(proof, event, scale, x, x + strip_width, y + HEAD)
                lines.append(line)
                ends.append(end)
            x += strip_width
    kind = "clear" if scale.labelled else "thin"
    return [*shades, *_lanes(proof.p, scale, y, x), f'<g class="{kind}">', *lines, *ends, "</g>"]


def _lanes(p: int, scale: Scale, y: float, right: float) -> Iterator[str]:
    for r in range(p):
        at = y + HEAD + (r + 0.5) * scale.lane
        yield text_at(f"rank {r}", 0, at + 4)
        yield element("line", class_="lane", x1=RANK, y1=at, x2=right, y2=at)


def _strips(events: Sequence[Event], p: int) -> list[list[Event]]:
    """Spread the messages of a step so that no rank sends or receives two in the same strip.

    They are sorted by distance, so that messages of equal distance are parallel arrows.
    """
    strips: list[tuple[set[int], set[int], list[Event]]] = []
    for event in sorted(events, key=lambda each: ((each.target - each.source) % p, each)):
        free = (s for s in strips if event.source not in s[0] and event.target not in s[1])
        sources, targets, strip = found = next(free, (set(), set(), []))
        if not strip:
            strips.append(found)
        sources.add(event.source)
        targets.add(event.target)
        strip.append(event)
    return [strip for *_, strip in strips]


def label_text(proof: Proof, event: Event) -> str:
    """Return the blocks of a message as text, or their number."""
    text = blocks_text(proof, event.blocks)
    return text if len(text) <= LONGEST else count(len(event.blocks), "block")


def pill_width(text: str, font: float) -> float:
    """Return the width of a label."""
    return max(font * 1.6, len(text) * font * LETTER + 8)


def _strip_widths(
    proof: Proof, strips: Sequence[Sequence[Event]], scale: Scale
) -> tuple[float, float]:
    """Return the best and the smallest widths of strips."""
    if not scale.labelled:
        return 24, 24
    widest = max(
        pill_width(label_text(proof, event), scale.font) for strip in strips for event in strip
    )
    least = widest + 2 * scale.mark + scale.lane
    # In narrow strips, long arrows would be steep, overlap, and run behind labels.
    far = max(sum(abs(e.target - e.source) for e in strip) / len(strip) for strip in strips)
    return least + 14 * max(0, far - 2), least


def message_text(proof: Proof, event: Event) -> str:
    """Describe a message in words."""
    verb = ("folds" if event.fold else "stores") + (" it" if len(event.blocks) == 1 else " them")
    return (
        f"step {event.time}: rank {event.source} sends {blocks_in_words(proof, event.blocks)} "
        f"to rank {event.target}, which {verb}"
    )


def _arrow(
    proof: Proof, event: Event, scale: Scale, left: float, right: float, top: float
) -> tuple[str, str]:
    """Draw a message in its strip: its line, and the marks at its ends, which go above lines."""
    title = tooltip(message_text(proof, event))
    colour = colour_class(proof, event.blocks[0])
    text = label_text(proof, event)
    wide = pill_width(text, scale.font) if scale.labelled else 2
    x1, x2 = left + 4 + wide / 2, right - 5 - scale.mark
    y1, y2 = (top + (r + 0.5) * scale.lane for r in (event.source, event.target))
    slope = (y2 - y1) / (x2 - x1)
    # The point of a tip touches the lane; the line ends inside the tip.
    back = 0 if event.fold else scale.mark
    length = (1 + slope * slope) ** 0.5
    bx, by = x2 - back / length, y2 - back * slope / length
    line = element("line", title, class_=f"arrow {colour}", x1=x1, y1=y1, x2=bx, y2=by)
    if event.fold:
        parts = _fold_mark(x2, y2, scale.mark)
    else:
        side = 0.55 * scale.mark
        bx, by = x2 - 1.6 * scale.mark / length, y2 - 1.6 * scale.mark * slope / length
        dx, dy = -side * slope / length, side / length
        points = [(x2, y2), (bx + dx, by + dy), (bx - dx, by - dy)]
        path = " ".join(f"{round(a, 1):g},{round(b, 1):g}" for a, b in points)
        parts = [element("polygon", class_="tip", points=path)]
    if scale.labelled:
        parts += labelled(text, x1, y1, wide, scale.font)
    return line, element("g", title + "".join(parts), class_=f"ends {colour}")


def _fold_mark(x: float, y: float, radius: float, kind: str = "fill fold") -> list[str]:
    arm = 0.55 * radius
    path = f"M{x - arm:.1f} {y:.1f}h{2 * arm:.1f}M{x:.1f} {y - arm:.1f}v{2 * arm:.1f}"
    marks = [element("circle", class_=kind, cx=x, cy=y, r=radius)]
    return [*marks, element("path", class_="plus", d=path)] if radius > 5 else marks


def labelled(text: str, x: float, y: float, width: float, font: float) -> list[str]:
    high = 1.5 * font
    return [
        element(
            "rect",
            class_="fill",
            x=x - width / 2,
            y=y - high / 2,
            width=width,
            height=high,
            rx=high / 2,
        ),
        text_at(text, x, y + BASE * font, class_="label", style=f"font-size: {font:g}px"),
    ]


def _samples(proof: Proof, scale: Scale) -> Iterator[tuple[str, str]]:
    """Yield the marks of messages that occur, each with its meaning: samples of this picture."""
    middle = KEY_MARK[0] / 2
    folds = {event.fold for event in proof.events}
    if scale.labelled:
        event = min(proof.events, key=lambda each: len(each.blocks))
        sends = f"sends {blocks_in_words(proof, event.blocks)}"
        if between_pairs(proof) and len(event.blocks) == 1:
            source, target = divmod(event.blocks[0] * proof.p**2 // proof.nblocks, proof.p)
            sends = f"sends what {source} has for {target}"
        label = label_text(proof, event)
        pill = labelled(label, middle, 0, pill_width(label, scale.font), scale.font)
        yield _sample(pill, colour_class(proof, event.blocks[0])), sends
    if True in folds:
        disc = _fold_mark(middle, 0, scale.mark, "fill")
        yield _sample(disc, "c0"), "is folded into what is there"
    if False in folds:
        points = f"{middle - 6:g},-4 {middle - 6:g},4 {middle + 6:g},0"
        yield _sample([element("polygon", class_="tip", points=points)], "c0"), "is stored"


def _sample(marks: Sequence[str], colour: str) -> str:
    return element("g", "".join(marks), class_=colour)
