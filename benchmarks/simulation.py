"""Predictions of the model beside measurements of `measure_simulation.py`: errors, table, plot.

``python benchmarks/simulation.py FILE...`` predicts anew from the parameters in the files, and
prints the errors; with ``--plot FILE`` it draws them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectives.picture import plots
from collectives.simulate import simulate
from collectives.simulation.host import MessageHost, SharedMemory
from collectives.text import files
from collectives.text.table import markdown
from collectives.text.words import size_text
from collectives.topology import Flat, Topology

ORDER = {"shm": 0, "MPI": 1}  # of the columns; others follow
SHOWN = 64 << 10  # bytes for which tables of rates are shown
FASTEST = 1e-12  # seconds per byte, where a disturbed measurement has none
LEAST = 0.1  # of the time of passing a block, the least for publishing or reading it

Facts = dict[str, Any]
Row = tuple[float, float, float]


def once(rows: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the seconds in which a block is passed once, for each size."""
    return [
        (nbytes, max(0.0, after - before) / (many - few))
        for nbytes, few, many, before, after in rows
    ]


def per_byte(rows: Sequence[Sequence[float]], base: float) -> dict[float, float]:
    """Return seconds per byte, without what no bytes take."""
    return {row[0]: max(row[1] - base, 0.0) / row[0] for row in rows}


def copies(facts: Facts) -> tuple[list[Row], list[Row]]:
    """Return what reading and writing take, by the bytes of both arrays of a copy."""
    read, write = [], []
    for (nbytes, *copy), (_, *fold) in zip(facts["copy"], facts["fold"], strict=True):
        copy = [max(each, FASTEST * nbytes) for each in copy]
        # Another operand is what a fold reads more than a copy.
        more = [max(b - a, LEAST * a) / nbytes for a, b in zip(copy, fold, strict=True)]
        rest = [max(a / nbytes - m, LEAST * a / nbytes) for a, m in zip(copy, more, strict=True)]
        read.append((2 * nbytes, more[0], more[1]))
        write.append((2 * nbytes, rest[0], rest[1]))
    return read, write


def turn(facts: Facts, work: float) -> float:
    """Return the seconds to look and give way, where each turn has some seconds of `work`."""
    if facts["p"] <= facts["cores"]:
        return 0.0
    each = once(facts["turns"])[0][1] * facts["cores"] / facts["p"]
    return max(0.0, each - work)


def shared_memory(facts: Facts) -> SharedMemory:
    """Return the machine that the small measurements in shared memory speak of."""
    read, write = copies(facts)
    alpha = facts["round_trip"] / 2
    hops, swaps = once(facts["hops"]), once(facts["swaps"])
    step = max(hops[0][1] - alpha, 0.0)
    crowded = per_byte(swaps, swaps[0][1])
    call = facts["published"][0][1]
    own = per_byte(facts["published"], call)
    publish, fetch = [], []
    for nbytes, both in per_byte(hops, hops[0][1]).items():
        if nbytes <= 80:
            continue
        known = [row for row in read if row[0] >= nbytes]
        alone = own[nbytes] - known[0][1]
        alone = min(max(alone, LEAST * both), (1 - LEAST) * both)
        crowd = max(1.0, crowded[nbytes] / both) if both else 1.0
        publish.append((nbytes, alone, alone * crowd))
        fetch.append((nbytes, both - alone, (both - alone) * crowd))
    return SharedMemory(
        facts["p"],
        facts["cores"],
        call=max(0.0, call - step),
        step=step,
        alpha=alpha,
        switch=turn(facts, step),
        read=read,
        write=write,
        fetch=fetch,
        publish=publish,
        lane=facts["lane"],
    )


def message_host(facts: Facts) -> MessageHost:
    """Return the machine that the small measurements of messages on one host speak of."""
    read, write = copies(facts)
    alpha = facts["round_trip"] / 2
    hops, swaps = once(facts["hops"]), once(facts["swaps"])
    overhead = max(hops[0][1] - alpha, 0.0)
    crowded = per_byte(swaps, swaps[0][1])
    beta = [
        (nbytes, each, max(each, crowded[nbytes]))
        for nbytes, each in per_byte(hops, hops[0][1]).items()
        if nbytes > 64
    ]
    # A call that sends one message and waits for nothing; the halves of a message are taken alike.
    call = max(0.0, facts["published"][0][1] - overhead / 2)
    return MessageHost(
        facts["p"],
        facts["cores"],
        call=call,
        send=overhead / 2,
        receive=overhead / 2,
        beta=beta,
        step=0.0,
        alpha=alpha,
        switch=turn(facts, overhead),
        read=read,
        write=write,
    )


def network(facts: Facts) -> Flat:
    """Return the machine that the small measurements of messages between hosts speak of."""
    swaps = once(facts["swaps"])
    alpha = min(once(facts["bursts"])[0][1], swaps[0][1])
    beta = [(n, max(each, FASTEST)) for n, each in per_byte(swaps, swaps[0][1]).items() if n > 64]
    gamma = [(row[0], max(row[2] / row[0], FASTEST)) for row in facts["fold"]]
    return Flat(facts["p"], alpha, beta, gamma, call=facts["call"], delay=swaps[0][1] - alpha)


MACHINES = {"shm": shared_memory, "MPI": message_host}  # others are networks


def predict(document: dict[str, Any]) -> None:
    """Put beside each measured time the one that the model predicts."""
    for each in document["runs"]:
        facts = each["facts"]
        machine = MACHINES.get(each["transport"], network)(facts)
        for row in each["rows"]:
            collective, name = each["collective"], row["algorithm"]
            row["predicted"] = simulate(
                collective, name, row["nbytes"], machine, segment=row["segment"], record=False
            ).time


def rounded(value: Any) -> Any:
    """Return a document with its seconds, which are below 1, to four digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and value < 1 else value


def error(row: dict[str, Any]) -> float:
    """Return by which part of the measured time the prediction is off."""
    return abs(row["predicted"] - row["measured"]) / row["measured"]


def chosen(document: dict[str, Any], **wanted: Any) -> Iterator[dict[str, Any]]:
    """Yield rows, with their transport and ranks, that have some values."""
    for each in document["runs"]:
        place = {key: each[key] for key in ("transport", "ranks", "collective")}
        for row in each["rows"]:
            full = {**row, **place}
            if all(full[key] == value for key, value in wanted.items()):
                yield full


def spread(rows: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the median error, its 90th percentile, and the median of predicted over measured."""
    errors = sorted(error(row) for row in rows)
    ratios = [row["predicted"] / row["measured"] for row in rows]
    return (
        statistics.median(errors),
        errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        statistics.median(ratios),
    )


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table: errors of each collective, by transport and ranks."""
    places = list(dict.fromkeys((run["transport"], run["ranks"]) for run in document["runs"]))
    places.sort(key=lambda place: (ORDER.get(place[0], 2), place))
    head = ["collective", *(f"{kind}, {p} ranks" for kind, p in places), "all"]
    rows = []
    names = list(dict.fromkeys(row["collective"] for row in chosen(document)))
    for name in [*names, "all"]:
        what = {} if name == "all" else {"collective": name}
        groups = [list(chosen(document, transport=kind, ranks=p, **what)) for kind, p in places]
        groups.append([row for group in groups for row in group])
        cells = []
        for group in groups:
            middle, high, _ = spread(group) if group else (0, 0, 0)
            cells.append(f"{100 * middle:.0f} ({100 * high:.0f})" if group else "")
        rows.append([name, *cells])
    return markdown(head, rows)


def library(document: dict[str, Any]) -> str:
    """Return the name of the MPI, without its version."""
    return " ".join(word for word in document["mpi"].split() if not word[0].isdigit())


def parameters(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: the numbers of each machine, medians over the collectives."""
    heads = ("MPI", "ranks", "call", "send", "alpha", "delay", "switch")
    heads += ("read", "write", "fetch, beta", "publish")
    rows = []
    for document in documents:
        places = dict.fromkeys((run["transport"], run["ranks"]) for run in document["runs"])
        for kind, p in sorted(places, key=lambda place: (ORDER.get(place[0], 2), place)):
            runs = [r for r in document["runs"] if (r["transport"], r["ranks"]) == (kind, p)]
            found = [_said(MACHINES.get(kind, network)(run["facts"])) for run in runs]
            cells = [
                "" if each[0] is None else f"{statistics.median(each):.3g}"
                for each in zip(*found, strict=True)
            ]
            rows.append([f"{library(document)}, {kind}", str(p), *cells])
    yield from [*markdown(heads, rows), ""]
    yield "Up to switch in microseconds, beyond it in nanoseconds for a byte."


def _said(machine: Topology) -> list[float | None]:
    """Return the numbers of a machine, in microseconds, and nanoseconds per byte."""
    call = 1e6 * machine.call
    if not isinstance(machine, SharedMemory):
        rank, size = np.zeros(1, np.int64), np.full(1, float(SHOWN))
        alpha, delay = machine.latency(rank, rank), machine.delay(rank, rank)
        beta = 1e9 * float(machine.beta(rank, rank, size)[0])
        return [call, None, 1e6 * float(alpha), 1e6 * float(delay), *[None] * 3, beta, None]
    messages = isinstance(machine, MessageHost)
    each = 1e6 * machine.send if messages else None
    rates = [machine.read, machine.write, machine.bytes if messages else machine.fetch]
    shown: list[float | None] = [1e9 * rate(SHOWN)[1] for rate in rates]
    shown.append(None if messages else 1e9 * machine.publish(SHOWN)[1])
    return [call, each, 1e6 * machine.alpha, None, 1e6 * machine.switch, *shown]


def worst(documents: Sequence[dict[str, Any]], number: int = 10) -> list[str]:
    """Return the lines of a table: the worst predictions."""
    rows = [(library(document), row) for document in documents for row in chosen(document)]
    rows.sort(key=lambda pair: -error(pair[1]))
    return markdown(
        ("MPI", "ranks", "algorithm", "bytes", "predicted, us", "measured, us"),
        [
            (
                f"{said}, {row['transport']}",
                str(row["ranks"]),
                f"{row['collective']} `{row['algorithm']}`",
                size_text(row["nbytes"]),
                *(f"{1e6 * row[what]:.3g}" for what in ("predicted", "measured")),
            )
            for said, row in rows[:number]
        ],
    )


def errors(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the tables of errors, and before each the command that measured it."""
    for document in documents:
        rows = list(chosen(document))
        yield f"`{document['command']}`; {document['mpi']}, {document['date']}:"
        yield ""
        yield from table(document)
        yield ""
        middle, high, ratio = spread(rows)
        yield (
            f"Of {len(rows):,} times in all, the median error is {100 * middle:.0f} %, the 90th "
            f"percentile {100 * high:.0f} %; predicted over measured is {ratio:.2f} in the median."
        )
        yield ""


def text(document: dict[str, Any]) -> str:
    """Return the errors, by collective and by size, and the worst predictions."""
    lines = list(errors([document]))
    rows = list(chosen(document))
    for kind in dict.fromkeys(row["transport"] for row in rows):
        for size in sorted({row["nbytes"] for row in rows}):
            group = [r for r in rows if r["nbytes"] == size and r["transport"] == kind]
            if group:
                middle, high, ratio = spread(group)
                lines.append(
                    f"{kind} {size:>10} bytes: {100 * middle:4.0f} % ({100 * high:4.0f} %), "
                    f"predicted / measured {ratio:.2f}"
                )
    return "\n".join([*lines, "", *worst([document])])


def plot(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw predicted against measured time, a panel for each transport, two in a row."""
    rows = [row for document in documents for row in chosen(document)]
    kinds = sorted(dict.fromkeys(row["transport"] for row in rows), key=lambda k: ORDER.get(k, 2))
    width = min(2, len(kinds))
    height = -(-len(kinds) // width)
    size = 5.2 * width, 5 * height
    figure, axes = plots.subplots(height, width, figsize=size, squeeze=False)
    for panel, kind in zip(axes.flat, kinds, strict=False):
        here = [row for row in rows if row["transport"] == kind]
        for number, p in enumerate(sorted({row["ranks"] for row in here})):
            points = [row for row in here if row["ranks"] == p]
            panel.plot(
                [1e6 * row["measured"] for row in points],
                [1e6 * row["predicted"] for row in points],
                linestyle="",
                marker="os^"[number % 3],
                markersize=3,
                alpha=0.5,
                label=f"{p} ranks",
            )
        ends = [1e6 * f(row["measured"] for row in here) for f in (min, max)]
        panel.plot(ends, ends, color="black", linewidth=1)
        for factor in (0.75, 1.25):
            panel.plot(ends, [factor * end for end in ends], color="gray", linewidth=0.7)
        panel.set(xscale="log", yscale="log", title=kind)
        panel.set(xlabel="measured (us)", ylabel="predicted (us); gray: 25 % off")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    plots.save(figure, str(path))


def main() -> None:
    """Predict anew, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, help="where the picture goes (needs matplotlib)")
    options = parser.parse_args()
    documents = []
    for path in options.files:
        document = json.loads(path.read_text())
        predict(document)
        files.write_json(path, rounded(document))
        print(text(document))
        documents.append(document)
    if options.plot:
        plot(documents, options.plot)


if __name__ == "__main__":
    main()
