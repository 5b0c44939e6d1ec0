"""The drawings of the page on shared memory, made from programs that run when docs are built.

The ring is drawn from the positions that the core computes, and the traffic of an allreduce from
its program.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectives import _core, algorithms
from collectives.plans import program
from collectives.plans.lending import SLOT
from collectives.plans.rounds import IN
from collectives.plans.schedule import compile
from collectives.text.words import size_text

FOLDER = "background"
RING = 64 << 10  # bytes of the drawn ring
COLUMN = 1 << 10  # bytes of one of its columns
PAGES = 8 << 10, 16 << 10, 8 << 10, 16 << 10, 16 << 10, 8 << 10, 16 << 10, 4 << 10  # bytes of each


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir, FOLDER)))
    return {"parallel_read_safe": True}


def write(folder: Path) -> None:
    """Write the drawings; leave those alone that are the same already."""
    for name, lines in (("ring", ring()), ("traffic", traffic())):
        file = folder / f"shared_memory_{name}.txt"
        text = "\n".join(lines) + "\n"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def ring() -> Iterator[str]:
    """Draw where the pages of some operations lie, one below the other."""
    places = _core.ring_places(1 << 20, RING, [(1, nbytes) for nbytes in PAGES])
    column, whole = size_text(COLUMN), size_text(RING)
    yield f"page  bytes    the ring, {column} a column; it comes round after {whole}"
    before = 0
    for page, (start, end, needs) in enumerate(places):
        bar = "." * (start // COLUMN) + "#" * ((end - start) // COLUMN)
        waits = ""
        if needs > before:
            waits = f"  waits until all ranks have finished page {needs - 1}"
            before = needs
        yield f"{page:4d}  {size_text(end - start):7s}  {bar:.<{RING // COLUMN}}{waits}"


def traffic() -> Iterator[str]:
    """Draw the steps of a two-shot allreduce on two ranks, with arrays in private memory and in
    shared memory."""
    for title, lend in (("private arrays", False), ("shared arrays", True)):
        yield f"{title}:"
        reads = writes = 0
        for rank in range(2):
            for text, read, written in steps(rank, lend):
                yield f"  rank {rank}  {text}"
                if rank == 0:
                    reads, writes = reads + read, writes + written
        yield f"  each rank reads {reads} halves of the array, and writes {writes}"
        yield ""


def steps(rank: int, shared: bool) -> Iterator[tuple[str, int, int]]:
    """Return the steps of a rank that touch memory, with how many blocks they read and write."""
    plan = compile(algorithms.get("allreduce", "round_robin"), 2, rank)
    made = program.pack(plan, whole=True, local=range(2), lend=shared)
    other = 1 - rank
    for step in made.steps:
        operands = made.operands[step.operand : step.operands_end]
        sources = [source(rank, other, each, shared) for each in operands]
        targets = [f"out{rank}[{step.dst}]"] if step.dst_space != program.NOWHERE else []
        targets += [f"out{other}[{step.dst}]"] * (step.pushes_end - step.push)
        if step.publication >= 0 and not (shared and step.lends):
            targets.append(f"ring of rank {rank}")
        copied = shared and len(operands) == 1 and operands[0].space == SLOT
        if targets and not copied:
            verb = " + ".join(sources)
            yield f"{verb} -> {', '.join(targets)}", len(sources), len(targets)


def source(rank: int, other: int, operand: program.OperandRow, shared: bool) -> str:
    """Name the memory that an operand is read from."""
    if operand.space == SLOT:
        return f"x{other}[{rank}]" if shared else f"ring of rank {other}"
    return f"{'x' if operand.space == IN else 'out'}{rank}[{operand.first}]"
