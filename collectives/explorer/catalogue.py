"""The catalogue of the explorer: its algorithms, their descriptions, and the data that it plays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collectives import __version__
from collectives.algorithms import Algorithm
from collectives.algorithms.registry import NOWHERE
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import CollectivesError
from collectives.explorer.cases import cases, refused
from collectives.explorer.sources import Sources
from collectives.picture import colours as algorithm_colours

RANKS = 16  # the page has all numbers of ranks up to this
LARGE = (32, 64)  # and these, in files of their own, for the algorithms of the course
MOST = 64

# Compositions on the page; on 8 ranks there are two groups of four.
COMPOSED = (("allreduce", "hierarchical(direct,ring)"),)

# The arrays that workers start with: those of the lecture (see examples/lecture.py), and more
# numbers of that kind for more workers and longer arrays.
LECTURE = ((17, 11, 1, 9), (5, 13, 23, 14), (3, 6, 10, 8), (12, 7, 2, 12))

# The meaning of each collective, in a sentence.
MEANING = {
    "allreduce": "All ranks get the sum of all arrays.",
    "reduce": "The root gets the sum of all arrays.",
    "broadcast": "All ranks get the array of the root.",
    "barrier": "No rank continues before all have arrived. A cell counts the ranks that it has "
    "heard of.",
    "allgather": "All ranks get the parts of all, side by side.",
    "reduce_scatter": "Rank r gets part r of the sum of all arrays.",
    "alltoall": "Rank r gets part r of every array, side by side.",
    "gather": "The root gets the parts of all, side by side.",
    "scatter": "Rank r gets part r of the array of the root.",
    "scan": "Rank r gets the sum of the arrays of ranks 0 to r.",
    "exscan": "Rank r gets the sum of the arrays of the ranks before it.",
}


def catalogue(
    rows: Sequence[Algorithm], large: Mapping[Algorithm, Iterable[int]]
) -> dict[str, Any]:
    """Return the collectives and algorithms of the page, as data. Local.

    `large` has the numbers of ranks beyond `RANKS` for which an algorithm has files.
    """
    return {
        "version": __version__,
        "ranks": RANKS,
        "counts": sorted({*range(1, RANKS + 1)}.union(*large.values())),
        "numbers": numbers(),
        "collectives": [
            {
                "name": contract.name,
                "meaning": MEANING[contract.name],
                "rooted": contract.rooted,
                "idempotent": contract.idempotent,
                "layout": _layout(contract.parts(2), contract.per_array(2)),
                "algorithms": [
                    _entry(row, large.get(row, ())) for row in rows if row.collective is contract
                ],
            }
            for contract in COLLECTIVES.values()
        ],
    }


def _layout(parts: int, per_array: int) -> str:
    """Return how arrays are cut: not at all, by rank, or by pairs of source and destination."""
    if parts == 1:
        return "whole"
    return "parts" if parts == per_array else "pairs"


def _entry(row: Algorithm, large: Iterable[int]) -> dict[str, Any]:
    return {
        "name": row.name,
        "summary": row.summary,
        "literature": row.chosen == NOWHERE,
        "colour": algorithm_colours.number(row.name),
        "cost": str(row.cost) if row.cost else "",
        "source": row.source,
        "file": file_name(row),
        "large": {str(p): file_name(row, p) for p in large},
    }


def data(row: Algorithm, ranks: Iterable[int] = range(1, RANKS + 1)) -> dict[str, Any]:
    """Return the data of one algorithm that the page plays, for some numbers of ranks. Local.

    If an algorithm cannot run on some number of ranks, the text of the error replaces its cases. If
    it is wrong there, its case ends at the error.
    """
    sources = Sources(row.generate)
    found: dict[str, Any] = {}
    for p in ranks:
        refusal = row.refusal(p)
        if refusal is not None:
            found[str(p)] = {"error": refusal}
            continue
        try:
            found[str(p)] = cases(row, p, sources)
        except CollectivesError as error:
            found[str(p)] = refused(row, p, sources) or {"error": str(error)}
    return {"cases": found, "spots": sources.spots, "functions": sources.data()}


def numbers() -> list[list[int]]:
    """Return the numbers that the arrays contain at the start: a row for each rank. Local."""
    rows = []
    for r in range(MOST):
        row = [1 + (7 * r + 5 * k + r * k) % 23 for k in range(RANKS)]
        row[: len(LECTURE[0])] = LECTURE[r] if r < len(LECTURE) else row[: len(LECTURE[0])]
        rows.append(row)
    return rows


def title(row: Algorithm) -> str:
    return f"{row.collective.name}/{row.name}"


def file_name(row: Algorithm, p: int | None = None) -> str:
    """Return a name that is valid in any file system, for data up to `RANKS`, or of one `p`."""
    name = "".join(
        c if (c.isascii() and c.isalnum()) or c in "_-" else f"-{ord(c):x}-" for c in row.name
    )
    return f"data/{row.collective.name}-{name}{'' if p is None else f'.{p}'}.js"
