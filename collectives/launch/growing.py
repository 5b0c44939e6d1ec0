"""Ranks that join a job without MPI and leave it, on the hosts that a script prints.

The script prints the hosts and their slots, and is called each second. Free slots get new ranks,
which wait in the lobby (`process/lobby.py`) until the running ranks admit them. A host on which a
rank fails gets no new ranks, but its running ranks continue.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from collectives.errors import ArgumentError, CommunicatorError
from collectives.launch import host_list
from collectives.launch.host_list import Host
from collectives.launch.job import Rank, say
from collectives.launch.several import Several, Supervisor
from collectives.process.lobby import Lobby
from collectives.process.settings import patience
from collectives.text.words import count

EVERY = 1.0  # seconds between two calls of the script
LONGEST_SCRIPT = 20.0  # seconds after which a call is given up


class Limits(NamedTuple):
    """The limits of a job: the numbers of ranks to begin with, at least, and at most; the seconds
    that it may have fewer; and the number of changes.
    """

    first: int
    least: int
    most: int
    seconds: float
    resets: int = sys.maxsize


class Discovery(threading.Thread):
    """A thread that calls a script every second, and writes to a pipe after each call."""

    has_come: int

    def __init__(self, script: str | list[Host], slots: int) -> None:
        super().__init__(name="collectives-discovery", daemon=True)
        self._script, self._slots = script, slots
        self.hosts: list[Host] = []
        self.has_come, self._come = os.pipe()
        self._is_over = threading.Event()
        self._told = ""

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                self.hosts, problem = self._asked(), ""
            except (OSError, ArgumentError) as error:
                problem = str(error)
            if self._is_over.is_set():
                break
            if problem and problem != self._told:
                say(f"{problem}; the job keeps the hosts that it named before")
            self._told = problem
            os.write(self._come, b"\0")
            self._is_over.wait(EVERY)

    def end(self) -> None:
        """End the thread and its script. Local."""
        self._is_over.set()
        if self.ident is not None:
            self.join()
        os.close(self.has_come)
        os.close(self._come)

    def _asked(self) -> list[Host]:
        """Return the hosts that the script prints, or the fixed hosts if there is no script."""
        if not isinstance(self._script, str):
            return self._script
        what = f"--host-discovery-script {self._script}"
        child = subprocess.Popen(
            self._script,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        limit = time.monotonic() + LONGEST_SCRIPT
        try:
            while True:
                try:
                    out, err = child.communicate(timeout=0.1)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > limit:
                        text = f"{what}: it has not ended in {LONGEST_SCRIPT:g} s"
                        raise ArgumentError(text) from None
                    if self._is_over.is_set():
                        return []
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
        if child.returncode:
            words = f" ({err.strip().splitlines()[-1]})" if err.strip() else ""
            raise ArgumentError(f"{what}: it has ended with exit status {child.returncode}{words}")
        lines = [line for line in out.splitlines() if line.strip()]
        return host_list.joined([host_list.host(line, what, self._slots) for line in lines])


class Growing(Several):
    """Ranks of hosts that may come and go."""

    _grows = True

    def __init__(self, script: str | list[Host], slots: int, limits: Limits) -> None:
        self._lobby: Lobby
        self._limits = limits
        super().__init__([], self._serve)
        self._discovery = Discovery(script, slots)
        self._refused: set[str] = set()  # hosts that get no more ranks
        self._members: list[int] = []  # at the last check
        self._resets = 0  # the number of their changes
        self._host: dict[Rank, str] = {}
        self._few_since: float | None = time.monotonic()
        self._has_told = False  # that it waits since then
        self._is_signalled = False  # whether ranks end by a signal that has been passed on

    def _serve(self, secret: bytes) -> Lobby:
        self._lobby = Lobby(self._limits.least, secret)
        return self._lobby

    @property
    def is_over(self) -> bool:
        if self._lobby.is_begun:
            return not self._running(self._lobby.members)
        return bool(self.ranks) and not self.running

    def start(self, words: Sequence[str], environment: Mapping[str, str], *, lines: bool) -> None:
        self._describe(words, environment, lines)
        self._discovery.start()
        self.follow(self._discovery.has_come, self._look_around)

    def send(self, number: int) -> None:
        self._is_signalled |= number != signal.SIGUSR1
        super().send(number)

    def end(self) -> None:
        if self._discovery.ident is not None:
            self._selector.unregister(self._discovery.has_come)
        self._discovery.end()
        super().end()

    def _running(self, numbers: Collection[int]) -> list[Rank]:
        """Return the running ranks among `numbers`."""
        return [rank for rank in self.running if rank.number in numbers]

    def _look_around(self) -> None:
        """End, start and count ranks after changes of hosts and ranks in the last second."""
        os.read(self._discovery.has_come, 1)
        if self._is_ending or self._is_signalled:
            return
        self._end_absent()
        for number in self._taken(self._lobby.released):
            self.ranks[number].is_dismissed = True
        for new, problem in self._taken(self._lobby.failed):
            self._dismiss(self._running(new))
            if problem:
                hosts = {self._host[self.ranks[number]] for number in new}
                self._refuse_hosts(hosts, f"its ranks could not join: {problem}")
        for problem in set(self._taken(self._lobby.problems)):
            say(f"no rank joins or leaves: {problem}")
        self._count_resets()
        slots = {host.name: host.slots for host in self._discovery.hosts}
        self._lobby.release(self._surplus(slots))
        usable = {name: n for name, n in slots.items() if name not in self._refused}
        if not self.has_ended_well:
            self._fill(usable)
        self._count(sum(usable.values()))

    def _count_resets(self) -> None:
        """End a job whose ranks have changed too often."""
        members = self._lobby.members
        if self._members and members != self._members and not self.has_ended_well:
            self._resets += 1
            if self._resets > self._limits.resets:
                raise CommunicatorError(
                    f"the ranks of the job have changed {count(self._resets, 'time')}, and may "
                    f"change {count(self._limits.resets, 'time')} (--reset-limit)"
                )
        self._members = members

    def _taken(self, found: list[Any]) -> list[Any]:
        """Return the items of a list, and empty it."""
        taken = found[:]
        del found[: len(taken)]
        return taken

    def _end_absent(self) -> None:
        """End ranks that were started and have not joined in time."""
        late = self._running(self._lobby.overdue(patience()))
        if late and not self._lobby.is_begun:
            raise CommunicatorError(
                f"rank {late[0].number}{late[0].where} has not joined within {patience():g} s"
            )
        self._dismiss(late)
        for rank in late:
            self._refuse_hosts(
                {self._host[rank]}, f"rank {rank.number} has not joined within {patience():g} s"
            )

    def _surplus(self, slots: Mapping[str, int]) -> list[int]:
        """Return the members that leave, because their hosts have fewer slots; end those that have
        not joined yet.
        """
        surplus = []
        for made in self._supervisors:
            running = [rank for rank in made.ranks if rank.status is None]
            granted = slots.get(made.name, 0)
            if made.name in self._refused and granted:
                granted = len(running)
            # The ranks that joined last leave first.
            surplus += running[granted:]
        members = [rank for rank in surplus if rank.number in self._lobby.members]
        self._dismiss([rank for rank in surplus if rank not in members])
        return [rank.number for rank in members]

    def _fill(self, usable: Mapping[str, int]) -> None:
        """Start ranks on free slots of the hosts that can be used."""
        if not self.ranks and sum(usable.values()) < self._limits.first:
            return
        room = self._limits.most - len([rank for rank in self.running if not rank.is_dismissed])
        for name, granted in usable.items():
            made = next((each for each in self._supervisors if each.is_at(name)), None)
            held = 0 if made is None else len([r for r in made.ranks if r.status is None])
            n = min(room, granted - held)
            if n <= 0:
                continue
            room -= n
            new = self._numbered(name, n)
            self._host |= dict.fromkeys(new, name)
            self._lobby.expect([rank.number for rank in new])
            if made is None:
                self._listen(Supervisor(Host(name, n), new))
                continue
            made.ranks += new
            if made.is_there:
                made.tell(f"start {' '.join(str(rank.number) for rank in new)}")
        if self.ranks:
            self._lobby.begin()

    def _count(self, slots: int) -> None:
        """End a job that has had too few ranks for too long; before that, print that it waits."""
        first, least, _, seconds, _ = self._limits
        now, n = time.monotonic(), len(self.running)
        if n >= least or self.has_ended_well:
            self._few_since, self._has_told = None, False
            return
        self._few_since = self._few_since or now
        refused = f"; not used any more: {', '.join(sorted(self._refused))}"
        refused = refused if self._refused else ""
        if now - self._few_since > seconds:
            raise CommunicatorError(
                f"the job has had fewer than {least} ranks for {seconds:g} s (--min-np, "
                f"--elastic-timeout){refused}"
            )
        if not self._has_told:
            self._has_told = True
            has = f"needs {count(least, 'rank')} (--min-np), and has {n}"
            if not self.ranks:
                has = f"starts with {count(first, 'rank')}, and the hosts have "
                has += count(slots, "slot")
            say(
                f"the job waits for hosts, {seconds:g} s at most (--elastic-timeout): it {has}"
                f"{refused}"
            )

    def _dismiss(self, ranks: Sequence[Rank]) -> None:
        """End ranks that have not joined."""
        for rank in ranks:
            rank.is_dismissed = True
            self._lobby.lose(rank.number)
            for made in self._supervisors:
                if rank in made.ranks:
                    made.tell(f"kill {rank.number}")

    def _refuse_hosts(self, hosts: Collection[str], why: str) -> None:
        """Start no more ranks on some hosts."""
        for name in sorted(set(hosts) - self._refused):
            self._refused.add(name)
            say(f"{name} gets no more ranks: {why}")

    def _greet(self, made: Supervisor) -> bool:
        is_there = super()._greet(made)
        if is_there:
            self._assign(made)
        return is_there

    def _refuse(self, made: Supervisor, problem: str) -> None:
        self._refuse_hosts({made.name}, problem)
        made.process.kill()
        for rank in made.ranks:
            if rank.status is None:
                rank.is_dismissed = True
                self._ended(rank, 1)

    def _ended(self, rank: Rank, status: int) -> None:
        super()._ended(rank, status)
        if status and not (rank.is_dismissed or self._is_ending or self._is_signalled):
            self._refuse_hosts({self._host[rank]}, f"rank {rank.number} has failed there")
