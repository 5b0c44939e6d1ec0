"""The file of a timeline: trace events of all ranks, in JSON that is valid at any time.

The file begins with a description, and has one event on each line. Each rank adds its events at the
end, before the closing brackets, and locks the file for it. The events of ranks that died can be
added later by another process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from collectives._version import __version__
from collectives.errors import ArgumentError
from collectives.records import parts, tape
from collectives.records.parts import Parts
from collectives.text import files

TAIL = b"\n]}\n"
LINES = 20_000  # number of events that are written at a time: a few MB


def create(path: str | Path, token: str, names: list[str]) -> None:
    """Write a file that has only the names of the ranks, and make the folder for tapes. Local.

    The tapes of an earlier timeline of that name are removed.
    """
    if not os.path.isfile(path) and os.path.lexists(path) and not os.path.islink(path):
        raise ArgumentError(f"the timeline {path} cannot be written: it is no regular file")
    with parts.make(path) as tapes:
        for rank in tapes.ranks():
            with _opened(tapes, rank) as file:
                if tape.is_held(file):
                    raise ArgumentError(f"{path} is the timeline of a job that still runs")
        tapes.clear()
    about = {"writer": f"collectives {__version__}", "token": token, "ranks": len(names)}
    events = []
    for rank, name in enumerate(names):
        events.append(tape.metadata("process_name", rank, {"name": f"rank {rank} ({name})"}))
        events.append(tape.metadata("process_sort_index", rank, {"sort_index": rank}))
    head = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},\n"traceEvents":[\n'
    try:
        files.write(path, head.encode() + ",\n".join(events).encode() + TAIL)
    except OSError as error:
        parts.discard(parts.folder(path))
        raise ArgumentError(f"the timeline {path} cannot be written: {error.strerror}") from None


def token(path: str | Path) -> str | None:
    """Return the token of the timeline in `path`; None if there is no such timeline. Local."""
    try:
        # Opening a pipe that another user has put there does not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            line = file.readline().rstrip().rstrip(",")
            found: str = json.loads(line + "}")["otherData"]["token"]
            return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[int]:
    """Lock the file `path` against other writers; yield it, open. Local."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise OSError(errno.EPERM, "It is not a file of its own", os.fspath(path))
            fcntl.lockf(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.lstat(path)):
                yield file
                return
        finally:
            os.close(file)


def add(path: str | Path, events: Iterable[str]) -> None:
    """Write `events` at the end of the file `path`. Local."""
    rest = iter(events)
    while lines := list(islice(rest, LINES)):
        with locked(path) as file:
            end = os.fstat(file).st_size - len(TAIL)
            if os.pread(file, len(TAIL), end) != TAIL:  # a rank died while it wrote
                end = _mended(file)
            text = memoryview((",\n" + ",\n".join(lines)).encode() + TAIL)
            while text:
                written = os.pwrite(file, text, end)
                text, end = text[written:], end + written


def _mended(file: int) -> int:
    """Return the end of the last complete event."""
    end = os.fstat(file).st_size
    text = os.pread(file, min(end, 1 << 20), max(0, end - (1 << 20)))
    while True:
        text, newline, line = text.rpartition(b"\n")
        if _is_event(line.rstrip(b",")):
            end = end if line[-1:] != b"," else end - 1
            os.ftruncate(file, end)
            return end
        if not newline:
            raise OSError("the file of the timeline is damaged")
        end -= len(line) + 1


def _is_event(line: bytes) -> bool:
    try:
        return "ph" in json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False


def complete(path: str | Path) -> tuple[list[int], list[int]]:
    """Add to the file `path` the events of ranks that ended before they added them. Local."""
    added: list[int] = []
    held: list[int] = []
    tapes = parts.find(path)
    if tapes is None:
        return added, held
    with tapes:
        for rank in tapes.ranks():
            try:
                with _opened(tapes, rank) as file:
                    if tape.is_held(file):
                        held.append(rank)
                    elif tapes.has(f"{rank}.records"):  # if not, another process has added it
                        _take_over(path, tapes, rank, file)
                        added.append(rank)
            except FileNotFoundError:
                continue
    parts.discard(tapes.path)
    return added, held


@contextlib.contextmanager
def _opened(tapes: Parts, rank: int) -> Iterator[int]:
    """Yield the records of a rank, open."""
    file = tapes.open(f"{rank}.records")
    try:
        yield file
    finally:
        os.close(file)


def _take_over(path: str | Path, tapes: Parts, rank: int, file: int) -> None:
    """Add the events of a tape that no process holds, and delete it."""
    try:
        one = tape.Tape.read(tapes, rank, file)
    except (ValueError, KeyError, FileNotFoundError):  # the rank died before it could record
        tapes.remove(rank)
        return
    if one.adding:
        _forget(path, one.facts["rank"])
    add(path, tape.events(one, rate=tape.owner_rate(one, _others(tapes, rank))))
    tapes.remove(rank)


def _others(tapes: Parts, rank: int) -> list[tape.Tape]:
    """Return the tapes of all ranks but one, which tell the rate of its clock, too."""
    found = []
    for each in tapes.ranks():
        if each != rank:
            with contextlib.suppress(ValueError, KeyError, OSError), _opened(tapes, each) as other:
                found.append(tape.Tape.read(tapes, each, other))
    return found


def so_far(path: str | Path, ranks: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the events of ranks that are still recording, which the file does not have. Local."""
    tapes = parts.find(path)
    if tapes is None:
        return
    with tapes:
        for rank in ranks:
            # A rank that has ended since then has added its events to the file.
            with contextlib.suppress(ValueError, KeyError, OSError), _opened(tapes, rank) as file:
                one = tape.Tape.read(tapes, rank, file)
                if not one.adding:
                    rate = tape.owner_rate(one, _others(tapes, rank))
                    yield from map(json.loads, tape.events(one, rate=rate))


def _forget(path: str | Path, rank: int) -> None:
    """Remove the events of a rank that died while it was adding them."""
    with locked(path) as file:
        end = os.fstat(file).st_size - len(TAIL)
        if os.pread(file, len(TAIL), end) != TAIL:
            _mended(file)
        # Another descriptor of the file would release the lock when it is closed.
        text = bytearray()
        while piece := os.pread(file, 1 << 24, len(text)):
            text += piece
        rows = text.decode().split("\n")
        head, lines = [f"{row}\n" for row in rows[:2]], rows[2:]
        events = [line.rstrip(",") for line in lines if _is_event(line.rstrip(",").encode())]
        kept = [line for line in events if not _is_of(json.loads(line), rank)]
        files.write(path, "".join(head) + ",\n".join(kept) + TAIL.decode())


def _is_of(event: dict[str, Any], rank: int) -> bool:
    return event["pid"] == rank and not event["name"].startswith("process_")


def load(path: str | Path) -> dict[str, Any]:
    """Return the contents of the timeline in `path`. Local."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not a timeline: it is not JSON ({error})") from None
    about = found.get("otherData") if isinstance(found, dict) else None
    writer = about.get("writer", "") if isinstance(about, dict) else ""
    if not str(writer).startswith("collectives ") or "traceEvents" not in found:
        raise ArgumentError(f"{path} is not a timeline that collectives has written")
    return dict(found)
