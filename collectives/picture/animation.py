"""An algorithm as an animation: ranks in a circle, their blocks, and messages between them.

CSS moves the messages, so that a page may show the file as an image. Readers who have asked their
system for less motion, and programs without CSS animations, see the contents after the last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import cos, pi, sin

from collectives.errors import ArgumentError
from collectives.picture.held import Cell, CellRange, cell_text, content
from collectives.picture.messages import label_text, labelled, message_text, pill_width
from collectives.picture.sheet import (
    GAP,
    Part,
    colour_class,
    element,
    text_at,
    tooltip,
)
from collectives.picture.text import block_text
from collectives.plans.proof import Proof
from collectives.plans.replay import Event
from collectives.text.words import count

MOST_RANKS, MOST_BLOCKS = 8, 16
APART = 72, 48  # room for messages between neighbouring ranks, in x and y
START, STEP, MOVE, END = 1.0, 1.5, 0.9, 3.0  # seconds: at rest, each step, its messages, at rest
FONT = 12
NAME = 18  # the height of the name of a rank
NUMBERS = 15  # and of the numbers of its blocks


class Stage:
    """The places of ranks and blocks, and the times of steps."""

    def __init__(self, proof: Proof) -> None:
        self.proof, self.cell = proof, Cell.of(proof.p, proof.nblocks)
        self.head = NAME + (NUMBERS if proof.nblocks > 1 else 0)
        self.wide = max(52, self.cell.wide * proof.nblocks)
        self.high = self.head + self.cell.high
        self.corners = self._corners()
        self.seconds = START + proof.depth * STEP + END

    def _corners(self) -> list[tuple[float, float]]:
        """Return the upper left corners of the ranks, on the smallest ellipse with enough room."""
        p = self.proof.p
        x_apart, y_apart = self.wide + APART[0], self.high + APART[1]
        radius = 0
        while True:
            angles = [pi * (2 * r - 1) / p - pi / 2 for r in range(p)]
            found = [(1.8 * radius * cos(angle), radius * sin(angle)) for angle in angles]
            if all(
                abs(a[0] - b[0]) >= x_apart or abs(a[1] - b[1]) >= y_apart
                for a, b in combinations(found, 2)
            ):
                left, top = (min(each[k] for each in found) for k in (0, 1))
                return [(x - left, y - top) for x, y in found]
            radius += 4

    def place(self, rank: int, block: int) -> tuple[float, float]:
        """Return the upper left corner of a block on a rank."""
        x, y = self.corners[rank]
        return x + block * self.cell.wide, y + self.head

    def rules(self) -> Iterator[str]:
        """Write the animation of each step as CSS."""
        yield ".collectives .moving, .collectives .caption { opacity: 0; }"
        yield f".collectives .caption.at{self.proof.depth} {{ opacity: 1; }}"
        yield "@media (prefers-reduced-motion: no-preference) {"
        kinds = "moving", "caption", "shown"
        yield ", ".join(f".collectives .{each}" for each in kinds)
        yield f"{{ animation: {self.seconds:g}s infinite; }}"
        yield ", ".join(f".collectives:hover .{each}" for each in kinds)
        yield "{ animation-play-state: paused; }"
        for step in range(self.proof.depth + 1):
            start = START + (step - 1) * STEP if step else 0
            land = start + MOVE if step else 0
            end = START + step * STEP if step < self.proof.depth else self.seconds
            if step:
                yield from self._keyframes("moving", step, start, land)
            yield from self._keyframes("caption", step, start, end)
            yield from self._keyframes("shown", step, land, self.seconds)
        yield "}"

    def _keyframes(self, kind: str, step: int, start: float, end: float) -> Iterator[str]:
        """Show elements of a kind from `start` to `end`, and move them if they are messages."""
        # A page may contain several animations, whose keyframes share one space of names.
        name = f"collectives-{self.proof.depth}-{kind}-{step}"
        first, last = 100 * start / self.seconds, 100 * end / self.seconds
        moved = " transform: translate(var(--x), var(--y));" if kind == "moving" else ""
        still = " transform: none;" if kind == "moving" else ""
        frames = [f"{first:.2f}% {{ opacity: 1;{still} }}"]
        if first:
            frames.insert(0, f"0%, {first - 0.01:.2f}% {{ opacity: 0;{still} }}")
        shown = last if last == 100 else last - 0.01
        frames.append(f"{shown:.2f}% {{ opacity: 1;{moved} }}")
        if last < 100:
            frames.append(f"{last:.2f}%, 100% {{ opacity: 0;{moved} }}")
        yield f"@keyframes {name} {{ {' '.join(frames)} }}"
        yield f".collectives .{kind}.at{step} {{ animation-name: {name}; }}"


def stage(proof: Proof) -> Stage:
    """Return the places and times of an animation; raise if there is no room for it."""
    if proof.p > MOST_RANKS or proof.nblocks > MOST_BLOCKS:
        raise ArgumentError(
            f"an animation has room for {MOST_RANKS} ranks with {MOST_BLOCKS} blocks, and this "
            f"algorithm has {count(proof.p, 'rank')} with {count(proof.nblocks, 'block')}"
        )
    return Stage(proof)


def scene(on: Stage, room: float = 0) -> Part:
    """Draw the ranks, the contents of their blocks after each step, and the messages."""
    proof = on.proof
    width = max(x for x, _ in on.corners) + on.wide
    height = max(y for _, y in on.corners) + on.high + GAP + 12
    lines = [*_links(on)]
    for r, (x, y) in enumerate(on.corners):
        lines.append(element("rect", class_="ground", x=x, y=y, width=on.wide, height=on.high))
        lines.append(text_at(f"rank {r}", x + 1, y + NAME - 6))
        if on.head > NAME:
            for b in range(proof.nblocks):
                middle = x + (b + 0.5) * on.cell.wide
                lines.append(text_at(block_text(proof, b), middle, y + on.head - 4, class_="step"))
    lines += _contents(on)
    lines += [_message(on, event) for event in proof.events]
    for step in range(proof.depth + 1):
        text = f"step {step} of {proof.depth}" if step else "start"
        lines.append(text_at(text, 0, height, class_=f"caption at{step}"))
    return Part(width, height, lines)


def _links(on: Stage) -> Iterator[str]:
    """Draw a line between ranks that exchange messages."""
    pairs = {(min(each[1:3]), max(each[1:3])) for each in on.proof.events}
    for pair in sorted(pairs):
        (x1, y1), (x2, y2) = (on.corners[rank] for rank in pair)
        x, y = on.wide / 2, on.head + on.cell.high / 2
        yield element("line", class_="lane", x1=x1 + x, y1=y1 + y, x2=x2 + x, y2=y2 + y)


def _contents(on: Stage) -> Iterator[str]:
    """Draw the contents of each block where they change, later ones above earlier ones."""
    proof = on.proof
    before: Sequence[Sequence[int]] = [[-1] * proof.nblocks for _ in range(proof.p)]
    for step in range(proof.depth + 1):
        now = proof.held(step)
        for rank in range(proof.p):
            for b in range(proof.nblocks):
                mask, due = now[rank][b], proof.due(rank, b)
                if mask == before[rank][b]:
                    continue
                run = CellRange(rank, b, b, mask, due, False)
                x, y = on.place(rank, b)
                drawn = on.cell.box("slot empty", x, y)
                if mask:
                    drawn += "".join(content(proof.p, run, x, y, on.cell))
                    drawn = tooltip(cell_text(proof, step, run)) + drawn
                kind = f"cell shown at{step} {colour_class(proof, b)}"
                yield element("g", drawn, class_=kind)
        before = now


def _message(on: Stage, event: Event) -> str:
    proof = on.proof
    text = label_text(proof, event)
    wide = pill_width(text, FONT)
    (x1, y), (x2, _) = (on.place(event.source, b) for b in (event.blocks[0], event.blocks[-1]))
    middle = (x1 + x2 + on.cell.wide) / 2, y + on.cell.high / 2
    (sx, sy), (tx, ty) = on.corners[event.source], on.corners[event.target]
    return element(
        "g",
        tooltip(message_text(proof, event)) + "".join(labelled(text, *middle, wide, FONT)),
        class_=f"moving at{event.time} {colour_class(proof, event.blocks[0])}",
        style=f"--x: {tx - sx:.0f}px; --y: {ty - sy:.0f}px",
    )
