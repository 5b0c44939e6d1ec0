"""The submissions that run in the background on one communicator.

All ranks have the same turns: at each turn they compare their submissions (a *round*: one small
allreduce), add those of all ranks to the schedule, take the next ones from it, and start these. The
round of the next turn begins as soon as this one has started its batch, and two batches may be in
flight. So all ranks start the same collectives in the same order, independently of the times of
their submissions, and need no coordinator.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from collectives import _core, reductions
from collectives._core import ALLREDUCE
from collectives.algorithms.bits import ANY
from collectives.arrays import frameworks
from collectives.background.arrivals import Arrivals, waits_for_device, waits_for_ranks
from collectives.background.compressed import compressed
from collectives.background.copies import Copies, failed
from collectives.background.handle import Handle, called, is_main_thread, nameless
from collectives.background.matching import (
    Claim,
    Verdict,
    conclude,
    failures,
    packed,
    unpacked,
)
from collectives.background.schedule import (
    Batch,
    RequestChain,
    Schedule,
    agreed_fusion,
    run_batch,
)
from collectives.background.steps import Steps
from collectives.communicator import Communicator
from collectives.compression import Compressor
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    MismatchError,
    StallError,
    StallWarning,
)
from collectives.process.waiting import Wait, until
from collectives.records import totals
from collectives.text import logs
from collectives.text.words import error_text

FEW, MANY = 4, 256  # slots of a round; few of them fit in one line of shared memory
IN_FLIGHT = 2  # batches
TOLD = 4096  # submissions that a rank describes to the others at a time
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.01  # seconds, after a round without a match
MOMENT = 0.001  # seconds
LOOK = 0.05  # seconds between two checks of deadlines
GRACE = 1.0  # seconds to complete the work when the background stops or the program ends


class Round:
    """The comparison of the ranks' submissions."""

    def __init__(self, comm: Communicator, slots: int) -> None:
        self.window: _core.Window = _core.Window(slots)
        arrays = self.window.mine, self.window.common
        self.task: _core.Task = _core.Task(
            comm._engine, ALLREDUCE, *arrays, reductions.MIN, 0, 1.0, 1.0, None, 0
        )

    def start(self, submitted: Iterable[Handle], joins: bool) -> _core.Request:
        """Start a round; return the request. Collective."""
        self.window.fill(submitted, joins)
        return self.task.start()


class _Members(threading.local):
    """The submissions of a thread in `all_or_none`, with their names; None outside of it."""

    of_thread: list[tuple[Handle, str | None]] | None = None


_members = _Members()


@contextmanager
def all_or_none() -> Iterator[None]:
    """Make the submissions of this thread in the body at its end, or none of them if it raises.
    Local.
    """
    if _members.of_thread is not None:
        yield
        return
    every: list[tuple[Handle, str | None]] = []
    _members.of_thread = every
    try:
        yield
        for handle, name in every:
            if name in handle.group.names:
                handle.group.refuse_name(name)
    except BaseException:
        for handle, _ in every:
            if handle.copies is not None:
                handle.copies.give_up()
        raise
    finally:
        _members.of_thread = None
    for handle, name in every:
        handle.group._enter(handle, name)
    _core.summon()


class Group:
    """The submissions that run in the background on one communicator. Collective."""

    rank: int
    size: int
    control: Communicator
    data: Communicator
    timeout: float
    warning: float
    pause: float
    not_before: float
    tells: int

    def __init__(self, engine: Any, comm: Communicator) -> None:
        self.engine = engine
        self.comm: weakref.ref[Communicator] = weakref.ref(comm, engine.note_dropped)
        self.rank, self.size, self.hosts = comm.rank, comm.size, comm.nodes
        self.control, self.data = comm.dup(bits=ANY), comm.dup()
        totals.leave_out(self.control)  # rounds are no calls of the program
        self.timeout, self.warning = comm.timeout, comm._engine.warning
        for each in (self.control, self.data):
            each._engine.warning = float("inf")  # warnings by situation() have more details
            each._engine.agree = None  # rounds agree
        self.spins: int = comm._engine.spins
        self.schedule: Schedule = Schedule(agreed_fusion(self.control), comm.nodes)
        self.memory = [self.data.empty(self.schedule.fusion, np.uint8) for _ in range(IN_FLIGHT)]
        self.rounds: list[Round] = [Round(self.control, slots) for slots in (FEW, MANY)]
        self.round: Round = self.rounds[0]
        self.arrivals: Arrivals = Arrivals(engine)
        self.submitted: deque[Handle] = deque()  # compared, and not scheduled yet
        self.compared: list[Handle] = []  # in the round under way
        self.unfinished: set[Handle] = set()
        # Of the names and numbers; the garbage collector may submit while it is held.
        self.naming: AbstractContextManager[Any] = threading.RLock()
        self.names: set[str] = set()  # of unfinished submissions
        self.nameless: Counter[str] = Counter()  # submissions without a name, of each kind
        self.negotiation: RequestChain | None = None
        self.batches: deque[RequestChain] = deque()
        self.started: int = 0  # batches
        self.is_turn: bool = False  # whether a round is over, and its batch has not started
        self.is_alone: bool = False  # whether the batch that was last started has several steps
        self.codecs: dict[str, Compressor] = {}  # one for each name
        self.pause, self.not_before, self.tells = SHORTEST_PAUSE, 0.0, TOLD
        self.looked: float = 0.0
        self.warned: float = 0.0
        self.missing: dict[str, list[int]] = {}
        self.nccl: Any = None  # a `torch.nccl.Nccl`, if it takes tensors on CUDA
        self.joins: bool = False
        self.were_joined: set[int] = set()
        self.last_joined: int = -1
        self.refused: str | None = None  # what the others have heard since this rank joined
        self.is_leaving: bool = False  # whether the other ranks do not know the problem yet
        self.is_told: bool = False  # whether all ranks have learned of a problem in one round
        self.error: BaseException | None = None
        self.told: bool = False  # whether the program has been told of the error

    # -- submissions ---------------------------------------------------------------------------

    def submit(
        self,
        kind: int,
        arguments: tuple[Any, Any, Any, Any, Any, Any],
        name: str | None,
        priority: int,
        compression: Any,
        terms: str | None = None,
        copies: Copies | None = None,
        bits: str | None = None,
    ) -> Handle:
        """Add a submission, whose `bits` are those of the communicator if they are None. Local."""
        self.check()
        if compression is None:
            handle = Handle(self.data._engine, kind, *arguments, name, priority, terms, bits)
        else:
            how = priority, compression, terms, bits
            handle = compressed(self.data, self.codecs, kind, arguments, name, *how)
        return self._add(handle, name, copies)

    def submit_steps(
        self, what: Steps, name: str | None, priority: int, copies: Copies | None = None
    ) -> Handle:
        """Add a submission of several collectives. Local."""
        self.check()
        return self._add(self._of_steps(what, name, priority), name, copies)

    def submit_by_nccl(
        self, call: tuple[Any, ...], name: str | None, priority: int
    ) -> Handle | None:
        """Add a submission, or return None if NCCL does not take it. Local."""
        if self.nccl is None:
            return None
        self.check()
        try:
            made = self.nccl.call(*call)
        except CollectivesError:  # of a wrong call
            raise
        except RuntimeError as error:
            self.told = True
            raise self.arrivals.failed(error) from error
        if made is None:
            return None
        handle = self.submit_steps(made.steps, name, priority, made)
        _core.summon()
        return handle

    def _of_steps(self, what: Steps, name: str | None, priority: int) -> Handle:
        # The array is only checked: a sum that is rounded once takes the arrays of a sum.
        op = reductions.SUM if reductions.is_exact(what.op) else what.op
        arguments = what.like, None, op, 0, 1.0, 1.0
        engine = self.data._engine
        handle = Handle(engine, what.kind, *arguments, name, priority, what.text)
        handle.steps = what
        return handle

    def _add(self, handle: Handle, name: str | None, copies: Copies | None) -> Handle:
        """Add a submission to those that wait for their turn, or to those of `all_or_none`."""
        handle.group, handle.copies = self, copies
        if _members.of_thread is None:
            self._enter(handle, name)
        else:
            _members.of_thread.append((handle, name))
        return handle

    def _enter(self, handle: Handle, name: str | None) -> None:
        """Give a submission its key, and let it wait for its turn."""
        copies = handle.copies
        with self.naming:
            if name is None:
                steps = handle.steps
                kind = handle.kind if steps is None else steps.text.partition(" ")[0]
                self.nameless[kind] += 1
                name = nameless(kind, self.nameless[kind])
            elif name in self.names:
                self.refuse_name(name)
            else:
                self.names.add(name)
        handle.key = name
        self.unfinished.add(handle)
        if self.size == 1:
            if copies is not None:
                self._await_device(handle)
            for request in run_batch(Batch([handle]), self.data, None, self._end):
                request.wait()
            return
        self.arrivals.add(handle)
        if self.error is not None:  # since check(); later arrivals are ignored
            self._end([handle], self.error)

    def refuse_name(self, name: str) -> NoReturn:
        """Raise the error of a name that is in use. Local."""
        raise ArgumentError(f"name is {name!r}, and an earlier submission with it is in flight")

    def _await_device(self, handle: Handle) -> None:
        """Wait until the arrays of a submission have come, on the only rank."""
        assert handle.copies is not None
        problem: CollectivesError | None = None
        try:
            if not until(handle.copies.is_there, Wait(timeout=self.timeout)):
                problem = StallError(waits_for_device(self.rank, self.timeout, handle))
        except Exception as error:
            problem = failed(error)
        if problem is not None:
            self._end([handle], problem)
            raise problem

    def check(self) -> None:
        """Raise an error if nothing can be submitted any more. Local."""
        if self.error is not None:
            self.told = True
            raise CommunicatorError(
                f"nothing more can be submitted: {error_text(self.error)}"
            ) from self.error
        if self.joins:
            raise CommunicatorError("this rank has joined, and waits until all others have")

    @property
    def is_busy(self) -> bool:
        """True if anything is not complete."""
        is_in_flight = self.unfinished or self.schedule or self.batches
        return bool(is_in_flight or self.joins or self.is_leaving or self._has_nccl_under_way())

    def _has_nccl_under_way(self) -> bool:
        return self.nccl is not None and bool(self.nccl.is_under_way())

    def has_ended(self) -> bool:
        """Return whether all submissions have ended, and all ranks know of problems. Local."""
        is_noticed = self.arrivals.problem is None or self.error is not None
        return is_noticed and not (self.unfinished or self.is_leaving)

    # -- turns ---------------------------------------------------------------------------------

    def work(self) -> float:
        """Advance as far as possible without waiting. Local, and one thread at a time."""
        if self.error is not None and not self.is_leaving:
            return float("inf")
        try:
            while self._turn():
                pass
            if not (self.is_busy or self.negotiation):
                self.looked = 0.0
                return float("inf")
            return self._look_around()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception) and is_main_thread():
                raise
            return float("inf")

    def _turn(self) -> bool:
        """Advance batches, the round and the schedule once; return whether there was progress."""
        moved = False
        problem = self.arrivals.problem
        if problem is not None and not self.is_leaving:
            if self.hosts == 1:  # shared memory tells the others
                raise problem
            self._leave(problem)
        while self.batches and self.batches[0].advance():
            self.batches.popleft()
            moved = True
        if self.negotiation is not None and self.negotiation.advance():
            self.negotiation = None
            self.is_turn = moved = True
        if self.is_turn and self._has_room():
            self.is_turn = False
            moved = True
            batch = self.schedule.pick()
            if batch is not None:
                memory = self.memory[self.started % IN_FLIGHT]
                self.started += 1
                run = RequestChain(run_batch(batch, self.data, memory, self._end))
                run.advance()
                self.batches.append(run)
                self.is_alone = batch.handles[0].takes_steps
        if self.negotiation is None and not self.is_turn and self._wants_round():
            self.negotiation = RequestChain(self._negotiate(self._begin_round()))
            moved = True
        return moved

    def run_alone(self, handle: Handle) -> None:
        """Run the submission `handle` to its end, if that takes only a moment: faster than turns,
        for a program that submits and waits at once. Local, and one thread at a time.
        """
        if len(self.arrivals.arrived) != 1 or self.submitted:
            return
        if handle.takes_steps or self.error is not None or self.arrivals.problem is not None:
            return
        if self.schedule.ready or self.batches or self.negotiation or self.is_turn or self.joins:
            return
        try:
            request = self._begin_round()
            is_alone = self.compared == [handle]  # another thread may have submitted, too
            ended = request._spin(MOMENT)
            if not (is_alone and ended and self.round.window.read() == (1, False, False)):
                self.negotiation = RequestChain(self._negotiate(request))
                return
            # From here on, it is equal to the turns of the other ranks.
            self.round = self.rounds[0]
            self.submitted.popleft()
            if self.schedule.is_long(handle):
                self.schedule.add(handle)
                self.is_turn = True
                return
            self.started += 1
            self.is_alone = False
            request = handle.start()
            if request._spin(MOMENT):
                self._end((handle,))
            else:
                self.batches.append(RequestChain(self._rest(request, handle)))
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception) and is_main_thread():
                raise

    def _rest(self, request: _core.Request, handle: Handle) -> Iterator[_core.Request]:
        yield request
        self._end((handle,))

    def _begin_round(self) -> _core.Request:
        while self.arrivals.arrived:
            self.submitted.append(self.arrivals.arrived.popleft())
        if self.is_leaving:  # as if it had joined, so that all ranks describe their submissions
            self.submitted.clear()
        self.compared = list(islice(self.submitted, self.round.window.slots))
        return self.round.start(self.submitted, self.joins or self.is_leaving)

    def _has_room(self) -> bool:
        """Return whether one more batch may start. A batch of several steps runs alone: a step
        begins when the one before is complete, which is not at the same time on all ranks.
        """
        if not self.batches:
            return True
        if len(self.batches) == IN_FLIGHT or self.is_alone:
            return False
        return not (self.schedule.ready and self.schedule.ready[0].takes_steps)

    def _wants_round(self) -> bool:
        if self.schedule or self.arrivals.arrived or self.joins or self.is_leaving:
            return True
        return bool(self.submitted) and time.monotonic() >= self.not_before

    def _negotiate(self, request: _core.Request) -> Iterator[_core.Request]:
        """Run a round: find the submissions that all ranks have, and schedule them."""
        yield request
        alike, differ, joined = self.round.window.read()
        # If all slots match, there may be more. All ranks have read the same.
        self.round = self.rounds[alike == self.round.window.slots]
        if joined:
            yield from self._match()
            return
        # A submission that was given up during the round still runs, because all others run it.
        for handle in self.compared[:alike]:
            if self.submitted and self.submitted[0] is handle:
                self.submitted.popleft()
            self.schedule.add(handle)
        if alike:
            self._found()
        if differ:
            yield from self._match()

    def _match(self) -> Iterator[_core.Request]:
        """Exchange descriptions of submissions with the other ranks, and match them by name."""
        told = list(islice(self.submitted, self.tells))
        problem = str(self.arrivals.problem) if self.is_leaving else None
        mine = packed(told, self.joins, problem)
        lengths = np.empty(self.size, np.int64)
        yield self.control.iallgather(np.array([mine.size]), out=lengths)
        data = np.empty(int(lengths.sum()), np.uint8)
        yield self.control.iallgatherv(mine, data, counts=lengths)
        said = [unpacked(each) for each in np.split(data, np.cumsum(lengths)[:-1])]
        failed_devices = failures(said)
        if failed_devices:
            self.is_told = True
            raise CommunicatorError(failed_devices)
        verdict = conclude(said)
        self._take(verdict, {each.key: each for each in told})
        self._note_joined(verdict.joined)

    def _take(self, verdict: Verdict, mine: dict[str, Handle]) -> None:
        """Schedule the matching submissions, and end those that can never match."""
        for claim in verdict.ready:
            handle = self._zeros(claim) if self.joins else mine[claim.key]
            self.schedule.add(handle)
        settled = {each.key for each in verdict.ready} | verdict.wrong.keys()
        self.submitted = deque(each for each in self.submitted if each.key not in settled)
        for key, text in verdict.wrong.items():
            if key in mine:
                self._end([mine[key]], MismatchError(text))
            elif self.joins:
                self.refused = text
        self.missing = verdict.missing
        if settled:
            self._found()
        elif self.submitted:
            if len(self.submitted) > self.tells:
                self.tells *= 2
            self.not_before = time.monotonic() + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def _found(self) -> None:
        self.pause, self.not_before, self.tells = SHORTEST_PAUSE, 0.0, TOLD
        self.missing = {}

    def _zeros(self, claim: Claim) -> Handle:
        """Return the submission of a joined rank that matches a claim of the others."""
        assert claim.zeros is not None
        dtype, elements, operation, prescale, postscale, priority, bits, by_nccl = claim.zeros
        if by_nccl:
            call = self.nccl.zeros(dtype, elements, operation)
            handle = self._of_steps(call.steps, None, priority)
            handle.key, handle.group, handle.copies = claim.key, self, call
            self.unfinished.add(handle)  # so that _end() handles its failure
            return handle
        x = np.zeros(elements, frameworks.numpy_dtype(dtype, "x"))
        arguments = x, x, getattr(reductions, operation), 0, prescale, postscale
        handle = Handle(self.data._engine, ALLREDUCE, *arguments, None, priority, None, bits)
        handle.key, handle.group, handle.copies = claim.key, self, None
        return handle

    def _note_joined(self, joined: Sequence[int]) -> None:
        if len(joined) == self.size:
            self.last_joined = max(set(joined) - self.were_joined, default=max(joined))
            self.were_joined = set()
            self.nameless.clear()  # joined ranks have not counted
            self.joins = False
        else:
            self.were_joined = set(joined)

    def _end(self, handles: Sequence[Handle], error: BaseException | None = None) -> None:
        """Note that submissions are complete, or have failed."""
        for handle in handles:
            if handle not in self.unfinished:  # given up before
                continue
            self.unfinished.discard(handle)
            if handle.name is not None:
                self.names.discard(handle.name)
            mine = error
            if handle.copies is not None and error is None:
                try:
                    handle.copies.begin_return()
                except Exception as problem:
                    mine = self.arrivals.failed(problem)
            if handle.copies is not None and mine is not None:
                handle.copies.give_up()
            if handle.end(mine):
                self.engine.called.append(handle)

    # -- failures --------------------------------------------------------------------------------

    def _look_around(self) -> float:
        """Warn of submissions that have waited long, and raise an error after their deadline."""
        now = time.monotonic()
        due = now + LOOK if self.not_before <= now else self.not_before
        if now < self.looked + LOOK:
            return due
        if self.looked:
            gap = _core.stopped(self.looked)
            for each in (*self.submitted, *self.batches, self.negotiation):
                if each is not None and each.began < self.looked:
                    each.began += gap
        self.looked = now
        for run in self.batches:
            run.look(now - run.began)
        if self._has_nccl_under_way():  # the program may wait for the device
            self.control._engine.check_host("waits for a call of NCCL")
        if self.negotiation is not None:
            self.negotiation.look(now - self.negotiation.began if self.joins else 0.0)
        oldest = next(iter(self._waiting()), None)
        if oldest is not None:
            waited = now - oldest.began
            if waited > self.timeout:
                self._stall(waited)
            elif waited > self.warning and now > self.warned + self.warning:
                self.warned = now
                text = self.situation(waited)
                logs.note("WARNING", text)
                warnings.warn(text, StallWarning, stacklevel=2)
        return due

    def _waiting(self) -> list[Handle]:
        """Return the submissions that not all ranks are known to have."""
        return [*list(self.submitted), *self.arrivals.waiting()]

    def _stall(self, waited: float) -> None:
        """End submissions that have passed their deadline."""
        error = StallError(self.situation(waited))
        self.control._engine.name_file(error)
        late = [each for each in self.submitted if each.key in self.missing]
        if not late:
            if self.negotiation is not None:
                self.negotiation.look(float("inf"))  # ends the round, which tells the others
            raise error
        self.submitted = deque(each for each in self.submitted if each.key not in self.missing)
        self._end(late, error)

    def situation(self, waited: float) -> str:
        """Return the text of a warning about a wait of `waited` seconds. Local."""
        mine = self._waiting()
        if mine and mine[0] in list(self.arrivals.copying):
            return waits_for_device(self.rank, waited, mine[0])
        # If nothing waits for other submissions, name those in flight.
        keys = [each.key for each in mine or list(self.unfinished)]
        missing = self.missing  # another thread may replace it
        of_mine = missing.keys() & {each.key for each in mine}
        whom = sorted({rank for key in of_mine for rank in missing[key]})
        if not whom and self.negotiation is not None:
            whom = self.negotiation.awaited()
        verb = "submit" if mine else "finish"
        return waits_for_ranks(self.rank, waited, whom, verb, keys, missing)

    def fail(self, error: BaseException) -> None:
        """End everything with `error`, and tell the other ranks. Local."""
        if not isinstance(error, Exception):
            error = CommunicatorError(f"the background was interrupted: {error_text(error)}")
        self.control._engine.name_file(error)
        self.is_leaving = False
        why = error_text(self._end_all(error))
        if self.nccl is not None:
            self.nccl.give_up(why)
        self.schedule.ready.clear()
        self.batches.clear()
        self.negotiation = None
        for comm in (self.control, self.data):
            _core.heard(comm._engine)  # from here on, `told` counts
            if comm._engine.broken is not None:
                continue
            if self.is_told:
                comm._engine.broken = f"the communicator is broken: {why}"
            else:
                comm._give_up(why)

    def _leave(self, problem: CommunicatorError) -> None:
        """End all submissions of this rank, whose device has failed. The rank continues with the
        requests in flight, and tells the ranks of all hosts in the next round.
        """
        self.is_leaving = True
        self._end_all(problem)

    def _end_all(self, error: BaseException) -> BaseException:
        """End all submissions with an error, and return it, or the first error of the group."""
        if isinstance(error, CollectivesError) and self.unfinished:
            left = list(self.unfinished)  # other threads may submit at the same time
            first = min(left, key=lambda handle: handle.began)
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            error = type(error)(f"{called(first.key)}{more}, in the background: {error}")
        if isinstance(error, CollectivesError) and self.joins and self.refused is not None:
            error = type(error)(
                f"{error}; before, a call of the other ranks failed: {self.refused}"
            )
        self.error = self.error or error
        self.joins = False
        self.arrivals.clear()
        self.submitted.clear()
        self._end(list(self.unfinished), self.error)
        return self.error

    def stop(self) -> None:
        """Wait for all submissions, and free the resources unless the group failed. Collective."""
        problem = None
        try:
            self.engine.flush([self], None)
        except CollectivesError as error:
            problem = error
        self.engine.wait_until(self, self.has_ended, Wait(timeout=GRACE))
        with self.engine.working:  # no other thread works
            self.engine.drop(self)
            self.told = True
            stopped = CommunicatorError("the background of this communicator was stopped")
            if self.is_leaving or self.negotiation is not None or self.batches:
                self.fail(self.error or stopped)
            self.error = self.error or stopped
            self._end(list(self.unfinished), self.error)
            self.memory.clear()
        if self.nccl is not None:
            self.nccl.stop(self.timeout)
        for comm in (self.control, self.data):
            if comm._engine.broken is None:  # otherwise requests in flight may use its memory
                comm.free()
        if problem is not None:
            raise problem
