"""Hosts and their slots, as ``-H`` and ``--hostfile`` name them."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import NamedTuple

from collectives.errors import ArgumentError

HOST = re.compile(
    r"(?P<name>(\w[\w.-]*@)?(\w[\w.-]*|\[[0-9A-Fa-f:.]+\]))(:(?P<slots>[1-9]\d{0,5}))?"
)
# The words after a host that Open MPI knows; the last one does not matter here.
WORDS = re.compile(r"(\s+(slots\s*=\s*(?P<slots>[1-9]\d{0,5})|max[_-]slots\s*=\s*\d+))*", re.I)
HERE = {"local", "localhost", "127.0.0.1", "[::1]"}


class Host(NamedTuple):
    """A host, and the number of ranks that it may have."""

    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """True for the host of this process."""
        node = platform.node()
        return self.name.lower() in HERE or self.name in (node, node.partition(".")[0])


def listed(text: str) -> list[Host]:
    """Read hosts as ``-H`` has them: ``host1:2,host2:4``. Local."""
    return joined([host(word, "-H") for word in text.split(",")])


def from_file(path: str) -> list[Host]:
    """Read a file with a host on each line: ``host1 slots=2``, ``host1:2`` or ``host1``. Local."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--hostfile {path}: {error}") from error
    hosts = []
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name = text.split()[0]
        made = host(name, f"--hostfile {path}")
        found = WORDS.fullmatch(text, len(name))
        if found is None or (found["slots"] and HOST.fullmatch(name)["slots"]):  # type: ignore[index]
            raise ArgumentError(
                f"--hostfile {path}: {line.strip()!r} is not a host and its slots, such as "
                f"'host1 slots=2'"
            )
        if found["slots"]:
            made = made._replace(slots=int(found["slots"]))
        hosts.append(made)
    if not hosts:
        raise ArgumentError(f"--hostfile {path}: there is no host in it")
    return joined(hosts)


def filled(hosts: list[Host], n: int | None) -> list[Host]:
    """Return the hosts of `n` ranks, with the ranks of each as its slots, from the first on. Local.

    All slots are filled if `n` is None.
    """
    slots = sum(each.slots for each in hosts)
    left = slots if n is None else n
    if left > slots:
        raise ArgumentError(f"-n {n}: the hosts have {slots} slots; name more hosts, or more slots")
    used = []
    for each in hosts:
        if left:
            used.append(each._replace(slots=min(left, each.slots)))
            left -= used[-1].slots
    return used


def host(word: str, option: str, slots: int = 1) -> Host:
    """Read a host such as ``host1:2``, by default with `slots` slots. Local."""
    found = HOST.fullmatch(word.strip())
    if found is None:
        raise ArgumentError(f"{option}: {word!r} is not a host and its slots, such as 'host1:2'")
    return Host(found["name"], int(found["slots"] or slots))


def joined(hosts: list[Host]) -> list[Host]:
    """Return each host once, with all of its slots. Local."""
    slots: dict[str, int] = {}
    for each in hosts:
        slots[each.name] = slots.get(each.name, 0) + each.slots
    return [Host(*each) for each in slots.items()]
