"""The flight recorder: the last calls of each rank, which other processes of the user can read.

The core writes them into a file without a name, which stays open, so that others find it in
``/proc/PID/fd``. They stop nobody, and need nobody's answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from collectives import _core
from collectives.process import environment, processes
from collectives.process.hosts import Hosts
from collectives.text import files

MARK = "collectives-flight"  # the name of the file in links of /proc
LONGEST = 4000  # bytes of the description of a communicator


@functools.cache
def start() -> None:
    """Let others read the calls of this process from now on. Local."""
    _core.start_flight(_new_file())
    if not environment.is_no(environment.text(environment.FLIGHT) or ""):
        _core.write_flights(write)


def _new_file() -> int:
    """Return a file for a record, or -1 on a system without such files."""
    try:
        file = os.memfd_create(MARK, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return -1
    try:
        os.ftruncate(file, _core.flight_bytes())
    except OSError:
        os.close(file)
        return -1
    return file


def describe(engine: _core.Engine, hosts: Hosts) -> None:
    """Let others read the calls on a communicator, and its ranks. Local."""
    start()
    name, rank = engine.label[0], engine.rank
    about = {
        # The same on all ranks, and on no other communicator of any job.
        "id": f"{hosts.names[0]}/{hosts.processes[0]}/{name}",
        "name": name,
        "rank": rank,
        "size": len(hosts.ranks),
        "host": hosts.names[rank],
        "local": {str(each): hosts.processes[each] for each in hosts.local},
    }
    text = json.dumps(about).encode()
    if len(text) > LONGEST:
        text = json.dumps({**about, "local": {}}).encode()
    engine.describe(text)


def own_processes() -> Iterator[int]:
    """Yield the processes of this user on this host. Local."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                yield int(name)


def record(process: int, now: int) -> dict[str, Any] | None:
    """Return the record of a process of this user, or None if it has none. Local."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for number in os.listdir(f"/proc/{process}/fd"):
            path = f"/proc/{process}/fd/{number}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{MARK} "):
                    return _read(path, now)
    return None


def _read(path: str, now: int) -> dict[str, Any] | None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if about.st_uid != os.geteuid() or about.st_size == 0:
            return None
        with mmap.mmap(file, about.st_size, prot=mmap.PROT_READ) as memory:
            return _core.read_flight(memory, now)
    finally:
        os.close(file)


COMMON = "id", "name", "size", "host"  # of all ranks of a host


def ranks(found: Iterable[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the state of each rank of each communicator of some processes, and the processes whose
    records have another layout. Local.
    """
    states: dict[tuple[str, int], dict[str, Any]] = {}
    known: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
    others = []
    now = time.monotonic_ns()
    for process in found:
        read = record(process, now)
        if read is not None and "places" not in read:
            others.append(process)
        elif read is not None:
            for about, state in _states(process, read):
                common = {key: about[key] for key in COMMON}
                known[about["id"]] = common, about["local"]
                states[about["id"], about["rank"]] = {**common, "rank": about["rank"], **state}
    for common, local in known.values():
        for rank, process in local.items():
            ended = {**common, "rank": int(rank), "process": process, "state": "ended"}
            states.setdefault((common["id"], int(rank)), ended)
    return [states[key] for key in sorted(states)], others


def _states(process: int, read: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the description of each communicator of a process, and its state there."""
    stopped = False
    with contextlib.suppress(OSError):
        stopped = processes.stat(process)[0] in "Tt"
    made = {
        place["place"]: [
            each
            for each in read["calls"]
            if each["place"] == place["place"] and each["order"] > place["first"]
        ]
        for place in read["places"]
    }
    waits = {place["place"]: _waited(made[place["place"]], place) for place in read["places"]}
    for place in filter(lambda each: each["about"], read["places"]):
        last, now, told = made[place["place"]], waits[place["place"]], place["wait"]
        call = now or (last[-1] if last else None)
        since = call and (call["began"] if now or call["ended"] is None else call["ended"])
        how = "waits" if now else "elsewhere" if any(waits.values()) else "computes"
        yield (
            json.loads(place["about"]),
            {
                "process": process,
                "state": "left" if read["has_left"] else "failed" if "failed" in told else how,
                "stopped": stopped,
                "calls": place["calls"],
                "call": call and call["call"],
                "kind": call and call["kind"],
                "number": call and call["number"],
                "seconds": _seconds(told.get("since", since) if now else since),
                "waits": told.get("failed", told.get("waits", "")),
                "waits_for": told.get("for", []),
                "line": told.get("line", ""),
                "in_flight": [each["call"] for each in last if each["state"] == "started"],
                "last": last,
            },
        )


def _seconds(since: float | None) -> float | None:
    """Return the seconds of a state; none if it began after the time at which it was read."""
    return None if since is None else max(since, 0.0)


def _waited(calls: list[dict[str, Any]], place: dict[str, Any]) -> dict[str, Any] | None:
    """Return the call in which a program waits, or None."""
    awaited = place["awaited"]
    found = (each for each in calls[::-1] if each["state"] == "blocks" or awaited == each["order"])
    return next(found, None)


# ---- after an error ------------------------------------------------------------------------------

VERSION = 1  # of the file


def write(found: list[int], why: str) -> str:
    """Write the last calls of some processes to a file, once, and return its path. Local."""
    import tempfile  # few programs fail

    _core.write_flights(None)
    folder = environment.text(environment.FLIGHT) or tempfile.gettempdir()
    path = os.path.join(folder, f"collectives-{os.getpid()}.json")
    states = ranks(found)[0]
    own = {each["id"] for each in states if each["process"] == os.getpid()}
    about = {
        "version": VERSION,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "process": os.getpid(),
        "error": why,
        "ranks": [each for each in states if each["id"] in own],
    }
    files.write(path, json.dumps(about, indent=1))
    return path
