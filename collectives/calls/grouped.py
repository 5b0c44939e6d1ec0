"""Grouped calls: many arrays in one call, with small arrays of one dtype packed into one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from collectives import _core
from collectives._core import ALLREDUCE
from collectives.calls.base import Calls
from collectives.errors import ArgumentError, BufferError, CommunicatorError
from collectives.process.agreement import refusing
from collectives.reductions import SUM, Reduction
from collectives.text.origin import place
from collectives.text.words import count, shown

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    from collectives.arrays.types import ArrayT, OpName
    from collectives.devices.calls import DeviceGroup

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

# The constants below were measured on 2 ranks (EPYC, 2026-11-20, the fastest of many calls on a
# machine that others used, too).

# Arrays of this many bytes and more are not packed. 32 arrays in place, all packed or each by
# itself, take 61 or 88 us with 8 KiB each, 152 or 231 with 32 KiB, 285 or 321 with 64 KiB, 696 or
# 523 with 128 KiB (MPICH; Open MPI: 58 or 160, 147 or 229, 284 or 335, 602 or 551).
APART = 1 << 16

# At most this many bytes are packed into one array. 1024 arrays of 4 KiB take 2 838 us in parts of
# 256 KiB, 1 620 in parts of 1 MiB, 1 430 in parts of 4 MiB (MPICH), and no less in larger ones.
PACKED = 1 << 22

# Number of collectives that a blocking call has in flight at a time. 32 arrays of 32 KiB take
# 254 us one after the other, 245 with 4 at a time, 233 with 16, 231 all at once (MPICH).
IN_FLIGHT = 16

SAID = 8  # the most sizes of arrays in a text
MOST = 1024  # collectives of a nonblocking call: the core has tags for a few times as many


class GroupedCalls(Calls):
    """The collectives for many arrays in one call."""

    def allreduce_many(
        self,
        arrays: Iterable[ArrayT],
        out: Iterable[ArrayT] | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> list[ArrayT]:
        """Fold many arrays over all ranks; every rank gets the results.
        Collective.

        Small arrays of one dtype are packed into one array and folded by one `allreduce`. Large
        arrays are not copied; each has an `allreduce` of its own, and so has each array in GPU
        memory.

        Parameters
        ----------
        arrays : sequence of array
            This rank's contributions, each as for `allreduce`. All ranks pass the same number of
            arrays, with the same numbers of elements and dtypes, in the same order.
        out : sequence of array, optional
            The destination of the results, one for each array and each as for `allreduce`; `arrays`
            itself (in place) is allowed. New arrays by default.
        op, algorithm, bits, prescale, postscale
            As for `allreduce`, for every array.
        timeout : float, optional
            As for `allreduce`. It limits each wait by itself; there may be as many waits as arrays.

        Returns
        -------
        list of array
            The arrays of `out`, or new arrays of the types and shapes of `arrays`.

        Raises
        ------
        CollectivesError
            As for `allreduce`; the text names the array. All arguments are checked before any array
            is sent.

        Notes
        -----
        Sums of floats may be rounded differently than by one `allreduce` for each array, because
        the order of folding depends on the position of an element in its message, unless `bits` is
        ``"size"``. The result is the same on all ranks.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> weights, bias = np.ones((2, 3)), np.array([5.0])
        >>> cc.allreduce_many([weights, bias], op=cc.AVG)
        [array([[1., 1., 1.],
               [1., 1., 1.]]), array([5.])]
        """
        arguments = op, algorithm, bits, prescale, postscale
        return GroupedRequest(self._engine, arrays, out, arguments, timeout)._run()

    def iallreduce_many(
        self,
        arrays: Iterable[ArrayT],
        out: Iterable[ArrayT] | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> GroupedRequest[ArrayT]:
        """Start an `allreduce_many` and return at once; see `iallreduce`.
        Collective.

        Parameters
        ----------
        arrays, out, op, algorithm, bits, prescale, postscale
            As for `allreduce_many`. No array may be read or written until the request is complete.

        Returns
        -------
        GroupedRequest
            It has ``test()`` and ``wait()``, like the request of one array.

        Raises
        ------
        CommunicatorError
            If more than 1024 collectives would be started; each large array needs one.
        """
        arguments = op, algorithm, bits, prescale, postscale
        return GroupedRequest(self._engine, arrays, out, arguments)._start()


class Part(NamedTuple):
    """One collective of a grouped call."""

    which: list[int]  # the numbers of its arrays
    x: Any
    out: Any  # the same as `x`, if several arrays are packed into it

    @property
    def is_packed(self) -> bool:
        return len(self.which) > 1


class GroupedRequest(Generic[T]):
    """A grouped call that was started by `Communicator.iallreduce_many`.

    It is complete only when ``wait()`` has returned or ``test()`` has returned True, because the
    results of small arrays are written at that moment.
    """

    def __init__(
        self,
        engine: _core.Engine,
        arrays: Iterable[T],
        out: Iterable[T] | None,
        arguments: tuple[Any, ...],
        timeout: float | None = None,
    ) -> None:
        engine.check_usable()
        self._engine = engine
        self._arguments = arguments
        self._timeout = timeout  # of a blocking call
        # All errors in the arguments are found before anything is sent.
        with refusing(engine, "allreduce_many"):
            if timeout is not None:
                _core.seconds(timeout)
            self._group: Any = _group(engine, arrays, out, arguments)
            if isinstance(self._group, _core.Group):
                self._verify()
        self._parts = [self._part(each) for each in self._group.parts(APART, PACKED)]
        self._started: deque[tuple[Part, _core.Request]] = deque()
        self._done: list[T] | None = None
        self._lock = threading.Lock()

    def _verify(self) -> None:
        """Check the arguments that all arrays of a dtype share, with the smallest array of each."""
        op, algorithm, bits, prescale, postscale = self._arguments
        for i in self._group.smallest():
            x = self._group.array(i)[0]
            self._engine.inspect(ALLREDUCE, x, None, op, 0, algorithm, bits, prescale, postscale)

    def _part(self, which: list[int]) -> Part:
        if len(which) == 1:
            return Part(which, *self._group.array(which[0]))
        memory = self._group.allocate(which)
        return Part(which, memory, memory)

    def _begin(self, part: Part) -> None:
        op, algorithm, bits, prescale, postscale = self._arguments
        if part.is_packed:
            self._group.pack(part.which, part.x)
        request = self._engine.call(
            ALLREDUCE, part.x, part.out, op, 0, algorithm, None, prescale, postscale, False, bits
        )
        self._started.append((part, request))

    def _finish(self, timeout: float | None = None) -> None:
        """Wait for the collective that was started first, and write its results."""
        part, request = self._started[0]
        result = request.wait(timeout)
        if part.is_packed:
            self._group.unpack(part.which, part.x)
        else:
            self._group.store(part.which[0], result)
        self._started.popleft()

    def _steps(self) -> Iterator[_core.Request]:
        """Run the call; the caller waits for each yielded request."""
        for part in self._parts:
            if len(self._started) == IN_FLIGHT:
                yield self._started[0][1]
                self._finish()
            with self._engine:
                self._begin(part)
        while self._started:
            yield self._started[0][1]
            self._finish()

    def _start(self) -> Self:
        if len(self._parts) > MOST:
            raise CommunicatorError(
                f"{len(self._parts)} collectives would be in flight, one for each large array, and "
                f"at most {MOST} may be: pass fewer arrays at a time, or call allreduce_many"
            )
        with self._engine:
            self._agree()
            for part in self._parts:
                self._begin(part)
        if self._engine.started is not None:
            self._place = place()
            self._engine.started(self)
        return self

    def _run(self) -> list[T]:
        with self._engine:
            self._agree()
            for part in self._parts:
                if len(self._started) == IN_FLIGHT:
                    self._finish(self._timeout)
                self._begin(part)
                self._started[-1][1].aside = True
            return self.wait(self._timeout)

    def _agree(self) -> None:
        if self._engine.agree is not None:
            self._engine.agree("allreduce_many", text_of(self._group), True, self._timeout)

    @property
    def taken(self) -> bool:
        """True if the program knows that it is complete."""
        return not self._started

    def where(self) -> str:
        """Return the place in the program that started it, of a request in a scope. Local."""
        return self._place

    def test(self) -> bool:
        """Make progress, and return whether the call is complete. Local."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            while self._started:
                if not self._started[0][1].test():
                    return False
                self._finish()
        finally:
            self._lock.release()
        return True

    def wait(self, timeout: float | None = None) -> list[T]:
        """Wait until the call is complete, and return the list of results.
        Local, but it returns only if the other ranks start the call, too.

        Parameters
        ----------
        timeout : float, optional
            As for `Request.wait`. It limits each wait by itself; there may be as many as arrays.

        Returns
        -------
        list of array
            As for the blocking form.

        Raises
        ------
        CollectivesError
            As for `Request.wait`.
        """
        if timeout is not None:
            _core.seconds(timeout)  # checked even if there is nothing left to wait for
        with self._lock:
            while self._started:
                self._finish(timeout)
            if self._done is None:
                self._done = self._group.results()
            return self._done

    def __await__(self) -> Generator[Any, None, list[T]]:
        """Wait for the result in a coroutine of asyncio or trio, while others run. Local."""
        return _core.awaited(self)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End the collective that was started first if it has `waited` too long."""
        if self._lock.acquire(blocking=False):
            try:
                if self._started:
                    self._started[0][1]._look(waited, timeout)
            finally:
                self._lock.release()

    def __repr__(self) -> str:
        left = sum(len(part.which) for part, _ in self._started)
        state = f"{left} not complete" if left else "complete"
        return f"<GroupedRequest of {count(self._group.count, 'array')}: {state}>"


def in_flight(request: GroupedRequest[Any]) -> list[_core.Request]:
    """Return the requests for which a grouped one waits."""
    return [each for _, each in request._started]


def _group(
    engine: _core.Engine,
    arrays: Iterable[Any],
    out: Iterable[Any] | None,
    arguments: tuple[Any, ...],
) -> _core.Group | DeviceGroup:
    """Check the arrays of a call."""
    given, places = paired(arrays, out)
    group: _core.Group | DeviceGroup
    try:
        group = _core.Group(given, places)
    except BufferError as error:
        if not hasattr(error, "device_shape"):
            raise
        from collectives.devices.calls import DeviceGroup  # few programs need it

        group = DeviceGroup(engine, given, places, arguments)
    if out is not None:
        _refuse_overlaps(group)
    return group


def paired(arrays: Iterable[Any], out: Iterable[Any] | None) -> tuple[list[Any], list[Any]]:
    """Return the arrays that a caller gave, and their places: None for a new one. Local."""
    given = listed(arrays, "arrays")
    places = [None] * len(given) if out is None else listed(out, "out")
    if len(places) != len(given):
        raise ArgumentError(
            f"out has {len(places)} arrays, and must have {len(given)}, as arrays has"
        )
    return given, places


def listed(arrays: Iterable[Any], name: str) -> list[Any]:
    """Return the arrays that a caller gave as a list. Local."""
    try:
        return list(arrays)
    except Exception as error:  # also of a user's type
        raise ArgumentError(f"{name} is {shown(arrays)}, and must be a list of arrays") from error


def _refuse_overlaps(group: _core.Group | DeviceGroup) -> None:
    """Raise an error if one array is written where another is read or written."""
    pair = group.overlap()
    if pair is not None:
        raise BufferError(
            f"{pair[0]} overlaps {pair[1]}; pass arrays that share no memory, or out=arrays"
        )


def text_of(group: _core.Group | DeviceGroup) -> str:
    """Describe the arrays of a rank, in a text that must be equal on all ranks. Local."""
    each = [f"{count} {dtype}" for dtype, count in group.sizes(SAID)]
    if group.count > SAID:
        checksum = _core.checksum(group.sizes(group.count)) & 0xFFFFFFFF
        return f"{group.count} arrays, {', '.join(each[:3])}, ..., checksum {checksum:08x}"
    return f"arrays of {', '.join(each)}" if each else "no arrays"
