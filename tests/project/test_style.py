"""The sources pass the tools that read them: style, spelling, types, the stub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import environment_of

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
BIN = environment_of(sys.executable)
SOURCES = ("collectives", "tests", "examples", "benchmarks", "docs", "wheels", "setup.py")
TEXTS = (*SOURCES, "README.md", "CHANGES.md", "CONTRIBUTING.md", "Makefile")
CORE = sorted(map(str, (ROOT / "collectives").rglob("*.p[yx][xi]")))
WORKFLOWS = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
# One cache, although the runs have different folders: most of the time goes into other packages.
MYPY = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"))
SETTINGS = str(ROOT / "pyproject.toml")
# The build of pyright that has all its files in one package.
PYRIGHT = ("basedpyright", "--pythonpath", sys.executable)
TYPED = 0.95  # of the names that `pyright --verifytypes` counts


def tool(*words, cwd=ROOT):
    """Run a tool of this environment; return what it printed."""
    path = BIN / words[0]
    if not path.exists():
        pytest.skip(f"{words[0]} is not installed")
    # cython-lint calls pycodestyle by name, and pyright looks for the package beside the first
    # interpreter on PATH.
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [path, *words[1:]], cwd=cwd, env=env, capture_output=True, text=True, timeout=500
    )


def passes(*words, cwd=ROOT):
    done = tool(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "check", "--no-cache", *SOURCES),
        ("ruff", "format", "--no-cache", "--check", *SOURCES),
        ("cython-lint", *(file for file in CORE if not file.endswith(".pyi"))),
        ("codespell", *TEXTS),
    ],
    ids=lambda words: " ".join(words[:2])[:20],
)
def test_style(words):
    passes(*words)


@pytest.mark.skipif(not WORKFLOWS, reason="the source distribution has no workflows")
def test_workflows():
    passes("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_types_of_the_package():
    passes(*MYPY, "--config-file", SETTINGS, "collectives")


def test_types_in_a_program():
    passes(*MYPY, "project/typed_program.py", cwd=TESTS)
    passes(*PYRIGHT, "--project", "project/pyright.json", cwd=TESTS)
    passes(sys.executable, "project/typed_program.py", cwd=TESTS)


def test_the_interface_has_types():
    done = tool(*PYRIGHT, "--verifytypes", "collectives", "--ignoreexternal", "--outputjson")
    found = json.loads(done.stdout)["typeCompleteness"]
    known = ("isTypeKnown", True), ("isTypeAmbiguous", False)
    bad = [
        each["name"]
        for each in found["symbols"]
        if each["isExported"] and any(each.get(key) != value for key, value in known)
    ]
    assert found["completenessScore"] >= TYPED, bad


def test_the_stub_of_the_core():
    words = ("--mypy-config-file", SETTINGS, "--allowlist", "project/stubtest.txt")
    passes(sys.executable, "-m", "mypy.stubtest", "collectives._core", *words, cwd=TESTS)
