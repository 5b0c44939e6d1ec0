"""Print what extras of the package need, from pyproject.toml: ``extras.py test docs``.

``main`` stands for the needs of the package itself. Standard library only.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def needed(names: list[str]) -> list[str]:
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = {"main": project["dependencies"], **project["optional-dependencies"]}
    return sorted({line.partition(";")[0] for name in names for line in extras[name]})


if __name__ == "__main__":
    print(*needed(sys.argv[1:]), sep="\n")
