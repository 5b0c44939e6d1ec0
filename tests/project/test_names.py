"""Names in the manual exist: files, extras, variables, options, targets, public names."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from functools import cache

import pages
import pytest
from extras import tomllib

from collectives.cli import parser, run

ROOT = pages.ROOT
PAGES = pages.pages()
TEXTS = {str(each.relative_to(ROOT)): each.read_text(encoding="utf-8") for each in PAGES}
SOURCES = {
    str(each.relative_to(ROOT)): each.read_text(encoding="utf-8")
    for folder in ("collectives", "benchmarks", "examples", "tests", "wheels")
    for each in sorted((ROOT / folder).rglob("*.py"))
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

FILE = re.compile(
    r"(?<![\w/.~-])((?:benchmarks|examples|tests|wheels|docs|collectives)/[\w./-]*\w)(?![\w*<{])"
)
# A folder of the cache, outputs of commands on the pages, and files of other projects.
MADE = ("collectives/profile-", "docs/_build", "docs/algorithms", "benchmarks/results/choice/")
OTHERS = (
    "examples/pytorch",
    "tests/core/linalg",
    "tests/test_derivative.py",
    "tests/test_darray.py",
)
EXTRA = re.compile(r"""["'](?:\.|collectives-mpi)\[([\w,]+)\]""")
VARIABLE = re.compile(r"\b_?(?:COLLECTIVES|HOROVOD)_[A-Z0-9_]*[A-Z0-9]\b(?!_?\*)")
TARGET = re.compile(r"(?:`|\$ |^    )make ([a-z][a-z-]*)", re.MULTILINE)
NAME = re.compile(r"\b(?:cc|collectives)((?:\.[A-Za-z_]\w*)+)(?![\w/-])")
ENDINGS = (".py", ".md", ".json", ".sh", ".yaml", ".toml", ".svg", ".html", ".so", ".txt")


def wrong(texts: dict[str, str], pattern: re.Pattern[str], exists) -> list[str]:
    """Return the names of a pattern in texts that do not exist, with their places."""
    return [
        f"{file}:{text.count(chr(10), 0, found.start()) + 1}: {found[1]}"
        for file, text in texts.items()
        for found in pattern.finditer(text)
        if not exists(found[1])
    ]


def test_files_exist():
    def exists(name: str) -> bool:
        return (ROOT / name).exists() or name.startswith(MADE + OTHERS)

    assert wrong(TEXTS, FILE, exists) == []


def test_programs_of_benchmarks_exist():
    """Also those that sources name, and the table of the library."""
    table = {"measured.json": (ROOT / "collectives/choice/measured.json").read_text("utf-8")}
    pattern = re.compile(r"\b((?:bench|measure)_[a-z]\w*\.py)")
    texts = TEXTS | {name: text for name, text in SOURCES.items() if "/test_" not in name}

    def exists(name: str) -> bool:
        return any(ROOT.glob(f"benchmarks/{name}")) or any(ROOT.glob(f"collectives/*/{name}"))

    assert wrong(texts | table, pattern, exists) == []


def test_extras_exist_and_are_described():
    texts = TEXTS | SOURCES | {"CHANGES.md": (ROOT / "CHANGES.md").read_text(encoding="utf-8")}
    assert wrong(texts, EXTRA, lambda names: set(names.split(",")) <= set(EXTRAS)) == []
    described = TEXTS["docs/start/install.md"]
    assert [name for name in EXTRAS if f"`{name}`" not in described] == []


def test_variables_are_described():
    """Those of this library on any page or in its sources, and those of Horovod that it reads."""
    known = set(VARIABLE.findall(TEXTS["docs/reference/environment.md"]))
    sources = {name: text for name, text in SOURCES.items() if name.startswith("collectives/")}
    literals = re.compile(r"""["']((?:COLLECTIVES|HOROVOD)_[A-Z0-9_]*[A-Z0-9])["']""")
    names = re.compile(rf"({VARIABLE.pattern})")
    texts = {name: re.sub("HOROVOD_", "", text) for name, text in TEXTS.items()}
    assert wrong(texts, names, known.__contains__) == []
    known.add("COLLECTIVES_STALL")  # a beginning
    assert wrong(sources, literals, known.__contains__) == []


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert wrong(TEXTS, TARGET, targets.__contains__) == []


@cache
def options() -> dict[str, set[str]]:
    """Return the options of each command."""
    (commands,) = (
        each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return {name: set(command._option_string_actions) for name, command in commands.choices.items()}


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words after `collectives` of commands in a page."""
    code = [each.replace("\n", " ") for each in re.findall(r"`(collectives [^`]+)`", text)]
    code += re.findall(r"^ *\$ (.*\bcollectives .*)$", text, re.MULTILINE)
    for line in code:
        for part in re.split(r"\|\||&&|[|;>]", line):
            words = part.replace("...", "").split()
            if "collectives" in words:
                yield words[words.index("collectives") + 1 :]


@pytest.mark.parametrize("file", sorted(TEXTS))
def test_options_of_commands_exist(file: str):
    for words in command_lines(TEXTS[file]):
        if not words or words[0] not in options():
            continue
        own = run.split(words)[0] if words[0] == "run" else words
        named = {each.partition("=")[0] for each in own if re.match(r"--[a-z]", each)}
        assert named <= options()[words[0]], " ".join(words)


def resolves(dotted: str) -> bool:
    """Say whether `collectives` has this name; where a framework is missing, by its sources."""
    found = importlib.import_module("collectives")
    for name in dotted.strip(".").split("."):
        if not hasattr(found, name):
            if not hasattr(found, "__path__"):
                return False
            try:
                importlib.import_module(f"{found.__name__}.{name}")
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("collectives"):
                    return False
                return is_written(dotted)
            except ImportError:
                return is_written(dotted)
        found = getattr(found, name)
    return True


def is_written(dotted: str) -> bool:
    """Say whether a package whose framework is not installed here has a name in its sources."""
    package, *names = dotted.strip(".").split(".")
    texts = [text for file, text in SOURCES.items() if file.startswith(f"collectives/{package}/")]
    return all(any(re.search(rf"\b{name}\b", text) for text in texts) for name in names)


def test_public_names_exist():
    missing = [
        each
        for each in wrong(TEXTS, NAME, lambda name: name.endswith(ENDINGS) or resolves(name))
        if not each.startswith("CONTRIBUTING.md")
    ]
    assert missing == []
