"""The size of the library, as ``make size`` prints it. Standard library only."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
GENERATED = re.compile(r"docs/(_build|_extra|algorithms)/|collectives/_core\.c$")


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield the docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            yield first


def lines_of(node: ast.AST) -> set[int]:
    """Return the numbers of the lines of a node."""
    return set(range(node.lineno, node.end_lineno + 1))  # type: ignore[attr-defined]


def counted(file: Path) -> tuple[int, int, int]:
    """Return a file's lines of code, those of docstrings, and those of its longest function."""
    source = file.read_text()
    tree = ast.parse(source)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE and token.string.strip():
            code.update(range(token.start[0], token.end[0] + 1))
    texts: set[int] = set()
    for each in docstrings(tree):
        texts |= lines_of(each)
    code -= texts
    functions = (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))
    return len(code), len(texts), max((len(lines_of(f) & code) for f in functions), default=0)


def total(files: Iterable[Path]) -> tuple[int, int, int]:
    """Return the sums of the lines of code and of docstrings, and the longest function."""
    counts = [counted(file) for file in files]
    return sum(c[0] for c in counts), sum(c[1] for c in counts), max(c[2] for c in counts)


def other_lines(files: Iterable[Path]) -> int:
    """Return the lines of other languages that are not blank, comments or docstrings."""
    count = 0
    for file in files:
        source = re.sub(r'""".*?"""|/\*.*?\*/|<!--.*?-->', "", file.read_text(), flags=re.DOTALL)
        comment = "#" if file.suffix in (".pyx", ".pxi", ".pyi", ".yaml", "") else "//"
        lines = map(str.strip, source.splitlines())
        count += sum(bool(line) and not line.startswith(comment) for line in lines)
    return count


def files(folder: str, *suffixes: str) -> list[Path]:
    """Return the files of a folder that are maintained."""
    found = sorted((ROOT / folder).rglob("*"))
    return [f for f in found if f.suffix in suffixes and not GENERATED.search(f.as_posix())]


def rows() -> Iterator[tuple[str, int]]:
    """Yield the numbers, with their names."""
    package = sorted((ROOT / "collectives").rglob("*.py"))
    code, texts, longest = total(package)
    yield "collectives/, Python code lines", code
    yield "collectives/, docstring lines", texts
    yield "collectives/, Python files", len(package)
    yield "collectives/, code lines of the longest function", longest
    core = files("collectives", ".pyx", ".pxi", ".pyi", ".h", ".c")
    yield "core (.pyx, .pxi, .pyi, .h, .c)", other_lines(core)
    yield "kernels of devices (.cu)", other_lines(files("collectives", ".cu"))
    yield (
        "pages of the explorer (.js, .css, .html)",
        other_lines(files("collectives", ".js", ".css", ".html")),
    )
    for folder in ("tests", "benchmarks", "examples", "docs", "wheels"):
        yield f"{folder}/, Python code lines", total(files(folder, ".py"))[0]
    yield (
        "tests/, other code lines (.c, .h, .js, .mjs)",
        other_lines(files("tests", ".c", ".h", ".js", ".mjs")),
    )
    tools = [ROOT / name for name in ("Makefile", "setup.py", "pyproject.toml", ".ci/run")]
    tools += files(".github", ".yml") + files("wheels", ".yaml")
    yield (
        "Makefile, settings, workflows, recipes",
        sum(
            bool(line.strip()) and not line.lstrip().startswith("#")
            for file in tools
            if file.exists()
            for line in file.read_text().splitlines()
        ),
    )
    manual = [*files("docs", ".md"), *(ROOT.glob("*.md"))]
    yield (
        "words of the manual and the pages beside it",
        sum(len(file.read_text().split()) for file in manual),
    )
    results = (ROOT / "benchmarks" / "results").rglob("*.json")
    yield "benchmarks/results, lines", sum(len(f.read_text().splitlines()) for f in results)


if __name__ == "__main__":
    for name, number in rows():
        print(f"{name:50}{number:>8,}")
