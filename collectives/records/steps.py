"""The steps of a program on its timeline: the calls of each step, and the computing between them.

Theory of operation
-------------------
Only calls that all ranks of the timeline have made are replayed. All other time counts as
computing, also messages between two ranks and calls of some of the ranks.

1. `found` matches the calls of the ranks, in the order of rank 0.
2. A step is the sequence of kinds and sizes that repeats most often. It begins with the call that
   most computing precedes.
3. For each step and rank, there are the seconds that it computes before each call, and while a
   request is in flight. The rank waits for submissions in the background at the end of the step.

Calls that the background made for a submission are carried by this submission.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.spec import COLLECTIVES
from collectives.errors import ArgumentError
from collectives.text.words import count, plural, spans

REPEATS = 3  # the fewest steps to replay
WARM = 10  # one step in so many is left out at the start
LONGEST = 2000  # the most calls of a step

Seconds = NDArray[np.float64]
Event = dict[str, Any]

# The ways to wait for a call: in the call, later, or in the background until the step ends.
BLOCKS, REQUEST, SUBMITTED = "blocks", "request", "submitted"


@dataclass(frozen=True)
class Carried:
    """A collective of all ranks: its kind, bytes, and the algorithm if the caller asked for it."""

    kind: str
    nbytes: int
    asked: str | None = None

    @property
    def collective(self) -> str:
        """The collective that is simulated: also of a vector form."""
        base = self.kind.removesuffix("v")
        return base if base in COLLECTIVES else self.kind


@dataclass
class _Made:
    """A call as all ranks made it: one event for each rank, and the collectives that it carries."""

    events: list[Event]
    waits: str
    carried: list[Event] = field(default_factory=list)

    @property
    def sign(self) -> tuple[str, int]:
        return self.events[0]["cat"], self.events[0]["args"]["bytes"].bit_length()


@dataclass(frozen=True)
class Recording:
    """The steps of a program. All times are in seconds.

    Attributes
    ----------
    hosts : list of str
        The host of each rank.
    calls : list of list of Carried
        The collectives that each call of a step carries.
    waits : list of str
        For each call, one of `BLOCKS`, `REQUEST` and `SUBMITTED`.
    algorithms : list of str
        The algorithm that ran most often, for each call.
    before, during : array
        Computing before each call and while it is in flight, by step, rank and call.
    transfers : array
        From the last rank's call until the end of the call, the mean of the ranks; by step and
        call.
    late : array
        By step and call, how much later than the mean the last rank made a blocking call.
    times : array
        The time of each step.
    family : str
        The transport between hosts, as `decide` has it.
    other : int
        Calls of a step that are not replayed, the mean.
    """

    hosts: list[str]
    calls: list[list[Carried]]
    waits: list[str]
    algorithms: list[str]
    before: Seconds
    during: Seconds
    transfers: Seconds
    late: Seconds
    times: Seconds
    family: str
    other: float

    @property
    def p(self) -> int:
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        return len(set(self.hosts))


def found(documents: Sequence[dict[str, Any]], events: list[Event], length: int = 0) -> Recording:
    """Return the steps on a timeline in several `documents`, with `events`; `length` is the number
    of calls of a step, or 0 to find it. Local.
    """
    hosts = _hosts(documents, events)
    made, family, others = _matched(events, len(hosts))
    if not made:
        raise ArgumentError("the timeline has no collective that all of its ranks have completed")
    starts = np.array([[each["ts"] for each in call.events] for call in made]) / 1e6
    lengths = np.array([[each["dur"] for each in call.events] for call in made]) / 1e6
    ends = starts + lengths
    before, idle, during = _computing(made, starts, ends)
    signs = [call.sign for call in made]
    length = length or _period(signs)
    if not 1 <= length <= len(made):
        told = count(len(made), "call")
        raise ArgumentError(f"--step is {length}, and the timeline has {told} of all ranks")
    firsts = _firsts(signs, length, idle)
    if len(firsts) < REPEATS:
        raise ArgumentError(
            f"no step was found: no sequence of {count(length, 'call')} is {REPEATS} times on the "
            f"timeline of {count(len(made), 'call')} of all ranks; record more steps, or name the "
            f"calls of a step by --step"
        )
    firsts = firsts[-(-len(firsts) // WARM) :] if len(firsts) > REPEATS else firsts
    steps = np.array(firsts)[:, None] + np.arange(length)
    before[steps[:, 0]] = idle[steps[:, 0]]
    done = np.maximum.accumulate(ends.max(axis=1))
    latest = starts.max(axis=1)
    late = np.where([call.waits == BLOCKS for call in made], latest - starts.mean(axis=1), 0.0)
    columns = [[made[i] for i in column] for column in steps.T.tolist()]
    return Recording(
        hosts,
        [_carried(column) for column in columns],
        [Counter(call.waits for call in column).most_common(1)[0][0] for column in columns],
        [_algorithm(column) for column in columns],
        before[steps].transpose(0, 2, 1),
        during[steps].transpose(0, 2, 1),
        np.maximum(ends.mean(axis=1) - latest, 0.0)[steps],
        late[steps],
        done[steps[:, -1]] - done[steps[:, 0] - 1],
        family,
        others / (len(made) / length),
    )


def _hosts(documents: Sequence[dict[str, Any]], events: list[Event]) -> list[str]:
    """Return the host of each rank; raise an error if ranks have no calls."""
    p = max(int(each["otherData"].get("ranks", 0)) for each in documents)
    names = {}
    calls = set()
    for event in events:
        if event["ph"] == "M":
            if event["name"] == "process_name":
                names[event["pid"]] = event["args"]["name"].partition("(")[2].rstrip(")")
        elif "communicator" in event["args"]:
            calls.add(event["pid"])
    if not calls:
        raise ArgumentError("the timeline has no calls")
    lost = sorted(set(range(p)) - calls)
    if lost:
        raise ArgumentError(
            f"the timeline of {count(p, 'rank')} has no calls of {plural(len(lost), 'rank')} "
            f"{spans(lost)}; pass the files of all hosts"
        )
    return [names.get(rank, "") for rank in range(p)]


def _matched(events: list[Event], p: int) -> tuple[list[_Made], str, int]:
    """Return the calls of all ranks in the order of rank 0, the transport between hosts, and the
    number of rank 0's other calls.
    """
    groups: dict[tuple[Any, ...], dict[int, Event]] = defaultdict(dict)
    turns: Counter[tuple[Any, ...]] = Counter()
    queued = set()
    families: Counter[str] = Counter()
    for event in sorted((each for each in events if each["ph"] == "X"), key=lambda one: one["ts"]):
        args, rank = event["args"], event["pid"]
        if "communicator" not in args:
            if event["name"] == "queue" and event["tid"] < 1000:
                queued.add((rank, event["cat"], args["call"], event["ts"]))
            continue
        families[args["transport"]] += 1
        if args.get("unfinished") or args.get("failed"):
            continue
        key: tuple[Any, ...] = args["communicator"], args["lowest"], event["cat"], args["call"]
        if args["call"] is None:
            key = *key, args["algorithm"]
            turns[rank, key] += 1
            key = *key, turns[rank, key]
        groups[key][rank] = event
    inner = _inner(groups)
    made, others = [], 0
    for key, of in groups.items():
        kind = key[2]
        is_submitted = any(each["args"]["transport"] == "background" for each in of.values())
        is_known = kind.removesuffix("v") in COLLECTIVES or kind.startswith("neighbor_")
        if key in inner or not is_known or len(of) < p or (key[3] is None and not is_submitted):
            others += 0 in of and key not in inner
            continue
        event = of[0]
        is_request = any(
            (rank, kind, each["args"]["call"], each["ts"]) in queued for rank, each in of.items()
        )
        waits = SUBMITTED if is_submitted else REQUEST if is_request else BLOCKS
        made.append(_Made([of[rank] for rank in range(p)], waits))
    made.sort(key=lambda call: call.events[0]["ts"])
    _carry(made, [groups[key][0] for key in inner])
    for call, after in pairwise(made):
        if call.waits == REQUEST and after.events[0]["ts"] < _end(call.events[0]):
            call.waits = SUBMITTED  # the next call begins while it is in flight
    del families["shm"], families["background"]
    return made, families.most_common(1)[0][0] if families else "other", others


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _inner(groups: dict[tuple[Any, ...], dict[int, Event]]) -> set[tuple[Any, ...]]:
    """Return the keys of calls that the background made: those while a submission is in flight on
    rank 0, on communicators on which rank 0 makes most calls at such times.
    """
    bars = sorted(
        (of[0]["ts"], _end(of[0]))
        for of in groups.values()
        if 0 in of and of[0]["args"]["transport"] == "background"
    )
    if not bars:
        return set()
    firsts = np.array([start for start, _ in bars])
    lasts = np.maximum.accumulate([end for _, end in bars])
    keys: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    outside: Counter[tuple[Any, ...]] = Counter()
    for key, of in groups.items():
        if 0 not in of or of[0]["args"]["transport"] == "background":
            continue
        place = int(np.searchsorted(firsts, of[0]["ts"], "right")) - 1
        if place >= 0 and of[0]["ts"] <= lasts[place]:
            keys[key[:2]].append(key)
        else:
            outside[key[:2]] += 1
    return {key for name, each in keys.items() if len(each) > outside[name] for key in each}


def _carry(made: list[_Made], inner: list[Event]) -> None:
    """Give each call of the background to the last submission before it."""
    submissions = [call for call in made if call.waits == SUBMITTED]
    starts = np.array([call.events[0]["ts"] for call in submissions])
    for call in made:
        if call.waits != SUBMITTED or not inner:
            call.carried = call.events[:1]
    for event in sorted(inner, key=lambda each: (each["ts"], each["args"]["call"])):
        place = int(np.searchsorted(starts, event["ts"], "right")) - 1
        if place >= 0:
            submissions[place].carried.append(event)


def _computing(made: list[_Made], starts: Seconds, ends: Seconds) -> tuple[Seconds, ...]:
    """Return the seconds that each rank computes before each call, the same if it has waited for
    all submissions, and while the call is in flight.
    """
    marks = starts[0].copy()  # until when the rank is known to have been in a call
    flying = np.zeros_like(marks)  # the end of submissions
    before, idle, during = np.zeros((3, *starts.shape))
    for k, call in enumerate(made):
        done = np.where(flying <= starts[k], np.maximum(marks, flying), marks)
        idle[k] = np.maximum(starts[k] - done, 0.0)
        if call.waits == SUBMITTED:
            before[k] = np.maximum(starts[k] - marks, 0.0)
            marks, flying = np.maximum(marks, starts[k]), np.maximum(flying, ends[k])
        else:
            before[k] = idle[k]
            if call.waits == REQUEST:
                during[k] = ends[k] - starts[k]
            marks = np.maximum(marks, ends[k])
    return before, idle, during


def _period(signs: list[tuple[str, int]]) -> int:
    """Return the number of calls after which most calls are alike; the smallest of several."""
    numbers = {sign: number for number, sign in enumerate(dict.fromkeys(signs))}
    codes = np.array([numbers[sign] for sign in signs])
    most = min(LONGEST, max(1, len(codes) // REPEATS))
    alike = [int((codes[k:] == codes[:-k]).sum()) for k in range(1, most + 1)]
    return int(np.argmax(alike)) + 1 if len(codes) > 1 else 1


def _firsts(signs: list[tuple[str, int]], length: int, idle: Seconds) -> list[int]:
    """Return the first call of each step."""
    alike = [a == b for a, b in zip(signs, signs[length:], strict=False)]
    best, run = (0, 0), 0
    for i, same in enumerate([*alike, False]):
        if same:
            run += 1
            continue
        best, run = max(best, (run, -(i - run))), 0
    start = -best[1]
    repeats = range(start, start + best[0] + length, length)
    gaps = idle.mean(axis=1)

    def gap(offset: int) -> float:
        return float(median(gaps[i + offset] for i in repeats if i + offset < len(gaps)))

    offset = max(range(length), key=lambda k: (gap(k), -k))
    pattern = signs[start + offset : start + offset + length]
    if len(pattern) < length:
        return []
    firsts, i = [], 1  # the computing before the first call is not known
    while i + length <= len(signs):
        is_step = signs[i : i + length] == pattern
        if is_step:
            firsts.append(i)
        i += length if is_step else 1
    return firsts


def _carried(column: list[_Made]) -> list[Carried]:
    """Return the collectives that a call usually carries, with their usual numbers of bytes."""
    usual = Counter(len(call.carried) for call in column).most_common(1)[0][0]
    alike = [call.carried for call in column if len(call.carried) == usual]
    return [
        Carried(each[0]["cat"], int(median(one["args"]["bytes"] for one in each)), _asked(each[0]))
        for each in zip(*alike, strict=True)
    ]


def _asked(event: Event) -> str | None:
    """Return the algorithm of a call if the caller named it."""
    reason = event["args"].get("reason") or ""
    return event["args"]["algorithm"] if reason.startswith("asked for") else None


def _algorithm(column: list[_Made]) -> str:
    """Return the algorithm that ran most often."""
    names = Counter(call.events[0]["args"]["algorithm"] for call in column)
    return str(names.most_common(1)[0][0])
