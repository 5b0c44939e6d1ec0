"""The blocks that each rank holds after each step: a row for each rank, a cell for each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collectives.picture.sheet import (
    BASE,
    GAP,
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
from collectives.picture.text import between_pairs, block_text
from collectives.plans.proof import Proof
from collectives.text.words import ranks, spans

MOST = 15_000  # cells of a picture; with more, some steps are left out


class CellRange(NamedTuple):
    """A block on a rank, or adjacent blocks with equal contributors, present and required."""

    rank: int
    first: int
    last: int
    mask: int
    due: int
    new: bool

    @property
    def complete(self) -> bool:
        return self.mask == self.due

    @property
    def share(self) -> float:
        """The part of the required contributions that is present."""
        return (self.mask & self.due).bit_count() / max(1, self.due.bit_count())


class Cell(NamedTuple):
    """The size of a cell; if cells are too narrow to be told apart, runs are drawn instead."""

    wide: float
    high: float

    @classmethod
    def of(cls, p: int, nblocks: int) -> Cell:
        """Return the size of cells in a grid of p ranks. Local."""
        most = 44 if nblocks <= 8 else 26 if p <= 16 else 8
        wide = min(most, max(1, (WIDTH - RANK) // nblocks))
        return cls(wide, 26 if p <= 8 else 20 if p <= 16 else 10)

    @property
    def narrow(self) -> bool:
        return self.wide < 10

    def box(self, kind: str, x: float, y: float, share: float = 1) -> str:
        """Draw a box in the cell, or the lower part of one."""
        high = self.high - 2
        return element(
            "rect",
            class_=kind,
            x=x + 1,
            y=y + 1 + (1 - share) * high,
            width=self.wide - 2,
            height=share * high,
        )


KEY = Cell(*KEY_MARK)


def grids(proof: Proof, room: float = WIDTH) -> Part:
    """Draw the grids of all steps, or of as many as a picture may have, in rows of that width."""
    cell = Cell.of(proof.p, proof.nblocks)
    dues = [[proof.due(r, b) for b in range(proof.nblocks)] for r in range(proof.p)]
    states = [proof.held(time) for time in range(proof.depth + 1)]
    steps = [
        list(_runs(now, before, dues, cell.narrow))
        for before, now in zip(states[:1] + states, states, strict=False)
    ]
    shown = _shown([len(runs) for runs in steps])
    wide = max(52, cell.wide * proof.nblocks)
    columns = max(1, int((room - RANK + GAP) // (wide + GAP)))
    columns = -(-len(shown) // -(-len(shown) // columns))
    head = 40 if cell.wide >= 14 and proof.nblocks > 1 else 22
    tall = head + proof.p * cell.high + 18
    lines: list[str] = []
    for place, time in enumerate(shown):
        row, column = divmod(place, columns)
        x, y = RANK + column * (wide + GAP), row * tall
        if column == 0:
            lines += _names(proof.p, y + head, cell)
        lines.append(text_at(f"step {time}" if time else "start", x, y + 14))
        if head > 22:
            lines += _numbers(proof, x, y + 32, cell)
        lines += _slots(proof, x, y + head, cell)
        lines += [_filled(proof, time, run, x, y + head, cell) for run in steps[time]]
    y = -(-len(shown) // columns) * tall
    width = RANK + columns * (wide + GAP) - GAP
    samples = _samples(proof, [run for time in shown for run in steps[time]], cell)
    marks = key(list(samples), y + KEY.high / 2, max(width, min(room, NARROWEST)))
    lines += marks.elements
    y = marks.height
    if len(shown) < len(steps):
        y += 26
        lines.append(text_at(f"{len(shown)} of {len(steps)} grids are drawn.", 0, y - 7))
    return Part(max(width, marks.width), y, lines)


def _runs(
    now: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    dues: Sequence[Sequence[int]],
    merged: bool,
) -> Iterator[CellRange]:
    """Yield the values after a step, block by block or with equal adjacent blocks as one run."""
    for rank, rows in enumerate(zip(now, before, dues, strict=True)):
        run: CellRange | None = None
        for b, (mask, old, due) in enumerate(zip(*rows, strict=True)):
            if merged and run and (run.mask, run.due) == (mask, due):
                run = run._replace(last=b)
                continue
            if run and run.mask:
                yield run
            run = CellRange(rank, b, b, mask, due, mask != old and not merged)
        if run and run.mask:
            yield run


def _shown(sizes: Sequence[int]) -> list[int]:
    """Choose the steps to draw: all, or the first, the last and some evenly spaced between."""
    for many in range(len(sizes), 2, -1):
        chosen = [k * (len(sizes) - 1) // (many - 1) for k in range(many)]
        if sum(sizes[time] for time in chosen) <= MOST:
            return chosen
    return list(dict.fromkeys([0, len(sizes) - 1]))


def _names(p: int, y: float, cell: Cell) -> Iterator[str]:
    size = f"font-size: {min(12, cell.high):g}px"
    for r in range(p):
        yield text_at(f"rank {r}", 0, y + (r + 0.5) * cell.high + 4, style=size)


def _numbers(proof: Proof, x: float, y: float, cell: Cell) -> Iterator[str]:
    size = f"font-size: {10 if cell.wide >= 24 else 8}px"
    for b in range(proof.nblocks):
        text = block_text(proof, b)
        if len(text) * 8 * LETTER <= cell.wide:
            yield text_at(text, x + (b + 0.5) * cell.wide, y, class_="step", style=size)


def _slots(proof: Proof, x: float, y: float, cell: Cell) -> Iterator[str]:
    """Draw an empty box for each block that a rank must end with, or one for all of them."""
    for r in range(proof.p):
        top = y + r * cell.high
        if cell.narrow:
            yield cell._replace(wide=cell.wide * proof.nblocks + 2).box("shade", x - 1, top)
        else:
            for b in proof.wanted(r):
                yield cell.box("slot", x + b * cell.wide, top)


def _filled(proof: Proof, time: int, run: CellRange, left: float, top: float, cell: Cell) -> str:
    """Draw the contents of a block on a rank, or of a run of equal blocks."""
    blocks = range(run.first, run.last + 1)
    x, y = left + run.first * cell.wide, top + run.rank * cell.high
    title = tooltip(cell_text(proof, time, run))
    if cell.narrow:
        # No colour by block, because too many blocks would share each colour.
        colour = colour_class(proof, run.first) if between_pairs(proof) else "c0"
        row = cell._replace(wide=cell.wide * len(blocks) + 2)
        kind = "fill" if run.complete else "fill share"
        inside = row.box(kind, x - 1, y, 1 if run.complete else run.share)
    else:
        colour = colour_class(proof, run.first)
        inside = "".join(content(proof.p, run, x, y, cell))
    return element("g", title + inside, class_=f"cell {colour}")


def cell_text(proof: Proof, time: int, run: CellRange) -> str:
    """Describe the contents of a block on a rank, or of a run of equal blocks, in words."""
    when = f"after step {time}" if time else "at the start"
    state = "complete" if run.complete else f"{_of(run.mask & run.due, run.due)} contributions"
    now = "now " if run.new else ""
    blocks = blocks_in_words(proof, range(run.first, run.last + 1))
    return f"{when}: rank {run.rank} {now}holds {blocks}, {state}: {ranks(run.mask)}"


def _of(some: int, every: int) -> str:
    return f"{some.bit_count()} of {every.bit_count()}"


def content(p: int, run: CellRange, x: float, y: float, cell: Cell) -> Iterator[str]:
    """Fill a cell to the extent that its block is complete, and name the contributors."""
    middle = x + cell.wide / 2, y + cell.high / 2
    if run.complete:
        unit = min(cell.wide, cell.high) / 6
        path = (
            f"M{middle[0] - 1.3 * unit:.1f} {middle[1]:.1f}"
            f"l{unit:.1f} {unit:.1f}l{1.7 * unit:.1f} {-2 * unit:.1f}"
        )
        yield cell.box("fill", x, y)
        yield element("path", class_="tick", d=path)
    else:
        if run.share:
            yield cell.box("fill share", x, y, run.share)
        listed = spans([r for r in range(p) if run.mask >> r & 1]).replace(" ", "")
        for text in (listed, f"{run.mask.bit_count()}/{p}"):
            if len(text) * 11 * LETTER <= cell.wide - 4:
                yield text_at(text, middle[0], middle[1] + BASE * 11, class_="content")
                break
    if run.new:
        yield cell.box("new", x, y)


def _samples(proof: Proof, runs: Sequence[CellRange], cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield the marks of cells that occur, each with its meaning: samples of this picture."""
    partial = [run for run in runs if not run.complete]
    whole = [run for run in runs if run.complete]
    new = [run for run in (*partial, *whole) if run.new]
    if partial:
        some = min(partial, key=lambda run: abs((run.mask & run.due).bit_count() - 2))
        count = f"{_of(some.mask & some.due, some.due)} contributions"
        yield _sample(proof, some._replace(new=False)), f"{count}: {ranks(some.mask)}"
    if whole:
        yield _sample(proof, whole[0]._replace(new=False)), "complete"
    if new:
        yield _sample(proof, new[0]), "new in this step"
    if not cell.narrow:
        yield element("g", KEY.box("slot", 0, -KEY.high / 2)), "belongs there"


def _sample(proof: Proof, run: CellRange) -> str:
    inside = "".join(content(proof.p, run, 0, -KEY.high / 2, KEY))
    slot = "" if run.complete else KEY.box("slot", 0, -KEY.high / 2)
    return element("g", slot + inside, class_=colour_class(proof, run.first))
