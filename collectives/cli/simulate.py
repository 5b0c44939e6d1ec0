"""``collectives simulate``: the fastest algorithms on a simulated machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Any

from collectives.algorithms import Algorithm, get, names
from collectives.algorithms.registry import split
from collectives.algorithms.spec import COLLECTIVES
from collectives.cli import arguments
from collectives.errors import ArgumentError
from collectives.simulation.grid import Grid, simulated, too_long
from collectives.text.progress import Bar
from collectives.text.table import aligned
from collectives.text.words import count, size_text, time_text

# The maximum messages of one simulation; they take about ten seconds on one core, and 1.5 GB.
MESSAGES = 100_000_000


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    from collectives.simulation import topology_text

    parser = commands.add_parser(
        "simulate",
        help="predict the times of algorithms on another machine",
        description="Simulate algorithms on a network, and print their times, or the "
        "fastest for each number of ranks and size.",
    )
    parser.add_argument(
        "algorithms",
        help="names such as ring,butterfly or broadcast/tree; files, each FILE.py, FILE.py:NAME or "
        "FILE.xml (see collectives explain); or a collective for all its algorithms but the "
        "literature (see collectives list)",
    )
    parser.add_argument(
        "-p",
        "--ranks",
        type=arguments.span_of(arguments.positive),
        metavar="N",
        help="numbers of ranks: 8, or 4,12, or 8..4096, doubling each time (default: 8, or that of "
        "the file)",
    )
    parser.add_argument(
        "-b",
        "--bytes",
        type=arguments.span_of(arguments.nbytes),
        default=[1 << 20],
        metavar="SIZE",
        help="bytes of the whole array: 1M, or 1K,64K, or 1K..1G, doubling each time (default: 1M)",
    )
    parser.add_argument("--topology", default="flat", metavar="TEXT", help=topology_text.HELP)
    parser.add_argument(
        "--root", type=int, default=0, help="root of a rooted collective (default: 0)"
    )
    parser.add_argument(
        "--segment",
        type=arguments.nbytes,
        default=0,
        metavar="SIZE",
        help="send blocks in segments of this size, as the executor does (default: whole blocks)",
    )
    parser.add_argument(
        "--limit",
        type=arguments.positive,
        default=MESSAGES,
        metavar="N",
        help="leave out algorithms that send more messages than this (default: %(default)s)",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="write a plot of the fastest algorithms to this file"
    )
    parser.add_argument("--json", metavar="FILE", help="write all times to this file")
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Simulate and print."""
    from collectives.picture import plots
    from collectives.simulation import graph

    arguments.load(options.load)
    if options.plot:
        plots.check()
    rows = _rows(options.algorithms)
    options.ranks = options.ranks or sorted({arguments.ranks_of(row, 0) for row in rows} - {0})
    options.ranks = options.ranks or [8]
    machine = graph.machine(options.topology)
    single = len(rows) == len(options.ranks) == len(options.bytes) == 1
    if single and not options.plot:
        from collectives.simulation.simulate import simulate

        (row,), (p,), (nbytes,) = rows, options.ranks, options.bytes
        name, topology = row.collective.name, machine.make(p)
        placed = row if topology.groups is None else row.placed(topology.groups)
        if reason := too_long(placed.at(p, nbytes), p, options.root, options.limit):
            raise ArgumentError(reason)
        found = simulate(name, row, nbytes, topology, root=options.root, segment=options.segment)
        print(found)
        if options.json:
            times = {p: {row.name: [found.time]}}
            _write_json(options.json, Grid(name, machine, [row.name], [p], [nbytes], times, []))
        return 0
    bar = Bar(sys.stderr.isatty())
    grid = simulated(
        rows,
        machine,
        options.ranks,
        options.bytes,
        root=options.root,
        segment=options.segment,
        limit=options.limit,
        tell=bar.show,
    )
    bar.clear()
    if not single:
        print(_table(grid))
    for reason in grid.left_out:
        print(f"left out: {reason}")
    if options.json:
        _write_json(options.json, grid)
    if options.plot:
        from collectives.simulation.plot import draw

        draw(grid, options.plot)
        print(f"The picture is in {options.plot}")
    return 0


def _rows(text: str) -> list[Algorithm]:
    """Find the algorithms, all of one collective."""
    found: list[Algorithm] = []
    for word in split(text):
        if word in COLLECTIVES:
            found += [get(word, name) for name in names(word, textbook=True)]
            continue
        name = word
        if found and "/" not in word and arguments.has(found[0].collective.name, word):
            name = f"{found[0].collective.name}/{word}"
        collective, name, _ = arguments.resolve(name)
        found.append(get(collective, name))
    other = [row for row in found if row.collective is not found[0].collective]
    if other:
        raise ArgumentError(
            f"{found[0].name} is of {found[0].collective.name} and {other[0].name} of "
            f"{other[0].collective.name}: algorithms of one collective can be compared"
        )
    return list(dict.fromkeys(found))


def _table(grid: Grid) -> str:
    """Return a table of times, or a map of the fastest algorithms."""
    return "\n".join(_time_lines(grid) if len(grid.ranks) == 1 else _map_lines(grid))


def _time_lines(grid: Grid) -> Iterator[str]:
    """Yield the times on one number of ranks; the fastest at each size has a star."""
    (p,) = grid.ranks
    yield f"{grid.collective} on {count(p, 'rank')}, simulated on {grid.machine.text}"
    cells = [["bytes", *(f"{name} " for name in grid.names)]]
    for k, size in enumerate(grid.sizes):
        best = grid.winner(p, k)
        cells.append([size_text(size)])
        for name in grid.names:
            time = grid.times[p][name][k]
            text = "-" if isnan(time) else time_text(time, 4)
            cells[-1].append(text + ("*" if name == best else " "))
    yield from aligned(cells)
    yield _sentence(grid, p)


def _map_lines(grid: Grid) -> Iterator[str]:
    """Yield a map: a letter for the fastest at each number of ranks and size."""
    yield f"{grid.collective}, simulated on {grid.machine.text}: the fastest"
    letters = _letters(grid.names)
    width = max(len(str(p)) for p in grid.ranks)
    if len(grid.sizes) > 1:
        labels = [size_text(size).replace(" ", "") for size in grid.sizes]
        labels = [text.removesuffix("iB") if text[-2:] == "iB" else text for text in labels]
        cell = max(map(len, labels)) + 1
        yield " " * (width + 4) + "".join(text.rjust(cell) for text in labels)
        seen = set()
        for p in grid.ranks:
            won = [grid.winner(p, k) for k in range(len(grid.sizes))]
            seen.update(won)
            marks = [letters[name] if name else "." for name in won]
            yield f"p = {p:{width}}" + "".join(mark.rjust(cell) for mark in marks)
        yield "   ".join(f"{letters[name]} {name}" for name in grid.names if name in seen)
    for p in grid.ranks:
        yield f"{p:{width}} ranks: {_sentence(grid, p)}"


def _sentence(grid: Grid, p: int) -> str:
    """Return a sentence that names the fastest algorithms, and the sizes up to which they are."""
    parts: list[str] = []
    for name, limit in grid.regions(p):
        end = f" up to {size_text(limit)}" if limit < inf else " beyond" if parts else " wins"
        parts.append(f"{name or 'nobody'}{end}")
    return ", ".join(parts)


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each name; they differ while letters and digits last."""
    taken: dict[str, str] = {}
    for name in names:
        wanted = [*(c for c in name if c.isalpha()), *"abcdefghijklmnopqrstuvwxyz0123456789"]
        taken[name] = next((c for c in wanted if c not in taken.values()), "?")
    return taken


def _write_json(path: str, grid: Grid) -> None:
    """Write all times, in seconds; null where an algorithm was left out."""
    record = {
        "version": arguments.JSON_VERSION,
        "collective": grid.collective,
        "topology": grid.machine.text,
        "bytes": grid.sizes,
        "seconds": {
            str(p): {
                name: [None if isnan(t) else t for t in times] for name, times in by_name.items()
            }
            for p, by_name in grid.times.items()
        },
    }
    arguments.write_json(path, record)
