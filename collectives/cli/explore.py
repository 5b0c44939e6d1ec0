"""``collectives explore``: an HTML page to step through algorithms."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from collectives.algorithms import get
from collectives.algorithms.registry import split
from collectives.cli import arguments
from collectives.errors import ArgumentError
from collectives.text import files


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explore",
        help="step through algorithms in a browser",
        description="Write pages that play every algorithm on 1 to 16 ranks, and some on 64, with "
        "example numbers, times and the source text, and open one in a browser. The pages are a "
        "folder of files, and need no network.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="allreduce/ring",
        metavar="ALGORITHM[,ALGORITHM]|FILE",
        help="the algorithm to show first: a name such as ring or broadcast/tree, or a file "
        "(FILE.py, FILE.py:NAME or FILE.xml, see collectives explain); two of a collective are "
        "shown side by side: ring,butterfly (default: %(default)s)",
    )
    parser.add_argument(
        "-n", "--ranks", type=arguments.positive, default=4, help="number of ranks (default: 4)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write the pages to this folder, and do not open them",
        type=Path,
    )
    parser.add_argument(
        "--course",
        action="store_true",
        help="open the course, a page on which the reader predicts how algorithms work; until "
        "Ctrl-C, a local process proves the algorithms that the reader writes",
    )
    parser.add_argument(
        "--pyodide",
        metavar="DIR",
        type=Path,
        help="the folder of npm's package pyodide, with which the page of the course proves "
        "algorithms in the browser; for --course, and for --out with a web server",
    )
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Write the page, and open it."""
    from collectives.explorer import page

    arguments.load(options.load)
    first, *others = split(options.what)
    if len(others) > 1:
        raise ArgumentError(f"{options.what} has {len(others) + 1} names, and the page shows two")
    collective, algorithm, _ = arguments.resolve(first, one=False)  # the page shows all of a file
    opening = f"{collective}/{algorithm}"
    beside = f"{collective}/{get(collective, others[0].rpartition('/')[2]).name}" if others else ""
    if others and others[0].rpartition("/")[0] not in ("", collective):
        raise ArgumentError(f"{others[0]} is not of {collective}, as {algorithm} is")
    if options.pyodide is not None and not (options.course or options.out):
        raise ArgumentError("--pyodide needs --course or --out: a page from a disk runs no Python")
    name = "course.html" if options.course else "index.html"
    if options.out is not None:
        index = page.write(options.out, opening, options.ranks, beside, options.pyodide)
        index = index.with_name(name)
        print(f"The page is {index}; open it in a browser, or put its folder on a web server.")
        return 0
    # Check this first: a new folder would remain after an error.
    page.refuse(opening, options.ranks)
    if options.course:
        with tempfile.TemporaryDirectory(prefix="collectives-course-") as folder:
            pages = Path(folder, "pages")
            serve(page.write(pages, opening, options.ranks, beside, options.pyodide).parent)
        return 0
    folder = tempfile.mkdtemp(prefix="collectives-explore-")
    index = page.write(folder, opening, options.ranks, beside)
    print(f"The page is {index}", flush=True)
    if not (has_screen() and page.show(index)):
        print(
            "No browser was found. Copy the folder to a machine that has one; or look from there "
            f"through a tunnel:\n  here   python -m http.server -b localhost -d {index.parent} 8000"
            "\n  there  ssh -L 8000:localhost:8000 THIS_MACHINE, and open http://localhost:8000"
        )
    elif Path("/snap").is_dir():
        print("If the browser does not find it (one that is a snap sees no /tmp): use --out DIR.")
    return 0


def serve(folder: Path) -> None:
    """Serve the course, and check the texts of its reader, until Ctrl-C. Local."""
    from collectives.explorer import page
    from collectives.explorer.serving import HOST, Server

    with Server(folder) as server:
        print(f"The course is at {server.url}\nIt ends with Ctrl-C.", flush=True)
        # All users of the machine can read the words of a command, so the browser's contain no
        # token.
        door = folder.with_name("open.html")
        files.write(door, f'<meta http-equiv="refresh" content="0; url={server.url}">\n')
        if has_screen() and page.show(door):
            if Path("/snap").is_dir():
                print("If the browser finds no file (a snap sees no /tmp), open that address.")
        else:
            port = server.server_address[1]
            print(
                "No browser was found. On a machine that has one, make a tunnel, and open the "
                f"address there:\n  ssh -L {port}:{HOST}:{port} THIS_MACHINE",
                flush=True,
            )
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def has_screen() -> bool:
    """Return whether a browser can open a window; browsers in terminals run no scripts. Local."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
