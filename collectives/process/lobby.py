"""The lobby of a job that may grow: new ranks wait there until the running ranks admit them.

The launcher serves it. New ranks connect, and wait. When all started ranks have connected, the
current rank 0 is told, and asks the lobby for a plan at the next commit: a rendezvous for the ranks
that stay, first, and those that join. All of them meet there, and make a new job. If that fails,
the running ranks continue in their old job, and the launcher ends the new ones. Ranks of removed
hosts leave at the same time.

Each message is a pickled word with its data; `Channel` has proved that the peer knows the
secret.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import selectors
import socket
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from collectives.errors import CommunicatorError
from collectives.process import rendezvous
from collectives.process.channel import introduce
from collectives.process.environment import ADDRESS, RANK, SECRET
from collectives.process.rendezvous_server import WATCHER, Server
from collectives.process.settings import patience

KIND = "lobby:"
LONGEST_JOIN = 60.0  # seconds in which the ranks of a plan must meet

WAITS, LEADS, NEWS, PLAN, MADE, ASKS = range(6)  # words


class Plan(NamedTuple):
    """The ranks that meet: those that stay, and those that join, by the launcher's numbers."""

    port: int
    kept: list[int]
    new: list[int]


class Lobby(Server):
    """Serves the lobby, in a thread; the other methods are for the thread of the launcher."""

    def __init__(self, least: int, secret: bytes) -> None:
        self._least = least
        self._lock = threading.RLock()
        self._expected: dict[int, float] = {}  # ranks not connected yet, with the times of starts
        self._waiting: dict[int, socket.socket] = {}
        self._asking: dict[int, socket.socket] = {}  # new ranks that ask for the last outcome
        self._leaving: set[int] = set()
        self._leader: socket.socket | None = None
        self._is_told = False  # whether rank 0 has been told of news
        self._spent: set[int] = set()  # new ranks that were not admitted, and are about to end
        self._last: tuple[Plan, Server] | None = None  # the last plan
        self._is_open = False  # whether the last plan has no outcome yet
        self.members: list[int] = []  # of the job, without those that have ended
        self.is_begun: bool = False  # whether there is a job that new ranks join
        self.failed: list[tuple[list[int], str]] = []  # new ranks that were not admitted, and why
        self.released: list[int] = []  # ranks that have left because their hosts were removed
        self.may_begin: bool = False
        self.problems: list[str] = []  # because of which a plan has failed
        super().__init__(0, 0, secret)

    def expect(self, numbers: Collection[int]) -> None:
        """Note that ranks were started. Local."""
        with self._lock:
            self._expected |= dict.fromkeys(numbers, time.monotonic())

    def overdue(self, seconds: float) -> list[int]:
        """Return the ranks that have not connected within some seconds. Local."""
        with self._lock:
            limit = time.monotonic() - seconds
            return [number for number, since in self._expected.items() if since < limit]

    def begin(self) -> None:
        """Make the started ranks the first job, when all have connected. Local."""
        self.may_begin = True
        self._wake.send(b"\0")

    def release(self, numbers: Collection[int]) -> None:
        """Make ranks leave at the next commit. Local."""
        with self._lock:
            self._leaving = set(numbers) & set(self.members)
        self._wake.send(b"\0")

    def lose(self, rank: int) -> None:
        with self._lock:
            self._expected.pop(rank, None)
            self._leaving.discard(rank)
            self.members = [each for each in self.members if each != rank]
            if self._last is not None:
                plan, server = self._last
                everybody = [*plan.kept, *plan.new]
                if rank in everybody:
                    server.lose(everybody.index(rank))
        self._wake.send(b"\0")

    def close(self) -> None:
        super().close()
        if self._last is not None:
            self._last[1].close()

    def _refusal(self, rank: int, size: int, made: socket.socket) -> str:
        is_there = rank != WATCHER and rank in self._ranks.values()
        return "it is there already" if is_there else ""

    def _hear(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        try:
            word, *rest = pickle.loads(self._channels[made].receive())
            with self._lock:
                self._take(made, word, *rest)
        except OSError:
            self._part(made)
        if made not in self._ranks:
            self._dismiss(selector, made)

    def _take(self, made: socket.socket, word: int, *rest: Any) -> None:
        number = self._ranks[made]
        if word == WAITS:
            self._expected.pop(number, None)
            if number in self.members:  # of which it is a child
                self._tell(made, MADE)
            elif number not in self._spent:
                self._waiting[number] = made
        elif word == ASKS:
            self._asking[number] = made
        elif word == LEADS:
            self._leader, self._is_told = made, False
            self._tell(made, LEADS, self._least)
        elif word == PLAN:
            self._is_told = False
            self._tell(made, PLAN, self._planned(*rest))
        elif word == MADE:
            self._settle(*rest)

    def _part(self, made: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            number = self._ranks.pop(made)
            del self._channels[made]
            for each in (self._waiting, self._asking):
                if each.get(number) is made:
                    del each[number]
            if self._leader is made:
                self._leader = None

    def _tell(self, made: socket.socket, *words: Any) -> None:
        with contextlib.suppress(OSError):  # the peer has ended, which is handled elsewhere
            self._channels[made].send(pickle.dumps(words))

    def _answer(self) -> None:
        with self._lock:
            self._say_outcome()
            has_new = bool(self._waiting) and not self._expected
            if not self.is_begun:
                if has_new and self.may_begin and len(self._waiting) >= self._least:
                    self._planned([])
                    self._settle("")
                return
            has_news = has_new or 0 < len(self._leaving) < len(self.members)
            if self._leader is not None and not self._is_told and has_news:
                self._is_told = True
                self._tell(self._leader, NEWS)

    def _say_outcome(self) -> None:
        """Tell new ranks whether they belong to the job of the last plan. If rank 0 was lost before
        it could say so, the ranks find out by themselves.
        """
        if not self._is_open or self._leader is None:
            for number, made in self._asking.items():
                self._tell(made, ASKS, self._is_open or number in self.members)
            self._asking.clear()

    def _planned(self, numbers: Sequence[int]) -> Plan | None:
        """Return a plan for a job with these remaining ranks, or None if nothing changes."""
        self._settle("", is_lost=True)
        new = sorted(self._waiting)
        kept = [number for number in numbers if number not in self._leaving]
        if not kept and new:
            kept = list(numbers[:1])  # it has the state, and leaves when the others have it
        if not new and len(kept) in (0, len(numbers)):
            return None
        try:
            server = Server(len(kept) + len(new), 0, self._secret)
        except (CommunicatorError, OSError) as error:  # too many files are open
            self.problems.append(str(error))
            return None
        if self._last is not None:
            self._last[1].close()
        assert server.port is not None
        plan = Plan(server.port, kept, new)
        self._last, self._is_open = (plan, server), True
        for number in new:
            self._tell(self._waiting.pop(number), PLAN, plan)
        self._leaving -= set(kept)
        return plan

    def _settle(self, problem: str, is_lost: bool = False) -> None:
        """Note the outcome of the last plan: a new job, a problem, or a lost rank."""
        if self._last is None or not self._is_open:
            return
        plan, self._is_open = self._last[0], False
        if problem or is_lost:
            self._spent |= set(plan.new)
            self.failed.append((plan.new, "" if is_lost else problem))
            return
        self.released += self._leaving
        self._leaving.clear()
        self.members = [*plan.kept, *plan.new]
        self.is_begun = True


class Joining(rendezvous.Served):
    """The rendezvous of a plan, for a rank that stays or joins."""

    def __init__(self, plan: Plan, number: int) -> None:
        everybody = [*plan.kept, *plan.new]
        host, _ = rendezvous.parse_address(os.environ[ADDRESS])
        super().__init__(
            f"tcp:{f'[{host}]' if ':' in host else host}:{plan.port}",
            everybody.index(number),
            len(everybody),
            min(patience(), LONGEST_JOIN),
            os.environ[SECRET].encode(),
        )
        self.joins: bool = bool(plan.kept) and number in plan.new

    def confirm(self) -> None:
        """Confirm that this rank belongs to the new job. A joining rank waits until all have
        confirmed. Local.
        """
        if self.joins:
            self.allgather(None)
        else:
            with contextlib.suppress(OSError):
                self._channel.send(pickle.dumps(None))
            self.close()

    def is_made(self) -> bool:
        """Ask the launcher whether this new rank belongs to the job, after another one was lost.
        Local.
        """
        line = Line()
        with line.socket:
            line.say(ASKS)
            line.socket.settimeout(patience())
            return bool(line.hear()[1])


class Line:
    """The connection of a rank to the lobby."""

    def __init__(self) -> None:
        address, secret = os.environ[ADDRESS], os.environ[SECRET].encode()
        limit = time.monotonic() + rendezvous.REACH
        self.socket: socket.socket = rendezvous.connected(address.replace(KIND, "tcp:"), limit)
        self._channel = introduce(self.socket, secret, number(), 0)
        refusal = pickle.loads(self._channel.receive())
        if refusal:
            raise CommunicatorError(f"the launcher refuses this rank: {refusal}")

    def say(self, *words: Any) -> None:
        """Send a message. Local."""
        self._channel.send(pickle.dumps(words))

    def hear(self) -> list[Any]:
        """Return the next message. Local."""
        return list(pickle.loads(self._channel.receive()))


class Leader:
    """The lobby as rank 0 of the job uses it."""

    def __init__(self) -> None:
        self._line = Line()
        self._line.socket.settimeout(rendezvous.REACH)
        self._line.say(LEADS)
        self.has_news: bool = False
        self.least: int = 0
        while not self.least:
            self._take(self._line.hear())

    def _take(self, words: list[Any]) -> None:
        if words[0] == NEWS:
            self.has_news = True
        elif words[0] == LEADS:
            self.least = words[1]

    def look(self, seconds: float = 0.0) -> bool:
        """Return whether there are news, after some seconds at the latest. Local."""
        while not self.has_news and select.select([self._line.socket], [], [], seconds)[0]:
            self._take(self._line.hear())
        return self.has_news

    def plan(self, numbers: Sequence[int]) -> Plan | None:
        """Ask for a plan for ranks of these numbers. Local."""
        self._line.say(PLAN, numbers)
        while (words := self._line.hear())[0] != PLAN:
            pass
        self.has_news = False
        plan: Plan | None = words[1]
        return plan

    def made(self, problem: str, is_lost: bool) -> None:
        """Send the outcome of the plan: a job, a lost rank, or a problem. Local."""
        self._line.say(MADE, problem, is_lost)


def is_given() -> bool:
    """Return whether this process is a rank of a job that may grow. Local."""
    return os.environ.get(ADDRESS, "").startswith(KIND)


def number() -> int:
    """Return the number that the launcher has given to this process. Local."""
    return int(os.environ[RANK])


def enter() -> Joining:
    """Wait until this rank may join, or its launcher ends. Local."""
    try:
        line = Line()
        with line.socket:
            line.say(WAITS)
            line.socket.settimeout(None)
            _, *plan = line.hear()
    except OSError as error:
        raise CommunicatorError(
            f"this rank cannot join the job: its launcher has ended, or is not reached ({error})"
        ) from error
    if not plan:
        raise CommunicatorError(
            f"this process cannot join the job: rank {number()} is there already, and has perhaps "
            f"started this process"
        )
    return Joining(plan[0], number())
