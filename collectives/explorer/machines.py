"""The machines of the pages, as data: those of `collectives simulate`, and the words for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from collectives.explorer.course import SLOW
from collectives.simulation.clock import INSTANT
from collectives.simulation.networks import Torus
from collectives.simulation.topology_text import BYTES, KINDS, TIMES, Machine

# The numbers that the explorer begins with. The curves of the course have those between hosts.
USUAL = "fattree,per_switch=2,alpha=2us,beta=10GB/s,gamma=10GB/s,inside_alpha=0.5us"

# The names of the kinds of machines on the page.
WORDS = {
    "flat": "all ranks alike",
    "hosts": "hosts with a link each",
    "fattree": "hosts below switches: a fat tree",
    "torus": "a torus of neighbours",
}

# The options in the order of their controls: unit, label, and the words for a value (``#``) in the
# line about a machine. A shape has no control.
OPTIONS = {
    "per_host": ("rank", "Ranks on a host", "; # on a host"),
    "per_switch": ("host", "Hosts below a switch", "; # below a switch"),
    "oversubscription": ("part", "Oversubscription", ", which passes on # what they send"),
    "alpha": ("time", "alpha (a message)", "# a message"),
    "beta": ("rate", "beta (sending)", ", sends #"),
    "gamma": ("rate", "gamma (folding)", ", folds #"),
    "delay": ("time", "delay (on its way)", " and # on its way"),
    "hop": ("time", "a hop to a neighbour", ", # a hop"),
    "inside_alpha": ("time", "alpha inside a host", ""),
    "inside_beta": ("rate", "beta inside a host", ""),
    "shape": ("shape", "", "; a torus of #"),
}
LINE = "alpha delay beta gamma shape hop per_host per_switch oversubscription"


def data(counts: Iterable[int]) -> dict[str, Any]:
    """Return the machines with these numbers of ranks, as the pages read them. Local."""
    values = {"hop": 0.0, "per_host": 4, **Machine(USUAL).values}
    return {
        "kinds": {kind: {"words": words, **_kind(kind)} for kind, words in WORDS.items()},
        "options": {_name(name): row for name, row in OPTIONS.items()},
        "line": _name(LINE).split(),
        "tori": {p: _torus(p) for p in counts},
        "usual": {"topology": "flat", **{_name(k): values[k] for k in OPTIONS if k in values}},
        "slow": {"topology": "flat", **Machine(SLOW).values},
        "units": {"time": list(TIMES.items())[1:], "rate": list(BYTES.items())},
        "instant": INSTANT,
    }


def _kind(kind: str) -> dict[str, Any]:
    """Return the options of a kind of machine, and its groups that share links."""
    groups = getattr(Machine(kind).make(1), "GROUPS", {}).values()
    own = {"torus": ["shape"]}.get(kind, ["per_host"] if groups else [])
    return {
        "options": [_name(each) for each in (*KINDS[kind], *own)],
        "groups": [[_name(each).split() for each in group] for group in groups],
    }


def _name(names: str) -> str:
    """Return the names of options in JavaScript, and in links to the page."""
    return re.sub("_(.)", lambda match: match[1].upper(), names)


def _torus(p: int) -> dict[str, Any]:
    """Return a torus, with the digit of the first link from each source to each target, whose
    number is that of the source plus `p` times the digit, and the rank at the end of each link.
    """
    torus = Machine("torus").make(p)
    assert isinstance(torus, Torus)
    source, target = np.divmod(np.arange(p * p), p)
    rows = torus.route(source, target)
    first = np.max(rows, axis=1, initial=0, where=np.cumsum(rows >= 0, axis=1) == 1)
    near = (rows >= 0).sum(axis=1) == 1
    ends = np.zeros(len(torus.names), int)
    ends[first[near]] = target[near]
    return {
        "shape": [length for length in torus.shape if length > 1] or [1],
        "ways": "".join(map(str, first // p)),
        "ends": ends.tolist(),
    }
