"""``collectives explain``: draw an algorithm at work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collectives import draw, profile, select
from collectives.algorithms import get, names
from collectives.check import check
from collectives.cli import arguments
from collectives.errors import ArgumentError
from collectives.spec import COLLECTIVES

__all__ = ["add_parser", "resolve"]


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="draw an algorithm at work",
        description="Prove an algorithm on n ranks, and draw its messages and who holds what.",
    )
    parser.add_argument("algorithm", help="a name such as ring, kary:8 or broadcast/tree")
    parser.add_argument(
        "-n", "--ranks", type=arguments.positive, default=4, help="number of ranks (default: 4)"
    )
    parser.add_argument("--root", type=int, default=0, help="root of a rooted collective")
    parser.add_argument(
        "--bytes",
        type=arguments.nbytes,
        metavar="SIZE",
        help="say what is chosen at this size, too",
    )
    parser.add_argument(
        "--svg", metavar="FILE.svg", help="draw it as a picture, too, and write that here"
    )
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def resolve(text: str) -> tuple[str, str, list[str]]:
    """Find an algorithm by name. Local.

    Returns
    -------
    collective, name : str
    others : list of str
        Other collectives with an algorithm of this name.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    collective, slash, name = text.rpartition("/")
    if slash:
        return collective, get(collective, name).name, []
    found = [each for each in COLLECTIVES if name.partition(":")[0] in names(each)]
    if not found:
        known = ", ".join(dict.fromkeys(name for each in COLLECTIVES for name in names(each)))
        raise ArgumentError(f"there is no algorithm {text!r}; there are: {known}")
    return found[0], get(found[0], name).name, found[1:]


def main(options: argparse.Namespace) -> int:
    """Print the drawing."""
    arguments.load(options.load)
    collective, name, others = resolve(options.algorithm)
    n, root = options.ranks, options.root
    if not 0 <= root < n:
        raise ArgumentError(f"--root is {root}, and must be from 0 to {n - 1}")
    if root and not COLLECTIVES[collective].rooted:
        raise ArgumentError(f"--root is {root}, but {collective} has no root")
    if options.svg:
        _write(options.svg, collective, name, n, root)
    print(draw.drawing(collective, name, n, root))
    if options.bytes is not None:
        print()
        print(_decisions(collective, name, n, options.bytes))
    if others:
        more = " or ".join(f"collectives explain {each}/{name}" for each in others)
        print(f"\nOther collectives have an algorithm {name!r}: {more}")
    if options.svg:
        print(f"\nThe picture is in {options.svg}")
    return 0


def _write(path: str, collective: str, name: str, n: int, root: int) -> None:
    """Write the picture."""
    from collectives import picture

    if Path(path).suffix.lower() != ".svg":
        raise ArgumentError(f"--svg {path}: the picture is an SVG, so the name must end in .svg")
    text = picture.picture(check(collective, name, p=n, root=root))
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--svg {path}: {error}") from error


def _decisions(collective: str, name: str, n: int, size: int) -> str:
    """Say how the algorithm runs at this size, and what would be chosen."""
    file = profile.path()
    known = None if file is None else profile.read(file)
    section = None if known is None else known.section("shm", "", 1)
    parameters = None if section is None else section.model(n)
    asked, chosen = (
        select.decide(collective, each, p=n, nbytes=size, profile=section, parameters=parameters)
        for each in (name, None)
    )
    return f"{asked}\n\nWithout algorithm=: {chosen.algorithm.name}, {chosen.reason}."
