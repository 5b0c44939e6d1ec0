"""Every block of code on the pages of the manual does what the page says, and the manual builds.

``python -m pytest tests/manual`` needs what the pages use, and Sphinx. `pages.py` describes the
blocks; those that cannot run here are left out.
"""

import sys
from pathlib import Path

import jobs
import pages
import pytest


def test_the_build_has_no_warning(tmp_path):
    words = ("-n", "-W", "--keep-going", "-q", "-b", "html", pages.ROOT / "docs", tmp_path / "html")
    # In a folder from which the sources are not found: it shows the installed wheel.
    # It takes 45 s of a core, and has taken 420 s at a load of 30.
    result = jobs.run([sys.executable, "-m", "sphinx", *words], cwd=tmp_path, deadline=570)
    assert result.status == 0, result


@pytest.mark.parametrize("file", pages.pages(), ids=lambda file: file.stem)
def test_page(file):
    pages.Page(file, Path(sys.executable)).run()
