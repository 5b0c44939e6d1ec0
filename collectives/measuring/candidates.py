"""The algorithms that can be compared: those that run on p ranks, without duplicates."""

from __future__ import annotations

from functools import cache
from typing import Any

from collectives.algorithms import composition, get, names
from collectives.algorithms.bits import ANY, ORDERS
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import split
from collectives.errors import ArgumentError
from collectives.measuring.contest import Entry
from collectives.measuring.operations import OPERATIONS
from collectives.plans import schedule
from collectives.plans.order import exchanges, has_fixed_order

ALIKE = 8  # number of ranks up to which several algorithms may have the same plans
PARAMETERS = (2, 8)  # measured in addition to the default, if there are more ranks


def chosen(text: str, operation: str, p: int) -> tuple[list[str | None], list[str]]:
    """Return the algorithms of an operation that `text` names. Local."""
    contract = OPERATIONS[operation].contract
    every = names(contract.name) if OPERATIONS[operation].chosen else []
    several = {"all": every, "textbook": names(contract.name, textbook=True) if every else []}
    words = [word for word in split(text) if word]
    wanted = list(dict.fromkeys(n for word in words for n in several.get(word, [word])))
    result: list[str | None] = [None] if "auto" in wanted else []
    left_out = []
    for name in sorted(set(wanted) - {"auto"}, key=lambda name: place(name, every)):
        if not OPERATIONS[operation].chosen:
            raise ArgumentError(f"{operation} has no algorithms to choose from, not {name!r}")
        refusal = get(contract.name, name).refusal(p) or _third(operation, name, p)
        if refusal is None:
            result.append(name)
        elif name in words:
            raise ArgumentError(refusal)
        else:
            left_out.append(refusal)
    if not result and not OPERATIONS[operation].chosen:
        result = [None]
    if not result:
        raise ArgumentError(f"--algorithm {text!r} names none that runs on {p} ranks")
    return result, left_out


def place(name: str, every: list[str]) -> tuple[int, int, str]:
    """Return a sort key of an algorithm. Local."""
    base, _, parameter = name.partition(":")
    number = int(parameter) if parameter.isdecimal() else 0
    return (every.index(base) if base in every else len(every), number, name)


def _third(operation: str, name: str, p: int) -> str | None:
    """Return the reason why an algorithm has no vector form, or None if it has one."""
    if operation != "alltoallv" or not schedule.passes_on(get("alltoall", name), p):
        return None
    return f"alltoallv {name!r}: blocks would pass through ranks that do not know their size"


def candidates(name: str, p: int, groups: Groups | None = None, bits: str = ANY) -> list[str]:
    """Return the algorithms of the collective `name` on `p` ranks in `groups`. Local.

    Algorithms with a parameter appear with several values of it. If several algorithms are the same
    on so many ranks (`plain`), only one of them is in the list. If there are several groups, of
    several ranks, compositions are in it, too. Unless `bits` is `ANY`, it only has algorithms that
    may fold in the fixed order.
    """
    found = list(dict.fromkeys(_plain(name, p, groups).values()))
    if bits == ANY:
        return found
    rows = ((each, get(name, each, groups)) for each in found)
    return [
        each
        for each, row in rows
        if any(has_fixed_order(row.folding(order), p) for order in ORDERS)
    ]


def plain(collective: str, entry: Entry, p: int, groups: Groups | None = None) -> Entry:
    """Return `entry` by the first algorithm of `collective` with equal plans on `p` ranks, which
    are in `groups`. Local.

    For example, on two ranks a butterfly and a ring may be the same exchange.
    """
    name = entry.algorithm or ""
    return entry._replace(algorithm=_plain(collective, p, groups).get(name, name))


@cache
def _plain(collective: str, p: int, groups: Groups | None) -> dict[str, str]:
    able, _ = chosen("all", collective, p)
    names = []
    for each in filter(None, able):
        names.append(each)
        if get(collective, each).parameters:
            names += [f"{each}:{value}" for value in PARAMETERS if value < p - 1]
    if groups is not None and groups.are_nested:
        for each in composition.candidates(collective):
            if get(collective, each, groups).refusal(p) is None:
                names.append(each)
    if p > ALIKE:
        return {name: name for name in names}
    first: dict[Any, str] = {}
    found = {}
    for name in names:
        algorithm = get(collective, name, groups)
        found[name] = first.setdefault(exchanges(algorithm, p), name)
    return found
