"""The supervisor on each host of a job without MPI: it starts ranks, and passes on their output.

Its standard streams go to the launcher. It sends a greeting, and reads a line with its task, then
lines with signals, in a job that grows with ranks to start or to kill, and one after which it looks
for stopped ranks. It writes frames: a kind, the number of a rank, and the length of the rest. When
its standard input ends, or the launcher's host does not answer, it ends its ranks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from collectives._version import __version__
from collectives.errors import CollectivesError

GREETING = b"\0collectives supervisor "
FRAME = struct.Struct("!BII")
OUT, ERR, ENDED, PROBLEM, STOPPED, RUNS, LEAVES = range(7)

# Variables that each host or login has of its own, and the beginnings of such.
OWN = {"COLLECTIVES_HOST", "HOSTNAME", "TMPDIR"}
OWN |= {"HOME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "USER"}
KINDS = ("SSH_", "XDG_")

PIECE = 1 << 16


class _Commands:
    """The lines of the launcher."""

    def __init__(self) -> None:
        self._said = b""
        self.has_to_look = False  # whether the launcher waits for the last ranks

    def first(self) -> bytes:
        """Wait for a line; return nothing at the end."""
        while b"\n" not in self._said:
            data = os.read(0, PIECE)
            if not data:
                return b""
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line

    def take(self, job: Any, start: Callable[[list[int]], None]) -> None:
        """Take commands: signals, ranks to start or to kill, the wish to look, or the end."""
        data = os.read(0, PIECE)
        self._said += data
        self.act(job, start)
        if not data:
            job.leave()

    def act(self, job: Any, start: Callable[[list[int]], None]) -> None:
        """Act on the lines that were read."""
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            word, *numbers = line.decode().split()
            if word == "signal":
                job.signals += map(int, numbers)
            elif word == "start":
                start([int(each) for each in numbers])
            elif word == "kill":
                job.kill([int(each) for each in numbers])
            elif word == "look":
                self.has_to_look = True
                job.signals.append(0)  # it ends the turn, and has no effect


def main() -> None:
    """Run the task and the commands of the launcher. Local."""
    frames = os.dup(1)
    os.dup2(2, 1)  # no other code writes to the stream of frames
    os.set_inheritable(0, False)

    def write(kind: int, number: int, data: bytes) -> None:
        text = FRAME.pack(kind, number, len(data)) + data
        with contextlib.suppress(BrokenPipeError):  # the launcher has ended; `take` detects that
            while text:
                text = text[os.write(frames, text) :]

    from collectives.process import as_torchrun

    # The address at which ssh has reached this host.
    address = (os.environ.get("SSH_CONNECTION", "").split()[2:3] or [platform.node()])[0]
    with contextlib.closing(as_torchrun.Port()) as port:
        os.write(frames, GREETING + f"{__version__} {port.number} {address}\n".encode())
        commands = _Commands()
        line = commands.first()
        if line.startswith(b"{"):  # else the launcher was interrupted, or has ended
            _try(json.loads(line), commands, write)


def _try(task: dict[str, Any], commands: _Commands, write: Callable[..., None]) -> None:
    try:
        _work(task, commands, write)
    except (CollectivesError, OSError) as error:
        write(PROBLEM, 0, str(error).encode(errors="replace"))
        sys.exit(1)


def _is_own(name: str) -> bool:
    """Return whether each host has a variable of its own."""
    return name in OWN or name.startswith(KINDS)


def _work(task: dict[str, Any], commands: _Commands, write: Callable[..., None]) -> None:
    """Run the ranks of a task to their end."""
    from collectives.launch import local
    from collectives.process import as_torchrun, lobby, rendezvous
    from collectives.process.environment import ADDRESS, RANK, SECRET, SIZE

    os.chdir(task["folder"])
    size, secret = task["size"], task["secret"]
    addresses = [*os.environ.get("SSH_CONNECTION", "").split()[:1], *task["addresses"]]
    ends = [f"tcp:{each}:{task['port']}" for each in dict.fromkeys(addresses)]
    address, link = rendezvous.reach(ends, secret.encode(), size)
    environment = {k: v for k, v in task["environment"].items() if not _is_own(k)}
    environment |= {k: v for k, v in os.environ.items() if _is_own(k)}

    numbers = task["numbers"]
    first, port = task.get("first", ("", ""))
    first = first or rendezvous.parse_address(address)[0]
    if task["grows"]:
        address = address.replace("tcp:", lobby.KIND)

    def place(number: int) -> dict[str, str]:
        found = {ADDRESS: address, SECRET: secret, RANK: str(number), SIZE: str(size)}
        if port:
            local = numbers.index(number), len(numbers)
            found |= as_torchrun.variables(number, size, local, task["group"], first, int(port))
        return found

    def feed(number: int, stream: str) -> Callable[[bytes], None]:
        kind = OUT if stream == "stdout" else ERR
        return lambda data: write(kind, number, data) if data else None

    with local.Children(size, numbers, place, feed) as job:
        start = functools.partial(job.start, task["words"], environment)
        start()
        commands.act(job, lambda numbers: start(numbers=numbers))
        job.follow(0, lambda: commands.take(job, lambda numbers: start(numbers=numbers)))
        job.follow(link.fileno(), job.leave)
        while (job.running or task["grows"]) and not job.is_left:
            limit = time.monotonic() + local.LOOK_STOPPED if commands.has_to_look else None
            for rank in job.turn(limit):
                write(ENDED, rank.number, str(rank.status).encode())
            for rank in job.running if commands.has_to_look else ():
                if job.has_stopped(rank) != rank.is_stopped:
                    rank.is_stopped = not rank.is_stopped
                    write(STOPPED if rank.is_stopped else RUNS, rank.number, b"")
            for number in job.signals:
                job.send(number)
            for rank in job.running if any(job.signals) else ():
                if rank.ends_itself:
                    write(LEAVES, rank.number, b"")
            job.signals.clear()
    for rank in job.ranks:
        if job.is_left:
            write(ENDED, rank.number, str(rank.status).encode())
