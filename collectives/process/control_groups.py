"""Control groups: what a container may use of its host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def folders(
    controller: str,
    groups: Path = CGROUPS,
    membership: str | os.PathLike[str] = "/proc/self/cgroup",
) -> Iterator[Path]:
    """Yield the folders of the groups that this process is in, and of those above, which may grant
    less; in both versions of control groups. Local.
    """
    try:
        lines = Path(membership).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = groups / names if names else groups
        folder = root / path.strip("/")
        yield folder
        while folder != root and root in folder.parents:
            folder = folder.parent
            yield folder


def words(file: Path) -> list[str]:
    """Return the words of a file; none if it cannot be read. Local."""
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []


def memory(
    groups: Path = CGROUPS, membership: str | os.PathLike[str] = "/proc/self/cgroup"
) -> int | None:
    """Return how many bytes of memory this process may use with others; None if all. Local."""
    found = [
        int(word)
        for folder in folders("memory", groups, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in words(folder / name)
        if word.isdigit()
    ]
    return min(found, default=None)
