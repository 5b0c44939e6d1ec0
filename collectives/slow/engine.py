"""The engine of a communicator: calls of its ranks, which run as generators over their rounds."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from collectives import coreless
from collectives.algorithms import bits as modes
from collectives.errors import (
    ArgumentError,
    BufferError,
    CollectivesError,
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    PeerLostError,
    StallError,
    StallWarning,
)
from collectives.slow import kernels
from collectives.slow.arguments import (
    ALLGATHER,
    BARRIER,
    BROADCAST,
    COLLECTIVES,
    EXCHANGE,
    NUMBERS,
    Call,
    Parts,
    root_of,
    seconds,
    view_of,
)
from collectives.slow.operations import Operation, gathered, messages, rounds
from collectives.slow.requests import PlannedCall, Request, title
from collectives.slow.stations import (
    CALLED,
    DATA,
    DIED,
    DISAGREED,
    FAILED,
    GAVE_UP,
    LOST,
    WAITED,
    WAITS,
    Context,
    Station,
)
from collectives.slow.vectors import parts_of
from collectives.text import logs
from collectives.text.origin import levels
from collectives.text.words import differing, error_text, grouped, plural, ranks, shown

SLICE = 0.05  # seconds between two checks of a wait
NEARLY = 1.0  # seconds: a rank that will soon have waited for as long raises its own error
KEPT = 64  # calls of other ranks that are kept for comparison


class Plan:
    """The rounds of one rank, as `choice` passes them; programs are for the core."""

    def __init__(self, source: Any, whole: Any = None, split: Any = None, room: int = 0) -> None:
        self.source: Any = source


@dataclass
class Choice:
    """A plan, and the reason for it."""

    plan: Plan
    segment: int
    reason: str = "asked for by the caller"
    ways: int = -1
    bits: str = modes.ANY
    lesson: Any = None


class Options(NamedTuple):
    """The arguments of a call beside its arrays, its operation and its root."""

    algorithm: Any = None
    timeout: Any = None
    prescale: Any = 1.0
    postscale: Any = 1.0
    blocking: bool = True
    bits: Any = None


class Said:
    """A call in words, which ranks compare: its name, the text, and a checksum of its options."""

    name: str
    text: str
    options: int

    def __init__(self, call: Call, choice: Choice) -> None:
        self.name = call.name
        called = modes.called(choice.plan.source.algorithm.name, choice.bits)
        options: list[Any] = [choice.segment, call.prescale, call.postscale]
        if call.user is not None:
            options.append(call.user.commutative)
        if call.parts is not None and not call.ragged:
            options += call.parts.counts.tolist()
        self.text = f"{self.name}()"
        if call.announced in (f"{name}v" for name in COLLECTIVES):
            self.text = f"{self.name}(root={call.root}, its counts)"
        elif not call.announced:
            parts = []
            if call.kind != BARRIER:
                count = call.nbytes // call.x.flat.itemsize
                parts += [f"count={count}"] * (call.parts is None or count > 0)
                parts.append(f"dtype={call.x.dtype}")
            parts += [] if call.said is None else [f"op={call.said}"]
            parts += [f"root={call.root}"] * call.contract.rooted
            self.text = f"{self.name}({', '.join([*parts, f'algorithm={called}'])})"
        self.options = crc32(repr(options).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and (self.text, self.options) == (other.text, other.options)

    def __hash__(self) -> int:
        return hash((self.text, self.options))


class Engine:
    """The calls of one communicator on one rank."""

    station: Station
    context: Context
    choose: Callable[..., Choice]
    alone: Callable[[Any], str]
    rank: int
    size: int
    timeout: float
    warning: float
    bits: str

    def __init__(
        self,
        station: Station,
        context: Context,
        choose: Callable[..., Choice],
        alone: Callable[[Any], str],
        timeout: float,
        warning: float,
        bits: str,
    ) -> None:
        self.station, self.context, self.choose, self.alone = station, context, choose, alone
        self.rank, self.size = context.ranks.index(station.rank), len(context.ranks)
        self.timeout, self.warning, self.bits = timeout, warning, bits
        self.broken: str | None = None
        self.agree: Any = None
        self.started: Any = None  # None, or a function that gets each request
        self.compares_messages: bool = True
        self._choices: dict[Any, Choice] = {}
        self._lock = threading.RLock()
        self._number = 0

    def __enter__(self) -> Engine:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    # -- calls ---------------------------------------------------------------------------------

    def call(
        self, kind: int, x: Any, out: Any, op: Any, root: Any, *given: Any, **named: Any
    ) -> Any:
        """Run a collective with `Options`; return its result, or a Request."""
        self.check_usable()
        return self.run(kind, x, out, op, root, Options(*given, **named))

    def barrier(self, algorithm: Any, timeout: float | None) -> None:
        """Run a barrier."""
        self.call(BARRIER, None, None, None, 0, algorithm, timeout)

    def vector(
        self,
        kind: int,
        x: Any,
        out: Any,
        counts: Any,
        received: Any,
        displs: Any,
        places: Any,
        algorithm: Any = None,
        timeout: Any = None,
        root: Any = 0,
        op: Any = None,
        *given: Any,
        **named: Any,
    ) -> Any:
        """Run the vector form of a collective with the caller's counts and displacements."""
        with self:
            self.check_usable()
            parts = parts_of(self, kind, x, out, root, counts, received, displs, places, timeout)
            options = Options(algorithm, timeout, *given, **named)
            return self.run(kind, x, out, op, root, options, parts)

    def call_vector(self, kind: int, x: Any, out: Any, op: Any, root: Any, *given: Any) -> Any:
        """Run the vector form of a collective whose counts all ranks know."""
        self.check_usable()
        algorithm, bits, timeout, prescale, postscale, blocking, parts = given
        options = Options(algorithm, timeout, prescale, postscale, blocking, bits)
        return self.run(kind, x, out, op, root, options, parts)

    def announce(self, making: str, record: Any, out: Any, timeout: Any = None) -> None:
        """Announce a call of another kind to all ranks. Collective."""
        self.check_usable()
        options = Options(timeout=timeout)
        self.run(ALLGATHER, record, out, None, 0, options, announced=making)

    def tell(self, name: str, counts: Any, root: int, timeout: Any) -> None:
        """Tell all ranks the counts of the root for a vector form. Collective."""
        options = Options(timeout=timeout)
        self.run(BROADCAST, counts, counts, None, root, options, announced=name)

    def plan(self, kind: int, x: Any, out: Any, *given: Any) -> PlannedCall:
        """Return a collective with its arguments checked, and memory for the result."""
        self.check_usable()
        op, root, algorithm, bits, prescale, postscale = given
        call = Call(self, kind)
        call.is_planned = True
        options = Options(algorithm, None, prescale, postscale, True, bits)
        choice = self._take(call, x, out, op, root, options)
        result = None if kind == BARRIER else call.result
        return PlannedCall(self, title(choice.plan.source), (kind, x, result, *given))

    def inspect(self, kind: int, x: Any, out: Any, *given: Any) -> None:
        """Check a call, which is not run. Local."""
        op, root, algorithm, bits, prescale, postscale = given
        options = Options(algorithm, None, prescale, postscale, True, bits)
        self._take(Call(self, kind), x, out, op, root, options)

    def run(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        options: Options,
        parts: Parts | None = None,
        announced: str = "",
    ) -> Any:
        """Check a call, and run it."""
        call = Call(self, kind, parts, announced)
        limit = None if options.timeout is None else seconds(options.timeout)
        choice = self._take(call, x, out, op, root, options)
        source = choice.plan.source
        name = f"{announced}(): {title(source)}" if announced else title(source)
        said = Said(call, choice)
        with self:
            self.check_usable()
            self._check_given_up("begins a call")
            operation = Operation(self, name, self._number, said)
            for rank in range(self.size):
                self._calls_of(rank).pop(self._number - KEPT, None)
                self._post(rank, CALLED, self._number, said)
            self._number += 1
            operation.start(rounds(self, call, source, operation))
            after = [call.finish]
            if parts is not None and parts.after is not None:
                after.insert(0, parts.after)
            request = Request(self, choice.plan, (), operation, after)
            if options.blocking:
                return request.wait(limit)
        return request.begun()

    def exchange(
        self,
        choice: Choice,
        x: Any,
        out: Any,
        tag: int,
        timeout: float | None,
        blocking: bool,
        cut: Any,
        result: Any = None,
        then: Any = None,
    ) -> Any:
        """Send `x`, receive `out`, or do both. The result is `out`, or `result`."""
        self.check_usable()
        limit = None if timeout is None else seconds(timeout)
        call = Call(self, EXCHANGE)
        sent = None if x is None else view_of(x, "x", False, NUMBERS)
        place = None if out is None else call.view_of_out(out, NUMBERS)
        if sent is not None and place is not None:
            if sent.dtype != place.dtype:
                raise BufferError(f"out is {place.dtype} and x is {sent.dtype}; they must be equal")
            if sent.overlaps(place):
                raise BufferError("out overlaps x; pass arrays that share no memory")
        self._check_given_up("begins a call")
        call.result = result if out is None else out
        source = choice.plan.source
        operation = Operation(self, title(source), ("message", tag), None)
        operation.start(messages(self, source, sent, place, operation))
        request = Request(self, choice.plan, (), operation, [call.finish])
        return request.wait(limit) if blocking else request.begun()

    def _take(self, call: Call, x: Any, out: Any, op: Any, root: Any, options: Options) -> Choice:
        """Check the arguments of a call; return its plan."""
        name = op.name if isinstance(op, kernels.Reduction) else op
        if isinstance(name, str) and name.upper() == "SUM_REPRODUCIBLE" and call.contract.reduces:
            raise coreless.error("SUM_REPRODUCIBLE")
        call.take(x, out, op, root, options.prescale, options.postscale)
        algorithm = options.algorithm
        if algorithm is not None and not isinstance(algorithm, str):
            raise ArgumentError(f"algorithm is {shown(algorithm)}, and must be a name or None")
        bits = self.bits if options.bits is None else modes.checked(options.bits)
        if call.user is not None and bits != modes.ANY:
            raise ArgumentError(
                f"bits is {modes.SIZE!r}, and op is a function, whose results may depend on the "
                f"length of the pieces that it is called with, in {call.name} by every algorithm; "
                f"pass an operation of the library, or bits={modes.ANY!r}"
            )
        ordered = call.user is not None and not call.user.commutative
        key = call.kind, call.root, call.nbytes.bit_length(), ordered, call.ragged, algorithm, bits
        found = self._choices.get(key)  # another rank that is a thread may have them forgotten
        if found is None:
            found = self._choices[key] = self.choose(
                COLLECTIVES[call.kind],
                algorithm,
                bits,
                call.nbytes,
                call.root,
                ordered,
                call.parts is not None,
                call.ragged,
                False,
            )
        return found

    def check_root(self, root: Any) -> int:
        """Return the rank that `root` names. Local."""
        return root_of(root, self.size, self.alone)

    def forget_choices(self) -> None:
        """Ask `choose` again from now on."""
        self._choices.clear()

    def gather(self, call: str, obj: Any) -> list[Any]:
        """Return the object of each rank, for a `call` that makes the communicator. Collective."""
        operation, every = Operation(self, call, call, None), [obj] * self.size
        operation.start(gathered(self, operation, every))
        self.wait(operation, None)
        return every

    # -- the other ranks -----------------------------------------------------------------------

    def _post(self, rank: int, kind: str, key: object, payload: object) -> None:
        """Send a frame to a rank."""
        source = self.station.rank
        self.station.post(self.context.ranks[rank], self.context.id, kind, source, key, payload)

    def send(self, rank: int, operation: Operation, said: object, data: Any) -> None:
        """Send the data of an operation to a rank. Local."""
        self._post(rank, DATA, operation.key, (said, data))

    def check_usable(self) -> None:
        """Raise CommunicatorError if the communicator is broken or freed. Local."""
        if self.broken is not None:
            raise CommunicatorError(self.broken)

    def give_up(self, text: str, error: BaseException | None = None, why: str = "") -> None:
        """Make the other ranks raise an error with a text. Local."""
        if not why:
            why = WAITED if isinstance(error, StallError) else FAILED
            why = LOST if isinstance(error, PeerLostError) else why
        for rank in range(self.size):
            if rank != self.rank:
                self._post(rank, GAVE_UP, why, text)

    def abandon(self, error: BaseException, how: str) -> None:
        """Break the communicator because of an error, and tell the other ranks. Local."""
        if self.broken is not None:
            return
        self.broken = f"the communicator is broken: rank {self.rank} {how}"
        text = error_text(error)
        if not isinstance(error, Exception):
            text = f"it {how}"
        elif isinstance(error, (PeerLostError, MismatchError)):
            text = str(error)
        logs.note("ERROR", text)
        self.give_up(text, error, DISAGREED if isinstance(error, MismatchError) else "")

    def _check_given_up(self, doing: str, is_nearly_late: bool = False) -> None:
        """Raise an error if another rank has given up."""
        every = (self.station.given_up.get(each) for each in (self.context.id, None))
        found = next((each for each in every if each and each[0] in self.context.ranks), None)
        if found is None or (is_nearly_late and found[1] == WAITED):
            return
        source, why, text = found
        rank = self.context.ranks.index(source)
        if self.broken is None:
            self.broken = f"the communicator is broken: rank {rank} failed or gave up before"
        if why == DISAGREED:
            raise MismatchError(text)
        if why == LOST:
            raise PeerLostError(f"rank {rank} says: {text}")
        raise PeerAbortedError(f"rank {rank} gave up: {text}")

    def _calls_of(self, rank: int) -> dict[int, Said]:
        """Return the calls of a rank, by number."""
        return self.station.calls[self.context.id, self.context.ranks[rank]]

    def check_calls(self, operation: Operation) -> None:
        """Raise MismatchError if another rank has made another call with this number."""
        number = operation.number
        if number is None:
            return
        for rank in range(self.size):
            theirs = self._calls_of(rank).get(number)
            if theirs is not None and theirs != operation.said:
                raise MismatchError(self._disagreement(number))

    def _disagreement(self, number: int) -> str:
        """Return the calls of all ranks in words, after up to two seconds for them."""
        limit = time.monotonic() + 2
        every: list[Said | None] = [None]
        while None in every:
            seen = self.station.number
            every = [self._calls_of(rank).get(number) for rank in range(self.size)]
            if time.monotonic() > limit:
                break
            if None in every:
                self.station.wait(seen, SLICE)
        groups = grouped(enumerate(every))
        texts = [each.text for each in groups if each is not None]
        told = []
        for each, mask in groups.items():
            text = "has not reached it"
            if each is not None:
                text = f"called {each.text}"
                if texts.count(each.text) > 1:
                    text += f" with options {each.options:08x}"
            told.append(f"{ranks(mask)} {text}")
        question = differing(each.name for each in groups if each is not None)
        return (
            f"the ranks do not agree on call {number + 1} of the communicator: {'; '.join(told)}"
            f"{question}"
        )

    def wait(self, operation: Operation, timeout: float | None) -> None:
        """Wait for an operation; raise its error, or another that ends the wait."""
        began = time.monotonic()
        limit = self.timeout if timeout is None else timeout
        try:
            while True:
                seen = self.station.number
                if operation.advance():
                    break
                self.station.advance()
                try:
                    self.look(operation, time.monotonic() - began, limit)
                except CollectivesError as error:
                    how = "stalled in" if isinstance(error, StallError) else "failed in"
                    operation.fail(error, how)
                    break
                self.station.wait(seen, min(SLICE, limit))
            if operation.shows_wait and operation.error is None:  # else the others shall see it
                self._show_wait(operation, "", self.rank)
        except BaseException as error:  # also a warning that is an error
            operation.fail(error, "was interrupted in")
            raise
        if operation.error is not None:
            raise operation.error

    def look(self, operation: Operation, waited: float, limit: float) -> None:
        """Raise an error if an operation cannot complete, or has waited too long; warn once."""
        self.check_calls(operation)
        awaited = operation.awaits
        is_long = waited >= min(NEARLY, limit / 2)
        if is_long and operation.number is None and awaited is not None:
            self._show_wait(operation, operation.name, awaited)
        if waited > limit:
            raise StallError(
                f"{operation.title}: rank {self.rank} timed out after {limit:g} s: "
                f"{self._situation(operation)}"
            )
        self._check_peers(operation)
        self._check_given_up("waits for it", waited + NEARLY > limit)
        is_due = waited > self.warning or (waited > NEARLY and self._circle(operation) is not None)
        if is_due and not operation.has_warned:
            operation.has_warned = True
            text = (
                f"{operation.title}: rank {self.rank} has waited {waited:.{int(waited < 1)}f} s: "
                f"{self._situation(operation)}"
            )
            logs.note("WARNING", text)
            warnings.warn(text, StallWarning, stacklevel=levels())

    def _show_wait(self, operation: Operation, name: str, awaited: int) -> None:
        """Show all ranks the wait for a message in a call `name`; without one, it is over."""
        if operation.shows_wait != bool(name):
            operation.shows_wait = bool(name)
            for rank in range(self.size):
                self._post(rank, WAITS, name, awaited)

    def _circle(self, operation: Operation) -> str | None:
        """Return the waits in a circle, in words, if an operation waits for a rank that waits for a
        message of this one.
        """
        if operation.awaits is None or len(self.station.live) > 1:
            return None
        rank = operation.awaits
        told = [f"rank {self.rank} waits in {operation.name} for rank {rank}"]
        if rank == self.rank and operation.number is None:
            return f"deadlock: {told[0]}"
        while len(told) <= self.size:
            name, awaited = self.station.waits.get(
                (self.context.id, self.context.ranks[rank]), ("", 0)
            )
            if not name:
                return None
            told.append(f"rank {rank} waits in {name} for rank {awaited}")
            rank = awaited
            if rank == self.rank:
                return f"deadlock: {', and '.join(told)}"
        return None

    def _check_peers(self, operation: Operation) -> None:
        """Raise PeerLostError if a rank has died, or has left and is waited for."""
        for rank, member in enumerate(self.context.ranks):
            if member not in self.station.ended:
                continue
            how, process = self.station.ended[member]
            if operation.advance() or (how != DIED and rank != operation.awaits):
                continue
            self._check_given_up("waits for it")
            words = f"has {how} while rank {self.rank} waits"
            number = operation.number
            if how != DIED and number is not None and number not in self._calls_of(rank):
                words = (
                    f"has left and never called this {operation.said.name}: is the call under an "
                    f"if? Rank {self.rank} waits"
                )
            raise PeerLostError(
                f"{operation.title}: rank {rank} (process {process}) {words}: {operation.waiting()}"
            )

    def _situation(self, operation: Operation) -> str:
        """Return the state of a wait in words."""
        number, text = operation.number, operation.waiting()
        circle = self._circle(operation)
        if number is None and circle is not None:
            return f"{circle}; {text}"
        if number is None:
            return f"{text} ({self._doing(operation.awaits or 0)})"
        told = "; ".join(map(self._doing, range(self.size)))
        text += f" (call {number + 1}; {told})"
        if circle is not None:
            return f"{circle}; {text}"
        late = [max(self._calls_of(rank), default=-1) < number for rank in range(self.size)]
        mask = sum(1 << rank for rank, is_late in enumerate(late) if is_late)
        if mask:
            text += (
                f"; {ranks(mask)} {plural(sum(late), 'has', 'have')} not called this "
                f"{operation.said.name} yet: is the call under an if?"
            )
        return text

    def _doing(self, rank: int) -> str:
        """Return the current call of a rank in words."""
        calls = self._calls_of(rank)
        name, awaited = self.station.waits.get((self.context.id, self.context.ranks[rank]), ("", 0))
        if self.context.ranks[rank] in self.station.ended:
            return f"rank {rank} has ended"
        if name:
            return f"rank {rank} waits in {name} for rank {awaited}"
        if not calls:
            return f"rank {rank} has called nothing"
        return f"rank {rank} has begun call {max(calls) + 1}, {calls[max(calls)].text}"
