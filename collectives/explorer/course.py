"""The data of the course: the algorithms that its chapters play."""

from __future__ import annotations

from typing import Any

from collectives.algorithms import get
from collectives.explorer.catalogue import catalogue

# The algorithms of the chapters. Their data files are those of the explorer.
ALGORITHMS = ("all_to_all", "master_worker", "tree", "butterfly", "ring")


def data() -> dict[str, Any]:
    """Return what the course needs beside the data of its algorithms. Local."""
    rows = [get("allreduce", name) for name in ALGORITHMS]
    return catalogue(rows)
