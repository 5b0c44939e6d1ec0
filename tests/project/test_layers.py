"""The rooms of the library: imports point downward, no circle, and the documents show the table."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import layers  # noqa: E402


@pytest.fixture(scope="module")
def found() -> list[layers.Arrow]:
    """Return all imports of the package, whose search takes seconds."""
    return list(layers.arrows())


def test_files_of_tests_have_different_names() -> None:
    """Those that pytest imports in one run: all but ``tests/mpi``."""
    files = [each for each in (ROOT / "tests").rglob("test_*.py") if each.parent.name != "mpi"]
    assert [each for each in files if sum(each.name == other.name for other in files) > 1] == []


def upward(arrows: list[layers.Arrow]) -> list[layers.Arrow]:
    """Return the arrows between rooms that point up."""
    order = [room.name for room in layers.rooms()]
    places = [
        (each, order.index(layers.room_of(each.source)), order.index(layers.room_of(each.target)))
        for each in arrows
    ]
    return [each for each, source, target in places if source > target]


def tree(tmp_path: Path, **files: str) -> Path:
    """Write modules into a package of their own; ``__`` in a name stands for a folder."""
    for name, text in files.items():
        path = tmp_path / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_module_has_a_room():
    for module in layers.modules():
        assert layers.room_of(module)
    named = {name for room in layers.rooms() for name in room.modules}
    there = {module.partition(".")[0] for module in layers.modules()}
    assert named == {*there, "_core"}


def test_imports_point_downward(found):
    assert len(found) > 300
    assert upward(found) == []


def test_there_is_no_circle(found):
    graph: dict[str, set[str]] = {}
    for each in found:
        if each.source != each.target:
            graph.setdefault(each.source, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_an_arrow_that_points_up_is_found_wherever_it_hides(tmp_path: Path):
    folder = tree(
        tmp_path,
        plans__one="def late():\n    from collectives.cli import main\n",
        plans__two="if TYPE_CHECKING:\n    from collectives.communicator import Communicator\n",
        plans__three="from collectives.algorithms.ring import ring\nimport collectives.cli\n",
    )
    found = [(each.file, each.target) for each in upward(list(layers.arrows(folder)))]
    assert sorted(found) == [
        ("plans/one.py", "cli"),
        ("plans/three.py", "cli"),
        ("plans/two.py", "communicator"),
    ]


def test_imports_of_the_core_count(tmp_path: Path):
    folder = tree(tmp_path, cli="")
    (tmp_path / "_core.pyx").write_text("")
    (tmp_path / "part.pxi").write_text("cdef f():\n    from collectives.cli import main\n")
    assert [each.target for each in upward(list(layers.arrows(folder)))] == ["cli"]


@pytest.mark.parametrize("room", [room.name for room in layers.rooms() if room.name[-1] == "/"])
def test_a_package_says_what_comes_in_and_goes_out(room: str):
    text = ast.get_docstring(ast.parse((layers.SOURCES / room / "__init__.py").read_text()))
    assert text is not None
    assert len(text.splitlines()) <= 16
    said = " ".join(text.split())
    assert len(said) > 150, "what comes in, and what goes out"
    assert re.search(r"\b([Nn]othing|[Nn]o|only) ", said), "what the package never does"


def test_contributing_has_the_table():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- layers -->\n")[2].partition("\n<!-- /layers -->")[0]
    assert shown.splitlines() == layers.table()


def test_contributing_names_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./*-]+/[\w*-]+\.(?:py|pxi|pyx|h|c|md|json)|[\w]+/)`", text))
    assert len(named) > 40
    folders = (ROOT, ROOT / "collectives", ROOT / "collectives/_core")
    assert [name for name in named if not any(list(each.glob(name)) for each in folders)] == []


def test_the_picture_names_every_room():
    text = layers.picture()
    for room in layers.rooms():
        assert f">{room.name}</text>" in text


# -- how long a function may be --------------------------------------------------------------------

MOST_LINES = 60
# Behind the head of a function; the reason follows.
EXCUSE = re.compile(r"(#|//) long: \w")

# The heads of functions that are not Python's, by the indent at which their bodies end.
CYTHON = re.compile(r"( *)(?:cp?def|def) (?!enum|struct|extern|class)[^=#]*\w\(")
BRACES = {
    ".h": re.compile(r"()(?!struct|enum|typedef|union|[A-Z_]+\()\w[^;]*\([^;]*$"),
    ".c": re.compile(r"()(?!struct|enum|typedef|union|[A-Z_]+\()\w[^;]*\([^;]*$"),
    ".cu": re.compile(r"()(?!struct|enum|typedef|union|[A-Z_]+\()\w[^;]*\([^;]*$"),
    ".js": re.compile(
        r"( *)(?:export )?(?:async )?(?:function\*? \w+|(?!if|for|while|switch)\w+)\(.*\{$"
    ),
}


def functions(path: Path, lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the head of each function of a file, and its lines without those of a docstring."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node, clean=False) or ""
                length = (node.end_lineno or 0) - node.lineno + 1
                yield lines[node.lineno - 1], length - len(documented.splitlines())
        return
    is_cython = path.suffix in (".pyx", ".pxi")
    for number, line in enumerate(lines):
        head = (CYTHON if is_cython else BRACES[path.suffix]).match(line)
        if head:
            length = next(
                (
                    k
                    for k, each in enumerate(lines[number + 1 :], start=1)
                    if ends(each, len(head[1]), is_cython)
                ),
                len(lines) - number,
            )
            yield line, length


def ends(line: str, indent: int, is_cython: bool) -> bool:
    """Return whether a line comes after the body of a function at this indent."""
    here = len(line) - len(line.lstrip())
    if not is_cython:
        return here == indent and line.lstrip().startswith("}")
    return bool(line.strip()) and here <= indent and not line.lstrip().startswith(")")


def sources() -> list[Path]:
    folders = ("collectives", "tests", "benchmarks", "docs", "examples")
    kinds = ("*.py", "*.pyx", "*.pxi", "*.h", "_core/**/*.c", "core/*.c", "*.cu", "*.js")
    found = [path for name in folders for kind in kinds for path in (ROOT / name).rglob(kind)]
    return [path for path in found if not {"_build", "_extra"} & set(path.parts)]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_short(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    for head, length in functions(path, lines):
        if not EXCUSE.search(head):
            assert length <= MOST_LINES, f"{head.strip()} has {length} lines"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def long(a):\n" + "    a += 1\n" * 61),
        (
            "a.pxi",
            "cdef int long(\n    int a,\n) except -1:\n" + "    a += 1\n" * 61 + "\n\nX = 1\n",
        ),
        ("a.h", "static int\nlong_one(int a)\n{\n" + "    a += 1;\n" * 61 + "}\n"),
        ("a.js", "  long(a) {\n" + "    a += 1;\n" * 61 + "  }\n"),
    ],
)
def test_a_long_function_is_found_in_each_language(name: str, text: str):
    found = max(length for _, length in functions(Path(name), text.splitlines()))
    assert found > MOST_LINES
