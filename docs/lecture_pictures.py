"""The pictures of the lecture, as SVG and PDF: ``python docs/lecture_pictures.py FOLDER``.

Algorithms are drawn from their proofs; two programs draw what they compute, if matplotlib is
installed; measured pictures are those of the manual. Chromium, if there is one, prints each to a
PDF file of its size, and all of them to ``pictures.pdf``, a page each.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import handout

from collectives.check import check
from collectives.picture import space_time

ROOT = Path(__file__).resolve().parents[1]

# Collective, algorithm, file.
DRAWN = (
    ("allreduce", "all_to_all", "all_to_all"),
    ("allreduce", "master_worker", "master"),
    ("allreduce", "tree", "tree"),
    ("allreduce", "round_robin", "round_robin"),
    ("allreduce", "butterfly", "butterfly"),
    ("allreduce", "ring", "ring"),
    ("barrier", "dissemination", "barrier"),
    ("alltoall", "pairwise", "alltoall"),
)
MEASURED = {
    "servers.svg": "research/servers.svg",
    "staleness.svg": "research/servers_staleness.svg",
    "compression.svg": "training/compression.svg",
    "overlap.svg": "training/overlap.svg",
    "layers.svg": "learn/rnn.svg",
    "learning.svg": "learn/accuracy.svg",
    "throughput.svg": "learn/throughput.svg",
}
# With matplotlib.
COMPUTED = {
    "pi.svg": "run --no-mpi -n 4 examples/pi.py --points 200000 --plot",
    "who_wins.svg": "simulate ring,butterfly,tree,master_worker -p 16 -b 8..32M --plot",
}
PAPER = (
    "<style>@page { size: A4 landscape; margin: 12mm } body { margin: 0 } img { display: block; "
    "margin: auto; width: 100%; height: 180mm; object-fit: contain; page-break-after: always } "
    "img:last-child { page-break-after: auto }</style>"
)


def write(folder: Path) -> Iterator[str]:
    """Write the pictures; yield a line for each, or with the reason why it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for collective, algorithm, name in DRAWN:
        text = space_time(check(collective, algorithm, p=4))
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
        names.append(f"{name}.svg")
    for name, file in MEASURED.items():
        shutil.copy(ROOT / "docs" / file, folder / name)
        names.append(name)
    (folder / "handout.svg").write_text(handout.handout(), encoding="utf-8")
    for name, command in COMPUTED.items():
        words = [
            sys.executable,
            "-m",
            "collectives",
            *command.split(),
            str(folder.resolve() / name),
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
        if (folder / name).exists():
            names.append(name)
        else:
            yield f"no {name}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
    names.append("handout.svg")
    yield from names
    if handout.CHROMIUM is None:
        yield "no PDF files: Chromium, which prints them, is not installed"
        return
    for name in names:
        drawn = (folder / name).read_text(encoding="utf-8")
        handout.print_page(_page_of(drawn), (folder / name).with_suffix(".pdf"))
    body = "".join(f'<img src="{(folder / name).resolve().as_uri()}" alt="">' for name in names)
    handout.print_page(f"<!DOCTYPE html>{PAPER}{body}", folder / "pictures.pdf")
    yield "pictures.pdf"


def _page_of(drawn: str) -> str:
    """Return a page of HTML that has the size of a picture, and only shows it."""
    drawn = drawn[drawn.index("<svg") :]  # HTML has no XML declaration
    head = drawn[: drawn.index(">")]
    size = [re.search(rf'\s{each}="([\d.]+)(pt|px)?"', head) for each in ("width", "height")]
    wide, high = (f"{each[1]}{each[2] or 'px'}" for each in size if each)
    style = (
        f"@page {{ size: {wide} {high}; margin: 0 }} body {{ margin: 0 }} svg {{ display: block }}"
    )
    return f"<!DOCTYPE html><style>{style}</style>{drawn}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    for line in write(Path(sys.argv[1])):
        print(line)
