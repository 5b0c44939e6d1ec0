"""``collectives synthesize``: search for an algorithm for a machine, and write it to a file."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.cli import arguments
from collectives.errors import ArgumentError
from collectives.text import files
from collectives.text.progress import Bar
from collectives.text.words import count, shown, size_text, time_text

if TYPE_CHECKING:
    from collectives.synthesis.exact import Exact
    from collectives.synthesis.search import Found, Search


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    from collectives.simulation import topology_text

    parser = commands.add_parser(
        "synthesize",
        help="search for an algorithm for a given network",
        description="Search for an algorithm on a simulated network, compare it with a lower "
        "bound of the time, and write it to a file that check, simulate, explore, bench and "
        "your programs take. With --exact, a solver finds the fewest bytes for each number of "
        "rounds, on up to 9 ranks.",
    )
    parser.add_argument(
        "collective", help="allreduce, allgather, reduce_scatter, broadcast or reduce"
    )
    parser.add_argument(
        "--topology",
        default="flat",
        metavar="TEXT",
        help=f"{topology_text.HELP} (default: flat)",
    )
    parser.add_argument(
        "-p",
        "--ranks",
        type=arguments.positive,
        required=True,
        metavar="N",
        help="number of ranks",
    )
    parser.add_argument(
        "-b",
        "--bytes",
        type=arguments.nbytes,
        default=64 << 20,
        metavar="SIZE",
        help="bytes of the whole array (default: 64M)",
    )
    parser.add_argument(
        "--root", type=int, default=0, help="root of a rooted collective (default: 0)"
    )
    parser.add_argument(
        "--seconds",
        type=arguments.positive,
        default=60,
        metavar="S",
        help="start no further candidate after this many seconds (default: 60)",
    )
    _add_exact(parser)
    parser.add_argument(
        "--name", help="the name of the algorithm (default: synthesized)", default="synthesized"
    )
    parser.add_argument(
        "--out", metavar="FILE.py", help="the file to write (default: COLLECTIVE_RANKS.py)"
    )
    parser.set_defaults(main=main)


def _add_exact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exact",
        action="store_true",
        help="print the fewest bytes that a rank sends, for each number of rounds, with a proof; "
        "at most 9 ranks, all links alike",
    )
    parser.add_argument(
        "--blocks",
        type=arguments.positive,
        metavar="N",
        help="with --exact, blocks of the array of a broadcast or reduce (default: 4), or of each "
        "rank's part of another array (default: 1)",
    )


def main(options: argparse.Namespace) -> int:
    """Search, print, and write the file."""
    from collectives.simulation import graph

    needed = ("ortools", "exact") if options.exact else ("scipy", "synthesize")
    if find_spec(needed[0]) is None:
        raise ArgumentError(
            f"{'an exact' if options.exact else 'a'} search needs {needed[0]}, which is not "
            f"installed; pip install 'collectives-mpi[{needed[1]}]' installs it"
        )
    if options.blocks and not options.exact:
        raise ArgumentError("--blocks is an option of --exact; the search without it tries several")
    from collectives.synthesis import exact, matrices
    from collectives.synthesis.search import Search

    network = graph.machine(options.topology)
    # Check this before anything is made for so many ranks.
    (exact if options.exact else matrices).check_ranks(options.ranks)
    path = options.out or f"{options.collective}_{options.ranks}.py"
    _check_names(options.name, path)
    topology = network.make(options.ranks)
    asked = options.collective, topology, options.bytes, options.root, options.seconds
    search = exact.Exact(*asked, options.blocks) if options.exact else Search(*asked)
    bar = Bar(sys.stderr.isatty())
    status = 0
    try:
        search.run(bar.show)
    except KeyboardInterrupt:
        status = 130
    bar.clear()
    if status:
        print("The search was stopped." + (" This is the best so far." if search.best else ""))
    for line in _report(search, options):
        print(line)
    if search.best is not None:
        with arguments.writing("--out", path):
            files.write(path, _text(search, search.best, options, path))
        print(f"The algorithm is in {path}")
    return status


def _check_names(name: str, path: str) -> None:
    """Refuse names and files that could not be written after the search."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise ArgumentError(
            f"--name is {shown(name)}, and must have letters, digits and any of _ . - only"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise ArgumentError(f"--out is {path}, and there is no folder {folder}")


def _report(search: Search, options: argparse.Namespace) -> list[str]:
    from collectives.synthesis.exact import Exact

    place = f", root {options.root}" if search.contract.rooted else ""
    lines = [
        f"{options.collective} of {size_text(options.bytes)} on {count(options.ranks, 'rank')}"
        f"{place}, {options.topology}"
    ]
    if isinstance(search, Exact):
        lines += _front(search)
    if search.bound is not None:
        lines.append(f"  bound    {search.bound}")
    if search.best is not None:
        best = search.best
        segment = f", in segments of {size_text(best.segment)}" if _cut(search, best) else ""
        lines.append(
            f"  found    {time_text(best.seconds, 4)}{_times(search, best.seconds)}: "
            f"{best.how}{segment}; proven"
        )
    if search.shipped is not None:
        seconds, name = search.shipped
        skipped = len(search.left_out)
        left = f", without {skipped} that take long to simulate" if skipped else ""
        lines.append(
            f"  library  {time_text(seconds, 4)}{_times(search, seconds)}: {name} is the fastest "
            f"of {search.tried}{left}"
        )
    return lines


def _front(search: Exact) -> list[str]:
    """Return the table of the front, and the conditions of its numbers."""
    blocks, size = search.blocks, search.nbytes
    lines = []
    if search.points:
        heads = f"{f'of {blocks} blocks':>14}  {'bytes':>10}  {'simulated':>10}"
        lines.append(f"  rounds  {heads}  kind")
    for point in search.points:
        kind = "optimal" if point.optimal else "best within the time"
        sent = size_text(size * point.sent / blocks)
        lines.append(
            f"  {point.rounds:>6}  {point.sent:>14}  {sent:>10}  "
            f"{time_text(point.seconds, 4):>10}  {kind}"
        )
    if search.least:
        least = size_text(size * search.least / blocks)
        lines.append(f"  any number of rounds: at least {least}")
    if search.both:
        lines.append("  a reduce_scatter and an allgather; one that is no such pair may need less")
    if search.open:
        rounds = ", ".join(map(str, sorted(search.open))) + " and more" * search.ended
        lines.append(f"  the time was too short to decide on rounds: {rounds}")
    return lines


def _cut(search: Search, found: Found) -> bool:
    """Return whether blocks are cut into segments."""
    each = search.contract.per_array(search.p) * found.blocks
    return found.segment < -(-search.nbytes // each)


def _times(search: Search, seconds: float) -> str:
    from collectives.synthesis.search import MEET

    if search.bound is None:
        return ""
    if not search.bound.seconds:
        return ", without a bound"
    ratio = seconds / search.bound.seconds
    return ", optimal" if ratio <= 1 + MEET else f", {ratio:.3f} times the bound"


def _text(search: Search, found: Found, options: argparse.Namespace, path: str) -> str:
    """Return the text of the file."""
    from collectives.synthesis.text import program

    file, size = Path(path).name, options.bytes
    where = f"--topology {options.topology} -p {options.ranks} -b {size}"
    cut = f" --segment {found.segment}" if _cut(search, found) else ""
    root = f" --root {options.root}" if search.contract.rooted else ""
    return program(
        search.contract,
        options.name,
        found.rounds,
        found.blocks,
        options.root,
        "\n".join(_report(search, options)),
        f"{found.how[0].upper()}{found.how[1:]}.",
        [
            f"collectives explain {file} -n {options.ranks}",
            f"collectives simulate {file} {where}{cut}{root}",
            f"collectives bench {options.collective} --load {file} --algorithm {options.name}",
        ],
    )
