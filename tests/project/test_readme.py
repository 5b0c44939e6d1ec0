"""The manual lists the algorithms that are registered, and links in README.md lead to files."""

import re
from pathlib import Path

from collectives.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def between(mark, file):
    """Return the generated text of a page."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    return found[1].strip()


def test_the_manual_has_the_table_of_algorithms(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert between("algorithms", "docs/reference/algorithms.md") == table


def test_its_links_lead_to_files():
    links = re.findall(r"""(?:\]\(|src=")([^)"#:]+)(?:#[^)]*)?[)"]""", README)
    assert len(links) > 20
    assert [each for each in links if not (ROOT / each).is_file()] == []
