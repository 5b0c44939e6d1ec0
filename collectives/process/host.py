"""The name of this host, which ranks compare to find those that share it."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from functools import cache

from collectives.process import environment


def name() -> str:
    """Return a text that starts with the name of this host and that only its ranks have. Local."""
    return f"{platform.node()} {_boot_id()} {environment.text('COLLECTIVES_HOST') or ''}"


def node(name: str) -> str:
    """Return the network name in the `name` of a host. Local."""
    return name.partition(" ")[0]


def shown(names: Sequence[str]) -> list[str]:
    """Return the names of hosts for messages, from the `name` of each: different texts for
    different hosts. Local.
    """
    brief = {}
    for each in names:
        node, boot, asked = each.split(" ", 2)
        brief[each] = asked or node, boot[:8]
    alike = Counter(text for text, _ in brief.values())
    found = (brief[each] for each in names)
    return [text if alike[text] == 1 else f"{text} ({boot})" for text, boot in found]


@cache
def _boot_id() -> str:
    """Return a text that differs between hosts of the same name, such as containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
