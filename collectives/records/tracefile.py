"""The file of a timeline: trace events of all ranks, in JSON that is valid at any time.

The file begins with a description, and has one event on each line. Each rank adds its events at the
end, before the closing brackets, and locks the file meanwhile. The events of ranks that died can be
added later by another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from collectives._version import __version__
from collectives.errors import ArgumentError
from collectives.records import tape

__all__ = ["add", "complete", "create", "load", "token"]

TAIL = b"\n]}\n"
LINES = 20_000  # number of events that are written at a time: a few MB


def create(path: str | Path, token: str, names: list[str]) -> None:
    """Write a file that has only the names of the ranks, and no other events. Local.

    The tapes of an earlier timeline of that name are removed.

    Parameters
    ----------
    path : str or Path
    token : str
        A text that identifies this timeline.
    names : list of str
        The names of the ranks' hosts.

    Raises
    ------
    ArgumentError
        If the file cannot be written, or ranks of another job are recording for it.
    """
    for each in tape.left(path):
        with open(each, "r+b") as file:
            if tape.is_held(file.fileno()):
                raise ArgumentError(f"{path} is the timeline of a job that still runs")
            tape.remove(each)
    about = {"writer": f"collectives {__version__}", "token": token, "ranks": len(names)}
    events = []
    for rank, name in enumerate(names):
        events.append(tape.metadata("process_name", rank, {"name": f"rank {rank} ({name})"}))
        events.append(tape.metadata("process_sort_index", rank, {"sort_index": rank}))
    head = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},\n"traceEvents":[\n'
    try:
        with open(path, "wb") as out:
            out.write(head.encode() + ",\n".join(events).encode() + TAIL)
    except OSError as error:
        raise ArgumentError(f"the timeline {path} cannot be written: {error.strerror}") from None


def token(path: str | Path) -> str | None:
    """Return the token of the timeline in `path`; None if there is no such timeline. Local."""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline().rstrip().rstrip(",")
            found: str = json.loads(line + "}")["otherData"]["token"]
            return found
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[int]:
    """Lock the file `path` against other writers; yield it, open. Local."""
    while True:
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                yield file
                return
        finally:
            os.close(file)


def add(path: str | Path, events: Iterable[str]) -> None:
    """Write `events` at the end of the file `path`. Local.

    Raises
    ------
    OSError
        If writing fails.
    """
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
    except (ValueError, TypeError):
        return False


def complete(path: str | Path) -> tuple[list[int], list[int]]:
    """Add to the file `path` the events of ranks that ended before they added them. Local.

    Returns
    -------
    added : list of int
        The ranks whose events were added.
    held : list of int
        The ranks that are still recording.
    """
    added, held = [], []
    for each in tape.left(path):
        try:
            file = os.open(each, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            if tape.is_held(file):
                held.append(int(each.stem))
            elif each.exists():  # if not, another process has just added it
                _take_over(path, each, file)
                added.append(int(each.stem))
        finally:
            os.close(file)
    return added, held


def _take_over(path: str | Path, records: Path, file: int) -> None:
    """Add the events of a tape that no process holds, and delete it."""
    try:
        one = tape.Tape.read(records, file)
    except (ValueError, KeyError):  # the rank died before it could record
        tape.remove(records)
        return
    others = []
    for each in tape.left(path):
        if each != records:
            with contextlib.suppress(ValueError, KeyError, OSError), open(each, "rb") as other:
                others.append(tape.Tape.read(each, other.fileno()))
    if one.adding:
        _forget(path, one.facts["rank"])
    add(path, tape.events(one, rate=tape.owner_rate(one, others)))
    tape.remove(records)


def _forget(path: str | Path, rank: int) -> None:
    """Remove the events of a rank that died while it was adding them."""
    with locked(path) as file:
        end = os.fstat(file).st_size - len(TAIL)
        if os.pread(file, len(TAIL), end) != TAIL:
            _mended(file)
        with open(path, encoding="utf-8") as old:
            head, lines = [old.readline(), old.readline()], old.read().splitlines()
        events = [line.rstrip(",") for line in lines if _is_event(line.rstrip(",").encode())]
        kept = [line for line in events if not _is_of(json.loads(line), rank)]
        new = f"{path}.new"
        with open(new, "w", encoding="utf-8") as out:
            out.write("".join(head) + ",\n".join(kept) + TAIL.decode())
        os.replace(new, path)


def _is_of(event: dict[str, Any], rank: int) -> bool:
    return event["pid"] == rank and not event["name"].startswith("process_")


def load(path: str | Path) -> dict[str, Any]:
    """Return the contents of the timeline in `path`. Local.

    Raises
    ------
    ArgumentError
        If it cannot be read, or is not a timeline.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ArgumentError(f"{path} is not a timeline: it is not JSON ({error})") from None
    about = found.get("otherData") if isinstance(found, dict) else None
    writer = about.get("writer", "") if isinstance(about, dict) else ""
    if not str(writer).startswith("collectives ") or "traceEvents" not in found:
        raise ArgumentError(f"{path} is not a timeline that collectives has written")
    return dict(found)
