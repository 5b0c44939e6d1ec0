"""The manual lists the algorithms that are registered, and the programs of the README run."""

import re
import sys
from pathlib import Path

import pytest
from jobs import on_ranks

from collectives.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = [
    (README.count("\n", 0, found.start()) + 1, found[1])
    for found in re.finditer(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
]
assert PROGRAMS


def between(mark, file):
    """Return the generated text of a page."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    return found[1].strip()


def test_the_manual_has_the_table_of_algorithms(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert between("algorithms", "docs/reference/algorithms.md") == table


@pytest.mark.each_mpi
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"line {program[0]}")
def test_its_programs_run(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program[1], encoding="utf-8")
    result = on_ranks(sys.executable, 2, file, cwd=tmp_path)
    assert result.status == 0, result
