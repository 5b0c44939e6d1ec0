"""Summaries of timelines: the time of each collective, and the ranks that the others wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from collectives.text.table import aligned
from collectives.text.words import count, plural, size_text, spans

# Ranks are stragglers if they wait at most PART of the time that each of the others waits, and the
# others wait at least WORTH of the whole time.
PART = 2 / 3
WORTH = 0.02

SHOWN = 16  # the most listed calls that failed or did not finish


Event = dict[str, Any]
Interval = tuple[float, float]


@dataclass
class Share:
    """The times of one rank, in microseconds."""

    name: str = ""
    calls: int = 0
    inside: float = 0.0
    waits: float = 0.0
    awaited: float = 0.0  # the time for which the others waited for this rank


@dataclass
class Sum:
    """The times of all ranks."""

    ranks: dict[int, Share] = field(default_factory=lambda: defaultdict(Share))
    # For each collective and algorithm, and each rank, the (microseconds, bytes) of its calls.
    calls: dict[tuple[str, str], dict[int, list[tuple[float, int]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    open: list[tuple[Event, Event | None]] = field(default_factory=list)
    alone: float = 0.0  # the time of calls that were recorded on one rank only
    first: float = float("inf")
    last: float = 0.0

    @property
    def lasted(self) -> float:
        """The time from the first call to the end of the last."""
        return max(0.0, self.last - self.first)

    def share(self, number: int) -> float:
        """Return the part of the time that rank `number` waits. Local."""
        return self.ranks[number].waits / self.lasted if self.lasted else 0.0


def summed(events: list[dict[str, Any]]) -> Sum:
    """Summarise trace `events`. Local."""
    found = Sum()
    done: list[Event] = []
    waits: dict[int, list[Interval]] = defaultdict(list)
    # On each track, the call whose phases follow it, if it failed or did not finish.
    unfinished: dict[tuple[int, int], list[dict[str, Any]] | None] = {}
    left: list[list[dict[str, Any]]] = []
    for event in events:
        if event["ph"] == "M":
            if event["name"] == "process_name":
                found.ranks[event["pid"]].name = event["args"]["name"]
            continue
        args = event["args"]
        rank = found.ranks[event["pid"]]
        track = event["pid"], event["tid"]
        if "communicator" in args:  # a whole call
            rank.calls += 1
            found.first = min(found.first, event["ts"])
            found.last = max(found.last, event["ts"] + event["dur"])
            unfinished[track] = None
            if args.get("unfinished") or args.get("failed"):
                left.append([event])
                unfinished[track] = left[-1]
                continue
            done.append(event)
            row = found.calls[event["cat"], args["algorithm"]][event["pid"]]
            row.append((event["dur"], args["bytes"]))
        elif event["tid"] < 1000:  # a phase; messages overlap these
            rank.inside += event["dur"]
            if event["name"] == "wait":
                waits[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
                if "peer" in args:
                    found.ranks[args["peer"]].awaited += event["dur"]
            of = unfinished.get(track)
            if of is not None:
                of.append(event)
    _add_arrivals(found, done, waits)
    for call, *phases in left:
        last = max(phases, key=lambda each: each["ts"], default=None)
        found.open.append((call, last))
    return found


def arrivals(calls: Iterable[Event]) -> Iterator[tuple[Event, float, int | None]]:
    """Yield each call, the time at which the last rank made it, and that rank; None for a call that
    was recorded on one rank only. Nonblocking calls and submissions count from their start. Local.
    """
    groups: dict[tuple[Any, ...], dict[int, Event]] = defaultdict(dict)
    turns: Counter[tuple[Any, ...]] = Counter()
    for call in sorted(calls, key=lambda each: each["ts"]):
        args, rank = call["args"], call["pid"]
        key: tuple[Any, ...] = args["communicator"], args.get("lowest"), call["name"], args["call"]
        if args["call"] is None:  # a submission has a name, and perhaps others after it
            key = *key, args["algorithm"]
            turns[rank, key] += 1
            key = *key, turns[rank, key]
        groups[key][rank] = call
    for of in groups.values():
        last = max(of.values(), key=lambda each: each["ts"])
        for call in of.values():
            yield call, last["ts"], last["pid"] if len(of) > 1 else None


def _add_arrivals(found: Sum, calls: list[Event], waits: dict[int, list[Interval]]) -> None:
    """Count the waits in calls, and the time for which calls had begun on some ranks only."""
    late: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for call, until, last in arrivals(calls):
        end = min(call["ts"] + call["dur"], until)
        if last is None:
            found.alone += call["dur"]
        elif end > call["ts"]:
            late[call["pid"], last].append((call["ts"], end))
    for (rank, last), intervals in late.items():
        known = _length(waits[rank])
        found.ranks[last].awaited += _length([*waits[rank], *intervals]) - known
    for rank, share in found.ranks.items():
        more = [each for (waiting, _), of in late.items() if waiting == rank for each in of]
        share.waits = _length([*waits[rank], *more])


def _length(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def text(found: Sum) -> list[str]:
    """Return the lines of text for the numbers `found`. Local."""
    most = max((share.calls for share in found.ranks.values()), default=0)
    ranks = count(len(found.ranks), "rank")
    lines = [f"{ranks}, {count(most, 'call')} on each at most, {_time(found.lasted)}"]
    if found.calls:
        lines += ["", *aligned(_collective_rows(found), left=(0,))]
    if most:
        lines += ["", *aligned(_rank_rows(found), left=(0,)), "", verdict(found)]
    lines += [_open(call, phase) for call, phase in found.open[-SHOWN:]]
    if len(found.open) > SHOWN:
        lines.append(f"So it was with {count(len(found.open) - SHOWN, 'call')} before these.")
    return lines


def _collective_rows(found: Sum) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("collective", "calls", "total", "mean", "median", "max", "bytes", "GB/s")
    ]

    def total(of: dict[int, list[tuple[float, int]]]) -> float:
        return sum(time for each in of.values() for time, _ in each)

    for (collective, algorithm), of in sorted(found.calls.items(), key=lambda row: -total(row[1])):
        times = [time for each in of.values() for time, _ in each]
        sizes = [nbytes for each in of.values() for _, nbytes in each]
        speed = sum(sizes) / sum(times) / 1e3 if sum(times) and sum(sizes) else None
        rows.append(
            (
                f"{collective} {algorithm}",
                str(max(map(len, of.values()))),
                _time(sum(times) / len(of)),
                _time(sum(times) / len(times)),
                _time(median(times)),
                _time(max(times)),
                size_text(sum(sizes) / len(of)),
                "" if speed is None else f"{speed:.3g}",
            )
        )
    return rows


def _rank_rows(found: Sum) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("rank", "calls", "in calls", "waits", "share", "others wait for it")
    ]
    for number in sorted(found.ranks):
        share = found.ranks[number]
        rows.append(
            (
                share.name or f"rank {number}",
                str(share.calls),
                _time(share.inside),
                _time(share.waits),
                f"{found.share(number):.0%}",
                _time(share.awaited),
            )
        )
    return rows


def verdict(found: Sum) -> str:
    """Return a sentence on stragglers: a few ranks that wait less than the others. Local."""
    shares = {number: found.share(number) for number in found.ranks}
    if len(shares) < 2:
        return "One rank waits for nobody."
    order = sorted(shares, key=lambda number: shares[number])
    waits = [shares[number] for number in order]
    few = max(range(1, len(order) // 2 + 1), key=lambda k: waits[k] - waits[k - 1])
    low, high = waits[:few], waits[few:]
    if median(high) < WORTH:
        if found.alone > WORTH * found.lasted * len(shares):
            return (
                "It cannot be told whether a rank stands out: most of the time is in calls that "
                "were recorded on one rank only."
            )
        return "No rank stands out: they hardly wait."
    if low[-1] > PART * high[0]:
        return "No rank stands out: none waits much less than the others."
    if few == 1:
        who = f"The straggler is rank {order[0]}: it waits"
    else:
        who = f"The stragglers are ranks {spans(sorted(order[:few]))}: they wait"
    others = plural(len(high), "other")
    return f"{who} {_percents(low)} of the time, and the {others} {_percents(high)}."


def _percents(shares: list[float]) -> str:
    """Write the lowest and the highest share, or one number if they are equal."""
    first, last = f"{shares[0]:.0%}", f"{shares[-1]:.0%}"
    return first if first == last else f"{first} to {last}"


def _open(call: dict[str, Any], phase: dict[str, Any] | None) -> str:
    """Return the place where a call stopped."""
    args = call["args"]
    how = "failed in" if args.get("failed") else "did not finish"
    number = f" call {args['call']} of communicator {args['communicator']}," if args["call"] else ""
    line = f"Rank {call['pid']} {how}{number} {call['name']} {args['algorithm']!r}"
    if phase is None:
        return f"{line}."
    where = f" in round {phase['args']['round']}" if "round" in phase["args"] else ""
    if phase["name"] == "wait":
        whom = f" for rank {phase['args']['peer']}" if "peer" in phase["args"] else ""
        return f"{line}: it waited {_time(phase['dur'])}{whom}{where}."
    return f"{line}: its last phase was {phase['name']}{where}."


def _time(us: float) -> str:
    """Write microseconds for people."""
    if us < 1e3:
        return f"{us:.1f} us"
    return f"{us / 1e3:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"
