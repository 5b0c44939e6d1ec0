"""README.md says what the registry says."""

import re
from pathlib import Path

from collectives.cli import main

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_table_of_algorithms_is_the_registrys(capsys):
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- algorithms -->\n(.*?)<!-- /algorithms -->", text, re.DOTALL)
    assert main(["list", "--markdown"]) == 0
    assert found[1].strip() == capsys.readouterr().out.strip()
