"""The messages between rank 0 and another rank, on a communicator of these two.

So a rank that is slow, stopped or dead affects only its own messages. Each message is a header of
four numbers, and most have arrays after it. Rank 0 asks a rank again only after its answer:

::

    rank 0                                       another rank
    ROUND number, clients, new parameters     -> trains those of the clients that are its
                                              <- UPDATE number, client, update   (for each of them)
    CLOSED number, if it is not done          ->
                                              <- DONE number
    END, parameters                           ->
                                              <- BYE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.communicator import Communicator
from collectives.errors import CollectivesError, PeerAbortedError, PeerLostError, StallError
from collectives.process import living
from collectives.process.waiting import Wait

ROUND, CLOSED, END, UPDATE, DONE, BYE = range(6)
HEADER = 4  # numbers

Bytes = NDArray[np.uint8]


def channels(comm: Communicator) -> dict[int, Communicator]:
    """Return on rank 0 a communicator with each other rank, by the number of that rank; on the
    others only their own, by 0. Collective.
    """
    made = {}
    for other in range(1, comm.size):
        pair = comm.split(0 if comm.rank in (0, other) else None)
        if pair is not None:
            pair._engine.warning = float("inf")  # long waits are usual here
            pair._engine.agree = None
            made[other if comm.rank == 0 else 0] = pair
    return made


def header(*numbers: int) -> NDArray[np.int64]:
    """Return a header. Local."""
    made = np.zeros(HEADER, np.int64)
    made[: len(numbers)] = numbers
    return made


class Link:
    """Rank 0's end: the requests to a rank, and its answers. No method waits."""

    channel: Communicator
    rank: int
    clients: range
    asked: int

    def __init__(
        self, channel: Communicator, rank: int, clients: range, nbytes: Callable[[int], int]
    ) -> None:
        self.channel, self.rank, self.clients = channel, rank, clients
        self.asked = 0  # the last round that it was asked for
        self.knows: int = 0  # the last round whose parameters it was sent
        self.is_busy: bool = False  # whether its answer to the last request is missing
        self.has_ended: bool = False  # whether it has sent its farewell
        self.lost: str = ""  # the reason why it is lost
        self._nbytes = nbytes  # of an update in a round
        self._was_told = False  # that its round is closed
        self._sends: list[Any] = []
        self._receive: Any = None
        self._header = header()
        self._body: Bytes | None = None

    def ask(self, round: int, roster: list[int], since: int, body: Bytes) -> None:
        """Ask for the updates of a round, and send the changes of the parameters since an
        earlier one. Local.
        """
        self.asked, self.is_busy, self._was_told = round, True, False
        self._send(header(ROUND, round, len(roster), since))
        if roster:
            self.knows = round
            self._send(np.array(roster, np.int64))
            self._send(body)
        self._listen()

    def close(self, round: int) -> None:
        """Send that a `round` is over, if the rank was asked and has not answered. Local."""
        if self.is_busy and not self._was_told:
            self._was_told = True
            self._send(header(CLOSED, round))

    def end(self, body: Bytes) -> None:
        """Send that the training is over, and the final parameters, `body`. Local."""
        self._send(header(END))
        self._send(body)
        self._listen()

    def poll(self) -> Iterator[tuple[int, int, Bytes]]:
        """Yield the updates that have come since the last call: round, client and bytes."""
        try:
            self._sends = [each for each in self._sends if not each.test()]
            while self._receive is not None and self._receive.test():
                self._receive = None
                yield from self._take()
        except CollectivesError as error:
            self.lose(self._why(error))

    def lose(self, why: str) -> None:
        """Note that the rank is lost, and `why`; it gets an error if it waits. Local."""
        if self.lost or self.has_ended:
            return
        self.lost = why
        self.is_busy = False
        self._receive = None
        self.channel._give_up(why)

    def free(self) -> None:
        """Free the channel, if all has gone well. Local, and the other rank does the same."""
        if self.has_ended:
            self.channel.free()

    def _take(self) -> Iterator[tuple[int, int, Bytes]]:
        """Take the message that has come, and start to receive the next one."""
        kind, round, client, _ = self._header.tolist()
        if self._body is not None:
            data, self._body = self._body, None
            yield round, client, data
        elif kind == UPDATE:
            self._body = np.empty(self._nbytes(round), np.uint8)
            self._receive = self.channel.irecv(self._body, 1)
            return
        elif kind == DONE:
            self.is_busy = False
        else:
            self.has_ended = True
            return
        self._listen()

    def _send(self, x: NDArray[Any]) -> None:
        if not self.lost:
            try:
                self._sends.append(self.channel.isend(x, 1))
            except CollectivesError as error:
                self.lose(self._why(error))

    def _why(self, error: CollectivesError) -> str:
        """Return the text of an `error`, with the number of the other rank, which is 1 there."""
        if isinstance(error, PeerAbortedError):
            return f"rank {self.rank} gave up: {str(error).partition('gave up: ')[2] or error}"
        members = self.channel._meeting.members
        for each in living.ended(members):
            if members.index(each.rank) == 1:
                return f"rank {self.rank} {each.how}"
        return str(error)

    def _listen(self) -> None:
        if self._receive is None and not self.lost:
            self._receive = self.channel.irecv(self._header, 1)


class Inbox:
    """Another rank's end: the requests of rank 0, and the answers."""

    channel: Communicator

    def __init__(
        self, channel: Communicator, timeout: float, nbytes: Callable[[int, int], int]
    ) -> None:
        self.channel, self._timeout = channel, timeout
        self._header = header()
        self._nbytes = nbytes  # of the changes from one round to another
        self._next = channel.irecv(self._header, 0)

    def rounds(self) -> Iterator[tuple[int, list[int], int, Bytes]]:
        """Yield the number of each round, the clients that take part, as far as this rank has to
        know them, and if there are any, the parameters that have changed since an earlier round.
        Local, but it waits for rank 0.
        """
        while True:
            self._complete(self._next)
            kind, round, many, since = self._header.tolist()
            if kind == END:
                return
            if kind == CLOSED:  # the message DONE has crossed it
                self._next = self.channel.irecv(self._header, 0)
                continue
            roster = np.empty(many, np.int64)
            body = np.empty(self._nbytes(since, round) if many else 0, np.uint8)
            if many:
                self._complete(self.channel.irecv(roster, 0))
                self._complete(self.channel.irecv(body, 0))
            self._next = self.channel.irecv(self._header, 0)
            yield round, roster.tolist(), since, body
            self._answer(header(DONE, round))

    def is_closed(self) -> bool:
        """Return whether rank 0 waits for no more updates of this round. Local."""
        with self._errors():
            closed: bool = self._next.test()
        return closed

    def send(self, round: int, client: int, data: Bytes) -> None:
        """Send the bytes `data`, the update of a `client` in a `round`. Local."""
        self._answer(header(UPDATE, round, client))
        self._answer(data)

    def end(self) -> Bytes:
        """Return the final parameters, and send a farewell. Local, but it waits for rank 0."""
        body = np.empty(self._nbytes(0, 0), np.uint8)
        self._complete(self.channel.irecv(body, 0))
        self._answer(header(BYE))
        self.channel.free()
        return body

    def _answer(self, x: NDArray[Any]) -> None:
        self._complete(self.channel.isend(x, 0))

    def _complete(self, request: Any) -> None:
        """Wait until a message has been sent, or received."""
        wait = Wait(timeout=self._timeout)
        with self._errors():
            while not request.test():
                if not wait.turn():
                    request._look(wait.passed(), self._timeout)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the waiting ranks in errors, because the channel has other numbers."""
        try:
            yield
        except (PeerAbortedError, PeerLostError, StallError) as error:
            raise type(error)(
                f"federated.run(): rank 0, which coordinates, does not answer: {error}"
            ) from error
