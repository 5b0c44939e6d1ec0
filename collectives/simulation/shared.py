"""Time in shared memory: the programs of all ranks of a host, run on a clock of their own.

Ranks of one host send no messages: they run programs (`collectives.plans.program`), whose steps
read what others have published. So time is not spent on the latency and bandwidth of a network, but
on passes over memory, on waiting for flags, and, with more ranks than cores, on waiting for a core.

Theory of operation
-------------------
1. A call takes a rank `call` seconds. Then the rank runs its program, segment by segment as the
   executor does, with up to `window` cursors, each of which runs its steps in order. A rank runs
   one step at a time. It stays with a cursor until the cursor has to wait, and then continues with
   the next cursor that does not have to wait.
2. A step takes `step` seconds, and a time for each byte that it reads or writes: `read` for each
   operand in memory of the rank, `fetch` for each operand that another rank has published, `write`
   for a result in memory of the rank, `publish` for a result that others read. Publications of up
   to `INLINE` bytes are stored beside the flag, and `fetch` and `publish` take no time for them.
3. A step waits for its operands. Ranks on the same core see a publication at once. Other ranks see
   it `alpha` seconds after the end of the step that publishes it. The first step of a segment waits
   until all ranks have finished the segment that had its place in the window before.
4. Ranks r, r + cores, r + 2 cores, ... share a core and take turns on it, in this order. A rank
   keeps the core until it has to wait, or has finished. It takes `switch` seconds to poll once and
   yield the core.
5. The speed of memory depends on the number of bytes in use, because caches hold some of them, and
   on the number of cores at work. A step has the speed for the cores that are at work when it
   begins. Memory that was used before in the same segment is in the cache.
6. On a `MessageHost` nothing is published. Each message that a round sends takes its sender `send`
   seconds. Each message that it receives takes its receiver `receive` seconds and `beta` for each
   byte, in the order of the round. The steps come after the messages. Segments do not wait for each
   other.
"""

from __future__ import annotations

import heapq
import math
import sys
from typing import NamedTuple

import numpy as np

from collectives.algorithms.registry import Algorithm
from collectives.errors import ProofError
from collectives.plans.program import WINDOW, pack
from collectives.plans.schedule import compile
from collectives.simulation.host import MessageHost, SharedMemory
from collectives.simulation.result import RECORDED, Simulation, Transfer
from collectives.simulation.steps import TimedStep, Translation, segments_of


class Event(NamedTuple):
    """The execution of a step by a rank.

    Attributes
    ----------
    rank, segment, step : int
        Steps are numbered from 0 in the rank's program.
    start, end : float
        Seconds.
    cause : int
        The number of the event that ended when this one could begin; -1 if it was the call.
    """

    rank: int
    segment: int
    step: int
    start: float
    end: float
    cause: int


class _Rank:
    """A rank: its program, and the positions of its cursors."""

    def __init__(self, steps: list[TimedStep], segments: int, window: int) -> None:
        self.steps = steps
        self.segment = list(range(min(window, segments)))  # of each cursor; -1 if it has none
        self.step = [0] * len(self.segment)
        self.before = [-1] * len(self.segment)  # the last event of each cursor
        self.last = -1  # the last event of the rank
        self.cursor = 0
        self.live = len(self.segment)
        self.called = False
        self.finished: set[int] = set()  # segments, beyond the progress


class _Core:
    """A core: the rank whose turn it is, and the time since which all its ranks wait."""

    def __init__(self, queue: list[int]) -> None:
        self.queue = queue
        self.at = 0
        self.stuck = 0  # number of consecutive ranks that had to wait
        self.idle: float | None = None
        self.busy = 0.0  # the time until which it is busy
        self.in_step = False


class _Machine:
    """All ranks and cores, the publications so far, and the waits of each rank."""

    def __init__(
        self, programs: list[list[TimedStep]], segments: int, window: int, host: SharedMemory
    ) -> None:
        self.host, self.segments, self.window = host, segments, window
        cores = min(host.p, host.cores)
        self.cores = [_Core(list(range(c, host.p, cores))) for c in range(cores)]
        self.ranks = [_Rank(steps, segments, window) for steps in programs]
        # The time and event of each publication and of each end of a page; the number of pages that
        # each rank has finished.
        self.published: dict[tuple[int, int, int], tuple[float, int]] = {}
        self.waiting: dict[tuple[int, int, int], set[int]] = {}
        self.progress = [0] * host.p
        self.finish = [0.0] * host.p
        self.events: list[Event] = []
        self.agenda: list[tuple[float, int]] = [(0.0, c) for c in range(cores)]
        self.planned: set[tuple[float, int]] = set(self.agenda)

    def run(self) -> None:
        while self.agenda:
            now, number = entry = heapq.heappop(self.agenda)
            self.planned.discard(entry)
            core = self.cores[number]
            if now < core.busy or not core.queue:
                continue
            if core.idle is not None:
                self.resume(core, number, now)
            else:
                self.act(core, number, now)
        stuck = [r for r, rank in enumerate(self.ranks) if rank.live]
        if stuck:
            raise ProofError(f"ranks {stuck} wait for ever")

    def plan(self, when: float, core: int) -> None:
        if (when, core) not in self.planned:
            self.planned.add((when, core))
            heapq.heappush(self.agenda, (when, core))

    def resume(self, core: _Core, number: int, now: float) -> None:
        """Continue with the rank whose turn it is, after a core was woken by a publication."""
        assert core.idle is not None
        turns = 0
        if len(core.queue) > 1 and self.host.switch:
            turns = math.ceil((now - core.idle) / self.host.switch - 1e-9)
            now = max(now, core.idle + turns * self.host.switch)
        core.at = (core.at + turns) % len(core.queue)
        core.idle, core.stuck, core.busy = None, 0, now
        self.plan(now, number)

    def act(self, core: _Core, number: int, now: float) -> None:
        """Let the rank whose turn it is run one step, or yield the core."""
        core.in_step = False
        r = core.queue[core.at]
        rank = self.ranks[r]
        if not rank.called:
            rank.called = True
            core.stuck = 0
            core.busy = now + self.host.call
            self.plan(core.busy, number)
            return
        for _ in range(len(rank.segment)):
            k = rank.cursor
            if rank.segment[k] >= 0:
                cause = self.ready(rank, number, k, now)
                if cause is not None:
                    self.step(core, number, r, k, now, cause)
                    return
            rank.cursor = (k + 1) % len(rank.segment)
        if not rank.live:
            self.finish[r] = now
            core.queue.pop(core.at)
            core.stuck = 0
            if core.queue:
                core.at %= len(core.queue)
                core.busy = now + self.host.switch
                self.plan(core.busy, number)
            return
        core.stuck += 1
        if core.stuck < len(core.queue):
            core.at = (core.at + 1) % len(core.queue)
            core.busy = now + self.host.switch
            self.plan(core.busy, number)
            return
        # All ranks wait: the core is idle until another one publishes.
        if len(core.queue) > 1:
            core.at = (core.at + 1) % len(core.queue)
            core.idle = now + self.host.switch
        else:
            core.idle = now
        core.busy = 0.0
        for each in core.queue:
            self.watch(number, self.ranks[each])

    def needs(self, rank: _Rank, k: int) -> list[tuple[int, int, int]]:
        """Return the keys of the publications that a cursor has to wait for."""
        t, at = rank.segment[k], rank.step[k]
        keys: list[tuple[int, int, int]] = []
        if at == 0 and t >= self.window and not isinstance(self.host, MessageHost):
            keys += [(r, -1, t - self.window) for r in range(self.host.p)]
        if at < len(rank.steps):
            keys += [(peer, t, number) for peer, number in rank.steps[at].needs]
        return keys

    def watch(self, core: int, rank: _Rank) -> None:
        """Wake a core at the next publication that a cursor of a rank waits for."""
        for k, t in enumerate(rank.segment):
            if t < 0:
                continue
            keys = self.needs(rank, k)
            late = [key for key in keys if key not in self.published]
            if late:
                self.waiting.setdefault(late[0], set()).add(core)
            else:
                self.plan(max(self.seen(key, core) for key in keys), core)

    def seen(self, key: tuple[int, int, int], core: int) -> float:
        """Return the time at which a publication is seen on a core."""
        here = key[0] % len(self.cores) == core
        return self.published[key][0] + (0.0 if here else self.host.alpha)

    def ready(self, rank: _Rank, core: int, k: int, now: float) -> int | None:
        """Return the event after which a cursor can continue, or None if it must wait."""
        cause, latest = rank.last, -1.0
        for key in self.needs(rank, k):
            if key not in self.published:
                return None
            seen = self.seen(key, core)
            if seen > now:
                return None
            if seen > latest:
                latest = seen
                if cause < 0 or seen > self.events[cause].end:
                    cause = self.published[key][1]
        return cause

    def step(self, core: _Core, number: int, r: int, k: int, now: float, cause: int) -> None:
        """Run the next step of a cursor, or end its segment."""
        rank = self.ranks[r]
        core.stuck = 0
        t, at = rank.segment[k], rank.step[k]
        end = now
        if at < len(rank.steps):
            step = rank.steps[at]
            others = sum(self.works(c, now) for c in range(len(self.cores)) if c != number)
            crowd = others / (len(self.cores) - 1) if others else 0.0
            end = now + step.alone + crowd * (step.at_once - step.alone)
            core.in_step = True
            self.events.append(Event(r, t, at, now, end, cause))
            rank.last = len(self.events) - 1
            rank.step[k] += 1
            if step.publication >= 0:
                self.tell((r, t, step.publication), end, rank.last)
        if rank.step[k] >= len(rank.steps):
            rank.finished.add(t)
            while self.progress[r] in rank.finished:
                rank.finished.discard(self.progress[r])
                self.tell((r, -1, self.progress[r]), end, rank.last)
                self.progress[r] += 1
            rank.segment[k], rank.step[k] = t + self.window, 0
            if rank.segment[k] >= self.segments:
                rank.segment[k] = -1
                rank.live -= 1
        core.busy = end
        self.plan(end, number)

    def works(self, number: int, now: float) -> bool:
        """Return whether a core runs a step, or begins one at this instant."""
        core = self.cores[number]
        if core.busy > now or not core.queue:
            return core.in_step and core.busy > now
        if core.busy < now and (now, number) not in self.planned:
            return False
        rank = self.ranks[core.queue[core.at]]
        return rank.called and any(
            t >= 0 and self.ready(rank, number, k, now) is not None
            for k, t in enumerate(rank.segment)
        )

    def tell(self, key: tuple[int, int, int], when: float, event: int) -> None:
        """Record a publication, and wake the cores that wait for it."""
        self.published[key] = when, event
        for core in self.waiting.pop(key, ()):
            self.plan(self.seen(key, core), core)


def simulation(
    algorithm: Algorithm,
    nbytes: int,
    topology: SharedMemory,
    *,
    root: int = 0,
    segment: int = 0,
    window: int = WINDOW,
    record: bool | None = None,
) -> Simulation:
    """Run the programs of a call in simulated time; see `simulate`. Local.

    Arrays are private memory; input and output are separate, except in a broadcast. A transfer is
    the read of a publication. Rounds are those of the programs. Links are pairs (source, target) of
    ranks, and `sent` is the number of bytes that others read from a rank.
    """
    p = topology.p
    plans = [compile(algorithm, p, r, root) for r in range(p)]
    shares = p > 1 and not isinstance(topology, MessageHost)
    local = range(p) if shares else ()
    packed = [pack(plan, whole=False, local=local) for plan in plans]
    room = topology.lane // max(1, packed[0].lines) & ~63 if shares else sys.maxsize
    segments, whole = segments_of(plans[0], nbytes, segment, room)
    if whole:
        packed = [pack(plan, whole=True, local=local) for plan in plans]
    programs = [
        Translation(plan, nbytes, segments, topology).steps(each)
        for plan, each in zip(plans, packed, strict=True)
    ]
    machine = _Machine(programs, segments, window, topology)
    machine.run()
    return _result(machine, algorithm, nbytes, root, record)


def _result(
    machine: _Machine, algorithm: Algorithm, nbytes: int, root: int, record: bool | None
) -> Simulation:
    """Return the result of a run, with reads of publications as transfers."""
    programs, p = [rank.steps for rank in machine.ranks], machine.host.p
    rounds = np.zeros(max((step.round + 1 for steps in programs for step in steps), default=0))
    links: dict[tuple[int, int], float] = {}
    messages = 0
    for event in machine.events:
        step = programs[event.rank][event.step]
        rounds[step.round] = max(rounds[step.round], event.end)
        messages += len(step.fetched)
        for source, size in step.fetched:
            links[source, event.rank] = links.get((source, event.rank), 0.0) + size
    sent = np.zeros(p)
    for (source, _), size in links.items():
        sent[source] += size
    transfers: list[Transfer] = []
    path: list[Transfer] = []
    if messages <= RECORDED if record is None else record:
        for event in sorted(machine.events, key=lambda each: each.start):
            step = programs[event.rank][event.step]
            transfers += [_transfer(event, step, *each) for each in step.fetched]
        number = len(machine.events) - 1
        last = int(np.argmax(machine.finish))
        while number >= 0 and machine.events[number].rank != last:
            number -= 1
        while number >= 0:
            event = machine.events[number]
            step = programs[event.rank][event.step]
            number = event.cause
            source = machine.events[number].rank if number >= 0 else event.rank
            # Of the publications that it reads, the one that it waited for comes last.
            fetched = sorted(step.fetched, key=lambda each: each[0] == source)
            path += [_transfer(event, step, *each) for each in fetched[-1:]]
    finish = np.array(machine.finish)
    return Simulation(
        algorithm,
        nbytes,
        root,
        machine.segments,
        machine.host,
        float(finish.max()),
        finish,
        rounds,
        messages,
        sent,
        links,
        transfers,
        path[::-1],
    )


def _transfer(event: Event, step: TimedStep, source: int, nbytes: float) -> Transfer:
    place = source, event.rank, step.round, event.segment
    return Transfer(*place, nbytes, event.start, event.end, event.end)
