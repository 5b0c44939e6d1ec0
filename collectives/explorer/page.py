"""The files of the page: the fixed ones, the catalogue, and a data file for each algorithm."""

from __future__ import annotations

import contextlib
import json
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from collectives import __version__
from collectives.algorithms import Algorithm, get, names
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError, CollectivesError
from collectives.explorer.cases import cases, refused
from collectives.explorer.sources import Sources
from collectives.picture import colours as algorithm_colours
from collectives.picture.sheet import DARK, LIGHT, contrast
from collectives.text import files

RANKS = 16  # the largest number of ranks that the page can show

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
    "barrier": "Nobody goes on before everybody has come. A cell counts the ranks that it has "
    "heard of.",
    "allgather": "All ranks get the parts of all, side by side.",
    "reduce_scatter": "Rank r gets part r of the sum of all arrays.",
    "alltoall": "Rank r gets part r of every array, side by side.",
    "gather": "The root gets the parts of all, side by side.",
    "scatter": "Rank r gets part r of the array of the root.",
    "scan": "Rank r gets the sum of the arrays of ranks 0 to r.",
    "exscan": "Rank r gets the sum of the arrays of the ranks before it.",
}


def explore(opening: str = "allreduce/ring", p: int = 4) -> Path:
    """Write the page to a new temporary folder and open it in a browser. Local.

    Parameters
    ----------
    opening : str
        The algorithm to begin with: ``"allreduce/ring"``.
    p : int
        Number of ranks to begin with.

    Returns
    -------
    Path
        The page. It stays until the system clears its temporary files.
    """
    refuse(opening, p)
    page = write(tempfile.mkdtemp(prefix="collectives-explore-"), opening, p)
    show(page)
    return page


def show(page: Path) -> bool:
    """Open a page in a browser; return whether there is one. Local."""
    with contextlib.suppress(webbrowser.Error):
        return webbrowser.open(page.resolve().as_uri())
    return False


def write(
    folder: str | Path, opening: str = "allreduce/ring", p: int = 4, beside: str = ""
) -> Path:
    """Write the page with all registered algorithms. Local.

    Parameters
    ----------
    folder : str or Path
        The folder for its files. It is created if it does not exist.
    opening : str
        The algorithm to begin with.
    p : int
        Number of ranks to begin with, from 1 to 16.
    beside : str
        A second algorithm of the same collective, to compare with; none by default.

    Returns
    -------
    Path
        The page: ``index.html`` in the folder.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, it cannot run on `p` ranks, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from collectives import explorer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(explorer.write(folder, "broadcast/tree", p=7).name)
    index.html
    """
    wanted = [refuse(each, p) for each in (opening, beside) if each]
    rows = [get(each, name) for each in COLLECTIVES for name in names(each)]
    rows += [get(*each) for each in COMPOSED]
    # Those with a parameter other than the default, and other compositions.
    rows += [row for row in wanted if row not in rows]
    folder = Path(folder)
    try:
        files.make_folder(folder)
        files.make_folder(folder / "data")
        for file in resources.files("collectives.explorer").joinpath("static").iterdir():
            files.write(folder / file.name, file.read_bytes())
        files.write(folder / "colours.css", colours())
        for each in rows:
            call = f"explorer.add({_json(_title(each))}, {_json(data(each))});\n"
            files.write(folder / _file(each), call)
        opened = {"algorithm": _title(wanted[0]), "p": p}
        if beside:
            opened["beside"] = _title(wanted[1])
        call = f"explorer.open({_json({**catalogue(rows), 'opening': opened})});\n"
        files.write(folder / "data" / "catalogue.js", call)
    except OSError as error:
        raise ArgumentError(f"the explorer cannot be written: {error}") from error
    return folder / "index.html"


def refuse(opening: str, p: int) -> Algorithm:
    """Return the algorithm to begin with, or raise an ArgumentError that says why not. Local."""
    collective, _, name = opening.partition("/")
    row = get(collective, name)
    if not 1 <= p <= RANKS:
        raise ArgumentError(f"the page shows 1 to {RANKS} ranks, and p is {p}")
    if refusal := row.refusal(p):
        raise ArgumentError(refusal)
    return row


def catalogue(rows: Sequence[Algorithm]) -> dict[str, Any]:
    """Return the collectives and algorithms of the page, as data. Local."""
    return {
        "version": __version__,
        "ranks": RANKS,
        "numbers": numbers(),
        "collectives": [
            {
                "name": contract.name,
                "meaning": MEANING[contract.name],
                "rooted": contract.rooted,
                "idempotent": contract.idempotent,
                "layout": _layout(contract.parts(2), contract.per_array(2)),
                "algorithms": [_entry(row) for row in rows if row.collective is contract],
            }
            for contract in COLLECTIVES.values()
        ],
    }


def _layout(parts: int, per_array: int) -> str:
    """Return how arrays are cut: not at all, by rank, or by pairs of source and destination."""
    if parts == 1:
        return "whole"
    return "parts" if parts == per_array else "pairs"


def _entry(row: Algorithm) -> dict[str, Any]:
    return {
        "name": row.name,
        "summary": row.summary,
        "colour": algorithm_colours.number(row.name),
        "cost": str(row.cost) if row.cost else "",
        "source": row.source,
        "file": _file(row),
    }


def data(row: Algorithm) -> dict[str, Any]:
    """Return the data of one algorithm that the page plays. Local.

    If an algorithm cannot run on some number of ranks, the text of the error replaces its cases. If
    it is wrong there, its case ends at the error.
    """
    sources = Sources(row.generate)
    found: dict[str, Any] = {}
    for p in range(1, RANKS + 1):
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
    for r in range(RANKS):
        row = [1 + (7 * r + 5 * k + r * k) % 23 for k in range(RANKS)]
        row[: len(LECTURE[0])] = LECTURE[r] if r < len(LECTURE) else row[: len(LECTURE[0])]
        rows.append(row)
    return rows


def colours() -> str:
    """Return the colours of pictures as variables of a style sheet. Local.

    ``--c3`` is a block, ``--on3`` the text on it, and ``--a3`` an algorithm.
    """
    light, dark = (
        "\n".join(_variables(*each))
        for each in ((LIGHT, algorithm_colours.LIGHT), (DARK, algorithm_colours.DARK))
    )
    return (
        f":root {{\n{light}\n}}\n"
        "@media (prefers-color-scheme: dark) {\n"
        f":root:not([data-theme=light]) {{\n{dark}\n}}\n"
        "}\n"
        f":root[data-theme=dark] {{\n{dark}\n}}\n"
    )


def _variables(blocks: Sequence[str], algorithms: Sequence[str]) -> Iterator[str]:
    for number, colour in enumerate(blocks):
        on = max(("#000000", "#ffffff"), key=lambda each: contrast(each, colour))
        yield f"  --c{number}: {colour}; --on{number}: {on};"
    for number, colour in enumerate(algorithms):
        yield f"  --a{number}: {colour};"


def _title(row: Algorithm) -> str:
    return f"{row.collective.name}/{row.name}"


def _file(row: Algorithm) -> str:
    """Return a name for the file of an algorithm's data that is valid in any file system."""
    name = "".join(
        c if (c.isascii() and c.isalnum()) or c in "_-" else f"-{ord(c):x}-" for c in row.name
    )
    return f"data/{row.collective.name}-{name}.js"


def _json(value: Any) -> str:
    # Without the escape, text after "<" could end the script that contains it.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
