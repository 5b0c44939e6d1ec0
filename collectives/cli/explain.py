"""``collectives explain``: prove an algorithm, and draw its messages."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collectives.algorithms import Algorithm, get
from collectives.algorithms.schedule import exceeds
from collectives.choice import profile, select
from collectives.cli import arguments
from collectives.errors import ArgumentError
from collectives.picture.text import drawing
from collectives.plans.proof import check
from collectives.text import files
from collectives.text.words import time_text

# Each message takes a few lines of text, and half a millisecond in the proof.
MESSAGES = 20_000


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="prove an algorithm, and draw its messages",
        description="Prove an algorithm on n ranks, and draw its messages, and the contributions "
        "that each rank holds after each step.",
    )
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM|FILE",
        help="a name such as ring, kary:8 or broadcast/tree, or a file: " + arguments.FILES,
    )
    arguments.add_place(parser)
    parser.add_argument(
        *("-b", "--bytes"),
        type=arguments.nbytes,
        metavar="SIZE",
        help="also print which algorithm is chosen for this size in bytes; if blocks depend on the "
        "size, draw those of this size (default: of 1M)",
    )
    parser.add_argument(
        "--svg",
        metavar="FILE.svg",
        nargs="?",
        const="",
        help="also write a picture to this SVG file",
    )
    parser.add_argument(
        "--png",
        metavar="FILE.png",
        nargs="?",
        const="",
        help="also write a picture to this PNG file (needs resvg-py)",
    )
    parser.add_argument(
        "--theme",
        choices=["light", "dark"],
        help="colours of the picture (default: both in an SVG, light in a PNG)",
    )
    parser.add_argument(
        "--animate",
        action="store_true",
        help="let the messages of the SVG move, also where a page shows it as an image (at most 8 "
        "ranks and 16 blocks)",
    )
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the drawing."""
    arguments.load(options.load)
    collective, name, others = arguments.resolve(options.algorithm)
    row, n = arguments.placed(get(collective, name), options)
    groups, root = options.groups, options.root
    sized = row if options.bytes is None else row.at(n, options.bytes)
    if exceeds(sized, n, root, MESSAGES):
        raise ArgumentError(
            f"{sized.title(n, root)} sends more than {MESSAGES} messages, too many to prove and to "
            f"read; collectives simulate goes to thousands of ranks"
        )
    written = _pictures(options, sized, n)
    print(drawing(collective, name, n, root, groups, options.bytes))
    if options.bytes is not None:
        print()
        print(_decisions(row, n, options.bytes))
    if others:
        more = " or ".join(f"collectives explain {each}/{name}" for each in others)
        print(f"\nOther collectives have an algorithm {name!r}: {more}")
    if written:
        print(f"\nThe picture is in {' and '.join(written)}")
    return 0


def _pictures(options: argparse.Namespace, row: Algorithm, n: int) -> list[str]:
    """Write the requested pictures; return their files."""
    paths = {each: getattr(options, each) for each in ("svg", "png")}
    wanted = {each: path for each, path in paths.items() if path is not None}
    if options.theme and not wanted:
        raise ArgumentError(f"--theme {options.theme} is for --svg and --png, and there is neither")
    if options.animate and "svg" not in wanted:
        raise ArgumentError("--animate is for --svg, and there is none")
    for kind, path in wanted.items():
        if not path:
            raise ArgumentError(f"--{kind} needs the name of a file, such as {row.name}.{kind}")
        if Path(path).suffix.lower() != f".{kind}":
            raise ArgumentError(
                f"--{kind} {path}: the picture is {'an SVG' if kind == 'svg' else 'a PNG'}, so the "
                f"name must end in .{kind}"
            )
    if not wanted:
        return []
    from collectives import picture

    proof = check(row, p=n, root=options.root)
    text = picture.picture(proof, theme=options.theme)
    moving = picture.animation(proof, theme=options.theme) if options.animate else text
    data = {"svg": moving.encode()}
    if "png" in wanted:
        data["png"] = picture.png(text)
    for kind, path in wanted.items():
        with arguments.writing(f"--{kind}", path):
            files.write(path, data[kind])
    return list(wanted.values())


def _decisions(row: Algorithm, n: int, size: int) -> str:
    """Return the execution of the algorithm at this size, and the choice for it."""
    file = profile.path()
    known = None if file is None else profile.read(file)
    section = None if known is None else known.section("shm", "", "one")
    parameters = None if section is None else section.model(n)
    asked, chosen = (
        select.decide(
            row.collective.name,
            each,
            p=n,
            nbytes=size,
            profile=section,
            family="shm" if row.groups is None else "other",
            parameters=parameters,
            groups=row.groups,
        )
        for each in (row.name, None)
    )
    text = f"{asked}\n\nWithout algorithm=: {chosen.algorithm.name}, {chosen.reason}."
    learned = section and section.learned_of(row.collective.name, n, size.bit_length(), False)
    if learned and learned.default == chosen.algorithm.key:
        name = select.setting(learned.algorithm, learned.segment, learned.ways, size)
        text += f"\nPrograms have learned: {name}, {time_text(learned.seconds)}."
    return text
