"""The wheel for machines without the core: its files, the parts that work, the error of the rest.

The modules run in this Python, which `tests/elsewhere` makes like that of such a machine.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import zipfile
from pathlib import Path

import jobs
import pytest
from packaging.requirements import Requirement

import collectives
from collectives import coreless

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ROOT / "tests" / "elsewhere"
sys.path.insert(0, str(ROOT / "docs"))

import layers  # noqa: E402

HERE = "this is macOS on arm64"  # as tests/elsewhere/sitecustomize.py has it
PYODIDE = "COLLECTIVES_TEST_PYODIDE"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a compiler, outside of the sources."""
    folder = tmp_path_factory.mktemp("pure")
    skip = shutil.ignore_patterns("*.so", "_core.c", "__pycache__")
    shutil.copytree(ROOT / "collectives", folder / "source" / "collectives", ignore=skip)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    env = {"COLLECTIVES_PURE": "1", "CC": "/bin/false"}
    result = jobs.run([*pip, "-w", str(folder), "./source"], cwd=folder, env=env)
    assert result.status == 0, result.err
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """The folder of an installation."""
    folder = wheel.parent / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def elsewhere(site: Path, *words: str, without: str = "") -> jobs.Result:
    """Run this Python as on a machine without the core."""
    path = os.pathsep.join(map(str, (ELSEWHERE, site)))
    env = {"PYTHONPATH": path, "COLLECTIVES_TEST_WITHOUT": without, "PYTHONDONTWRITEBYTECODE": "1"}
    return jobs.run([sys.executable, *words], cwd=site.parent, env=env)


def test_wheel_is_for_every_machine(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert [name for name in names if "_core/" in name or name.endswith((".so", ".pyx"))] == []
    sources = {str(each.relative_to(ROOT)) for each in (ROOT / "collectives").rglob("*.py")}
    assert sources - set(names) == set(), "it has all the others"


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "emscripten"])
def test_only_machines_with_the_core_need_mpi(wheel: Path, platform: str):
    archive = zipfile.ZipFile(wheel)
    (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    lines = archive.read(name).decode().splitlines()
    found = [Requirement(x.partition(": ")[2]) for x in lines if x.startswith("Requires-Dist: ")]
    needed = {
        each.name
        for each in found
        if not each.marker or each.marker.evaluate({"sys_platform": platform, "extra": ""})
    }
    assert needed == {"numpy"} | ({"mpi4py", "cloudpickle"} if platform == "linux" else set())


def modules_of(*rooms: str) -> list[str]:
    """Return the modules of rooms, as they are imported."""
    found = [each for each in layers.modules() if layers.room_of(each) in rooms]
    assert found
    return [f"collectives.{each}" for each in found if each != "coreless"]


def names_of(layer: str) -> list[str]:
    return [room.name for each in layers.LAYERS if each.name == layer for room in each.rooms]


WITHOUT_NUMPY = modules_of("algorithms/", "plans/", "picture/", "text/", "errors.py")
PURE = [
    *modules_of(*names_of("pure"), *names_of("words"), "doors", "explorer/"),
    *("collectives.choice.select", "collectives.choice.profile", "collectives.cli"),
]


@pytest.mark.parametrize(
    ("names", "without"), [(PURE, ""), (WITHOUT_NUMPY, "numpy")], ids=["all", "without_numpy"]
)
def test_modules_can_be_imported(site: Path, names: list[str], without: str):
    program = f"import {', '.join(names)}; print(collectives.__file__)"
    result = elsewhere(site, "-c", program, without=without)
    assert result.err == ""
    assert result.out.startswith(str(site))


def test_names_that_need_the_core_are_all_that_are_missing(site: Path):
    result = elsewhere(site, "-c", "import collectives; print(*collectives.__all__)")
    assert set(result.out.split()) == set(collectives.__all__) - coreless.NAMES
    assert set(collectives.__all__) >= coreless.NAMES | coreless.SLOW


def test_type_checkers_see_the_names_that_a_program_sees():
    tree = ast.parse((ROOT / "collectives" / "default.py").read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.List)
        if ast.unparse(each.targets[0]) == "__all__" and len(each.value.elts) > 10
    )
    assert listed == sorted(collectives.default.__all__)


@pytest.mark.parametrize(
    ("statement", "who"),
    [
        ("import collectives as cc; cc.shared_arrays()", "collectives.shared_arrays"),
        ("import collectives as cc; cc.world().timeline('x')", "Communicator.timeline"),
        ("import collectives as cc; cc.world().stop_requested()", "Communicator.stop_requested"),
        ("import collectives as cc; cc.allreduce(1.0, op='SUM_REPRODUCIBLE')", "SUM_REPRODUCIBLE"),
        ("from collectives import sum_local", "collectives.sum_local"),
        ("from collectives._core import Segment", "collectives.Segment"),
        ("import collectives.server", "collectives.server"),
        ("import collectives.torch", "collectives.torch"),
    ],
)
def test_error_says_which_machines_have_the_core(site: Path, statement: str, who: str):
    program = (
        "from collectives.errors import CollectivesError, CoreError\n"
        f"try:\n    {statement}\n"
        "except ImportError as error:\n"
        "    assert isinstance(error, CoreError) and isinstance(error, CollectivesError)\n"
        "    print(error)\n"
    )
    result = elsewhere(site, "-c", program)
    assert result.out.startswith(
        f"{who} needs the core of the library, which exists for Linux on x86-64 and aarch64"
    ), result
    assert HERE in result.out


def test_collectives_run_in_python(site: Path):
    program = """
import numpy as np, collectives as cc

def total():
    comm = cc.world()
    return cc.allreduce(np.arange(3.0) * comm.rank), repr(comm)

print(cc.size(), *cc.spawn(total, 3)[1])
"""
    result = elsewhere(site, "-c", program)
    said = "<collectives.Communicator, rank 1 of 3 on 1 host by threads>"
    assert (result.err, result.out) == ("", f"1 [0. 3. 6.] {said}\n")


def test_without_numpy_nothing_runs(site: Path):
    program = "import collectives as cc; cc.spawn(print, 2)"
    result = elsewhere(site, "-c", program, without="numpy")
    assert "CoreError: collectives.spawn needs the core of the library" in result.err


def test_doctor_names_the_runner(site: Path):
    result = elsewhere(site, "-m", "collectives", "doctor")
    assert result.status == 0, result
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines() if line)
    assert lines["core"].startswith("none. A run at full speed needs the core of the library")
    assert lines["runner"].startswith("Python: cc.spawn starts threads")
    assert lines["cc.spawn"] == "2 threads communicate: 0 + 1 = 1"
    assert lines["run"] == "2 processes communicate"


def test_other_names_are_missing_as_usual(site: Path):
    program = "import collectives as cc; print(hasattr(cc, 'world_of_mine'), cc.alreduce)"
    result = elsewhere(site, "-c", program)
    assert "AttributeError: module 'collectives' has no attribute 'alreduce'" in result.err


def test_error_on_a_machine_that_may_have_the_core(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(coreless, "__file__", "/site/collectives/coreless.py")
    text = str(coreless.error("collectives.world"))
    assert text.startswith("collectives.world needs the core of the library, but collectives in ")
    assert "pip install --force-reinstall ." in text


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a user has them, without a compiled core."""
    folder = tmp_path_factory.mktemp("sources")
    skip = shutil.ignore_patterns("*.so", "_core.c", "__pycache__")
    for name in ("collectives", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    return folder


@pytest.mark.parametrize("words", [["-c", "import collectives as cc; cc.world()"], ["-m", "run"]])
def test_sources_that_hide_an_installation_are_named(sources: Path, words: list[str]):
    (sources / "run.py").write_text("import collectives as cc\n\ncc.world()\n")
    result = jobs.run([sys.executable, *words], cwd=sources)
    assert result.status == 1
    assert f"Python has found its sources in {sources} first" in result.err
    assert "Start Python in another folder" in result.err
    assert "pip install -e ." in result.err


def test_command_in_the_folder_of_the_sources(sources: Path):
    result = jobs.run([sys.executable, "-m", "collectives", "run", "-n", "2", "x"], cwd=sources)
    assert result.status == 2
    assert "needs the core of the library, and Python has found its sources" in result.err


def test_examples_run_in_the_folder_of_the_sources(sources: Path):
    """They are started by their files, so that Python does not look in the current folder."""
    found = str(Path(collectives.__file__).parents[1])
    env = {"PYTHONPATH": found, "COLLECTIVES_PROFILE": "0"}
    for words in (["dot_product.py"], ["lectures/pi_table.py", "--ranks", "1", "--points", "1000"]):
        program = f"examples/{words[0]}"
        result = jobs.run([sys.executable, program, *words[1:]], cwd=sources, env=env)
        assert result.status == 0, result


@pytest.mark.parametrize(
    "command", ["run -H host program.py", "stop 1", "bench allreduce", "tune", "status"]
)
def test_commands_that_need_the_core_say_so(site: Path, command: str):
    result = elsewhere(site, "-m", "collectives", *command.split())
    assert result.status == 2
    words = command.split()
    who = " ".join(words[:2]) if words[0] == "run" else words[0]
    assert result.err.startswith(f"collectives: collectives {who} needs the core")
    assert HERE in result.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--help", "stop, status, bench and tune need the core"),
        ("list allreduce", "round_robin"),
        ("explain ring -n 3 --bytes 1M --svg ring.svg", "The picture is in ring.svg"),
        ("simulate allreduce -p 2..8 --json times.json", "8 ranks: "),
        ("synthesize broadcast --topology flat -p 3 --out found.py", "found.py"),
    ],
)
def test_commands_that_work(site: Path, command: str, said: str):
    result = elsewhere(site, "-m", "collectives", *command.split())
    assert (result.status, result.err) == (0, "")
    assert said in " ".join(result.out.split())


SUITES = ("algorithms/test_registry.py", "cli/test_cli_simulate.py", "plans/test_refusals.py")


def test_suites_pass(site: Path):
    """Some of them: the sources are the same, and so is all that they compute."""
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(ROOT / "tests")]
    words += [str(ROOT / "tests" / each) for each in SUITES]
    result = elsewhere(site, *words, "-m", "not each_mpi and not any_mpi")
    assert result.status == 0, result.out
    assert " passed" in result.out


def test_prover_in_this_python(site: Path):
    assert_prover(elsewhere(site, str(ELSEWHERE / "prover.py"), without="numpy"), HERE)


def test_prover_in_pyodide(wheel: Path):
    folder, node = os.environ.get(PYODIDE), shutil.which("node")
    if not folder or node is None:
        pytest.skip(f"{PYODIDE} names no folder of npm's package pyodide, or there is no node")
    script, program = ELSEWHERE / "pyodide.mjs", ELSEWHERE / "prover.py"
    result = jobs.run([node, script, folder, wheel, program])
    assert_prover(result, "this is Emscripten on wasm32")


def assert_prover(result: jobs.Result, machine: str) -> None:
    """The output of prover.py."""
    assert result.status == 0, result.err
    assert "<Proof of broadcast 'line' on 5 ranks, root 0: 4 rounds" in result.out
    assert "step 2  store  1 -[0]-> 2" in result.out
    assert "ProofError: broadcast 'short' on 3 ranks" in result.out
    assert "rank 2 ends without block 0" in result.out
    assert "CoreError: collectives.allreduce needs the core of the library" in result.out
    assert f"which exists for {coreless.MACHINES}; {machine}" in result.out
    assert result.out.rstrip().endswith("False"), "NumPy was imported"
