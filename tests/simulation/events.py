"""A plain simulator of one collective, event by event: the reference for `collectives.simulate`.

It follows the model's rules in the order of time, with no thought for speed. A cursor of a rank
works on one segment: it goes through the rounds of the algorithm, sends the messages of a round one
after the other, and takes those that come in. A message waits, is in its latency, flows, has left,
is delayed, has arrived, and is folded. From one event to the next nothing changes but the time and
the bytes that flow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf

from networks import Network, per_byte, rate

from collectives.algorithms.exchange import Fold
from collectives.algorithms.registry import Algorithm

SAME = 1e-11  # instants that are closer than this, relative to the time, are one


@dataclass
class Message:
    """One segment of a message from one rank to another in one round."""

    source: int
    target: int
    received_in: int
    segment: int
    nbytes: int
    fold: int  # how often it is folded
    start: float = -1.0
    left: float = 0.0  # bytes that still have to flow
    flowing: bool = False
    left_at: float = -1.0
    end: float = -1.0
    folded: float = -1.0  # when it is folded; its end where it is only stored

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The order of messages that could start at one time."""
        return self.segment, self.received_in, self.source, self.target


@dataclass
class Outcome:
    """The kind of the event."""

    finish: list[float]
    rounds: dict[int, float]
    links: dict[Hashable, int]
    transfers: list[Message]

    @property
    def time(self) -> float:
        return max(self.finish)


# -- messages ----------------------------------------------------------------------------------


def listed(messages: object) -> list[tuple[int, list[int]]]:
    """Bring the messages of a round into the form [(peer, [block, ...]), ...]."""
    if isinstance(messages, tuple) and messages and isinstance(messages[0], int):
        messages = [messages]
    assert isinstance(messages, list | tuple)
    return [(peer, [what] if isinstance(what, int) else list(what)) for peer, what in messages]


def pieces(nbytes: int, nblocks: int, block: int, segment: int) -> list[int]:
    """Return the bytes of each segment of a block; of all in one where `segment` is 0.

    All blocks have as many segments as the longest needs, of nearly equal length.
    """
    sizes = [nbytes * (b + 1) // nblocks - nbytes * b // nblocks for b in range(nblocks)]
    size = sizes[block % nblocks]
    many = max(1, -(-max(sizes) // segment)) if segment else 1
    return [size * (t + 1) // many - size * t // many for t in range(many)]


def apart(messages: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """Return messages of one block each, as they are sent where blocks are cut into segments."""
    return [(peer, [block]) for peer, blocks in messages for block in blocks]


def fair(messages: Sequence[Message], network: Network) -> list[float]:
    """Share the links out: all rates grow alike, until each meets its first limit."""
    ways = [network.way(message.source, message.target) for message in messages]
    own = [
        rate(per_byte(way.beta, message.nbytes))
        for way, message in zip(ways, messages, strict=True)
    ]
    rates = [0.0] * len(messages)
    growing = set(range(len(messages)))
    while growing:
        shares = {}
        for link in {link for i in growing for link in ways[i].links}:
            users = [i for i, way in enumerate(ways) if link in way.links]
            taken = sum(rates[i] for i in users if i not in growing)
            shares[link] = (network.capacity[link] - taken) / len(growing.intersection(users))
        limits = {i: min([own[i], *(shares[link] for link in ways[i].links)]) for i in growing}
        level = min(limits.values())
        for i, limit in limits.items():
            if limit <= level * (1 + 1e-12):
                rates[i] = level
                growing.discard(i)
    return rates


# -- the simulation ----------------------------------------------------------------------------


class _Cursor:
    """The position of a rank in one segment."""

    def __init__(self, rank: int, segment: int) -> None:
        self.rank = rank
        self.segment = segment
        self.round = 0
        self.to_send: deque[Message] = deque()  # the first may be under way
        self.awaited = 0  # messages that are not in, or not folded


class _Simulation:
    def __init__(
        self, algorithm: Algorithm, nbytes: int, network: Network, root: int, segment: int
    ) -> None:
        self.network = network
        p = network.p
        contract = algorithm.collective
        total = algorithm.blocks(p)
        nblocks = total // contract.parts(p) * contract.per_array(p)
        self.segments = len(pieces(nbytes, nblocks, 0, segment))
        self.length = [0] * p  # rounds of each rank
        sends: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
        recvs: dict[tuple[int, int], list[tuple[int, list[int], bool]]] = defaultdict(list)
        listing: list[tuple[int, int, int, int]] = []  # sends as written: who, when, to whom, which
        for r in range(p):
            for k, exchange in enumerate(algorithm.rounds(r, p, root)):
                self.length[r] = k + 1
                send = listed(exchange.send)
                recv = [
                    (peer, run, isinstance(message, Fold) + exchange.both)
                    for message in exchange.recv
                    for peer, blocks in listed([message])
                    for run in ([[b] for b in blocks] if self.segments > 1 else [blocks])
                ]
                if self.segments > 1:
                    send = apart(send)
                for peer, blocks in send:
                    listing.append((r, k, peer, len(sends[r, peer])))
                    sends[r, peer].append((k, blocks))
                for peer, blocks, folds in recv:
                    recvs[peer, r].append((k, blocks, folds))
        # For each segment, rank and round: what it sends, in order, and how many it receives.
        self.outgoing: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
        self.incoming: dict[tuple[int, int, int], int] = defaultdict(int)
        self.messages: list[Message] = []
        for source, k, target, number in listing:
            _, blocks = sends[source, target][number]
            received_in, expected, fold = recvs[source, target][number]
            assert [b % total for b in blocks] == [b % total for b in expected]
            for t in range(self.segments):
                size = sum(pieces(nbytes, nblocks, b, segment)[t] for b in blocks)
                message = Message(source, target, received_in, t, size, fold)
                self.messages.append(message)
                self.outgoing[t, source, k].append(message)
                self.incoming[t, target, received_in] += 1
        self.now = network.call
        self.cursors: dict[tuple[int, int], _Cursor] = {}  # of (rank, segment)
        self.under_way: list[Message] = []
        self.delayed: list[Message] = []
        self.sending: set[int] = set()  # ranks with a busy port
        self.receiving: set[int] = set()
        self.folding: list[deque[Message]] = [deque() for _ in range(p)]  # the first is folded now
        self.folded_at = [inf] * p
        self.finish = [network.call] * p
        self.rounds: dict[int, float] = {}

    def run(self, window: int) -> Outcome:
        for r in range(self.network.p):
            for t in range(min(window, self.segments)):
                self.enter(r, t)
        while True:
            self.go_on(window)
            self.start()
            waiting = self.under_way or self.delayed
            if not waiting and all(at == inf for at in self.folded_at):
                break
            self.wait()
        assert not self.cursors, "deadlock"
        links: dict[Hashable, int] = dict.fromkeys(self.network.capacity, 0)
        for message in self.messages:
            for link in self.network.way(message.source, message.target).links:
                links[link] += message.nbytes
        return Outcome(self.finish, self.rounds, links, self.messages)

    # Cursors

    def enter(self, rank: int, segment: int) -> None:
        """Put a cursor before the first round of a segment."""
        cursor = self.cursors[rank, segment] = _Cursor(rank, segment)
        self.post(cursor)

    def post(self, cursor: _Cursor) -> None:
        place = cursor.segment, cursor.rank, cursor.round
        cursor.to_send = deque(self.outgoing[place])
        cursor.awaited = self.incoming[place]

    def go_on(self, window: int) -> None:
        """Let every cursor whose round is done enter the next, or the next segment of its own."""
        moved = True
        while moved:
            moved = False
            for cursor in list(self.cursors.values()):
                rank = cursor.rank
                if cursor.round < self.length[rank]:
                    if cursor.to_send or cursor.awaited:
                        continue
                    self.rounds[cursor.round] = self.now
                    cursor.round += 1
                moved = True
                if cursor.round < self.length[rank]:
                    self.post(cursor)
                    continue
                if self.length[rank]:
                    self.finish[rank] = self.now
                del self.cursors[rank, cursor.segment]
                if cursor.segment + window < self.segments:
                    self.enter(rank, cursor.segment + window)

    # Messages

    def start(self) -> None:
        """Start what can start, in order, as far as ports are free."""
        ready = []
        for cursor in self.cursors.values():
            if cursor.to_send and cursor.to_send[0].start < 0:
                message = cursor.to_send[0]
                taker = self.cursors.get((message.target, message.segment))
                if taker is not None and taker.round == message.received_in:
                    ready.append(message)
        for message in sorted(ready, key=lambda each: each.order):
            if message.source not in self.sending and message.target not in self.receiving:
                self.sending.add(message.source)
                self.receiving.add(message.target)
                message.start = self.now
                message.left = message.nbytes
                self.under_way.append(message)

    def wait(self) -> None:
        """Let time pass until something ends, and end all that ends at that instant."""
        flowing = [message for message in self.under_way if message.flowing]
        rates = fair(flowing, self.network)
        ends = {
            id(message): self.now + message.left / rate
            for message, rate in zip(flowing, rates, strict=True)
        }
        for message in self.under_way:
            if not message.flowing:
                latency = self.network.way(message.source, message.target).latency
                ends[id(message)] = message.start + latency
        before = self.now
        self.now = min([*ends.values(), *map(self.arrival, self.delayed), *self.folded_at])
        for message, bytes_per_second in zip(flowing, rates, strict=True):
            if bytes_per_second < inf:
                message.left -= bytes_per_second * (self.now - before)
        ended = [message for message in self.under_way if self.is_now(ends[id(message)])]
        for message in sorted(ended, key=lambda each: each.source):
            if not message.flowing and message.nbytes > 0:
                message.flowing = True
            else:
                self.leave(message)
        for message in list(self.delayed):
            if self.is_now(self.arrival(message)):
                self.delayed.remove(message)
                self.arrive(message)
        self.fold()

    def is_now(self, instant: float) -> bool:
        return instant <= self.now * (1 + SAME)

    def arrival(self, message: Message) -> float:
        return message.left_at + self.network.way(message.source, message.target).delay

    def leave(self, message: Message) -> None:
        message.left_at = self.now
        self.under_way.remove(message)
        self.sending.discard(message.source)
        self.receiving.discard(message.target)
        sender = self.cursors[message.source, message.segment]
        assert sender.to_send.popleft() is message
        self.delayed.append(message)

    def arrive(self, message: Message) -> None:
        message.end = message.folded = self.now
        if message.fold:
            self.folding[message.target].append(message)
        else:
            self.cursors[message.target, message.segment].awaited -= 1

    def fold(self) -> None:
        """End folds that are done by now, and begin the next ones."""
        for rank, queue in enumerate(self.folding):
            while queue:
                if self.folded_at[rank] == inf:
                    self.folded_at[rank] = self.now + queue[0].fold * self.to_fold(queue[0].nbytes)
                if not self.is_now(self.folded_at[rank]):
                    break
                message = queue.popleft()
                message.folded = self.now
                self.cursors[rank, message.segment].awaited -= 1
                self.folded_at[rank] = inf

    def to_fold(self, nbytes: int) -> float:
        return nbytes * per_byte(self.network.gamma, nbytes)


def simulate(
    algorithm: Algorithm,
    nbytes: int,
    network: Network,
    *,
    root: int = 0,
    segment: int = 0,
    window: int = 4,
) -> Outcome:
    """Run a collective on `nbytes` bytes in simulated time."""
    return _Simulation(algorithm, nbytes, network, root, segment).run(window)
