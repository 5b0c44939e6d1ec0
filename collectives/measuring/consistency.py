"""``collectives bench --consistency``: no operation should take longer than others in its place.

The rules are those of Traeff, Gropp, Thakur: Self-consistent MPI performance guidelines, 2010,
doi:10.1109/TPDS.2009.120; as lists of operations they are in Hunold, Carpen-Amarie, Luebbe,
Traeff: PGMPI: automatically verifying self-consistent MPI performance guidelines, 2016,
arXiv:1606.00215. Of equal arrays, with sizes in bytes of the larger side:

- *pattern*: an operation is not slower than some others, one after the other, that do its work;
- *generality*: nor than one that can do more, as the vector form of a collective, or an allgather
  in place of a gather;
- *monotony*: nor than itself on more data;
- *division*: nor, on f times as much data, than f calls.

A rule is broken where one side takes more than the tolerance times the other, and the difference
is beyond the noise: by how much blocks of the same call differ from their median. What vanished
in the barriers that are subtracted is compared with nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from collectives.measuring.bench import MPI_LABEL, PEERS
from collectives.text.words import size_text

__all__ = ["RULES", "judge"]

# The first should not take longer than the others together.
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


def judge(rows: list[dict[str, Any]], tolerance: float) -> dict[str, Any]:
    """Hold times against the rules. Local.

    Parameters
    ----------
    rows : list of dict
        Of `report.rows`: what the library chooses, and MPI's own.
    tolerance : float

    Returns
    -------
    dict
        ``tolerance``; ``checked`` and ``violations`` for ``"ours"`` and ``"MPI"``: a number, and a
        list of dict with ``rule``, ``left``, ``right`` (texts), ``left_us``, ``right_us`` and
        ``factor``.
    """
    result: dict[str, Any] = {"tolerance": tolerance, "checked": {}, "violations": {}}
    for who in ("ours", MPI_LABEL):
        others = (MPI_LABEL,) if who == MPI_LABEL else PEERS
        own = [row for row in rows if (row["algorithm"] in others) == (who == MPI_LABEL)]
        times = {(row["collective"], row["bytes"]): row for row in own}
        relations = [each for each in _relations(times) if each[1][1] > 0 and each[2][1] > 0]
        result["checked"][who] = len(relations)
        result["violations"][who] = [
            broken for each in relations if (broken := _broken(*each, tolerance)) is not None
        ]
    return result


Side = tuple[str, float, float]  # a text, us, and noise in us


def _relations(times: dict[tuple[str, int], dict[str, Any]]) -> list[tuple[str, Side, Side]]:
    """Return (rule, what should be shorter, than what) for everything that was measured."""
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
    return found


def _side(rows: list[dict[str, Any]], calls: int = 1) -> Side:
    """Return one side of a relation."""
    size = f" of {size_text(rows[0]['bytes'])}" if rows[0]["bytes"] else ""
    text = " + ".join(row["collective"] for row in rows) + size
    if calls > 1:
        text = f"{calls} times {text}"
    return (
        text,
        calls * sum(row["median_us"] for row in rows),
        calls * sum(row["noise_us"] for row in rows),
    )


def _broken(rule: str, left: Side, right: Side, tolerance: float) -> dict[str, Any] | None:
    """Return what is to be said if the left side takes longer than the right, else None."""
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
