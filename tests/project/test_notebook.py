"""The notebooks of the examples: their cells, in order, give the outputs that are stored."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms import names, unregister

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OUTPUTS = {"notebook.ipynb": 4, "course.ipynb": 10}  # the cells that print or have a value


def cells(notebook: Path) -> Iterator[tuple[str, str]]:
    """Yield the source and the output, as text, of each cell with code."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            parts = [each.get("text") or each["data"]["text/plain"] for each in cell["outputs"]]
            yield "".join(cell["source"]), "\n".join("".join(part).rstrip() for part in parts)


def executed(source: str, names: dict[str, Any]) -> str:
    """Return what a cell prints, and the value of the expression that it ends with."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                print(repr(value))
    return printed.getvalue()


@pytest.fixture
def registry() -> Iterator[None]:
    """Take out what the cells register."""
    before = set(names("allreduce"))
    yield
    for name in set(names("allreduce")) - before:
        unregister("allreduce", name)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_cells_have_the_outputs_that_are_stored(name: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    stored = 0
    for source, output in cells(EXAMPLES / name):
        # Ranks print in any order.
        assert sorted(executed(source, space).splitlines()) == sorted(output.splitlines()), source
        stored += bool(output)
    assert stored == OUTPUTS[name]
