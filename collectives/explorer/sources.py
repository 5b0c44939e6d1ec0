"""The source text of generators for the page, in colours, with the lines of the rounds."""

from __future__ import annotations

import ast
import gc
import html
import inspect
import io
import keyword
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from collectives.algorithms.exchange import parallel

# The number of a line, and its HTML.
Line = tuple[int, str]


class Sources:
    """The functions that yield the rounds of one algorithm, and the spots where they yield.

    A *spot* is the position of a generator when it yields: the position in the generator itself, in
    the phase that it runs, and so on. Each position is a function and the lines of a statement.
    """

    def __init__(self, generate: Callable[..., Any]) -> None:
        self.functions: list[Text] = []
        self.spots: list[list[list[int]]] = []
        self._numbers: dict[CodeType, int] = {}
        self._spots: dict[tuple[tuple[int, int], ...], int] = {}
        code = getattr(inspect.unwrap(generate), "__code__", None)
        if code is not None:
            self._function(code)

    def spot(self, generator: Any) -> int:
        """Return the number of the spot where the `generator` is suspended. Local."""
        stack: list[tuple[int, int]] = []
        each = generator
        while (frame := getattr(each, "gi_frame", None)) is not None:
            stack.append((self._function(frame.f_code), frame.f_lineno))
            each = _inner(each)
        key = tuple(stack)
        if key not in self._spots:
            self._spots[key] = len(self.spots)
            self.spots.append(
                [[number, *self.functions[number].statement(line)] for number, line in stack]
            )
        return self._spots[key]

    def _function(self, code: CodeType) -> int:
        if code not in self._numbers:
            self._numbers[code] = len(self.functions)
            self.functions.append(Text(code))
        return self._numbers[code]

    def data(self) -> list[dict[str, Any]]:
        """Return the texts: name, file, and lines as [number, HTML]. Local."""
        return [
            {"name": each.name, "file": each.file, "lines": [list(line) for line in each.lines]}
            for each in self.functions
        ]


def _inner(generator: Any) -> Any:
    """Return the suspended generator that another one runs.

    It runs by ``yield from``, perhaps inside an iterator such as itertools.chain, or in a loop that
    changes the yielded items. The garbage collector finds it. Otherwise, the page shows the line of
    the outer generator.
    """
    iterator = generator.gi_yieldfrom
    if inspect.isgenerator(iterator):
        # It merges several others.
        return None if iterator.gi_code is parallel.__code__ else iterator
    holders = [generator, generator.gi_frame] if iterator is None else [iterator]
    held = {each for each in gc.get_referents(*holders) if inspect.isgenerator(each)}
    waiting = [each for each in held if inspect.getgeneratorstate(each) == inspect.GEN_SUSPENDED]
    return waiting[0] if len(waiting) == 1 else None


class Text:
    """The source text of one function, without decorator and docstring.

    If there is no source text, as for a function from an interpreter prompt, it has no lines.
    """

    def __init__(self, code: CodeType) -> None:
        self.name: str = code.co_name
        self.file: str = _short(Path(code.co_filename))
        self.lines: list[Line] = []
        self.spans: list[tuple[int, int]] = []
        try:
            written, first = inspect.getsourcelines(code)
            text = textwrap.dedent("".join(written))
            node = ast.parse(text).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            return
        if not isinstance(node, ast.FunctionDef):
            return
        hidden: set[int] = set(range(1, node.lineno))
        if ast.get_docstring(node) is not None:
            hidden |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        self.lines = [
            (first + number - 1, line)
            for number, line in enumerate(coloured(text), 1)
            if number not in hidden
        ]
        for each in ast.walk(node):
            if isinstance(each, ast.stmt) and not hasattr(each, "body"):
                last = each.end_lineno or each.lineno
                self.spans.append((first + each.lineno - 1, first + last - 1))

    def statement(self, line: int) -> tuple[int, int]:
        """Return the first and last line of the statement that a line belongs to. Local."""
        found = [(last - first, first, last) for first, last in self.spans if first <= line <= last]
        return min(found)[1:] if found else (line, line)


def _short(file: Path) -> str:
    """Return a short name of a file: its path from the package on, or its name alone."""
    parts = file.parts
    if "collectives" in parts[:-1]:
        start = len(parts) - 1 - parts[::-1].index("collectives")
        return "/".join(parts[start:])
    return file.name


def coloured(text: str) -> list[str]:
    """Return the lines of a program as HTML, with a class for each kind of word. Local."""
    lines = text.splitlines()
    marks: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = _kind(token, before)
        before = token.string
        if not kind:
            continue
        (top, left), (bottom, right) = token.start, token.end
        for row in range(top, bottom + 1):
            start = left if row == top else 0
            end = right if row == bottom else len(lines[row - 1])
            marks[row - 1].append((start, end, kind))
    return ["".join(_spans(line, found)) for line, found in zip(lines, marks, strict=True)]


def _kind(token: tokenize.TokenInfo, before: str) -> str:
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "k"
    if token.type == tokenize.NAME and before == "def":
        return "d"
    # An f-string is one token up to Python 3.11, and several later.
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "s"
    return {tokenize.NUMBER: "n", tokenize.COMMENT: "c"}.get(token.type, "")


def _spans(line: str, marks: list[tuple[int, int, str]]) -> Iterator[str]:
    place = 0
    for start, end, kind in marks:
        start = max(start, place)  # Python 3.12 is off by one after a doubled brace
        yield html.escape(line[place:start], quote=False)
        yield f'<span class="{kind}">{html.escape(line[start:end], quote=False)}</span>'
        place = end
    yield html.escape(line[place:], quote=False)
