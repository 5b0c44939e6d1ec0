"""The library on a machine without the core: its sources without the core, and this Python."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import jobs

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ROOT / "tests" / "elsewhere"


def installed(folder: Path) -> Path:
    """Install the library in a folder, as its wheel for every machine does; return the folder."""
    skip = shutil.ignore_patterns("*.so", "_core.*", "_core", "__pycache__")
    shutil.copytree(ROOT / "collectives", folder / "collectives", ignore=skip)
    return folder


def python(site: Path, *words: str | Path, cwd: Path | None = None, **env: str) -> jobs.Result:
    """Run this Python with the library of a folder, as on a machine without the core."""
    path = os.pathsep.join(map(str, (ELSEWHERE, site)))
    known = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLLECTIVES_PROFILE": "0"}
    return jobs.run([sys.executable, *words], cwd=cwd or site, env={**known, **env})
