"""The algorithm index: a page for each collective, written from the registry when docs are built.

A page shows what the registry says (`Cost`, promises, source), what the measured table chooses,
what `draw` draws from the proof, and the generator itself. Nothing on it is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from collectives import algorithms, check, draw
from collectives.algorithms import Algorithm, spec
from collectives.choice import select

FOLDER = "algorithms"
RANKS = (2, 3, 4, 5, 8, 16, 64)  # in the tables of costs
DRAWN, DRAWN_TOO = 4, 5  # a power of two, and another number
WIDTH = 90  # columns of a drawing

LITERATURE = (
    "The literature: {doc}`../research/papers` has the claims of the papers. A call runs one of "
    'these only if it or a profile names it, or with `bits="size"`.'
)

MPIS = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI"}

INTRODUCTION = """\
# Algorithms

These pages are generated from the registry. For each algorithm they show its cost, its properties,
the messages of each step, and its source. In a terminal, `collectives list` prints the costs, and
`collectives explain NAME -n 4` draws an algorithm.

*Rounds* is the length of the longest chain of messages that wait for each other. *Sent* and
*folded* are the largest amounts that one rank sends and folds, in units of the whole array.
{doc}`../reference/algorithms` explains the letters in the formulas. In the times, `n` is the number
of bytes of the whole array (the larger side, where input and output differ), and `alpha`, `beta`
and `gamma` are the seconds for each message, each byte sent and each byte folded.

The drawings show the proof of the algorithm: `0 -[2]-> 1` is a message from rank 0 to rank 1 with
block 2. In a *fold* line the block is folded into the one that the rank has; in a *store* line it
replaces it. In the grids a row is a rank and a column is a block. A cell names the ranks whose
contributions it contains; `*` stands for all that belong there, and `.` for none. Where arrays are
cut by rank, block 2 is what rank 2 gives or gets; in an alltoall, block 12 goes from rank 1 to
rank 2.
"""


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir, FOLDER)))
    return {"parallel_read_safe": True}


def write(folder: Path) -> None:
    """Write the pages; leave those alone that say the same already, so that builds stay short."""
    folder.mkdir(exist_ok=True)
    pages = {"index.md": index()}
    for name in spec.COLLECTIVES:
        pages[f"{name}.md"] = page(name)
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.glob("*.md"):
        if file.name not in pages:
            file.unlink()


def index() -> str:
    """Return the page with all tables."""
    parts = [INTRODUCTION]
    for name in spec.COLLECTIVES:
        textbook, literature = _rows(name)
        parts += [f"## {name}\n", *_table(textbook), ""]
        if literature:
            parts += [LITERATURE, "", *_table(literature), ""]
    parts += ["```{toctree}", ":hidden:", "", *spec.COLLECTIVES, "```", ""]
    return "\n".join(parts)


def _table(rows: list[Algorithm]) -> Iterator[str]:
    yield "| algorithm | what it does | rounds | sent |"
    yield "|---|---|---|---|"
    for row in rows:
        formulas = (row.cost.rounds, row.cost.sent) if row.cost else ("", "")
        cells = " | ".join(f"`{text}`" if text else "" for text in formulas)
        yield f"| [`{row.name}`](#{anchor(row)}) | {row.summary} | {cells} |"


def _rows(collective: str) -> tuple[list[Algorithm], list[Algorithm]]:
    """Return the textbook algorithms, and those of the literature."""
    textbook = algorithms.names(collective, textbook=True)
    literature = [name for name in algorithms.names(collective) if name not in textbook]
    get = partial(algorithms.get, collective)
    return list(map(get, textbook)), list(map(get, literature))


def anchor(row: Algorithm) -> str:
    """Return the label of an algorithm's section."""
    return f"algorithm-{row.collective.name}-{row.name}".replace("_", "-")


def page(collective: str) -> str:
    """Return the page of one collective."""
    contract = spec.collective(collective)
    parts = [f"# {collective}\n"]
    parts.append(
        f"How to call it: {{meth}}`collectives.Communicator.{contract.name}`. "
        f"{{doc}}`index` has what the letters and drawings mean."
    )
    if contract.parts(DRAWN) > DRAWN:
        parts.append("In the drawings block 12 is what goes from rank 1 to rank 2.")
    parts.append("")
    textbook, literature = _rows(collective)
    for row in textbook:
        parts += section(row)
    if literature:
        parts += [f"## Literature\n\n{LITERATURE}\n"]
    for row in literature:
        parts += section(row, "###")
    return "\n".join(parts)


def section(row: Algorithm, level: str = "##") -> Iterator[str]:
    """Yield the parts of one algorithm's section."""
    yield f"({anchor(row)})="
    yield f"{level} {row.name}\n"
    yield f"{_prose(row.generate)}\n"
    yield from costs(row)
    yield from facts(row)
    yield f"**On {DRAWN} ranks**\n"
    yield fence("text", picture(row, DRAWN))
    if row.refusal(DRAWN_TOO) is None:
        yield f"<details><summary>On {DRAWN_TOO} ranks</summary>\n"
        yield fence("text", picture(row, DRAWN_TOO))
        yield "</details>\n"
    yield "**The text that runs**\n"
    yield fence("python", source(row.generate))


def _prose(generate: Callable[..., Any]) -> str:
    """Return the docstring up to its first section."""
    text = inspect.getdoc(generate) or ""
    return re.split(r"\n\w+\n-{3,}\n", text)[0].strip()


def costs(row: Algorithm) -> Iterator[str]:
    """Yield the table of costs: formulas, and their values."""
    yield f"| | formula | {' | '.join(f'p = {p}' for p in RANKS)} |"
    yield f"|---|---|{'---:|' * len(RANKS)}"
    if row.cost is not None:
        values = [row.totals(p) or (0.0, 0.0, 0.0) for p in RANKS]
        formulas = (row.cost.rounds, row.cost.sent, row.cost.folded)
        for number, name in enumerate(("rounds", "arrays sent", "arrays folded")):
            if formulas[number] != "0":
                cells = " | ".join(f"{value[number]:.4g}" for value in values)
                yield f"| {name} | `{formulas[number]}` | {cells} |"
    yield f"| blocks | | {' | '.join(str(row.blocks(p)) for p in RANKS)} |"
    yield ""


def facts(row: Algorithm) -> Iterator[str]:
    """Yield the facts of an algorithm: time, needs, folds, choices and source."""
    contract = row.collective
    yield f"- Time: `{row.cost or 'not stated'}`."
    needs = [text.replace("_", " ") for text in row.requires]
    yield f"- Needs: {', '.join(needs) or 'any number of ranks'}."
    if contract.folds:
        order = "rank order is kept" if row.keeps_order else "not in rank order"
        bits = ["the same bits on all ranks"] if row.same_bits and contract.replicates else []
        yield f"- Folds: {'; '.join([order, *bits])}."
    if any(contract.name in section.rows for section in select.measured().sections):
        chosen = "; ".join(choices(row)) or "nowhere on the measured machine"
        yield f"- Chosen by `algorithm=None`: {chosen}."
    yield f"- Source: {_linked(row.source)}.\n"


def choices(row: Algorithm) -> Iterator[str]:
    """Yield for each MPI where the measured table takes this algorithm."""
    for section in select.measured().sections:
        found = []
        for ranks, limits in section.rows.get(row.collective.name, {}).items():
            spans: list[tuple[int, int | None]] = []
            start = 0
            for limit, name, *_ in limits:
                end = None if limit is None else limit + 1
                if name.partition(":")[0] == row.name:
                    joined = bool(spans) and spans[-1][1] == start
                    spans.append((spans.pop()[0] if joined else start, end))
                start = end or 0
            if spans:
                texts = " and ".join(_span(*span) for span in spans)
                found.append(f"{ranks} ranks, {texts}")
        if found:
            yield f"{MPIS.get(section.transport, section.transport)} ({'; '.join(found)})"


def _span(start: int, end: int | None) -> str:
    """Write a range of sizes."""
    if end is None:
        return f"from {select.size_text(start)} on" if start else "all sizes"
    low, high = select.size_text(start), select.size_text(end)
    return f"{low} to {high}" if start else f"below {high}"


def _linked(text: str) -> str:
    """Return a source with its DOI or arXiv number as a link."""
    text = re.sub(r"doi:(\S+)$", r"[doi:\1](https://doi.org/\1)", text)
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def picture(row: Algorithm, p: int) -> str:
    """Return messages and holdings on p ranks."""
    proof = check.check(row, p=p)
    return f"{draw.rounds(proof, width=WIDTH)}\n\n{draw.grid(proof, width=WIDTH)}"


def source(generate: Callable[..., Any]) -> str:
    """Return the generator's text without decorator and docstring, and all that it calls."""
    return "\n\n".join(_bare(function) for function in called(generate))


def called(generate: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function, and those of the algorithms' files that it calls, each once."""
    found: list[Callable[..., Any]] = [generate]
    for function in found:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            target = inspect.unwrap(function).__globals__.get(node.func.id)
            ours = getattr(target, "__module__", "").startswith("collectives.algorithms.")
            if inspect.isfunction(target) and ours and target not in found:
                found.append(target)
    return found


def _bare(function: Callable[..., Any]) -> str:
    text = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    lines = text.splitlines()
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        assert first.end_lineno is not None
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(lines[node.lineno - 1 :])


def fence(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```\n"
