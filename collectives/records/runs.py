"""Runs: the traces of two runs of a program, and the first call in which they differ.

A trace is a folder with a file for each rank (`checksums`). Calls are matched by their communicator
and their number on it; submissions to the background by their name, or by their number among those
without a name; messages by their number among those between two ranks. Nothing here needs the core.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from collectives.errors import ArgumentError
from collectives.text.words import count, named

VERSION = 1  # of the files
SUFFIX = ".jsonl"

MESSAGES = "send", "recv", "sendrecv"
FOLDS = "allreduce", "reduce", "scan", "exscan"  # the beginnings of their names
SELECTING = "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC"
ROUNDED = "float", "bfloat", "complex"
# The collectives whose results do not depend on the number of ranks that share the work.
SHARED = "allreduce", "reduce", "broadcast", "allgather", "gather"

Key = tuple[str, str, int]  # the communicator, the series, and the number in it
Facts = dict[str, Any]  # of a call, as `checksums` writes them
Parts = dict[str, tuple[str, str | None]]  # the kind and the checksum of each part, by its path


class Run(NamedTuple):
    """The trace of a run.

    Attributes
    ----------
    path : str
    calls : list of dict
        For each rank, its calls.
    ended : list of bool
        For each rank, whether it has written the end of its calls.
    """

    path: str
    calls: list[dict[Key, Facts]]
    ended: list[bool]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.calls)


class Difference(NamedTuple):
    """A call of a rank that differs between two runs.

    Attributes
    ----------
    place : int
        Its place among the calls of the rank.
    what : str
        ``"call"`` for another call or none, ``"inputs"``, ``"error"`` or ``"result"``.
    arrays : list of str
        The parts of the inputs, or of the result, that differ.
    """

    place: int
    rank: int
    key: Key
    what: str
    calls: tuple[Facts | None, Facts | None]
    arrays: list[str]


# ---- reading -------------------------------------------------------------------------------------


def read(path: str) -> Run:
    """Return the trace in a folder. Local."""
    try:
        names = set(os.listdir(path))
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from None
    if f"0{SUFFIX}" not in names:
        raise ArgumentError(f"{path} is no trace of a run: it has no file 0{SUFFIX}")
    found = [_lines(os.path.join(path, f"0{SUFFIX}"))]
    size = found[0][0]["size"]
    missing = [rank for rank in range(size) if f"{rank}{SUFFIX}" not in names]
    if missing:
        raise ArgumentError(
            f"{path} lacks the file of {named(missing)} of {size}: put the files of all hosts into "
            f"one folder"
        )
    found += [_lines(os.path.join(path, f"{rank}{SUFFIX}")) for rank in range(1, size)]
    if len({lines[0]["job"] for lines in found}) > 1:
        raise ArgumentError(f"{path} has the files of several runs")
    told = [_calls(lines[1:]) for lines in found]
    return Run(path, [calls for calls, _ in told], [ended for _, ended in told])


def _lines(path: str) -> list[Facts]:
    """Return the whole lines of a file; the last one may have been cut off."""
    try:
        texts = Path(path).read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from None
    found: list[Facts] = []
    for i, text in enumerate(texts):
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            facts = None
        if isinstance(facts, dict) and text.endswith(b"\n"):
            found.append(facts)
        elif i < len(texts) - 1 or i == 0:
            break
    if not found or "collectives_trace" not in found[0]:
        raise ArgumentError(f"{path} is no file of a trace")
    if found[0]["collectives_trace"] != VERSION:
        raise ArgumentError(
            f"{path} is of another version of collectives: {found[0].get('writer', 'unknown')}"
        )
    if len(found) < len(texts) - 1:
        raise ArgumentError(f"{path} is damaged in line {len(found) + 1}")
    return found


def _calls(rest: list[Facts]) -> tuple[dict[Key, Facts], bool]:
    calls = {
        (each["communicator"], each["series"], each["number"]): each
        for each in rest
        if "place" in each
    }
    return calls, any("end" in each for each in rest)


# ---- comparing -----------------------------------------------------------------------------------


def differences(a: Run, b: Run) -> list[Difference]:
    """Return the calls that differ, those of the first one in front. Local.

    If the runs have different numbers of ranks, only the ranks of both are compared: the order of
    the collectives, and results that should be equal.
    """
    found = []
    for rank in range(min(a.size, b.size)):
        for key in a.calls[rank].keys() | b.calls[rank].keys():
            calls = a.calls[rank].get(key), b.calls[rank].get(key)
            told = _difference(*calls) if a.size == b.size else _difference_in_size(*calls)
            if told is not None:
                place = min(each["place"] for each in calls if each is not None)
                found.append(Difference(place, rank, key, *told[:1], calls, told[1]))
    found.sort(key=lambda each: (each.place, each.rank, each.key))
    first = next(iter(found), None)
    if first is not None and first.what == "result" and _kind(first) in ("recv", "sendrecv"):
        # Another rank has sent something else.
        sent = (each for each in found if each.what != "result" and _kind(each) in MESSAGES)
        first = next(sent, first)
    return sorted(found, key=lambda each: first is not None and each.key != first.key)


def _kind(difference: Difference) -> str:
    return next(str(each["kind"]) for each in difference.calls if each is not None)


def _difference(a: Facts | None, b: Facts | None) -> tuple[str, list[str]] | None:
    """Return the kind of the difference of two calls, and the arrays; None if they are equal."""
    if a is None or b is None or any(a[each] != b[each] for each in ("kind", "said", "name")):
        return "call", []
    inputs = _unlike(a["inputs"], b["inputs"])
    if inputs:
        is_another = _kinds(a["inputs"]) != _kinds(b["inputs"])
        return ("call" if is_another else "inputs"), inputs
    return _outcome(a, b)


def _outcome(a: Facts, b: Facts) -> tuple[str, list[str]] | None:
    if a.get("error") != b.get("error") or a.get("unfinished") != b.get("unfinished"):
        return "error", []
    results = _unlike(a.get("result"), b.get("result"))
    return ("result", results) if results else None


def _difference_in_size(a: Facts | None, b: Facts | None) -> tuple[str, list[str]] | None:
    """Return the same for runs with different numbers of ranks."""
    facts = a or b
    assert facts is not None
    if facts["series"].startswith(MESSAGES):
        return None
    if a is None or b is None:
        return ("call", []) if facts["communicator"] == "0.0" else None
    if any(a[each] != b[each] for each in ("kind", "name")) or any(
        a["said"].get(each) != b["said"].get(each) for each in ("op", "compression")
    ):
        return "call", []
    if not a["kind"].startswith(SHARED) or a["kind"].startswith("reduce_scatter"):
        return None
    if _kinds(a.get("result")) != _kinds(b.get("result")):
        return None
    return _outcome(a, b)


def _parts(checksums: list[list[Any]] | None) -> Parts:
    return {path: (kind, checksum) for path, kind, checksum in checksums or ()}


def _kinds(checksums: list[list[Any]] | None) -> dict[str, str]:
    return {path: kind for path, kind, _ in checksums or ()}


def _unlike(a: list[list[Any]] | None, b: list[list[Any]] | None) -> list[str]:
    """Return the paths of the parts that differ."""
    mine, theirs = _parts(a), _parts(b)
    paths = dict.fromkeys([*mine, *theirs])
    unlike = [path for path in paths if mine.get(path) != theirs.get(path)]
    # A container differs in its own kind only, and its parts are named.
    return [path for path in unlike if not _is_whole(path, unlike, mine, theirs)] or unlike


def _is_whole(path: str, unlike: list[str], mine: Parts, theirs: Parts) -> bool:
    same_kind = path in mine and path in theirs and mine[path][0] == theirs[path][0]
    return same_kind and any(each != path and each.startswith(path) for each in unlike)


# ---- the first difference in words ---------------------------------------------------------------


def inputs_are_equal(a: Run, b: Run, key: Key) -> bool | None:
    """Return whether all ranks have equal inputs; None if that is not known. Local."""
    if a.size != b.size:
        return None
    is_known = True
    for mine, theirs in zip(a.calls, b.calls, strict=True):
        if key in mine and key in theirs:
            one, other = mine[key]["inputs"], theirs[key]["inputs"]
            if _unlike(one, other):
                return False
            is_known &= one is not None and all(checksum for _, _, checksum in one)
        elif key in mine or key in theirs:
            is_known = False
    return True if is_known else None


def advice(facts: Facts, equal_inputs: bool | None, same_size: bool) -> str:
    """Return a remedy for a call whose results differ, or "". Local."""
    op = str(facts["said"].get("op", "SUM"))
    kinds = " ".join(kind for _, kind, _ in [*(facts["inputs"] or ()), *(facts["result"] or ())])
    is_rounded = any(f"of {each}" in kinds for each in ROUNDED) and op not in SELECTING
    if not facts["kind"].startswith(FOLDS) or "_object" in facts["kind"] or not is_rounded:
        return ""
    if same_size and not equal_inputs:
        return ""
    exact = 'op="SUM_REPRODUCIBLE" rounds once, so that the result does not depend'
    if not same_size:
        if op == "SUM_REPRODUCIBLE":
            return "SUM_REPRODUCIBLE rounds once: the contributions differ."
        return (
            f"Inputs of runs with different numbers of ranks are not compared. If they are parts "
            f"of the same data, {exact} on the number of ranks (with sum_local also not on the "
            f"parts)."
        )
    return (
        f"Only the rounding differs: the ranks have combined the same inputs in another order. "
        f'bits="size", or COLLECTIVES_BITS=size, makes the order independent of the algorithm; '
        f"{exact} on any order."
    )


def described(facts: Facts | None) -> str:
    """Describe a call in words. Local."""
    if facts is None:
        return "no such call"
    arrays = facts["inputs"] or facts.get("result") or ()
    words = [facts["kind"]]
    if arrays:
        path, kind, _ = arrays[0]
        words = [f"{facts['kind']} of {path}, {kind}"]
        if len(arrays) > 1:
            words.append(f"and {len(arrays) - 1} more")
    said = {**facts["said"], **facts["how"]}
    words += [f"{key} {value}" for key, value in said.items()]
    words += [f"name {facts['name']!r}"] if facts["name"] else []
    outcome = f" raised {facts['error']}" if "error" in facts else ""
    return ", ".join(words) + outcome + " was not complete" * ("unfinished" in facts)


def report(a: Run, b: Run) -> dict[str, Any]:
    """Return the comparison of two runs, as JSON has it. Local."""
    found = differences(a, b)
    about = [
        {"path": run.path, "ranks": run.size, "calls": [*map(len, run.calls)], "ended": run.ended}
        for run in (a, b)
    ]
    first = None
    if found:
        head = found[0]
        same = [each for each in found if each.key == head.key]
        equal = inputs_are_equal(a, b, head.key)
        kinds = [each.what for each in same]
        what = next(each for each in ("call", "inputs", "error", "result") if each in kinds)
        told = next(each for each in same if each.what == what)
        arrays = [path for one in same if one.what == what for path in one.arrays]
        facts = told.calls[0] or told.calls[1]
        assert facts is not None
        first = {
            "communicator": head.key[0],
            "number": head.key[2],
            "background": head.key[1].startswith("background"),
            "difference": what,
            "ranks": {each: [one.rank for one in same if one.what == each] for each in kinds},
            "arrays": list(dict.fromkeys(arrays)),
            "inputs_equal": equal,
            "calls": [described(each) for each in told.calls],
            "lines": [each and each["line"] for each in told.calls],
            "advice": advice(facts, equal, a.size == b.size) if what == "result" else "",
        }
    calls = len({(each.key, each.place) for each in found})
    return {"version": 1, "equal": not found, "runs": about, "different": calls, "first": first}


def text(told: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report. Local."""
    a, b = told["runs"]
    for run in (a, b):
        cut = [rank for rank, ended in enumerate(run["ended"]) if not ended]
        note = f"; the records of {named(cut)} have no end" if cut else ""
        yield f"{run['path']}: {count(run['ranks'], 'rank')}, {sum(run['calls'])} calls{note}"
    if a["ranks"] != b["ranks"]:
        ranks = named(range(min(a["ranks"], b["ranks"])))
        yield f"compared on {ranks}: the order of collectives, and results that should be equal"
    first = told["first"]
    if first is None:
        yield "all calls are equal"
        return
    where = f"communicator {first['communicator']}"
    place = " in the background" if first["background"] else ""
    yield f"the first call that differs is number {first['number']} on {where}{place}:"
    mine, theirs = first["calls"]
    for run, call, line in zip((a, b), first["calls"], first["lines"], strict=True):
        at = f" ({line})" if line else ""
        if mine != theirs or run is a:
            name = f"{run['path']}: " if mine != theirs else ""
            yield f"  {name}{call}{at}"
    arrays = ", ".join(first["arrays"][:8]) + ", ..." * (len(first["arrays"]) > 8)
    for what, ranks in first["ranks"].items():
        which = f" ({arrays})" if arrays and what == first["difference"] else ""
        yield f"{named(ranks)}: {DIFFER[what]}{which}"
    if first["difference"] == "result" and first["inputs_equal"]:
        yield "the inputs are equal on all ranks"
    if first["advice"]:
        yield first["advice"]


DIFFER = {
    "call": "another call",
    "inputs": "the inputs differ",
    "error": "the errors differ",
    "result": "the results differ",
}
