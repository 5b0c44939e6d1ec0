"""Sentences to look at again: what ``make words`` prints. Standard library only.

It is a start and no judge: a sentence that it prints may be right, and one that it does not, wrong.
`python tests/words.py PATH...` reads only these files and folders.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = ("README.md", "CHANGES.md", "CONTRIBUTING.md", "docs", "collectives", "examples")
LONGEST = 45  # words of a sentence
QUESTION = r"(?:What|Whether|How|Which|Who|Whose|Whoever|Where|When|Why)\b"
CODE = re.compile(r"``.+?``|`[^`]*`|\{\w+\}|\]\([^)]*\)")
NO_PROSE = re.compile(r"^( *)```[\s\S]*?^\1```|<!--[\s\S]*?-->|^ *(?:\||#| {4}).*", re.M)
PARAGRAPH = re.compile(r"^ *\S.*(?:\n(?! *(?:[-*:]|\d+\.) )(?= *\S).*)*", re.M)
RULES = {
    "begins with a clause as its subject": re.compile(r"^(?:What|Whoever|Who)\b(?!.*\?$)"),
    "a clause as subject or object": re.compile(
        r"\b(?:of|by|to|from|with|for|than|and|but|as) (?:what|who|whoever|whose)\b"
        r"|\bwhat (?:is|are|was|were|has|have|had|comes?|stands?|runs?)\b"
    ),
    "a verb far from its clause": re.compile(
        r"\b(?:will|would) do (?:that|which)\b|\bof one's own\b"
    ),
    "says whether or which": re.compile(r"\b(?:says?|tells?) (?:whether|which|what|how|who)\b"),
    "a word with a plainer one": re.compile(
        r"\b(?:whoever|therein|thereof|meanwhile|nevertheless|all the same|comes? to it)\b"
    ),
}


def pieces(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page, or the docstrings and comments of a program, with lines."""
    text = file.read_text()
    if file.suffix == ".md":
        text = NO_PROSE.sub(lambda m: "\n" * m[0].count("\n"), text)
        for found in PARAGRAPH.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0].strip(" -*\n")
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                yield getattr(node, "lineno", 1), paragraph
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.strip("#: ")


def findings(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the rule and the sentence of each finding in a file."""
    for line, piece in pieces(file):
        if file.suffix == ".py" and re.match(QUESTION, piece) and "?" not in piece:
            yield line, "begins with a question word", piece.partition("\n")[0]
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*`])", " ".join(piece.split())):
            plain = CODE.sub("x", sentence)
            yield from ((line, rule, sentence) for rule, rx in RULES.items() if rx.search(plain))
            if len(plain.split()) > LONGEST and file.suffix == ".md":
                yield line, f"more than {LONGEST} words", sentence


def main(paths: list[str]) -> None:
    """Print the findings in files and folders, by file and line."""
    for path in [Path(each).resolve() for each in paths] or [ROOT / each for each in PATHS]:
        for file in sorted([*path.rglob("*.md"), *path.rglob("*.py")]) if path.is_dir() else [path]:
            for line, rule, sentence in findings(file):
                print(f"{os.path.relpath(file)}:{line}: {rule}: {sentence[:160]}")


if __name__ == "__main__":
    main(sys.argv[1:])
