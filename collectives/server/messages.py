"""Servers and workers without common memory: parameters and gradients as messages, in chunks.

A worker sends heads (what it wants) and the chunks of its gradients, with one tag each. A server
looks for heads of anybody, receives what they announce, and answers each request for parameters or
for a piece of a batch with a reply; chunks of parameters follow. The tags of answers depend on the
server, so that those of several servers do not mix.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from collectives.errors import CollectivesError
from collectives.process.meeting import Meeting
from collectives.server.transport import (
    FAILURE_BYTES,
    Bytes,
    Claim,
    Event,
    Left,
    Push,
    Wait,
    failure_of,
    failure_text,
)
from collectives.text.words import from_record, to_record

CHUNK = 1 << 20  # bytes of a message
IN_FLIGHT = 2  # gradients that a worker has sent and may still be on their way

HEAD = struct.Struct("qqqqd")  # what it is, three numbers, a weight
REPLY = struct.Struct("qqq")
REPLY_BYTES = REPLY.size + FAILURE_BYTES
PUSH, PULL, CLAIM, LEAVE, COUNT = range(5)
DONE, NOTHING, FAILED = range(3)

HEADS, GRADIENTS = 1, 2  # tags from workers


def _tags(server: int) -> tuple[int, int]:
    """Return the tags of replies and of parameters of a server."""
    return 3 + 2 * server, 4 + 2 * server


def _chunks(memory: Bytes) -> list[Bytes]:
    return [memory[at : at + CHUNK] for at in range(0, memory.size, CHUNK)]


class _Sends:
    """Messages that were started to be sent, and their memory."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.left: deque[tuple[Any, Any]] = deque()

    def start(self, data: Any, dest: int, tag: int) -> None:
        """Start to send bytes. Local."""
        self.left.append((self.meeting.start_send(data, dest, tag), data))

    def are_over(self) -> bool:
        """Return whether all are sent. Local."""
        for _ in range(len(self.left)):
            request, data = self.left.popleft()
            if not self.meeting.has_ended(request):
                self.left.append((request, data))
        return not self.left


class MessageLink:
    """The connection of a worker to a server on another host."""

    def __init__(
        self,
        meeting: Meeting,
        server: int,
        rank: int,
        worker: int,
        nbytes: tuple[int, int],
        wait: Wait,
    ) -> None:
        self._meeting, self._rank, self._worker, self._wait = meeting, rank, worker, wait
        self._reply_tag, self._values_tag = _tags(server)
        self._values = np.empty(nbytes[0], np.uint8)
        self._gradients = [np.empty(nbytes[1], np.uint8) for _ in range(IN_FLIGHT)]
        self._sends = [_Sends(meeting) for _ in range(IN_FLIGHT)]
        self._heads = _Sends(meeting)
        self._pushed = 0
        self._unanswered = 0  # gradients since the server has last answered
        self._reply: tuple[Any, bytearray] | None = None
        self._failure: CollectivesError | None = None

    def push(self, numbers: tuple[int, int, float], write: Callable[[Bytes], object]) -> None:
        """Send a gradient, with `numbers`, that `write` writes. Local."""
        place = self._pushed % IN_FLIGHT
        sends, memory = self._sends[place], self._gradients[place]
        if self._unanswered == IN_FLIGHT:  # MPI may have sent them without the server
            self._ask(COUNT)
            self._answer("take a gradient")
        self._wait(sends.are_over, "receive a gradient")
        write(memory)
        self._send(PUSH, numbers[0], numbers[1], weight=numbers[2])
        for chunk in _chunks(memory):
            sends.start(chunk, self._rank, GRADIENTS)
        self._pushed += 1
        self._unanswered += 1

    def _send(self, kind: int, *numbers: int, weight: float = 0.0) -> None:
        first, second = (*numbers, 0, 0)[:2]
        self._heads.are_over()  # forgets those that are
        head = bytearray(HEAD.pack(kind, self._worker, first, second, weight))
        self._heads.start(head, self._rank, HEADS)
        for each in self._sends:
            each.are_over()  # MPI goes on inside of its calls

    def _ask(self, kind: int, *numbers: int) -> None:
        """Send a message that is answered by a reply."""
        if self._reply is None:
            reply = bytearray(REPLY_BYTES)
            self._reply = self._meeting.start_recv(reply, self._rank, self._reply_tag), reply
        self._send(kind, *numbers)

    def _answer(self, what: str) -> tuple[int, int, int]:
        self._wait(self._has_answer, what)
        assert self._reply is not None
        reply = self._reply[1]
        self._reply = None
        self._unanswered = 0
        answer: tuple[int, int, int] = REPLY.unpack_from(reply)
        return answer

    def _has_answer(self) -> bool:
        """Return whether a reply has come that is no failure."""
        if self._reply is None or self._failure is not None:
            return False
        request, reply = self._reply
        if not self._meeting.has_ended(request):
            return False
        if REPLY.unpack_from(reply)[0] == FAILED:
            self._failure = failure_of(bytes(reply[REPLY.size :]))
            return False
        return True

    def ask(self, version: int, slowest: int) -> None:
        """Ask for parameters of a `version`, when the `slowest` worker is so far. Local."""
        self._ask(PULL, version, slowest)

    def arriving(self) -> Generator[tuple[int, int, Bytes], None, None]:
        """Yield the parameters as they come, the most urgent first. Local."""
        _, version, _ = self._answer("apply the gradients of the other workers")
        requests = deque(
            (self._meeting.start_recv(chunk, self._rank, self._values_tag), chunk.nbytes)
            for chunk in _chunks(self._values)
        )
        have = 0
        try:
            while requests:
                request, nbytes = requests[0]
                self._wait(partial(self._meeting.has_ended, request), "send parameters")
                requests.popleft()
                have += nbytes
                yield version, have, self._values
        except GeneratorExit:
            for request, _ in requests:  # the memory is needed again
                self._wait(partial(self._meeting.has_ended, request), "send parameters")
            raise

    def claim(self, step: int, count: int) -> tuple[int, int] | None:
        """Return a piece of a batch of `count` examples, in a `step`. Local."""
        self._ask(CLAIM, step, count)
        what, first, last = self._answer("give a piece of the batch")
        return (first, last) if what == DONE else None

    def leave(self, pulls: int, pulled_bytes: int, why: str) -> None:
        """Say that this worker has finished, or `why` it gives up; `pulls`, `pulled_bytes` count.
        Local.
        """
        self._send(LEAVE, pulls, pulled_bytes)
        self._heads.start(bytearray(to_record(why, FAILURE_BYTES)), self._rank, GRADIENTS)
        if not why:
            for each in (*self._sends, self._heads):
                self._wait(each.are_over, "receive the last gradient")

    def failure(self) -> CollectivesError | None:
        """Return the error that the server has failed with, if it has. Local."""
        if self._reply is None and self._meeting.sender(self._reply_tag) is not None:
            reply = bytearray(REPLY_BYTES)
            self._reply = self._meeting.start_recv(reply, self._rank, self._reply_tag), reply
        self._has_answer()
        return self._failure


class _Incoming:
    """A gradient that a worker has announced, and that has not arrived completely."""

    def __init__(self, meeting: Meeting, rank: int, memory: Any) -> None:
        self.meeting, self.memory = meeting, memory
        self.requests = deque(
            meeting.start_recv(chunk, rank, GRADIENTS) for chunk in _chunks(memory)
        )

    def is_there(self) -> bool:
        while self.requests and self.meeting.has_ended(self.requests[0]):
            self.requests.popleft()
        return not self.requests


class MessageEndpoint:
    """The connection of a server to workers of other hosts."""

    def __init__(
        self, meeting: Meeting, server: int, workers: Mapping[int, int], gradient: int
    ) -> None:
        self._meeting, self._ranks, self._gradient = meeting, workers, gradient
        self._reply_tag, self._values_tag = _tags(server)
        self._sends = _Sends(meeting)
        self._heads: deque[tuple[int, bytearray, Any]] = deque()  # announced, perhaps not here
        self._spare: list[Bytes] = []
        self._incoming: dict[int, deque[tuple[tuple[Any, ...], _Incoming]]]
        self._incoming = {worker: deque() for worker in workers}
        self._pulls: dict[int, tuple[int, int]] = {}
        self._published = 0, 0
        self._values: Any = None
        self._snapshot: Bytes | None = None

    def events(self) -> Iterable[Event]:
        """Return the messages that have come. Local."""
        self._sends.are_over()
        while (rank := self._meeting.sender(HEADS)) is not None:
            head = bytearray(HEAD.size)
            self._heads.append((rank, head, self._meeting.start_recv(head, rank, HEADS)))
        while self._heads and self._meeting.has_ended(self._heads[0][2]):
            rank, head, _ = self._heads.popleft()
            numbers = HEAD.unpack(head)
            kind, worker, first, second, _ = numbers
            if kind == CLAIM:
                yield Claim(worker, first, second, partial(self._give, rank))
            elif kind == PULL:
                self._pulls[worker] = first, second
                self._answer_pulls()
            else:
                memory = self._memory(kind)
                self._incoming[worker].append((numbers, _Incoming(self._meeting, rank, memory)))
        for incoming in self._incoming.values():
            while incoming and incoming[0][1].is_there():
                numbers, each = incoming.popleft()
                if numbers[0] == COUNT:
                    self._reply(self._ranks[numbers[1]], DONE, 0, 0)
                else:
                    yield self._event(numbers, each.memory)

    def _memory(self, kind: int) -> Bytes:
        """Return memory for the message after a head."""
        if kind == PUSH:
            return self._spare.pop() if self._spare else np.empty(self._gradient, np.uint8)
        return np.empty(FAILURE_BYTES if kind == LEAVE else 0, np.uint8)

    def _event(self, numbers: tuple[Any, ...], memory: Bytes) -> Event:
        kind, worker, first, second, weight = numbers
        if kind == LEAVE:
            self._pulls.pop(worker, None)
            return Left(worker, first, second, from_record(memory.tobytes()))
        return Push(worker, first, second, weight, memory, lambda: self._spare.append(memory))

    def _give(self, rank: int, piece: tuple[int, int] | None) -> None:
        self._reply(rank, DONE if piece else NOTHING, *(piece or (0, 0)))

    def _reply(self, rank: int, what: int, first: int, second: int, text: bytes = b"") -> None:
        reply = bytearray(REPLY.pack(what, first, second) + text.ljust(FAILURE_BYTES, b"\0"))
        self._sends.start(reply, rank, self._reply_tag)

    def _answer_pulls(self) -> None:
        """Send parameters to those who wait for these."""
        version, slowest = self._published
        for worker, wanted in list(self._pulls.items()):
            if version < wanted[0] or slowest < wanted[1] or self._values is None:
                continue
            del self._pulls[worker]
            if self._snapshot is None:
                self._snapshot = self._values.copy()
            self._reply(self._ranks[worker], DONE, version, 0)
            for chunk in _chunks(self._snapshot):
                self._sends.start(chunk, self._ranks[worker], self._values_tag)

    def publish(self, version: int, slowest: int, values: Any, has_changed: bool) -> None:
        """Let workers have the `version` of the parameters with some `values`, and know how far the
        `slowest` is; forget the copy of others if it `has_changed`. Local.
        """
        if has_changed:
            self._snapshot = None
        self._published, self._values = (version, slowest), values
        self._answer_pulls()

    def fail(self, error: CollectivesError) -> None:
        """Have the workers raise an `error`. Local."""
        for rank in self._ranks.values():
            self._reply(rank, FAILED, 0, 0, failure_text(error))
        self._sends.are_over()

    def is_quiet(self) -> bool:
        """Return whether nothing is on its way to a worker. Local."""
        return self._sends.are_over()
