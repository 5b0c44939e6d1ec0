"""The files of the pages: the fixed ones, the catalogue, and a data file for each algorithm."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import webbrowser
import zipfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from collectives.algorithms import Algorithm, get, names
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError
from collectives.explorer import course
from collectives.explorer.catalogue import (
    COMPOSED,
    LARGE,
    MOST,
    RANKS,
    catalogue,
    data,
    file_name,
    title,
)
from collectives.picture import colours as algorithm_colours
from collectives.picture.sheet import DARK, LIGHT, contrast
from collectives.text import files


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
    folder: str | Path,
    opening: str = "allreduce/ring",
    p: int = 4,
    beside: str = "",
    pyodide: str | Path | None = None,
) -> Path:
    """Write the page with all registered algorithms. Local.

    Parameters
    ----------
    folder : str or Path
        The folder for its files. It is created if it does not exist.
    opening : str
        The algorithm to begin with.
    p : int
        Number of ranks to begin with, from 1 to 64. The page has every algorithm on 1 to 16 ranks,
        those of the course also on 32 and 64, and `opening` and `beside` on `p`, too.
    beside : str
        A second algorithm of the same collective, to compare with; none by default.
    pyodide : str or Path, optional
        The folder of npm's package ``pyodide``, which is Python for browsers. Its files and this
        library are copied into the folder ``pyodide``. On a web server, the page of the course then
        proves the texts of its reader itself. By default, the process of ``collectives explore
        --course`` proves them.

    Returns
    -------
    Path
        The page: ``index.html`` in the folder.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, it cannot run on `p` ranks, a file cannot be written, or
        `pyodide` is another folder.

    Examples
    --------
    >>> import tempfile
    >>> from collectives import explorer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(explorer.write(folder, "broadcast/tree", p=7).name)
    index.html
    """
    from collectives.explorer import machines  # with NumPy, which the prover of a page lacks

    wanted = [refuse(each, p) for each in (opening, beside) if each]
    rows = [get(each, name) for each in COLLECTIVES for name in names(each)]
    rows += [get(*each) for each in COMPOSED]
    # Algorithms with a parameter other than the default, and other compositions.
    rows += [row for row in wanted if row not in rows]
    large = {get("allreduce", name): LARGE for name in course.ALGORITHMS}
    if p > RANKS:
        large |= {row: tuple(sorted({*large.get(row, ()), p})) for row in wanted}
    folder = Path(folder)
    python = {} if pyodide is None else _python(Path(pyodide))
    try:
        files.make_folder(folder)
        if python:
            files.make_folder(folder / "pyodide")
        for name, content in python.items():
            files.write(folder / "pyodide" / name, content)
        files.make_folder(folder / "data")
        for file in resources.files("collectives.explorer").joinpath("static").iterdir():
            files.write(folder / file.name, file.read_bytes())
        files.write(folder / "colours.css", colours())
        for each in rows:
            call = f"explorer.add({_json(title(each))}, {_json(data(each))});\n"
            files.write(folder / file_name(each), call)
        for each, count in [(row, count) for row, counts in large.items() for count in counts]:
            name = _json(f"{title(each)} {count}")
            call = f"explorer.add({name}, {_json(data(each, [count]))});\n"
            files.write(folder / file_name(each, count), call)
        opened = {"algorithm": title(wanted[0]), "p": p}
        if beside:
            opened["beside"] = title(wanted[1])
        listed = {**catalogue(rows, large), "opening": opened}
        for name, call in {
            "catalogue": f"explorer.open({_json(listed)})",
            "course": f"explorer.course({_json(course.data(bool(python)))})",
            "machines": f"explorer.machines = {_json(machines.data(listed['counts']))}",
        }.items():
            files.write(folder / "data" / f"{name}.js", f"{call};\n")
    except OSError as error:
        raise ArgumentError(f"the explorer cannot be written: {error}") from error
    return folder / "index.html"


def _python(folder: Path) -> dict[str, bytes]:
    """Return the files of Pyodide that a browser loads, and those of this library in one."""
    wanted = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
    try:
        found = {name: (folder / name).read_bytes() for name in (*wanted, "pyodide-lock.json")}
    except OSError as error:
        raise ArgumentError(f"{folder} is not npm's package pyodide: {error}") from error
    package = Path(__file__).resolve().parents[1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            # All files have the same time, so that equal sources make equal pages.
            entry = zipfile.ZipInfo(str(Path("collectives", file.relative_to(package))))
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return {**found, "collectives.zip": packed.getvalue()}


def refuse(opening: str, p: int) -> Algorithm:
    """Return the algorithm to begin with, or raise an ArgumentError with the reason. Local."""
    collective, _, name = opening.partition("/")
    row = get(collective, name)
    if not 1 <= p <= MOST:
        raise ArgumentError(f"the page shows 1 to {MOST} ranks, and p is {p}")
    if refusal := row.refusal(p):
        raise ArgumentError(refusal)
    return row


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


def _json(value: Any) -> str:
    # Without the escape, text after "<" could end the script that contains it.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
