"""Print what extras of the package need, from pyproject.toml: ``extras.py test docs``.

``main`` stands for the needs of the package itself. So the dependencies can be installed while the
package is still being built. The tests run with Linux, where each of them is needed. Standard
library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def needed(names: list[str]) -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = {"main": project["dependencies"], **project["optional-dependencies"]}
    return sorted({line.partition(";")[0] for name in names for line in extras[name]})


if __name__ == "__main__":
    print(*needed(sys.argv[1:]), sep="\n")
