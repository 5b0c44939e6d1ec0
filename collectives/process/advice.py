"""Advice for programs that run as one rank because no launcher has started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from operator import index
from typing import Any

from collectives.process import environment

MOST_TO_START = 64  # ranks that advice names

# Functions that return whether this process, or this thread, has joined a job without MPI.
joined: list[Callable[[], bool]] = []


def alone(rank: Any) -> str:
    """Return advice for an error of a program that has named a `rank` other than 0, and runs as one
    rank because no launcher has started it; otherwise an empty text. Local.
    """
    try:
        ranks = index(rank) + 1
    except Exception:  # also of a user's type
        return ""
    if environment.is_rank() or environment.has_rendezvous() or any(each() for each in joined):
        return ""
    if not 1 < ranks <= MOST_TO_START:
        return ""
    path = sys.argv[0]
    name = path if path.endswith(".py") and os.path.isfile(path) else "program.py"
    return f". This program runs as one rank; start it with: collectives run -n {ranks} {name}"
