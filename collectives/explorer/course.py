"""The data of the course: the algorithms of its chapters, wrong texts, and tasks."""

from __future__ import annotations

from importlib import resources
from typing import Any

from collectives.algorithms import get
from collectives.explorer.catalogue import LARGE, catalogue
from collectives.explorer.verdict import verdict

# The algorithms that the chapters compare, and one that has a chapter of its own. Their data files
# are those of the explorer.
ALGORITHMS = ("all_to_all", "master_worker", "tree", "butterfly", "ring")
ROUND_ROBIN = "round_robin"

# The wrong texts, with the number of ranks on which the chapter plays them.
BROKEN = {"waits": 4, "twice": 4}

# The errors that rank 0 of four prints in the chapter on hangs. The process numbers are made up.
_CALL = "allreduce(count=4, dtype=float64, op=SUM, algorithm=ring)"
PRINTED = {
    "late": "StallError: allreduce 'ring' on 4 ranks: rank 0 timed out after 2 s: round 2, segment "
    "1 of 1 waits for rank 3 to send (call 2; "
    f"rank 0 (process 4001) is in call 2, {_CALL}; rank 1 (process 4002) is in call 2, {_CALL}; "
    f"rank 2 (process 4003) has left call 1, {_CALL}; rank 3 (process 4004) is in call 2, {_CALL}"
    "); rank 2 has not called this allreduce yet: is the call under an if?",
    "stopped": "StallError: allreduce 'ring' on 4 ranks: rank 0 timed out after 2 s: round 3, "
    "segment 1 of 1 waits for rank 3 to send (call 2; "
    f"rank 0 (process 4001) is in call 2, {_CALL}; rank 1 (process 4002, stopped) has left call 1, "
    f"{_CALL}; rank 2 (process 4003) is in call 2, {_CALL}; rank 3 (process 4004) is in call 2, "
    f"{_CALL})",
    "other": "MismatchError: the ranks do not agree on call 2 of the communicator: ranks 0-2 "
    f"called {_CALL}; rank 3 called broadcast(count=4, dtype=float64, root=0, algorithm=flat): is "
    "one of these calls under an if?",
}

# The statistics of a server with three workers whose gradients come one after the other.
SERVED = "1 update; 3 gradients; 1 dropped; staleness {0: 2}; 96 bytes received, 128 sent"

# The machine of the figures, on which four numbers take as long as four messages. A command of the
# chapter on overlap, and its output.
SLOW = "flat,alpha=1us,beta=8MB/s,gamma=0s"
SIMULATE = f"simulate ring -p 4 -b 32,128 --topology {SLOW}"
SIMULATED = f"""\
allreduce on 4 ranks, simulated on {SLOW}
bytes   ring
 32 B  12 us*
128 B  30 us*
ring wins
"""

# For each task: its title and text, the numbers of ranks of its proof, the largest of which is
# shown, the shape in which they are arranged, and the maximum steps on the largest, if limited.
TASKS: dict[str, dict[str, Any]] = {
    "twice": {
        "title": "Mend a ring",
        "words": "The second phase of this ring adds complete sums once more. Mend it.",
        "ranks": [2, 3, 4],
        "shape": "ring",
    },
    "torus": {
        "title": "Finish a torus",
        "words": "The ranks of a row have added up. The columns have not: write the second step.",
        "ranks": [4, 9],
        "shape": "grid",
    },
    "tree": {
        "title": "Make a tree of three",
        "words": "In this broadcast, a rank sends to two others. Make it three, so that 13 ranks "
        "have the array after two steps.",
        "ranks": [4, 8, 13],
        "shape": "tree",
        "steps": 2,
    },
}


def text(name: str) -> str:
    """Return a text of the course. Local."""
    file = resources.files("collectives.explorer").joinpath("tasks", f"{name}.txt")
    return file.read_text(encoding="utf-8")


def data(pyodide: bool = False) -> dict[str, Any]:
    """Return the data of the course, except those of its algorithms. Local.

    With `pyodide`, the page has a Python that proves the texts of its reader. The data contain the
    verdicts on the texts of the tasks, so that a page without a server can show them.
    """
    tasks = []
    for name, task in TASKS.items():
        texts = text(name), text(f"{name}_solved")
        known = [verdict(each, task["ranks"]) for each in texts]
        tasks.append({"id": name, **task, "texts": texts, "verdicts": known})
    rows = [get("allreduce", name) for name in ALGORITHMS]
    return {
        **catalogue([*rows, get("allreduce", ROUND_ROBIN)], dict.fromkeys(rows, LARGE)),
        "broken": {name: verdict(text(name), [p], f"{name}.py") for name, p in BROKEN.items()},
        "crowd": verdict(text("crowd"), [4], "crowd.py"),
        "tasks": tasks,
        "printed": PRINTED,
        "served": SERVED,
        "simulated": f"$ collectives {SIMULATE}\n{SIMULATED}",
        "pyodide": pyodide,
    }
