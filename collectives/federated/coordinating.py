"""The work of rank 0: it draws clients, asks them, waits until the deadline, and aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError, PeerLostError, StallError
from collectives.federated.links import Link
from collectives.federated.strategies import Arrays, Update
from collectives.federated.training import Bytes, ClientTraining
from collectives.process.waiting import Wait
from collectives.text.words import named


class Round(NamedTuple):
    """The outcome of a round.

    Attributes
    ----------
    number : int
        From 1.
    sampled : list of int
        The clients that were drawn.
    taken : list of int
        Those whose updates are in the new parameters. If sums are secure, all or none.
    missed : list of int
        Those that were drawn and whose updates are not in them: too late, stopped, dead, refused,
        or on a rank that had not finished an earlier round.
    late : list of (int, int)
        The client and the round of each update that came after its round and was discarded.
    metric : object
        The result of `evaluate`; None without it.
    seconds : float
        From the start of the round to the new parameters.
    refused : list of int
        Those whose updates had infinite numbers or NaN.
    """

    number: int
    sampled: list[int]
    taken: list[int]
    missed: list[int]
    late: list[tuple[int, int]]
    metric: Any
    seconds: float
    refused: list[int]


class Coordinator:
    """The work of rank 0. It alone measures the deadline: an update is in time if it has arrived
    when rank 0 closes the round.
    """

    training: ClientTraining
    links: list[Link]
    clients: int
    deadline: float | None
    timeout: float
    evaluate: Callable[[list[Any], int], Any] | None
    round: int

    def __init__(
        self,
        training: ClientTraining,
        links: list[Link],
        clients: int,
        deadline: float | None,
        timeout: float,
        evaluate: Callable[[list[Any], int], Any] | None,
    ) -> None:
        self.training, self.links, self.clients = training, links, clients
        self.deadline, self.timeout, self.evaluate = deadline, timeout, evaluate
        self.owner: dict[int, Link] = {client: link for link in links for client in link.clients}
        self.round = 0
        self.sampled: list[int] = []
        self.received: dict[int, Bytes] = {}
        self.bodies: dict[tuple[int, ...], Bytes] = {}  # sent in this round, by the arrays in them
        self.late: list[tuple[int, int]] = []

    def run(self, rounds: int) -> tuple[Arrays, list[Round]]:
        """Run the rounds; return the final parameters, and the outcome of each round. Local, but it
        waits for the other ranks.
        """
        strategy, parts = self.training.strategy, self.training.parts
        arrays = self.training.parameters.read()
        every = range(len(parts.places))
        if len(parts.places) > 1 and hasattr(strategy, "restricted"):
            strategies = [strategy.restricted(places) for places in parts.places]
        else:
            strategies = [strategy for _ in parts.places]
        states = [strategies[k].start(parts.of(k, arrays), self.clients) for k in every]
        records = []
        for number in range(1, rounds + 1):
            clock = Wait()
            taken = self._collect(number, arrays, clock)
            refused: list[int] = []
            updates: list[Update] = []
            wire, part = self.training.wire(number), parts.due(number)
            if taken:
                updates = wire.unpacked([self.received[each] for each in taken])
            if not wire.needs_all:  # else it is one, of all of them
                came = zip(taken, updates, strict=True)
                refused = [client for client, update in came if not update.is_finite]
                updates = [each for each in updates if each.is_finite]
                taken = [client for client in taken if client not in refused]
            # Also without updates: the noise of DifferentialPrivacy hides that there were none.
            old = parts.of(part, arrays)
            new, states[part] = strategies[part].aggregate(old, updates, states[part])
            self._check_step(number, parts.places[part], old, new)
            arrays = parts.replaced(part, arrays, new)
            metric = None
            seconds = clock.passed()
            if self.evaluate is not None:
                self.training.parameters.write(arrays)
                metric = self.evaluate(self.training.parameters.values, number)
            missed = [client for client in self.sampled if client not in taken]
            late = self.late
            record = Round(number, self.sampled, taken, missed, late, metric, seconds, refused)
            records.append(record)
        self._end(self.training.parameters.packed(arrays))
        return arrays, records

    def _check_step(self, number: int, places: list[int], old: Arrays, new: Arrays) -> None:
        """Raise an error if the server's step has made a parameter infinite or NaN."""
        for k, before, after in zip(places, old, new, strict=True):
            if np.isfinite(before).all() and not np.isfinite(after).all():
                raise ArgumentError(
                    f"round {number}: the step of {self.training.strategy!r} makes parameters[{k}] "
                    f"infinite or NaN, from finite updates: pass a smaller rate"
                )

    def _collect(self, number: int, arrays: Arrays, clock: Wait) -> list[int]:
        """Ask for the updates of a round, and wait; return the clients whose updates count."""
        self.round, self.received, self.late, self.bodies = number, {}, [], {}
        strategy, wire = self.training.strategy, self.training.wire(number)
        self.sampled = strategy.sample(self.clients, number, self.training.seed)
        self._poll()
        roster = self.sampled
        if wire.needs_all:
            roster = [each for each in roster if not self._is_away(self.owner.get(each))]
        if len(roster) < wire.least:
            return []
        for link in self.links:
            if not self._is_away(link):  # it has answered all else
                self._ask(link, roster, arrays)
        for client in roster:
            if client in self.training.clients:
                self.received[client] = self.training.train(number, client, roster, arrays)
                self._poll()
        self._wait(roster, arrays, clock)
        taken = sorted(self.received)
        for link in self.links:
            if any(each in link.clients and each not in taken for each in roster):
                link.close(number)
        return [] if wire.needs_all and len(taken) < len(roster) else taken

    def _ask(self, link: Link, roster: list[int], arrays: Arrays) -> None:
        """Ask a rank for its part in a round. Local."""
        told, body = self._told(link, roster), np.empty(0, np.uint8)
        if told:
            body = self._packed(arrays, link.knows)
        link.ask(self.round, told, link.knows, body)

    def _packed(self, arrays: Arrays, since: int) -> Bytes:
        """Return the changes since a round as bytes, made once for all ranks that need them."""
        parts = self.training.parts
        places = tuple(parts.changed(since, self.round))
        if places not in self.bodies:
            self.bodies[places] = parts.packed(arrays, since, self.round)
        return self.bodies[places]

    def _told(self, link: Link, roster: list[int]) -> list[int]:
        """Return the clients of a round that a rank may know: with masks all, if one of its own
        takes part, and otherwise only its own, because the others may be secret.
        """
        own = [each for each in roster if each in link.clients]
        return roster if own and self.training.wire(self.round).needs_all else own

    def _wait(self, roster: list[int], arrays: Arrays, clock: Wait) -> None:
        """Wait until all ranks that were asked have answered, or the deadline has passed."""
        while True:
            self._poll()
            left = {each for each in roster if each not in self.received}
            waited_for = [
                link
                for link in self.links
                if not link.lost
                and ((link.is_busy and link.asked == self.round) or left.intersection(link.clients))
            ]
            if not waited_for:
                break
            for link in waited_for:  # one that is back from an earlier round
                if not link.is_busy:
                    self._ask(link, roster, arrays)
            passed = clock.passed()
            if self.deadline is not None and passed > self.deadline:
                break
            if self.deadline is None and passed > self.timeout:
                whom = named(sorted(link.rank for link in waited_for))
                raise StallError(
                    f"federated.run(), round {self.round}: rank 0 has waited {self.timeout:g} s "
                    f"for {whom}; pass deadline= to continue without late clients"
                )
            clock.turn()
        if not self.training.clients and all(link.lost for link in self.links):
            lost = self.links[0]
            raise PeerLostError(
                f"federated.run(): no client is left; rank {lost.rank}: {lost.lost}"
            )

    def _poll(self) -> None:
        """Take the messages that have come."""
        for link in self.links:
            for round, client, data in link.poll():
                if round == self.round:
                    self.received[client] = data
                else:
                    self.late.append((client, round))

    def _is_away(self, link: Link | None) -> bool:
        """Return whether a rank cannot be asked now; None stands for rank 0."""
        return link is not None and bool(link.lost or link.is_busy)

    def _end(self, body: NDArray[np.uint8]) -> None:
        """Send the final parameters, and wait until all ranks have them, or for a deadline."""
        for link in self.links:
            link.end(body)
        limit = self.timeout if self.deadline is None else self.deadline
        wait = Wait(timeout=limit)
        while True:
            self._poll()
            left = [link for link in self.links if not (link.lost or link.has_ended)]
            if not left or not wait.turn():
                break
        for link in left:
            link.lose(f"the training has ended, and rank {link.rank} was not there")
        for link in self.links:
            link.free()
