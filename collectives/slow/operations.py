"""Operations: the rounds of calls in flight, which run as far as messages have come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.errors import ArgumentError, MismatchError
from collectives.plans.rounds import IN, OUT, Run
from collectives.slow import kernels
from collectives.slow.kernels import Array
from collectives.text.words import shown

if TYPE_CHECKING:
    from collectives.plans.schedule import Plan as Rounds
    from collectives.slow.arguments import Call, View

Steps = Generator[int, Any, None]  # it yields the rank whose next message it needs


class Operation:
    """The rounds of a call in flight."""

    engine: Any
    title: str
    key: object
    said: Any

    def __init__(self, engine: Any, title: str, key: object, said: Any) -> None:
        self.engine, self.title, self.key, self.said = engine, title, key, said
        self.number: int | None = key if isinstance(key, int) else None  # of a collective
        self.steps: Steps
        self.awaits: int | None = None
        self.round: int = 0
        self.is_done: bool = False
        self.has_warned: bool = False
        self.shows_wait: bool = False  # to the other ranks
        self.error: BaseException | None = None
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """The collective, or the call of a message."""
        return self.title.rpartition("(): ")[2].partition(" ")[0]

    def start(self, steps: Steps) -> None:
        """Run the first rounds. Local."""
        self.steps = steps
        self.engine.station.live.append(self)
        self.advance(None)

    def advance(self, *first: None) -> bool:
        """Run the rounds as far as messages have come; return whether all are complete. Local."""
        engine = self.engine
        with self._lock:
            letter = None
            while not self.is_done:
                if not first:
                    assert self.awaits is not None
                    source = engine.context.ranks[self.awaits]
                    letter = engine.station.take(engine.context.id, source, self.key)
                    if letter is None:
                        return False
                first = ()
                try:
                    self.awaits = self.steps.send(letter)
                except StopIteration:
                    self._end()
                except BaseException as error:
                    self.fail(error, "failed in")
        return True

    def fail(self, error: BaseException, how: str) -> None:
        """Give the operation up, and tell the other ranks. Local."""
        with self._lock:
            if self.is_done:
                return
            self.error = error
            self._end()
        self.engine.abandon(error, f"{how} {self.title}")

    def _end(self) -> None:
        self.is_done, self.awaits = True, None
        if self in self.engine.station.live:
            self.engine.station.live.remove(self)

    def waiting(self) -> str:
        """Return the round in which it waits, and for whom, in words. Local."""
        return f"round {self.round + 1}, segment 1 of 1 waits for rank {self.awaits} to send"


class _Memory:
    """The blocks of one call on this rank, by space and number."""

    def __init__(self, call: Call, plan: Rounds) -> None:
        self._call, self._plan, self._dtype = call, plan, call.x.flat.dtype
        self._blocks: dict[tuple[int, int], Array] = {}
        x = call.x.flat
        if call.prescale != 1.0 and x.size:
            x = kernels.scaled(x, call.x.dtype, call.prescale)
        self._lay_out(IN, x, plan.held())
        if call.out is not None:
            self._lay_out(OUT, call.out.flat, plan.wanted())

    def _lay_out(self, space: int, flat: Array, blocks: Sequence[int]) -> None:
        edges = pairwise(accumulate(map(self._length, blocks), initial=0))
        for block, (start, end) in zip(blocks, edges, strict=True):
            self._blocks[space, block] = flat[start:end]

    def _length(self, block: int) -> int:
        part, k = divmod(block, self._plan.cut)
        size = self._call.size_of(part)
        return size * (k + 1) // self._plan.cut - size * k // self._plan.cut

    def read(self, run: Run) -> list[Array]:
        """Return the blocks of a run."""
        return [self._blocks[run.space, run.first + k] for k in range(run.length)]

    def write(self, run: Run, values: Sequence[Array]) -> None:
        """Store the blocks of a run."""
        for k, value in enumerate(values):
            if run.space == OUT:
                self._blocks[OUT, run.first + k][...] = value
            else:
                self._blocks[run.space, run.first + k] = value

    def bytes_of(self, run: Run) -> bytes:
        return b"".join(each.tobytes() for each in self.read(run))

    def cut(self, data: bytes, home: Run) -> list[Array] | int:
        """Return the blocks of a message, or the number of bytes that were due."""
        lengths = [self._length(block) for block in self._plan.numbers(home)]
        if len(data) != sum(lengths) * self._dtype.itemsize:
            return sum(lengths) * self._dtype.itemsize
        row = np.frombuffer(data, self._dtype)
        return [row[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


def rounds(engine: Any, call: Call, plan: Rounds, operation: Operation) -> Steps:
    """Run the rounds of a collective."""
    memory = _Memory(call, plan)
    fold = call.fold if call.user is None else _user_fold(call.user.function)
    for number, each in enumerate(plan.rounds):
        operation.round = number
        for message in each.messages:
            if message.send:
                engine.send(message.peer, operation, operation.said, memory.bytes_of(message.run))
        for message in each.messages:
            if not message.send:
                said, data = yield message.peer
                values = memory.cut(data, message.home)
                if said != operation.said:
                    engine.check_calls(operation)
                if isinstance(values, int):
                    raise MismatchError(
                        f"{operation.title}: rank {engine.rank}, round {number + 1}: got "
                        f"{len(data)} bytes from rank {message.peer} where {values} were due; the "
                        f"ranks did not call the same collective with the same count and dtype "
                        f"(COLLECTIVES_VALIDATE=1 says who)"
                    )
                memory.write(message.run, values)
        for step in each.steps:
            values = [value.copy() for value in memory.read(step.left)]
            if step.right is not None:
                assert fold is not None
                values = list(map(fold, values, memory.read(step.right)))
            memory.write(step.dst, values)
    if call.factor != 1.0 and call.out is not None and call.out.size:
        call.out.flat[...] = kernels.scaled(call.out.flat, call.out.dtype, call.factor)


def gathered(engine: Any, operation: Operation, every: list[Any]) -> Steps:
    """Replace the objects of the other ranks by those that they send."""
    others = [rank for rank in range(engine.size) if rank != engine.rank]
    for rank in others:
        engine.send(rank, operation, None, every[rank])
    for rank in others:
        _, every[rank] = yield rank


def _user_fold(function: Callable[..., Any]) -> kernels.Fold:
    """Return a fold by the function of a program."""

    def fold(left: Array, right: Array) -> Array:
        incoming, accumulator = left.copy(), right.copy()
        incoming.flags.writeable = False
        result = function(incoming, accumulator)
        if isinstance(result, np.ndarray) and not np.shares_memory(result, accumulator):
            raise ArgumentError(
                f"{shown(function)} returned a new array, and must write the result into its "
                f"second argument: y[:] = x + y"
            )
        return accumulator

    return fold


def messages(
    engine: Any, plan: Rounds, x: View | None, out: View | None, operation: Operation
) -> Steps:
    """Send a message of the program, receive one, or do both."""
    (only,) = plan.rounds
    for message in only.messages:
        if message.send and x is not None:
            engine.send(message.peer, operation, x.dtype, x.flat.tobytes())
    for message in only.messages:
        if message.send or out is None:
            continue
        dtype, data = yield message.peer
        peer, rank, wanted = message.peer, engine.rank, out.flat.nbytes
        where = f"{operation.title}: rank {rank}, round 1"
        if dtype != out.dtype:
            raise MismatchError(
                f"{where}: rank {peer} sends {dtype} ({len(data)} bytes), and this rank receives "
                f"{out.dtype} ({wanted} bytes); pass arrays of one dtype, or views of their bytes"
            )
        if len(data) != wanted:
            raise MismatchError(
                f"{where}: out is too {'short' if len(data) > wanted else 'long'}: rank {peer} "
                f"sends {len(data)} bytes, and rank {rank} receives {wanted}; both must pass "
                f"arrays of one count and dtype"
            )
        out.flat[...] = np.frombuffer(data, out.flat.dtype)
