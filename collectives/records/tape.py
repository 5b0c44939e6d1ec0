"""Tapes: the records of the core, and their conversion to events for trace viewers.

A rank writes two files in the folder of `parts`: for rank 3, ``3.records``, which the core
maps into memory (`_core/records/timeline.h` has its layout), and ``3.json``, with a line on the
place and time of the recording and a line for each label of calls. The files are complete even if
the process was killed. As long as the process exists, it holds a lock on the records.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.records.parts import Parts

# The numbers of the kinds of records; see _core/records/timeline.h.
(
    CALL,
    FAILED,
    QUEUE,
    WAIT,
    AWAIT,
    COPY,
    FOLD,
    PUBLISH,
    TAKE,
    POST,
    SENT,
    RECEIVED,
    NEGOTIATE,
    TURN,
    COPY_IN,
    COMMUNICATE,
    COPY_OUT,
) = range(1, 18)

# The names of the phases of a call. To publish is to send through shared memory.
PHASES = {
    QUEUE: "queue",
    WAIT: "wait",
    AWAIT: "wait",
    COPY: "copy",
    FOLD: "fold",
    PUBLISH: "send",
    TAKE: "receive",
    POST: "post",
    NEGOTIATE: "negotiate",
    TURN: "await turn",
    COPY_IN: "copy in",
    COMMUNICATE: "communicate",
    COPY_OUT: "copy out",
}
BACKGROUND = range(NEGOTIATE, COPY_OUT + 1)  # phases of submissions

MESSAGES = {SENT: "send", RECEIVED: "receive"}

HEAD = 4096  # bytes before the records
UNNUMBERED = 0xFFFFFFFF
MESSAGE_TRACKS = 1000  # the number of the first track of messages
WELL_TIMED = 10**9  # ns after which the rate of a counter is known well enough

RECORD = np.dtype(
    [
        ("start", "<u8"),
        ("size", "<u8"),
        ("call", "<u4"),
        ("round", "<u2"),
        ("segment", "<u2"),
        ("span", "<u8"),
    ]
)


@dataclass
class Tape:
    """The records of one rank.

    Attributes
    ----------
    facts : dict
        ``rank``, ``size``, ``host``, ``node``, ``process``; ``ranks``: the ranks of the timeline,
        by their numbers in ``MPI.COMM_WORLD``; ``epoch``: when the timeline began, in ns of rank
        0's clock; ``offset``: the ns to add to this host's clock to get rank 0's.
    labels : dict
        For each label number, a dict that describes the calls.
    records : array
        The records that were written completely.
    ticks, ns : array of int
        Two moments on both clocks.
    counts : bool
        Whether ticks are those of the processor's counter; else they are nanoseconds.
    full : bool
        Whether the tape was too short for all records.
    adding : bool
        Whether the rank has begun to add its events to the file.
    """

    facts: dict[str, Any]
    labels: dict[int, dict[str, Any]]
    records: NDArray[Any]
    ticks: NDArray[np.uint64]
    ns: NDArray[np.uint64]
    counts: bool
    full: bool
    adding: bool

    @classmethod
    def read(cls, parts: Parts, rank: int, file: int) -> Tape:
        """Read ``N.records`` of a rank, which is open, and ``N.json``. Local.

        (The records stay open, because closing any descriptor of a file releases the lock that the
        process holds on it.)
        """
        with open(parts.open(f"{rank}.json", os.O_RDONLY), encoding="utf-8") as lines:
            return cls.parsed(lines.read, file, f"{rank}.records in {parts.path}")

    @classmethod
    def parsed(cls, lines: Callable[[], str], file: int, name: str) -> Tape:
        """Read open records, and then the `lines` that belong to them. Local.

        A rank that still records has written the lines before the records that need them.
        """
        head = np.frombuffer(os.pread(file, 64, 0).ljust(64, b"\0"), np.uint64)
        version, counts, t0, t1, n0, n1, used, full = head
        end = int(used) if version == 1 else 0
        memory = b""
        while piece := os.pread(file, max(0, end - HEAD - len(memory)), HEAD + len(memory)):
            memory += piece
        facts: dict[str, Any] = {}
        labels: dict[int, dict[str, Any]] = {}
        adding = False
        for line in lines().splitlines():
            row = json.loads(line)
            if "label" in row:
                labels[row["label"]] = row
            elif "adding" in row:
                adding = True
            else:
                facts = row
        if not version or not facts:
            raise ValueError(f"{name} is not a tape")
        if version != 1:
            raise ValueError(f"{name} is of another version of collectives")
        records = np.frombuffer(memory, RECORD, len(memory) // RECORD.itemsize)
        records = records[records["span"] != 0]
        pairs = np.array([t0, t1]), np.array([n0, n1])
        return cls(facts, labels, records, *pairs, bool(counts), bool(full), adding)

    @property
    def rate(self) -> float:
        """Nanoseconds per tick, estimated from this tape."""
        if not self.counts or self.ticks[1] == self.ticks[0]:
            return 1.0
        return float(self.ns[1] - self.ns[0]) / float(self.ticks[1] - self.ticks[0])

    @property
    def lasted(self) -> int:
        """Nanoseconds between the two moments that are known on both clocks."""
        return int(self.ns[1]) - int(self.ns[0])


def is_held(file: int) -> bool:
    """Return whether another process, on any host that shares the file, has locked it. Local.

    If none has, this process locks it.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # other errors: the file system has no locks
        return True
    return False


def events(
    tape: Tape, facts: dict[str, Any] | None = None, since: int = 0, rate: float | None = None
) -> Iterator[str]:
    """Yield the trace events of a tape, each as a line of JSON. Local."""
    facts = facts or tape.facts
    read = _Read(tape, facts, tape.rate if rate is None or not tape.counts else rate)
    calls, of_call = read.calls(since)
    pid = facts["rank"]
    call_tracks, message_tracks = _Tracks(0, "calls"), _Tracks(MESSAGE_TRACKS, "messages")
    messages: list[tuple[float, float, str, str, str]] = []
    for i in calls:
        label = tape.labels.get(int(read.others[i]), {})
        parts = of_call.get(int(tape.records["call"][i]), [])
        start, end = read.lasted(i, parts)
        name = label.get("collective", "?")
        about = read.about(i, label)
        track = call_tracks.take(start, end)
        yield _event(pid, track, start, end, name, name, json.dumps(about))
        common = f'"algorithm":{json.dumps(about["algorithm"])},"call":{json.dumps(about["call"])}'
        for k in parts:
            kind = int(read.kinds[k])
            text = f"{{{common}{read.place(k, label)}}}"
            first, last = float(read.starts[k]), float(read.ends[k])
            if kind in MESSAGES:
                messages.append((first, last, MESSAGES[kind], name, text))
            else:
                first, last = max(start, first), min(end, last)
                phase = PHASES.get(kind, "?")
                yield _event(pid, track, first, max(first, last), phase, name, text)
    for start, end, word, name, text in sorted(messages):
        track = message_tracks.take(start, end)
        yield _event(pid, track, start, end, word, name, text)
    yield from call_tracks.names(pid)
    yield from message_tracks.names(pid)


class _Read:
    """The records of a tape as columns: kinds, microseconds, bytes, peers, and so on."""

    def __init__(self, tape: Tape, facts: dict[str, Any], rate: float) -> None:
        records = tape.records
        self.records = records
        base = int(tape.ns[0]) + facts["offset"] - facts["epoch"]
        since = (records["start"] - np.uint64(int(tape.ticks[0]))).astype(np.int64)
        self.kinds = (records["span"] >> np.uint64(56)).astype(np.int64)
        self.starts = (base + since * rate) / 1e3
        self.spans = (records["span"] & np.uint64((1 << 56) - 1)).astype(np.int64) * rate / 1e3
        self.ends = self.starts + self.spans
        self.sizes = (records["size"] & np.uint64((1 << 40) - 1)).astype(np.int64)
        self.others = (records["size"] >> np.uint64(40)).astype(np.int64) - 1
        self.rounds: list[int] = records["round"].tolist()
        self.segments: list[int] = records["segment"].tolist()
        self.numbers = {rank: number for number, rank in enumerate(facts["ranks"])}

    def calls(self, since: int) -> tuple[list[int], dict[int, list[int]]]:
        """Return the records of calls from the tick `since` on, and the other records by call."""
        calls: list[int] = []
        of_call: dict[int, list[int]] = {}
        for i in np.argsort(self.records["start"], kind="stable").tolist():
            if self.kinds[i] not in (CALL, FAILED):
                of_call.setdefault(int(self.records["call"][i]), []).append(i)
            elif self.records["start"][i] >= since:
                calls.append(i)
        return calls, of_call

    def lasted(self, i: int, parts: list[int]) -> tuple[float, float]:
        """Return the start and the end of a call; if it did not finish, the end of its parts."""
        start, end = float(self.starts[i]), float(self.ends[i])
        if self.spans[i] == 0:
            end = max((float(self.ends[k]) for k in parts), default=start)
        return start, end

    def about(self, i: int, label: dict[str, Any]) -> dict[str, Any]:
        """Return the facts about a call."""
        number = self.segments[i] << 16 | self.rounds[i]
        about: dict[str, Any] = {
            "algorithm": label.get("algorithm"),
            "bytes": int(self.sizes[i]),
            "call": None if number == UNNUMBERED else number + 1,
            "communicator": label.get("communicator"),
            "lowest": self.numbers.get(min(label.get("ranks") or [-1])),  # of its ranks
            "segment": label.get("segment"),
            "transport": label.get("transport"),
            "reason": label.get("reason"),
        }
        if self.spans[i] == 0:
            about["unfinished"] = True
        if self.kinds[i] == FAILED:
            about["failed"] = True
        return about

    def place(self, k: int, label: dict[str, Any]) -> str:
        """Return, in JSON, the round, segment, bytes and peer of a part of a call."""
        kind, peer = int(self.kinds[k]), int(self.others[k])
        if kind in (AWAIT, TAKE) and peer >= 0:  # a number among the ranks of this host
            peer = label["local"][peer] if peer < len(label.get("local", ())) else -1
        if peer >= 0:
            ranks = label.get("ranks", ())  # none where another thread has yet to write the label
            peer = self.numbers.get(ranks[peer], -1) if peer < len(ranks) else -1
        text = ""
        if kind in BACKGROUND:
            return text
        if kind != QUEUE:
            text += f',"round":{self.rounds[k] + 1},"piece":{self.segments[k] + 1}'
        if kind not in (QUEUE, WAIT, AWAIT):
            text += f',"bytes":{self.sizes[k]}'
        if peer >= 0:
            text += f',"peer":{peer}'
        return text


class _Tracks:
    """Tracks for events that may overlap in time; events on one track do not overlap."""

    def __init__(self, first: int, name: str) -> None:
        self.first, self.name = first, name
        self.ends: list[float] = []

    def take(self, start: float, end: float) -> int:
        for number, busy in enumerate(self.ends):
            if busy <= start:
                self.ends[number] = end
                return self.first + number
        self.ends.append(end)
        return self.first + len(self.ends) - 1

    def names(self, pid: int) -> Iterator[str]:
        for number in range(len(self.ends)):
            name = self.name if number == 0 else f"{self.name} ({number + 1})"
            track = self.first + number
            yield metadata("thread_name", pid, {"name": name}, track)
            yield metadata("thread_sort_index", pid, {"sort_index": track}, track)


def metadata(what: str, pid: int, args: dict[str, Any], tid: int = 0) -> str:
    """Return the event that gives a process or thread a name. Local."""
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _event(pid: int, tid: int, start: float, end: float, name: str, cat: str, args: str) -> str:
    # Start and end are rounded to ns, not the length, so that nested events stay nested.
    first, last = round(start, 3), round(end, 3)
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{first:.3f},"dur":{last - first:.3f},'
        f'"name":"{name}","cat":"{cat}","args":{args}}}'
    )


def owner_rate(tape: Tape, others: list[Tape]) -> float:
    """Return the ns per tick of `tape`, or of the longest of `others` on its host. Local.

    The other tapes are used only if the first one is too short.
    """
    if tape.lasted >= WELL_TIMED:
        return tape.rate
    same = [each for each in others if each.counts and each.facts["host"] == tape.facts["host"]]
    return max([tape, *same], key=lambda each: each.lasted).rate
