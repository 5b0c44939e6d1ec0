"""The clock of messages: the times at which ranks are done, on a simulated network.

Theory of operation
-------------------
The rounds of all ranks (`columns`) run over a network (`networks`), by these
rules:

1. A rank enters a round when the round before is done, that is, when all messages that it sends in
   that round have left, all that it receives have arrived, and all folds are done.
2. A rank sends one message at a time and receives one at a time, and does both at once. The sends
   of a round go in the order of its list. A message starts when it is its sender's turn to send it,
   its receiver is in the round that receives it, and both ports are free. It occupies both ports
   until its last byte has left.
3. A message takes its latency, plus bytes times beta. Messages that cross the same link at the same
   time share it max-min fairly: no message gets more at the cost of one that gets less. If the
   machine has a delay, the message arrives by this delay after its last byte has left, and the
   ports are free in between (the delay is the latency L of LogP, and alpha is its overhead).
4. A fold takes bytes times gamma after the message has arrived. Each rank does one fold at a time.
   It can receive the next message during a fold.
5. Long blocks are cut into segments as the executor cuts them: a window of cursors goes through
   the algorithm, each with a segment of its own, and shares the ports of the rank with the others.

If several messages need one port at the same instant, the lowest segment goes first, then the
lowest round of the receiver, then the lowest sender.

Simulated time goes from one instant at which something ends to the next. Everything that ends at
one instant, on all ranks, is handled in one step of array arithmetic. The ranks of a regular
algorithm proceed in lockstep, so that thousands of them take few steps. Memory: 9 bytes for each
message (17 if blocks differ in length), more than twice that while the messages are generated, and
33 more if they are recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ProofError
from collectives.simulation.columns import Columns
from collectives.simulation.networks import Network
from collectives.simulation.result import Transfer

# Events happen at the same instant if they are less than this fraction of the elapsed time apart:
# times are sums, and the last bits of a sum depend on the order of its terms.
INSTANT = 1e-11
# Seconds per byte where bytes take no time: a number whose inverse is finite.
NOTHING = 1e-30

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]


class Clock:
    """The state of a simulation: the waits of each cursor of each rank, and messages in flight.

    Cursors are numbered ``w * p + r``. A rank sends at most one message at a time, so that messages
    in flight are indexed by their sender; times are inf where there is none.

    Often all ranks proceed in lockstep. `_places` then returns a slice instead of an index array,
    because access by a slice takes a fraction of the time.
    """

    delayed: NDArray[np.float64]
    messages: Columns
    topology: Network
    segments: int
    window: int
    record: bool
    p: int
    starts: NDArray[Any]
    ends: NDArray[Any]
    folds: NDArray[Any]
    entered: NDArray[Any]
    entered_by: NDArray[Any]
    out_free: NDArray[Any]
    out_by: NDArray[Any]
    in_free: NDArray[Any]
    in_by: NDArray[Any]
    carried: NDArray[np.float64]

    def __init__(
        self,
        messages: Columns,
        topology: Network,
        segments: int,
        window: int,
        record: bool,
    ) -> None:
        p = topology.p
        self.messages, self.topology = messages, topology
        self.segments, self.window = segments, min(window, segments)
        self.record, self.p = record, p
        self.now: float = topology.call
        # Cursors: rank, segment, round, place in the profile, next message, sends still to start in
        # the round, and the waits of the round.
        cursors = self.window * p
        self.rank: NDArray[np.int64] = np.arange(cursors) % p
        self.segment: NDArray[np.int64] = np.arange(cursors) // p
        self.round: NDArray[np.int64] = np.full(cursors, -1)
        self.sent: NDArray[np.int64] = np.zeros(cursors, np.int64)
        self.to_send: NDArray[np.int64] = np.zeros(cursors, np.int64)
        self.waiting: NDArray[np.int64] = np.zeros(cursors, np.int64)
        self.touched: NDArray[np.bool_] = np.zeros(cursors, bool)
        self.first: NDArray[np.int64] = messages.first[self.rank]
        self.stride: NDArray[np.int64] = messages.stride[self.rank]
        self.profile: NDArray[np.int64] = messages.profile[self.rank]
        self.last: NDArray[np.int64] = messages.rounds[self.rank]
        # Ports and messages in flight, by the sender.
        self.out_busy: NDArray[np.bool_] = np.zeros(p, bool)
        self.in_busy: NDArray[np.bool_] = np.zeros(p, bool)
        self.end: NDArray[np.float64] = np.full(p, np.inf)
        self.message: NDArray[np.int64] = np.zeros(p, np.int64)
        self.cursor: NDArray[np.int64] = np.zeros(p, np.int64)
        self.target: NDArray[np.int64] = np.zeros(p, np.int64)
        # Messages over links: whether bytes flow, the bytes left, the rate, and the links.
        self.shared: bool = len(topology.names) > 0
        if self.shared:
            self.ways: NDArray[np.int64] = np.full((p, 1), -1)
            self.latent: NDArray[np.bool_] = np.zeros(p, bool)
            self.flowing: NDArray[np.bool_] = np.zeros(p, bool)
            self.left: NDArray[np.float64] = np.zeros(p)
            self.alone: NDArray[np.float64] = np.zeros(p)
            self.rate: NDArray[np.float64] = np.zeros(p)
            self.speeds: NDArray[np.float64] = 1.0 / np.maximum(topology.capacities, NOTHING)
            self.changed: bool = False
            self.flowed: float = self.now
        self.carried: NDArray[np.float64] = np.zeros(len(topology.names))
        self.sent_bytes: NDArray[np.float64] = np.zeros(p)
        # Messages that have left and not arrived: times of arrival, numbers, receivers.
        self.delayed: NDArray[np.float64] = np.empty(0)
        self.delayed_of: NDArray[np.int64] = np.empty((2, 0), np.int64)
        # Folds: the time at which each rank can begin the next one, and the block being folded.
        self.fold_free: NDArray[np.float64] = np.zeros(p)
        self.folding: NDArray[np.float64] = np.empty(0)
        self.folding_of: NDArray[np.int64] = np.empty(0, np.int64)
        # Results.
        self.finish: NDArray[np.float64] = np.full(p, topology.call)
        self.rounds: NDArray[np.float64] = np.zeros(int(messages.rounds.max(initial=0)))
        if record:
            self._begin_record()

    def _begin_record(self) -> None:
        """Allocate the record: the times of each message, and the causes of waits."""
        total = len(self.messages.target) * self.segments
        self.starts, self.ends, self.folds = np.full((3, total), np.nan)
        self.causes: NDArray[np.int64] = np.full(total, -1)
        self.due = np.zeros(total, np.int32)
        # The messages after which each cursor entered its round and each port was free; the times.
        self.entered, self.entered_by = (
            np.full(len(self.rank), self.now),
            np.full(len(self.rank), -1),
        )
        self.out_free, self.out_by = np.full(self.p, -1.0), np.full(self.p, -1)
        self.in_free, self.in_by = np.full(self.p, -1.0), np.full(self.p, -1)
        self.folding_by: NDArray[np.int64] = np.empty(0, np.int64)
        self.senders = self.messages.senders()

    def run(self, title: str) -> None:
        """Go from instant to instant until all ranks are done. Local.

        Parameters
        ----------
        title : str
            The name of the algorithm, for error messages.

        Raises
        ------
        ProofError
            If ranks wait for each other.
        """
        self._advance(np.arange(len(self.rank)), None)
        while True:
            self._start()
            if self.shared and self.changed:
                self._share()
            due = self.end.min()
            for times in (self.delayed, self.folding):
                if len(times):
                    due = min(due, times.min())
            if due == np.inf:
                break
            self._finish_until(due + due * INSTANT)
        stuck = np.flatnonzero(self.waiting)
        if len(stuck):
            c = stuck[0]
            raise ProofError(
                f"{title}: rank {self.rank[c]} waits for ever in round {self.round[c] + 1}"
            )

    def _advance(self, cursors: Numbers, by: Numbers | None) -> None:
        """Move cursors that are done with a round to the next round that has messages.

        If messages are recorded, `by` has the message that each cursor waited for last.
        """
        if self.record:
            self.entered[cursors] = self.now
            if by is not None:
                self.entered_by[cursors] = by
        while len(cursors):
            at = _places(cursors, len(self.rank))
            here = self.round[at]
            left = here >= 0
            if left.all():
                self.rounds[here] = self.now
            else:
                self.rounds[here[left]] = self.now
            here = here + 1
            done = here >= self.last[at]
            if done.any():
                over = cursors[done]
                self.segment[over] += self.window
                again = self.segment[over] < self.segments
                here[done] = np.where(again, 0, self.last[over])
                self.sent[over] = 0
                self.finish[self.rank[over]] = self.now
                self.round[at] = here
                going = ~done
                going[np.flatnonzero(done)[again & (self.last[over] > 0)]] = True
                cursors, here = cursors[going], here[going]
                at = _places(cursors, len(self.rank))
            else:
                self.round[at] = here
            phase = self.profile[at] + here
            sends = self.messages.sends[phase]
            work = sends + self.messages.receives[phase]
            self.to_send[at] = sends
            self.waiting[at] = work
            cursors = cursors[work == 0]

    def _start(self) -> None:
        """Start each message that can start."""
        messages = self.messages
        every = len(self.rank)
        heads = np.flatnonzero(self.to_send)
        busy = self.out_busy[self.rank[_places(heads, every)]]
        if busy.any():
            heads = heads[~busy]
        if not len(heads):
            return
        at = _places(heads, every)
        number = self.first[at] + self.stride[at] * self.sent[at]
        target = messages.target[number].astype(np.int64)
        due = messages.due[number]
        takers = target if self.window == 1 else heads - self.rank[at] + target
        ready = self.round[takers] == due
        ready &= ~self.in_busy[target]
        if self.segments > 1:
            ready &= self.segment[takers] == self.segment[at]
        if not ready.all():
            heads, number, target, due = heads[ready], number[ready], target[ready], due[ready]
            if not len(heads):
                return
        source = self.rank[_places(heads, every)]
        if _collide(target, self.p) or (self.window > 1 and _collide(source, self.p)):
            order = np.lexsort((target, source, due, self.segment[heads]))
            chosen = np.sort(order[_greedy(source[order], target[order], self.p)])
            heads, number, target = heads[chosen], number[chosen], target[chosen]
            source = source[chosen]
        at = _places(heads, every)
        self.sent[at] += 1
        self.to_send[at] -= 1
        out = _places(source, self.p) if self.window == 1 else source
        self.out_busy[out] = True
        self.in_busy[target] = True
        self.message[out] = number
        self.cursor[out] = heads
        self.target[out] = target
        self._depart(heads, number, source, target, out)

    def _depart(
        self,
        heads: Numbers,
        number: Numbers,
        source: Numbers,
        target: Numbers,
        out: Numbers | slice,
    ) -> None:
        """Record the times of messages that start now; `out` selects their sources."""
        nbytes = self._bytes_of(number, heads)
        seconds = self.topology.latency(source, target)
        beta = self.topology.beta(source, target, nbytes)
        self.sent_bytes[out] += nbytes
        if self.record:
            instance = number * self.segments + self.segment[heads]
            self.starts[instance] = self.now
            takers = heads - source + target
            self.due[instance] = self.round[takers]
            # The cause is the last of the events that it waited for.
            waited = (
                (self.entered, self.entered_by, heads),
                (self.entered, self.entered_by, takers),
                (self.out_free, self.out_by, source),
                (self.in_free, self.in_by, target),
            )
            times = np.stack([when[at] for when, _, at in waited])
            by = np.stack([after[at] for _, after, at in waited])
            self.causes[instance] = by[times.argmax(axis=0), np.arange(len(heads))]
        if not self.shared:
            self.end[out] = self.now + (seconds + nbytes * beta)
            return
        ways = self.topology.route(source, target)
        crosses = (ways >= 0).any(axis=1) & (nbytes > 0)
        width = ways.shape[1]
        if width > self.ways.shape[1]:
            wider = ((0, 0), (0, width - self.ways.shape[1]))
            self.ways = np.pad(self.ways, wider, constant_values=-1)
        self.ways[source] = -1
        self.ways[source, :width] = ways
        self.latent[source] = crosses
        self.left[source] = nbytes
        self.alone[source] = 1.0 / np.maximum(beta, NOTHING)
        self.end[source] = self.now + np.where(crosses, seconds, seconds + nbytes * beta)
        links = ways[ways >= 0]
        loads = np.broadcast_to(nbytes[:, None], ways.shape)[ways >= 0]
        self.carried += np.bincount(links, loads, minlength=len(self.carried))

    def _bytes_of(self, number: Numbers, heads: Numbers) -> Times:
        """Return the bytes of messages, each in the segment of its cursor."""
        whole = self.messages.size[number]
        return whole if self.segments == 1 else self._piece(whole, self.segment[heads])

    def _piece(self, whole: Any, segment: Any) -> Any:
        """Return the bytes of a segment of blocks, cut as the executor cuts them."""
        return whole * (segment + 1) // self.segments - whole * segment // self.segments

    def _share(self) -> None:
        """Share the links among all messages whose bytes flow now."""
        flows = np.flatnonzero(self.flowing)
        if len(flows):
            self.left[flows] -= self.rate[flows] * (self.now - self.flowed)
            rates = _fair(self.ways[flows], self.alone[flows], self.speeds)
            self.rate[flows] = rates
            self.end[flows] = self.now + np.maximum(self.left[flows], 0) / rates
        self.flowed = self.now
        self.changed = False

    def _finish_until(self, limit: float) -> None:
        """End everything that ends by the time `limit`, and advance the cursors."""
        sources = np.flatnonzero(self.end <= limit)
        folded = self.folding <= limit
        come = self.delayed <= limit
        ended = self.end[sources], self.delayed[come], self.folding[folded]
        self.now = max(float(times.max()) for times in ended if len(times))
        touched: list[Numbers] = []
        by: list[Numbers] = []
        if folded.any():
            touched.append(self.folding_of[folded])
            if self.record:
                by.append(self.folding_by[folded])
                self.folding_by = self.folding_by[~folded]
            self.folding, self.folding_of = self.folding[~folded], self.folding_of[~folded]
        if self.shared and len(sources):
            flowing = self.latent[sources]
            if flowing.any():
                begin = sources[flowing]
                self._settle()
                self.latent[begin] = False
                self.flowing[begin] = True
                self.rate[begin] = 0.0
                self.end[begin] = np.inf
                sources = sources[~flowing]
            if self.flowing[sources].any():
                self._settle()
                self.flowing[sources] = False
        if come.any():
            number, takers = self.delayed_of[:, come]
            self.delayed, self.delayed_of = self.delayed[~come], self.delayed_of[:, ~come]
            # Messages that arrive at one rank at once are folded one after the other.
            together = not _collide(self.rank[takers], self.p)
            for some in [slice(None)] if together else np.arange(len(number))[:, None]:
                self._arrive(number[some], takers[some], touched, by)
        if len(sources):
            self._leave(sources, touched, by)
        if not touched:
            return
        cursors = np.concatenate(touched)
        np.subtract.at(self.waiting, cursors, 1)
        if self.record:
            causes = np.full(len(self.rank), -1)
            causes[cursors] = np.concatenate(by)
        self.touched[cursors] = True
        cursors = np.flatnonzero(self.touched)
        self.touched[cursors] = False
        cursors = cursors[self.waiting[cursors] == 0]
        self._advance(cursors, causes[cursors] if self.record else None)

    def _settle(self) -> None:
        """Subtract the bytes that have flowed since the links were last shared."""
        flows = np.flatnonzero(self.flowing)
        self.left[flows] -= self.rate[flows] * (self.now - self.flowed)
        self.flowed = self.now
        self.changed = True

    def _leave(self, sources: Numbers, touched: list[Numbers], by: list[Numbers]) -> None:
        """Free the ports of messages whose last byte has left."""
        out = _places(sources, self.p)
        number, heads, target = self.message[out], self.cursor[out], self.target[out]
        takers = target if self.window == 1 else heads - sources + target
        self.end[out] = np.inf
        self.out_busy[out] = False
        self.in_busy[target] = False
        delay = self.topology.delay(sources, target)
        if np.any(delay):
            delay = np.broadcast_to(delay, sources.shape)
            away = delay > 0
            self.delayed = np.concatenate([self.delayed, self.now + delay[away]])
            found = np.stack([number[away], takers[away]])
            self.delayed_of = np.concatenate([self.delayed_of, found], axis=1)
            self._arrive(number[~away], takers[~away], touched, by)
        else:
            self._arrive(number, takers, touched, by)
        touched.append(heads)
        if self.record:
            instance = number * self.segments + self.segment[heads]
            self.out_free[sources] = self.in_free[target] = self.now
            self.out_by[sources] = self.in_by[target] = instance
            by.append(instance)

    def _arrive(
        self, number: Numbers, takers: Numbers, touched: list[Numbers], by: list[Numbers]
    ) -> None:
        """Handle messages that have arrived, and begin their folds, if they are to be folded."""
        target = self.rank[takers]
        fold = self.messages.fold[number]
        later = np.zeros(len(number), bool)
        if fold.any():
            nbytes = self._bytes_of(number, takers)
            seconds = fold * nbytes * self.topology.gamma(nbytes)
            done = np.where(fold, np.maximum(self.fold_free[target], self.now), self.now) + seconds
            later = done > self.now
            self.fold_free[target[later]] = done[later]
            self.folding = np.concatenate([self.folding, done[later]])
            self.folding_of = np.concatenate([self.folding_of, takers[later]])
        touched.append(takers[~later])
        if self.record:
            instance = number * self.segments + self.segment[takers]
            self.ends[instance] = self.now
            self.folds[instance] = done if fold.any() else self.now
            self.folding_by = np.concatenate([self.folding_by, instance[later]])
            by.append(instance[~later])

    def transfers(self) -> list[Transfer]:
        """Return the recorded messages, in order of their start. Local."""
        if not self.record:
            return []
        order = np.lexsort((np.arange(len(self.starts)), self.starts))
        return [self._transfer(int(k)) for k in order]

    def _transfer(self, instance: int) -> Transfer:
        """Return one recorded message."""
        number, segment = divmod(instance, self.segments)
        nbytes = float(self._piece(self.messages.size[number], segment))
        return Transfer(
            int(self.senders[number]),
            int(self.messages.target[number]),
            int(self.due[instance]),
            segment,
            nbytes,
            float(self.starts[instance]),
            float(self.ends[instance]),
            float(self.folds[instance]),
        )

    def critical_path(self) -> list[Transfer]:
        """Return the chain of messages that the last rank waited for. Local."""
        if not self.record:
            return []
        last = int(self.finish.argmax())
        own = np.flatnonzero(self.rank == last)
        instance = int(self.entered_by[own[self.entered[own].argmax()]])
        path = []
        while instance >= 0:
            path.append(self._transfer(instance))
            instance = int(self.causes[instance])
        return path[::-1]


def _places(numbers: Numbers, every: int) -> Numbers | slice:
    """Return an index for `numbers`, in rising order, of 0 to `every` - 1; a slice if it is all."""
    return slice(None) if len(numbers) == every else numbers


def _collide(ranks: Numbers, p: int) -> bool:
    """Return whether a rank occurs twice."""
    return bool(np.bincount(ranks, minlength=p).max() > 1)


def _greedy(source: Numbers, target: Numbers, p: int) -> Numbers:
    """Return the indices of the messages that start, if each in turn takes its ports when free.

    A message that comes first both at its sender and at its receiver starts. It takes both ports,
    so that all others of this sender and this receiver do not start.
    """
    chosen = []
    places = np.arange(len(source))
    while len(places):
        first = np.full((2, p), len(source))
        np.minimum.at(first[0], source[places], places)
        np.minimum.at(first[1], target[places], places)
        wins = (first[0, source[places]] == places) & (first[1, target[places]] == places)
        chosen.append(places[wins])
        taken = np.zeros((2, p), bool)
        taken[0, source[places[wins]]] = True
        taken[1, target[places[wins]]] = True
        places = places[~(taken[0, source[places]] | taken[1, target[places]])]
    return np.concatenate(chosen)


def _fair(ways: Numbers, alone: Times, speeds: Times) -> Times:
    """Return the max-min fair rates of flows, in bytes per second."""
    rates = np.zeros(len(ways))
    used = ways >= 0
    links = np.where(used, ways, len(speeds))
    free = np.append(speeds, np.inf)
    rising = np.ones(len(ways), bool)
    while rising.any():
        load = np.bincount(links[rising].reshape(-1), minlength=len(free))
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(load > 0, free / np.maximum(load, 1), np.inf)
        part[-1] = np.inf
        level = np.minimum(part[links].min(axis=1, initial=np.inf), alone)
        least = level[rising].min()
        full = rising & (level <= least * (1 + INSTANT))
        rates[full] = level[full]
        taken = np.bincount(
            links[full].reshape(-1),
            np.broadcast_to(level[full, None], links[full].shape).reshape(-1),
            minlength=len(free),
        )
        taken[-1] = 0.0
        free = np.maximum(free - taken, 0.0)
        rising &= ~full
    return rates
