"""The limits of this process and its host: descriptors, locked memory, ``/dev/shm``, CPU time."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")


def found() -> dict[str, Any]:
    """Return the limits. Local."""
    shm: tuple[int, int] | None = None
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage("/dev/shm")
        shm = disk.total, disk.free
    return {
        "memlock": _soft(resource.RLIMIT_MEMLOCK),
        "files": _soft(resource.RLIMIT_NOFILE),
        "shm": shm,
        "quota": quota(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def quota(
    groups: Path = CGROUPS, membership: str | os.PathLike[str] = "/proc/self/cgroup"
) -> float | None:
    """Return how many CPUs' time the control groups of this process grant; None if all. Local."""
    try:
        lines = Path(membership).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    granted = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and "cpu" not in names.split(","):
            continue
        root = groups / names if names else groups
        folder = root / path.strip("/")
        while True:  # a group above may grant less
            granted.append(_granted(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return min((each for each in granted if each is not None), default=None)


def _soft(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _granted(folder: Path) -> float | None:
    """Return what one group grants, in either version of control groups."""
    words = _words(folder / "cpu.max") or [
        *_words(folder / "cpu.cfs_quota_us"),
        *_words(folder / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None  # "max", or -1
    return int(words[0]) / int(words[1])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
