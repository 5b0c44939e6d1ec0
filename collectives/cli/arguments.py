"""Arguments of several subcommands: sizes, numbers of ranks, operations, files of algorithms."""

from __future__ import annotations

import argparse
import os
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collectives.algorithms import Algorithm, get, names
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import is_composed
from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError, BindingError, CollectivesError
from collectives.process import environment
from collectives.text import files
from collectives.text.words import SIZE_FORMS, count, error_text, known, parse_size

# Of the files of --json; a new one says that a name has another meaning, or is no longer there.
JSON_VERSION = 1

FILES = "FILE.py that registers an algorithm, FILE.py:NAME for one of several, FILE.xml of MSCCL"


def check_program(program: list[str]) -> None:
    """Raise an error unless the words of a program name one that can start here. Local."""
    if not program or (program[0] in ("-m", "-c") and len(program) == 1):
        raise ArgumentError("run needs a program: script.py, -m module or -c code")
    if program[0] not in ("-m", "-c") and not os.path.exists(program[0]):
        raise ArgumentError(f"there is no file {program[0]!r} to run")
    if environment.is_rank():
        raise BindingError(
            "this is already a rank of a parallel program; run the script itself with python, or "
            "call `collectives run` outside mpiexec"
        )


def nbytes(text: str) -> int:
    """Read a number of bytes: ``8``, ``64K``, ``1MiB``; units are powers of 1024. Local."""
    size = parse_size(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes {SIZE_FORMS}")
    return size


def positive(text: str) -> int:
    """Read a whole number of at least 1. Local."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Read numbers of ranks: ``2,4``. Local."""
    return [positive(word) for word in text.split(",")]


def span_of(read: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return a function that reads ``8``, ``8,12`` and ``8..64``. Local."""

    def span(text: str) -> list[int]:
        found: list[int] = []
        for word in text.split(","):
            first, dots, last = word.partition("..")
            found.append(read(first))
            if dots:
                end = read(last)
                if found[-1] > end:
                    raise argparse.ArgumentTypeError(
                        f"{word!r} goes down; write the smaller number first, {last}..{first}"
                    )
                if found[-1] == 0:
                    raise argparse.ArgumentTypeError(
                        f"{word!r} starts at 0, which does not double; start at 1"
                    )
                while found[-1] * 2 <= end:
                    found.append(found[-1] * 2)
        return sorted(set(found))

    return span


def add_sizes(parser: argparse.ArgumentParser, *, ranks: str, end: str) -> None:
    """Add the numbers of ranks and the sizes to measure, with their defaults as texts.

    The value of ``--ranks`` is None unless it is given.
    """
    add = parser.add_argument
    add(
        "-n",
        "--ranks",
        type=counts,
        metavar="N,...",
        help=f"numbers of ranks, separated by commas (default: {ranks})",
    )
    add(
        "-b",
        "--begin",
        type=nbytes,
        default=8,
        metavar="SIZE",
        help="smallest size in bytes (default: 8)",
    )
    add(
        "-e",
        "--end",
        type=nbytes,
        default=nbytes(end),
        metavar="SIZE",
        help=f"largest size in bytes (default: {end})",
    )
    add("-f", "--factor", type=positive, default=4, help="factor between sizes (default: 4)")


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add ``--load``."""
    parser.add_argument(
        "--load",
        metavar="FILE",
        action="append",
        default=[],
        help="first run this Python file, or read this XML file of MSCCL, to use the algorithms "
        "that it registers; may be repeated",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the number of ranks, their groups, and the root, for `placed`."""
    add = parser.add_argument
    add(
        *("-n", "-p", "--ranks"),
        type=positive,
        metavar="N",
        help="number of ranks (default: 4, or that of the file)",
    )
    add(
        "--groups",
        type=groups,
        metavar="GxN|N,N,...",
        help="for a hierarchical algorithm: G groups of N ranks each, or the number of ranks "
        "in each group (default: two halves)",
    )
    add("--root", type=int, default=0, help="root of a rooted collective (default: 0)")


def placed(row: Algorithm, options: argparse.Namespace) -> tuple[Algorithm, int]:
    """Return an algorithm on the groups of the arguments, and the number of ranks. Local."""
    sized, root = options.groups, options.root
    n = options.ranks or (ranks_of(row, 4) if sized is None else sized.p)
    if sized is not None and sized.p != n:
        raise ArgumentError(f"--groups has {count(sized.p, 'rank')}, and --ranks is {n}")
    if not 0 <= root < n:
        raise ArgumentError(f"--root is {root}, and must be from 0 to {n - 1}")
    if root and not row.collective.rooted:
        raise ArgumentError(f"--root is {root}, but {row.collective.name} has no root")
    return get(row.collective.name, row.name, sized), n


def ranks_of(row: Algorithm, default: int) -> int:
    """Return the number of ranks that an algorithm needs, or else the default. Local."""
    fixed = [text.partition("=")[2] for text in row.requires if text.startswith("ranks=")]
    return int(fixed[0]) if fixed else default


def load(paths: list[str], option: str = "--load ") -> None:
    """Run or read the files in `paths`, which have algorithms; errors name the `option`. Local."""
    for path in paths:
        if not Path(path).is_file():
            raise ArgumentError(f"{option}{path}: there is no such file")
        if path.endswith(".xml"):
            from collectives import msccl  # most commands read none

            msccl.read(path)
            continue
        try:
            runpy.run_path(path, run_name=Path(path).stem)
        except CollectivesError:
            raise
        except (Exception, SystemExit) as error:
            raise ArgumentError(f"{option}{path}: {error_text(error)}") from error


def resolve(text: str, one: bool = True) -> tuple[str, str, list[str]]:
    """Find an algorithm by its name, or load the file that registers it, which may register others
    unless it has to be `one`. Local.
    """
    match = re.fullmatch(r"(.+\.(?:py|xml))(?::(.+))?", text)
    if match and (Path(match[1]).is_file() or not any(has(each, text) for each in COLLECTIVES)):
        row = _registered_by(match[1], match[2] or "", one)
        return row.collective.name, row.name, []
    collective, slash, name = text.rpartition("/")
    if slash:
        return collective, get(collective, name).name, []
    found = [each for each in COLLECTIVES if has(each, name)]
    if text in COLLECTIVES:
        raise ArgumentError(
            f"{text} is a collective; name one of its algorithms: {', '.join(names(text))}"
        )
    if not found and is_composed(name):
        get("allreduce", name)  # raises an error that gives the reason
    if not found:
        every = dict.fromkeys(name for each in COLLECTIVES for name in names(each))
        raise ArgumentError(f"there is no algorithm {text!r}; {known(text, every, 'there are')}")
    return found[0], get(found[0], name).name, found[1:]


def has(collective: str, name: str) -> bool:
    """Return whether a collective has an algorithm of that name, with any parameter. Local."""
    if not is_composed(name):
        return name.partition(":")[0] in names(collective)
    try:
        get(collective, name)
    except ArgumentError:
        return False
    return True


def groups(text: str) -> Groups:
    """Read the numbers of ranks in groups: ``2x4`` for two of four, ``4,4,2`` for three. Local."""
    number, times, length = text.partition("x")
    if times:
        return Groups.sized([positive(length)] * positive(number))
    return Groups.sized([positive(word) for word in text.split(",")])


def _registered_by(path: str, wanted: str, one: bool) -> Algorithm:
    """Load a file; return its algorithm, or that of the wanted name."""
    before = _registered()
    load([path], option="")
    new = [row for title, row in _registered().items() if before.get(title) is not row]
    if not new:
        raise ArgumentError(
            f"{path}: it registers no algorithm; see collectives.algorithms.algorithm"
        )
    collective, _, name = wanted.rpartition("/")
    name, colon, value = name.partition(":")
    found = [
        row for row in new if name in ("", row.name) and collective in ("", row.collective.name)
    ]
    if found and (len(found) == 1 or not one):
        return get(found[-1].collective.name, f"{found[-1].name}{colon}{value}")
    spelled = [row.name for row in new]
    if len(set(spelled)) < len(spelled):
        spelled = [f"{row.collective.name}/{row.name}" for row in new]
    told = ", ".join(f"{path}:{each}" for each in spelled)
    if not found:
        raise ArgumentError(f"{path} registers no algorithm {wanted!r}; it has {told}")
    raise ArgumentError(f"{path} registers {len(new)} algorithms; name one: {told}")


def _registered() -> dict[str, Algorithm]:
    """Return all algorithms by their titles."""
    return {f"{each}/{name}": get(each, name) for each in COLLECTIVES for name in names(each)}


def operations(text: str) -> list[str]:
    """Read names of operations: ``allgather,gather``, or ``all`` for all collectives. Local."""
    from collectives.measuring.operations import OPERATIONS  # needs the core

    found = []
    for word in text.split(","):
        if word not in ("all", *OPERATIONS):
            listed = known(word, ["all", *OPERATIONS], "there are")
            raise argparse.ArgumentTypeError(f"there is no operation {word!r}; {listed}")
        found += list(COLLECTIVES) if word == "all" else [word]
    return list(dict.fromkeys(found))


@contextmanager
def writing(option: str, path: str) -> Iterator[None]:
    """Name the option in the error if its file cannot be written. Local."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{option} {path}: {error}") from error


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write the file of ``--json``. Local."""
    with writing("--json", path):
        files.write_json(path, document)
