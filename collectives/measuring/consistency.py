"""``collectives bench --consistency``: no operation should be slower than others that replace it.

The rules are those of Traeff, Gropp, Thakur: Self-consistent MPI performance guidelines, 2010,
doi:10.1109/TPDS.2009.120; lists of operations are in Hunold, Carpen-Amarie, Luebbe, Traeff: PGMPI:
automatically verifying self-consistent MPI performance guidelines, 2016, arXiv:1606.00215. On equal
arrays, with sizes in bytes of the larger of input and output:

- *pattern*: an operation is not slower than a sequence of other operations with the same result;
- *generality*: it is not slower than a more general one, such as the vector form of a collective,
  or an allgather in place of a gather;
- *monotony*: it is not slower than itself on more data;
- *division*: on f times as much data, it is not slower than f calls.

One more rule is not from there. It tests whether the choice changes between algorithms, segments
and stores at the right sizes:

- *growth*: on twice as much data, from 16 KiB on, it takes 1.3 to 2.6 times as long.

A rule is broken if one side takes more than the tolerance times the other, and the difference is
larger than the noise, that is, the deviation of the blocks of a call from their median. A time that
is zero after the subtraction of barriers is not compared.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from collectives.measuring.bench import MPI_LABEL
from collectives.measuring.measure import Row
from collectives.text.words import size_text

# The first operation should not take longer than the others together.
RULES = {
    "pattern": (
        ("allreduce", ("reduce", "broadcast")),
        ("allreduce", ("reduce_scatter", "allgather")),
        ("allreduce", ("scan", "broadcast")),
        ("allgather", ("gather", "broadcast")),
        ("broadcast", ("scatter", "allgather")),
        ("reduce", ("reduce_scatter", "gather")),
        ("reduce_scatter", ("reduce", "scatter")),
    ),
    "generality": (
        ("allgather", ("alltoall",)),
        ("allgather", ("allreduce",)),
        ("gather", ("allgather",)),
        ("gather", ("reduce",)),
        ("reduce", ("allreduce",)),
        ("reduce_scatter", ("allreduce",)),
        ("scatter", ("broadcast",)),
        ("allgather", ("allgatherv",)),
        ("reduce_scatter", ("reduce_scatterv",)),
        ("alltoall", ("alltoallv",)),
        ("gather", ("gatherv",)),
        ("scatter", ("scatterv",)),
    ),
}


def judge(rows: list[Row], tolerance: float) -> dict[str, Any]:
    """Compare times by the rules. Local."""
    result: dict[str, Any] = {"tolerance": tolerance, "checked": {}, "violations": {}}
    ours = [row for row in rows if not row.is_peer]
    mpis = [row for row in rows if row.algorithm == MPI_LABEL]
    for who, own in (("ours", ours), (MPI_LABEL, mpis)):
        times = {(row.collective, row.bytes): row for row in own}
        relations = [each for each in _relations(times) if each[1][1] > 0 and each[2][1] > 0]
        result["checked"][who] = len(relations)
        result["violations"][who] = [
            broken for each in relations if (broken := _broken(*each, tolerance)) is not None
        ]
    return result


GROWTH = 1.3, 2.6  # times as long, at least and at most, on twice as much data
GROWS = 16 << 10  # bytes; below this, the latency dominates

Side = tuple[str, float, float]  # a text, us, and noise in us


def _relations(times: dict[tuple[str, int], Row]) -> list[tuple[str, Side, Side]]:
    """Return (rule, the side that should be shorter, the other side) for all measured times."""
    found = []
    smallest: dict[str, int] = {}
    for name, nbytes in times:
        smallest[name] = min(nbytes, smallest.get(name, nbytes))
    for rule, pairs in RULES.items():
        for name, others in pairs:
            for nbytes in sorted(size for each, size in times if each == name):
                rows = [times.get((other, nbytes)) for other in others]
                if None not in rows:
                    right = [row for row in rows if row is not None]
                    found.append((rule, _side([times[name, nbytes]]), _side(right)))
    if ("barrier", 0) in times and "allreduce" in smallest:
        one = times["allreduce", smallest["allreduce"]]
        found.append(("pattern", _side([times["barrier", 0]]), _side([one])))
    for name in smallest:
        sizes = sorted(size for each, size in times if each == name)
        for less, more in pairwise(sizes):
            small, large = times[name, less], times[name, more]
            found.append(("monotony", _side([small]), _side([large])))
            if more % less == 0:
                calls = more // less
                found.append(("division", _side([large]), _side([small], calls)))
            if more == 2 * less and less >= GROWS:
                least, most = GROWTH
                found.append(("growth", _side([small], least), _side([large])))
                found.append(("growth", _side([large]), _side([small], most)))
    return found


def _side(rows: list[Row], times: float = 1) -> Side:
    """Return one side of a relation."""
    size = f" of {size_text(rows[0].bytes)}" if rows[0].bytes else ""
    text = " + ".join(row.collective for row in rows) + size
    if times > 1:
        text = f"{times:g} times {text}"
    return (
        text,
        times * sum(row.median_us for row in rows),
        times * sum(row.noise_us for row in rows),
    )


def _broken(rule: str, left: Side, right: Side, tolerance: float) -> dict[str, Any] | None:
    """Return a description of the violation if the left side is longer than the right, or None."""
    if left[1] <= tolerance * right[1] or left[1] - right[1] <= left[2] + right[2]:
        return None
    return {
        "rule": rule,
        "left": left[0],
        "right": right[0],
        "left_us": left[1],
        "right_us": right[1],
        "factor": left[1] / right[1],
    }
