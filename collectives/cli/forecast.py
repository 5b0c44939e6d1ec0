"""``collectives forecast``: a recorded program on more ranks and another network."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from collectives.algorithms.spec import COLLECTIVES
from collectives.cli import arguments, timeline
from collectives.errors import ArgumentError
from collectives.text import files
from collectives.text.table import aligned
from collectives.text.words import count, known, time_text

DESCRIPTION = (
    "Predict the time of a step of a recorded program (COLLECTIVES_TIMELINE, comm.timeline) on "
    "more ranks and another network: its computing is replayed, and its collectives are simulated."
)
DOUBLINGS = 6  # of the recorded number of ranks, if no other numbers are asked for


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    from collectives.simulation import topology_text

    parser = commands.add_parser(
        "forecast",
        help="predict how a recorded program scales",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add(
        "files",
        metavar="FILE.json",
        nargs="+",
        help="a timeline; give several files if hosts without a common file system wrote one each",
    )
    add(
        "-p",
        "--ranks",
        type=arguments.span_of(arguments.positive),
        metavar="N",
        help="numbers of ranks: 8, or 4,12, or 8..512, doubling each time (default: twice the "
        f"recorded number, and {DOUBLINGS - 1} doublings)",
    )
    add(
        "--topology",
        metavar="TEXT",
        help=f"{topology_text.HELP} (default: the recorded hosts). If the timeline is of several "
        "hosts, an alpha and beta that are not given are those of its calls",
    )
    add(
        "--scaling",
        choices=["weak", "strong"],
        help="weak: each rank computes as much as in the recording; strong: all ranks together do "
        "(default: both)",
    )
    add(
        "--step",
        type=arguments.positive,
        default=0,
        metavar="N",
        help="collectives of a step (default: the sequence that repeats most often)",
    )
    add(
        "--grow",
        type=_collectives,
        default=frozenset(),
        metavar="NAME,...",
        help="collectives whose whole array grows with the number of ranks, such as an allgather "
        "of parts that keep their size (default: none)",
    )
    add("--json", metavar="FILE", help="write the numbers to this file")
    add("--svg", metavar="FILE.svg", help="draw the times of a step and their parts")
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def _collectives(text: str) -> frozenset[str]:
    """Read names of collectives."""
    for word in text.split(","):
        if word not in COLLECTIVES:
            told = known(word, COLLECTIVES, "there are")
            raise argparse.ArgumentTypeError(f"there is no collective {word!r}; {told}")
    return frozenset(text.split(","))


def main(options: argparse.Namespace) -> int:
    """Read the timeline, replay it, and print."""
    arguments.load(options.load)
    documents, events = timeline.read(options.files)
    from collectives.records import forecast, steps

    of = steps.found(documents, events, options.step)
    machine, origin = _machine(options.topology, of)
    ranks = options.ranks or [of.p << k for k in range(1, DOUBLINGS + 1)]
    scalings = [options.scaling] if options.scaling else [forecast.WEAK, forecast.STRONG]
    base = forecast.recorded(of)
    tables = {
        each: [forecast.forecast(of, machine, p, each, options.grow) for p in ranks]
        for each in scalings
    }
    print("\n".join(_head(of, base, machine, origin)))
    for scaling, rows in tables.items():
        print(f"\n{scaling} scaling")
        print("\n".join(aligned(_cells([base, *rows]))))
    print(f"* recorded; efficiency is relative to it\n{_algorithms(tables[scalings[-1]])}")
    if options.json:
        record = {
            "version": arguments.JSON_VERSION,
            "recording": forecast.summary(of),
            "topology": machine.numbers(),
            "recorded": asdict(base),
            **{each: [asdict(row) for row in rows] for each, rows in tables.items()},
        }
        arguments.write_json(options.json, record)
    if options.svg:
        from collectives.records import curve

        with arguments.writing("--svg", options.svg):
            files.write(options.svg, curve.curve(base, tables, machine.numbers()))
        print(f"The picture is in {options.svg}")
    return 0


def _machine(text: str | None, of: Any) -> tuple[Any, str]:
    """Return the machine to replay on, and the origin of its numbers."""
    from collectives.records import forecast
    from collectives.simulation import graph

    each = forecast.ranks_of(of)
    if text is None:
        if of.nodes < 2 or each is None:
            raise ArgumentError(
                "the timeline has no calls between hosts of equal numbers of ranks; name the "
                "network by --topology, for example --topology hosts=8,alpha=30us,beta=1Gbit/s"
            )
        text = f"hosts={each}"
    machine = graph.machine(text)
    if isinstance(machine, graph.Graph):
        return machine, ""
    fitted = forecast.fitted(of)
    taken = {name: value for name, value in fitted.items() if name not in machine.given}
    machine.values.update(taken)
    words = [f"{' and '.join(taken)} from the recorded calls"] if taken else []
    if taken and "beta" not in machine.given.keys() | taken.keys():
        words.append("which are too short to tell beta")
    return machine, f" ({', '.join(words)})" if words else ""


def _head(of: Any, base: Any, machine: Any, origin: str) -> list[str]:
    """Return the lines about the recording and the machine."""
    lines = [
        f"{count(of.p, 'rank')} on {count(of.nodes, 'host')}, {count(len(of.times), 'step')} of "
        f"{count(len(of.calls), 'collective')}, {time_text(base.seconds)} a step",
        f"on {machine.numbers()}{origin}",
    ]
    if of.other >= 0.5:
        lines.append(
            f"other calls, {round(of.other)} in a step on rank 0, count as computing: messages "
            f"between two ranks, and calls of some of the ranks"
        )
    if of.p == 1:
        lines.append("one rank: the straggler's share is that of its slower steps")
    return lines


def _cells(rows: list[Any]) -> list[list[str]]:
    """Return the table of one scaling; the first row is the recorded one."""
    cells = [["ranks ", "a step", "computing", "communication", "straggler", "efficiency"]]
    for number, row in enumerate(rows):
        shares = (row.computing, row.communication, row.straggler)
        cells.append(
            [
                f"{row.ranks}{' ' if number else '*'}",
                time_text(row.seconds),
                *(f"{share / row.seconds:.0%}" for share in shares),
                f"{row.efficiency:.0%}",
            ]
        )
    return cells


def _algorithms(rows: list[Any]) -> str:
    """Return a line with the algorithms on the most ranks."""
    names = ", ".join(dict.fromkeys(rows[-1].algorithms))
    return f"on {count(rows[-1].ranks, 'rank')}: {names}" if names else "nothing is sent"
