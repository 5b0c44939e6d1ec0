"""The manual and README.md as programs: every block of code in them runs. Standard library only.

The fence gives the kind of a block, and a comment on the line above its special properties:

- ``python``: the blocks of a page are one program, in order, on two ranks, or on the number in
  ``<!-- ranks: 4 -->`` on the page. ``<!-- file: pi.py -->`` makes it a file for commands instead.
- ``text`` under ``<!-- output -->``: the output of the block before it, rank by rank.
- ``console``: each ``$`` line is a command, with the output that follows; none: not compared.
  ``<!-- fails -->``: with an exit status that is not 0; ``<!-- numbers vary -->``: numbers in the
  output are not compared; ``<!-- any order -->``: nor is the order of its lines.
- ``<!-- needs: torch -->``: skipped where that module or program is not there; also several.
- ``<!-- full: what else tests it -->``: skipped in usual runs, as it takes long.
- ``<!-- not run: reason -->``: only shown.

In an output ``...`` stands for anything, as in a doctest. Other fences are refused, so that no
block escapes by a slip. Several comments may stand above each other.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jobs
from usual import FULL

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Written by the build; nothing of them is typed by hand.
GENERATED = ("_build", "_extra", "algorithms")

FENCE = re.compile(r"( *)```(.*)$")
COMMENT = re.compile(r" *<!-- ([\w ]+?)(?:: (.*?))? -->$")

KNOWN = {
    "ranks",
    "file",
    "output",
    "fails",
    "numbers vary",
    "any order",
    "needs",
    "full",
    "not run",
}
# Begins a table that is generated; test_readme.py compares it.
TABLES = {"algorithms", "layers"}


class PageError(Exception):
    """A page is written wrongly, or does not do what it says."""


@dataclass
class Block:
    """A block of code: its language, text, the line where the text begins, and its marks."""

    language: str
    text: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)


def pages() -> list[Path]:
    """Return the pages with blocks that run."""
    written = [page for page in sorted(DOCS.rglob("*.md")) if _folder(page) not in GENERATED]
    return [*written, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def _folder(page: Path) -> str:
    return page.relative_to(DOCS).parts[0]


def blocks(text: str, name: str) -> tuple[int, list[Block]]:
    """Return for how many ranks a page is written, and its blocks."""
    ranks = 2
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        comment = COMMENT.match(lines[number])
        opening = FENCE.match(lines[number])
        number += 1
        if comment and comment[1] in TABLES:
            continue
        if comment:
            if comment[1] not in KNOWN:
                raise PageError(f"{name}:{number}: <!-- {comment[1]} --> is none of {KNOWN}")
            if comment[1] == "ranks":
                ranks = int(comment[2])
            else:
                marks[comment[1]] = comment[2] or ""
        elif opening:
            start = number
            while lines[number].rstrip() != f"{opening[1]}```":
                number += 1
            body = textwrap.dedent("\n".join(lines[start:number])) + "\n"
            number += 1
            if not opening[2].startswith("{"):
                found.append(Block(opening[2], body, start + 1, marks))
            marks = {}
        elif lines[number - 1].strip() and marks:
            raise PageError(f"{name}:{number}: {list(marks)} stand above no block of code")
    return ranks, found


# The page shows the output of commands. Lines that several ranks write at once stay whole only
# where they are buffered, and TensorFlow tells of the processor.
PLAIN = {"PYTHONUNBUFFERED": "", "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Page:
    """One page, ready to run.

    Parameters
    ----------
    file : Path
        The page.
    python : Path
        The interpreter of the environment that it runs in.
    """

    def __init__(self, file: Path, python: Path) -> None:
        self.file, self.python = file, python
        self.name = str(file.relative_to(ROOT))
        self.program: list[dict[str, object]] = []
        self.files: dict[str, str] = {}
        self.commands: list[tuple[str, str, Block]] = []
        self.skipped: list[str] = []
        before: Block | None = None
        self.ranks, found = blocks(file.read_text(encoding="utf-8"), self.name)
        for block in found:
            self.sort(block, before)
            before = block

    def sort(self, block: Block, before: Block | None) -> None:
        """Put a block where it belongs."""
        where = f"{self.name}:{block.line}"
        if "not run" in block.marks:
            if not block.marks["not run"]:
                raise PageError(f"{where}: say why it is not run")
            self.skipped.append(f"{where}: {block.marks['not run']}")
        elif block.language == "text" and "output" in block.marks:
            if before is None or before.language != "python":
                raise PageError(f"{where}: an output stands below no python block")
            if self.program and self.program[-1]["line"] == before.line:
                self.program[-1]["output"] = block.text
        elif "full" in block.marks and not FULL:
            if not block.marks["full"]:
                raise PageError(f"{where}: say what else tests it")
            self.skipped.append(f"{where}: in full runs; else {block.marks['full']}")
        elif missing := self.missing(block):
            self.skipped.append(f"{where}: {missing} is not installed")
        elif block.language == "python" and "file" in block.marks:
            self.files[block.marks["file"]] = block.text
        elif block.language == "python":
            self.program.append({"line": block.line, "text": block.text, "output": None})
        elif block.language == "console":
            self.commands += [(*each, block) for each in commands(block, where)]
        else:
            raise PageError(
                f"{where}: a block is {block.language or 'without a language'!r}, and must be "
                f"python, console, a text that is an output, or marked as not run"
            )

    def missing(self, block: Block) -> str | None:
        """Return what a block needs and the environment does not have."""
        places = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for name in filter(None, block.marks.get("needs", "").split(", ")):
            code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
            if shutil.which(name, path=places):
                continue
            if jobs.run([self.python, "-c", code]).status:
                return name
        return None

    def run(self) -> str:
        """Run everything; return the numbers of blocks and commands in words.

        Raises
        ------
        PageError
            If something ends in another way than the page says.
        """
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            shutil.copytree(ROOT / "examples", Path(folder, "examples"))
            for name, text in self.files.items():
                Path(folder, name).write_text(text, encoding="utf-8")
            if self.program:
                self.run_program(Path(folder))
            for command, output, block in self.commands:
                self.run_command(command, output, block, folder)
        return f"{len(self.program)} blocks, {len(self.commands)} commands"

    def run_program(self, folder: Path) -> None:
        program = folder / "page.json"
        program.write_text(json.dumps({"page": str(self.file), "blocks": self.program}))
        rank = Path(__file__).with_name("page_rank.py")
        result = jobs.on_ranks(self.python, self.ranks, rank, program, cwd=folder)
        if result.status:
            raise PageError(f"{self.name} on {self.ranks} ranks: {result}")

    def run_command(self, command: str, output: str, block: Block, folder: str) -> None:
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        result = jobs.launch(
            ["bash", "-c", f"exec 2>&1\n{command}"],
            cwd=folder,
            env=PLAIN | {"PATH": path},
        )
        where = f"{self.name}:{block.line}: $ {command}"
        if (result.status != 0) != ("fails" in block.marks):
            raise PageError(f"{where}\n{result}")
        if output and not equal(output, result.out, block.marks):
            raise PageError(f"{where}\nthe page says\n{output}\nand it printed\n{result.out}")


def commands(block: Block, where: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a block, each with the output that is shown."""
    command = output = ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], ""
        elif line.startswith("> ") and command and not output:
            command += "\n" + line[2:]
        elif command:
            output += line + "\n"
        else:
            raise PageError(f"{where}: the first line of a console block begins with '$ '")
    yield command, output


def equal(want: str, got: str, marks: dict[str, str] | None = None) -> bool:
    """Say whether an output is what the page says."""
    texts = [want, got]
    if marks and "numbers vary" in marks:
        # A measurement of more than ten seconds prints its progress.
        texts[1] = re.sub(r"^ *\d+ %  .*\n", "", got, flags=re.MULTILINE)
        # A star marks the fastest; columns are as wide as their numbers.
        texts = [re.sub(r" \*$", "", text, flags=re.MULTILINE) for text in texts]
        texts = [re.sub(r" +", " ", re.sub(r"\d[\d.]*", "0", text)) for text in texts]
    texts = ["\n".join(line.rstrip() for line in text.splitlines()) + "\n" for text in texts]
    if marks and "any order" in marks:
        texts = ["\n".join(sorted(text.splitlines())) + "\n" for text in texts]
    if texts[0].endswith("\n...\n"):
        texts[0] = texts[0].removesuffix("\n")  # what follows may also be nothing
    return doctest.OutputChecker().check_output(*texts, doctest.ELLIPSIS)
