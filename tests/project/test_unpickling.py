"""Unpickling executes what the sender wants: each place has a reason to trust its sender."""

import ast
from collections import Counter
from pathlib import Path

import collectives

TRUSTED = {
    "process/meeting.py": (1, "ranks of one job, by MPI"),
    "process/lobby.py": (3, "the launcher and the ranks of a job, which know its secret"),
    "slow/job.py": (1, "ranks of one job, which know its secret"),
    "process/rendezvous.py": (1, "stores and servers, read without classes"),
    "calls/parcels.py": (1, "ranks of one communicator"),
    "horovod/objects.py": (2, "ranks of one communicator"),
    "devices/ipc.py": (1, "ranks of one communicator"),
    "elastic.py": (1, "a file that the user names"),
    "engines/rank.py": (4, "workers of the engine, whose tasks are trusted"),
    "launch/rank.py": (3, "the process that has started this one, and this one itself"),
    "launch/spawning.py": (2, "ranks that this process has started"),
}
READERS = {
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "dill": {"load", "loads"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "np": {"load"},
    "numpy": {"load"},
    "shelve": {"open"},
    "torch": {"load"},
}


def test_every_place_that_unpickles_trusts_its_sender():
    found = Counter()
    root = Path(collectives.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in READERS.keys() - {"np", "numpy", "torch"}, path
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.attr in READERS.get(node.value.id, ())
            ):
                found[path.relative_to(root).as_posix()] += 1
    assert found == {name: count for name, (count, _) in TRUSTED.items()}
