"""The handout of the course: five algorithms on a page to print, made when docs are built.

It is an SVG, and where there is Chromium, which prints it, a PDF.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectives.check import check
from collectives.explorer.course import ALGORITHMS
from collectives.picture import space_time

WIDE, HIGH = 1123, 794  # pixels of A4, landscape
ACROSS, DOWN = 3, 2  # places for drawings; the last one is for the table
EDGE, HEAD = 28, 70
RANKS = 4, 16
LEGEND = (
    "sent: messages of all ranks",
    "busiest: arrays through the busiest rank, in and out",
    "time = messages in a row x alpha",
    "+ bytes x beta + bytes added x gamma",
)

PAPER = (
    "<style>@page { size: A4 landscape; margin: 0 } body { margin: 0 } svg { display: block }"
    "</style>"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

STYLE = """<style>
text { font: 13px system-ui, "Helvetica Neue", Helvetica, Arial, sans-serif; }
.handout { fill: #1b1f24; }
.handout.title { font-size: 22px; font-weight: 600; }
.handout.name { font-weight: 600; }
.handout.number { text-anchor: end; }
.handout.small { font-size: 10.5px; }
</style>"""


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx, and write the handout beside the course."""
    folder = Path(app.srcdir, "_extra", "explorer")
    app.connect("builder-inited", lambda app: write(folder))
    if CHROMIUM is not None:
        app.tags.add("handout_pdf")  # the page of the course has a link
    return {"parallel_read_safe": True}


def write(folder: Path) -> None:
    """Write the handout to a folder, as SVG and, if there is Chromium, as PDF."""
    drawn = handout()
    (folder / "handout.svg").write_text(drawn, encoding="utf-8")
    if CHROMIUM is not None:
        print_page(f"<!DOCTYPE html>{PAPER}{drawn}", folder / "handout.pdf")


def print_page(text: str, file: Path) -> None:
    """Print a page of HTML to a PDF file by Chromium."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as name:
        page = Path(name, "page.html")
        page.write_text(text, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={name}/profile"]
        printing = ["--no-pdf-header-footer", f"--print-to-pdf={file.resolve()}"]
        command = [CHROMIUM, *options, *printing, page.as_uri()]
        subprocess.run(command, check=True, timeout=120, capture_output=True)


def handout() -> str:
    """Return the handout as SVG."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
            f'width="{WIDE}" height="{HIGH}">',
            STYLE,
            f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
            _text(EDGE, 44, "title", "Five ways to an allreduce: four ranks add up their arrays"),
            *_drawings(),
            *_table(),
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, kind: str, words: object) -> str:
    return f'<text class="handout {kind}" x="{x:g}" y="{y:g}">{words}</text>'


def _corner(place: int) -> tuple[float, float]:
    """Return where a place begins."""
    row, column = divmod(place, ACROSS)
    return EDGE + column * (WIDE - EDGE) / ACROSS, HEAD + row * (HIGH - HEAD) / DOWN


def _drawings() -> Iterator[str]:
    wide, high = (WIDE - EDGE) / ACROSS - EDGE, (HIGH - HEAD) / DOWN - EDGE
    for place, name in enumerate(ALGORITHMS):
        x, y = _corner(place)
        drawn = space_time(check("allreduce", name, p=4))
        size = (
            f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" preserveAspectRatio="xMinYMin"'
        )
        # A drawing has its size behind the box of its view; here it has the size of its place.
        head, _, rest = drawn.partition(">")
        head = head.partition(" width=")[0].replace("<svg", f'<svg {size} data-theme="light"', 1)
        yield f"{head}>{rest}"


def _table() -> Iterator[str]:
    """Draw the counts: steps, messages, and arrays through the busiest rank."""
    left, top = _corner(len(ALGORITHMS))
    columns = [left + 145 + 42 * k for k in range(3 * len(RANKS))]
    for k, p in enumerate(RANKS):
        yield _text(columns[3 * k + 2], top + 40, "name number", f"{p} ranks")
        for x, words in zip(columns[3 * k :], ("steps", "sent", "busiest"), strict=False):
            yield _text(x, top + 62, "number small", words)
    for row, name in enumerate(ALGORITHMS):
        y = top + 88 + 24 * row
        yield _text(left, y, "name", name)
        counted = [words for p in RANKS for words in _counted(name, p)]
        for x, words in zip(columns, counted, strict=True):
            yield _text(x, y, "number", words)
    for row, words in enumerate(LEGEND):
        yield _text(left, top + 224 + 19 * row, "small", words)


def _counted(name: str, p: int) -> tuple[str, str, str]:
    proof = check("allreduce", name, p=p)
    moved = [0.0] * p
    for (source, target), arrays in proof.links.items():
        moved[source] += float(arrays)
        moved[target] += float(arrays)
    return str(proof.depth), str(sum(proof.messages)), f"{max(moved):g}"
