"""``collectives simulate``: which algorithm wins where, on a machine that need not exist."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

from collectives.algorithms import Algorithm, get, names
from collectives.cli import arguments
from collectives.cli.progress import Line
from collectives.errors import ArgumentError
from collectives.spec import COLLECTIVES
from collectives.words import count, size_text, time_text

__all__ = ["Grid", "add_parser"]

# Messages of one simulation, at most: some ten seconds of one core, and 1.5 GB.
MESSAGES = 100_000_000
# Between two sizes whose middle lies on the line between them to this part, no other is simulated:
# time is a maximum of sums that grow with the size, hence convex, and convex between is a line.
LINE = 1e-3


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    from collectives.cli import machine

    parser = commands.add_parser(
        "simulate",
        help="predict algorithms on a machine that need not exist",
        description="Run algorithms in simulated time: which one wins where.",
    )
    parser.add_argument(
        "algorithms",
        help="names such as ring,butterfly or broadcast/tree, files that register algorithms, or a "
        "collective for all of its own",
    )
    parser.add_argument(
        "-p",
        "--ranks",
        type=_span_of(arguments.positive),
        default=[8],
        metavar="N",
        help="numbers of ranks: 8, or 4,12, or 8..4096 for each double (default: 8)",
    )
    parser.add_argument(
        "-b",
        "--bytes",
        type=_span_of(arguments.nbytes),
        default=[1 << 20],
        metavar="SIZE",
        help="bytes of the message: 1M, or 1K,64K, or 1K..1G for each double (default: 1M)",
    )
    parser.add_argument("--topology", default="flat", metavar="TEXT", help=machine.HELP)
    parser.add_argument("--root", type=int, default=0, help="root of a rooted collective")
    parser.add_argument(
        "--segment",
        type=arguments.nbytes,
        default=0,
        metavar="SIZE",
        help="cut blocks into segments of so many bytes, as the executor does (default: whole)",
    )
    parser.add_argument(
        "--limit",
        type=arguments.positive,
        default=MESSAGES,
        metavar="N",
        help="leave out what sends more messages than this (default: %(default)s)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw who wins where, and write it here")
    parser.add_argument("--json", metavar="FILE", help="write all times here")
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def _span_of(read: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return the reader of ``8``, ``8,12`` and ``8..64``."""

    def span(text: str) -> list[int]:
        found: list[int] = []
        for word in text.split(","):
            first, dots, last = word.partition("..")
            found.append(read(first))
            if dots:
                end = read(last)
                if not 0 < found[-1] <= end:
                    raise argparse.ArgumentTypeError(f"{word!r} does not rise from above 0")
                while found[-1] * 2 <= end:
                    found.append(found[-1] * 2)
        return sorted(set(found))

    return span


@dataclass(frozen=True)
class Grid:
    """The times of algorithms: ``times[p][name]`` has one for each size, nan where there is none.

    Attributes
    ----------
    collective, machine : str
    names, ranks, sizes : list
        Algorithms, numbers of ranks, and bytes.
    times : dict
        Seconds.
    left_out : list of str
        What could not be simulated, and why.
    """

    collective: str
    machine: str
    names: list[str]
    ranks: list[int]
    sizes: list[int]
    times: dict[int, dict[str, list[float]]]
    left_out: list[str]

    def winner(self, p: int, k: int) -> str | None:
        """Return the fastest at the k-th size, or None if nobody ran. Local."""
        ran = {name: times[k] for name, times in self.times[p].items() if not isnan(times[k])}
        # Of those that are equal but for the last bits, the first.
        return next((name for name in ran if ran[name] <= min(ran.values()) * (1 + 1e-9)), None)

    def regions(self, p: int) -> list[tuple[str | None, float]]:
        """Return who wins up to which size, in order; the last one up to inf. Local."""
        found: list[tuple[str | None, float]] = []
        for k, size in enumerate(self.sizes):
            name = self.winner(p, k)
            if found and found[-1][0] == name:
                continue
            if found:
                found[-1] = found[-1][0], self.crossing(p, found[-1][0], name, k) or size
            found.append((name, inf))
        return found

    def crossing(self, p: int, before: str | None, after: str | None, k: int) -> float | None:
        """Return where two take equally long, between the sizes k - 1 and k. Local."""
        if before is None or after is None:
            return None
        a, b = self.times[p][before], self.times[p][after]
        low, high = b[k - 1] - a[k - 1], a[k] - b[k]
        if isnan(low + high) or low + high <= 0:
            return None
        return self.sizes[k - 1] + (self.sizes[k] - self.sizes[k - 1]) * low / (low + high)


def main(options: argparse.Namespace) -> int:
    """Simulate and print."""
    from collectives.cli import machine, plot

    arguments.load(options.load)
    if options.plot:
        plot.check()
    rows = _rows(options.algorithms)
    text, make = machine.machine(options.topology)
    if len(rows) == len(options.ranks) == len(options.bytes) == 1 and not options.plot:
        from collectives.simulate import simulate

        print(
            simulate(
                rows[0].collective.name,
                rows[0],
                options.bytes[0],
                make(options.ranks[0]),
                root=options.root,
                segment=options.segment,
            )
        )
        if not options.json:
            return 0
    grid = _measure(rows, text, make, options)
    if len(rows) * len(options.ranks) * len(options.bytes) > 1:
        print(_table(grid))
    for reason in grid.left_out:
        print(f"left out: {reason}")
    if options.json:
        _write_json(options.json, grid)
    if options.plot:
        from collectives.cli.winners import draw

        draw(grid, options.plot)
        print(f"The picture is in {options.plot}")
    return 0


def _rows(text: str) -> list[Algorithm]:
    """Find the algorithms, all of one collective."""
    found: list[Algorithm] = []
    for word in text.split(","):
        if word in COLLECTIVES:
            found += [get(word, name) for name in names(word)]
            continue
        name = word
        if found and "/" not in word and word.partition(":")[0] in names(found[0].collective.name):
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


def _measure(
    rows: list[Algorithm],
    text: str,
    make: Callable[[int], Any],
    options: argparse.Namespace,
) -> Grid:
    """Simulate all that is asked for and can run."""
    times: dict[int, dict[str, list[float]]] = {}
    left_out = []
    line = Line(sys.stderr.isatty())
    done, steps = 0, len(rows) * len(options.ranks)
    for p in options.ranks:
        times[p] = {row.name: [nan] * len(options.bytes) for row in rows}
        try:
            topology = make(p)
        except ArgumentError as error:
            if p == options.ranks[0]:
                raise
            left_out.append(str(error))
            continue
        for row in rows:
            line.show(f"{done} of {steps}: {row.name} on {count(p, 'rank')}")
            done += 1
            refusal = row.refusal(p) or _too_long(row, p, options)
            if refusal:
                left_out.append(refusal)
                continue
            times[p][row.name] = _times(row, topology, options)
    line.clear()
    collective = rows[0].collective.name
    return Grid(
        collective, text, [r.name for r in rows], options.ranks, options.bytes, times, left_out
    )


def _too_long(row: Algorithm, p: int, options: argparse.Namespace) -> str | None:
    """Say that an algorithm sends too many messages to be simulated, or None."""
    from collectives.traffic import exceeds

    if not exceeds(row, p, options.root, options.limit):
        return None
    return (
        f"{row.title(p, options.root)}, more than {options.limit} messages (--limit N simulates it "
        f"all the same)"
    )


def _times(row: Algorithm, topology: Any, options: argparse.Namespace) -> list[float]:
    """Return the time at each size."""
    from collectives.simulate import simulate

    sizes: list[int] = options.bytes

    def run(k: int) -> float:
        return simulate(
            row.collective.name,
            row,
            sizes[k],
            topology,
            root=options.root,
            segment=options.segment,
            record=False,
        ).time

    found = {k: run(k) for k in {0, len(sizes) - 1}}

    def fill(low: int, high: int) -> None:
        if high - low < 2:
            return
        middle = (low + high) // 2
        found[middle] = run(middle)

        def line(k: int) -> float:
            part = (sizes[k] - sizes[low]) / (sizes[high] - sizes[low])
            return found[low] + part * (found[high] - found[low])

        if abs(line(middle) - found[middle]) <= LINE * found[middle]:
            for k in range(low + 1, high):
                found.setdefault(k, line(k))
        else:
            fill(low, middle)
            fill(middle, high)

    fill(0, len(sizes) - 1)
    return [found[k] for k in range(len(sizes))]


def _table(grid: Grid) -> str:
    """Write times, or who wins where."""
    return "\n".join(_time_lines(grid) if len(grid.ranks) == 1 else _map_lines(grid))


def _time_lines(grid: Grid) -> Iterator[str]:
    """Yield the times on one number of ranks; the fastest at each size has a star."""
    (p,) = grid.ranks
    yield f"{grid.collective} on {count(p, 'rank')}, simulated on {grid.machine}"
    cells = [["bytes", *(f"{name} " for name in grid.names)]]
    for k, size in enumerate(grid.sizes):
        best = grid.winner(p, k)
        cells.append([size_text(size)])
        for name in grid.names:
            time = grid.times[p][name][k]
            text = "-" if isnan(time) else time_text(time, 4)
            cells[-1].append(text + ("*" if name == best else " "))
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield _sentence(grid, p)


def _map_lines(grid: Grid) -> Iterator[str]:
    """Yield a map: a letter for the fastest at each number of ranks and size."""
    yield f"{grid.collective}, simulated on {grid.machine}: the fastest"
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
    """Say who wins up to where."""
    parts: list[str] = []
    for name, limit in grid.regions(p):
        end = f" up to {size_text(limit)}" if limit < inf else " beyond" if parts else " wins"
        parts.append(f"{name or 'nobody'}{end}")
    return ", ".join(parts)


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each name, one of its own as far as there are any."""
    taken: dict[str, str] = {}
    for name in names:
        wanted = [*(c for c in name if c.isalpha()), *"abcdefghijklmnopqrstuvwxyz0123456789"]
        taken[name] = next((c for c in wanted if c not in taken.values()), "?")
    return taken


def _write_json(path: str, grid: Grid) -> None:
    """Write all times, in seconds; null where an algorithm was left out."""
    record = {
        "collective": grid.collective,
        "topology": grid.machine,
        "bytes": grid.sizes,
        "seconds": {
            str(p): {
                name: [None if isnan(t) else t for t in times] for name, times in by_name.items()
            }
            for p, by_name in grid.times.items()
        },
    }
    try:
        Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--json {path}: {error}") from error
