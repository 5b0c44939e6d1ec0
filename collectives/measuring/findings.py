"""A finding of ``collectives doctor``."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A fact, or a problem and its remedy.

    Attributes
    ----------
    name, text : str
        The subject, and what was found.
    remedy : str or None
        None if there is no problem.
    """

    name: str
    text: str
    remedy: str | None = None
