"""What the model predicts, beside what `measure_simulation.py` has measured: errors, table, plot.

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

from collectives.shared_host import SharedMemory
from collectives.simulate import simulate
from collectives.topology import Flat

LEAST = 0.1  # of what passing a block takes, that publishing or reading it takes at least

Facts = dict[str, Any]


def once(rows: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the seconds in which a block is passed once, for each size."""
    return [
        (nbytes, max(0.0, after - before) / (many - few))
        for nbytes, few, many, before, after in rows
    ]


def per_byte(rows: Sequence[Sequence[float]], base: float) -> dict[float, float]:
    """Return seconds per byte, without what no bytes take."""
    return {row[0]: max(row[1] - base, 0.0) / row[0] for row in rows}


def shared_memory(facts: Facts) -> SharedMemory:
    """Return the machine that the small measurements in shared memory speak of."""
    p, cores = facts["p"], facts["cores"]
    read, write = [], []
    for (nbytes, *copies), (_, *folds) in zip(facts["copy"], facts["fold"], strict=True):
        # Another operand is what a fold reads more than a copy.
        reads = [
            max(fold - copy, LEAST * copy) / nbytes
            for copy, fold in zip(copies, folds, strict=True)
        ]
        read.append((2 * nbytes, *reads))
        write.append(
            (
                2 * nbytes,
                *(
                    max(copy / nbytes - each, LEAST * copy / nbytes)
                    for copy, each in zip(copies, reads, strict=True)
                ),
            )
        )
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
    switch = 0.0
    if p > cores:
        switch = max(0.0, once(facts["turns"])[0][1] / (p / cores) - step)
    rates = {"read": read, "write": write, "fetch": fetch, "publish": publish}
    call = max(0.0, call - step)
    return SharedMemory(p, cores, call, step, alpha, switch, lane=facts["lane"], **rates)


def network(facts: Facts) -> Flat:
    """Return the machine that the small measurements of messages speak of."""
    swaps = once(facts["swaps"])
    alpha = swaps[0][1]
    beta = [(n, max(each, 1e-15)) for n, each in per_byte(swaps, alpha).items() if n > 64]
    crowd = facts["p"] / min(facts["p"], facts["cores"])
    gamma = [(row[0], crowd * row[2] / row[0]) for row in facts["fold"]]
    return Flat(facts["p"], alpha, beta, gamma, call=crowd * facts["published"][0][1])


def predict(document: dict[str, Any]) -> None:
    """Put beside each measured time the one that the model predicts."""
    for each in document["runs"]:
        facts = each["facts"]
        shared = each["transport"] == "shm"
        machine = shared_memory(facts) if shared else network(facts)
        for row in each["rows"]:
            collective, name = each["collective"], row["algorithm"]
            row["predicted"] = simulate(
                collective, name, row["nbytes"], machine, segment=row["segment"], record=False
            ).time


def error(row: dict[str, Any]) -> float:
    """Return by which part of the measured time the prediction is off."""
    return abs(row["predicted"] - row["measured"]) / row["measured"]


def chosen(document: dict[str, Any], **wanted: Any) -> Iterator[dict[str, Any]]:
    """Yield rows, with their transport and ranks, that have some values."""
    for each in document["runs"]:
        kind = "shm" if each["transport"] == "shm" else "MPI"
        for row in each["rows"]:
            full = {**row, "transport": kind}
            full.update(ranks=each["ranks"], collective=each["collective"])
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


def table(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table: errors of each collective, by transport and ranks."""
    places = [
        (kind, p)
        for kind in ("shm", "MPI")
        for p in sorted({each["ranks"] for each in document["runs"]})
        if any(chosen(document, transport=kind, ranks=p))
    ]
    head = ["collective", *(f"{kind}, {p} ranks" for kind, p in places), "all"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    names = list(dict.fromkeys(row["collective"] for row in chosen(document)))
    for name in [*names, "all"]:
        what = {} if name == "all" else {"collective": name}
        groups = [list(chosen(document, transport=kind, ranks=p, **what)) for kind, p in places]
        groups.append([row for group in groups for row in group])
        cells = []
        for group in groups:
            middle, high, _ = spread(group)
            cells.append(f"{100 * middle:.0f} ({100 * high:.0f})")
        yield f"| {name} | {' | '.join(cells)} |"


def text(document: dict[str, Any], p: int | None = None) -> str:
    """Return the table, and the ten rows that are worst."""
    rows = [row for row in chosen(document) if p in (None, row["ranks"])]
    lines = list(table(document))
    for kind in ("shm", "MPI"):
        for size in sorted({row["nbytes"] for row in rows}):
            group = [r for r in rows if r["nbytes"] == size and r["transport"] == kind]
            if group and size:
                middle, high, ratio = spread(group)
                lines.append(
                    f"{kind} {size:>10} bytes: {100 * middle:4.0f} % ({100 * high:4.0f} %), "
                    f"predicted / measured {ratio:.2f}"
                )
    lines.append("worst:")
    for row in sorted(rows, key=error, reverse=True)[:10]:
        lines.append(
            f"  {row['transport']} {row['ranks']} {row['collective']} {row['algorithm']} "
            f"{row['nbytes']}: predicted {1e6 * row['predicted']:.1f} us, measured "
            f"{1e6 * row['measured']:.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Predict anew, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    for path in options.files:
        document = json.loads(path.read_text())
        predict(document)
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(text(document))


if __name__ == "__main__":
    main()
