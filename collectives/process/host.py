"""The name of this host, by which ranks see that they share it."""

from __future__ import annotations

import platform

from collectives.process import environment

__all__ = ["name"]


def name() -> str:
    """Return a text that the ranks of a host have in common, and other ranks have not: its name
    first. Local.
    """
    return f"{platform.node()} {_boot_id()} {environment.text('COLLECTIVES_HOST') or ''}"


def _boot_id() -> str:
    """Return a text that differs between hosts of the same name, such as containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
