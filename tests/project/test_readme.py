"""The manual lists the algorithms that are registered."""

import re
from pathlib import Path

from collectives.cli import main

ROOT = Path(__file__).resolve().parents[2]


def between(mark, file):
    """Return the generated text of a page."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    return found[1].strip()


def test_the_manual_has_the_table_of_algorithms(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert between("algorithms", "docs/reference/algorithms.md") == table
