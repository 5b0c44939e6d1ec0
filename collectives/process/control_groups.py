"""Control groups: the limits of a container on its host."""

from __future__ import annotations

import os
from collections.abc import Iterator

CGROUPS = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"

File = str | os.PathLike[str]


def folders(
    controller: str, groups: File = CGROUPS, membership: File = MEMBERSHIP
) -> Iterator[str]:
    """Yield the folders of the groups of this process, and of those above, which may have smaller
    limits, in both versions of control groups. Local.
    """
    try:
        with open(membership, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = os.path.join(groups, names).rstrip("/")
        folder = os.path.join(root, path.strip("/")).rstrip("/")
        yield folder
        while folder != root:
            folder = os.path.dirname(folder)
            yield folder


def words(folder: str, name: str) -> list[str]:
    """Return the words of a file; none if it cannot be read. Local."""
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def memory(groups: File = CGROUPS, membership: File = MEMBERSHIP) -> int | None:
    """Return the bytes of memory that the group of this process may use; None if all. Local."""
    found = [
        int(word)
        for folder in folders("memory", groups, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in words(folder, name)
        if word.isdigit()
    ]
    return min(found, default=None)
