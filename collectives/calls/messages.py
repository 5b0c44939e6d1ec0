"""Messages between two ranks: send, recv and sendrecv."""

from __future__ import annotations

import sys
import threading
from functools import cache, partial
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import _core
from collectives.calls.base import Calls
from collectives.errors import ArgumentError, BufferError, MismatchError
from collectives.process.advice import alone
from collectives.text import words
from collectives.text.words import from_record, shown, to_record

if TYPE_CHECKING:
    from collectives.algorithms.registry import Algorithm
    from collectives.arrays.types import Array, ArrayT, Number

# The number of tags that MPI's smallest upper bound leaves beside those of the collectives, minus
# one.
TAGS = 16383
FIRST_TAG = 16384  # of MPI's, which is tag 0 here
OBJECTS = TAGS  # the tag of messages that carry objects
RECORD = 96  # bytes that describe a message


class Messages(Calls):
    """The messages between two ranks. Each is a plan with a single round."""

    def send(
        self,
        x: Array | Number | None,
        dest: int | None,
        *,
        tag: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Send an array to one rank, which calls `recv`.
        Local. The call returns when `x` may be changed, at the latest when the message is received.

        Parameters
        ----------
        x : array
            The data, as for `allreduce`.
        dest : int or None
            The rank that receives it. None or ``MPI.PROC_NULL`` is no rank: nothing is sent, and
            `x` is ignored, so that a program needs no ``if`` for the ends of a row of ranks.
        tag : int
            0 to 16382. A message is received only by a `recv` with the same tag.
        timeout : float, optional
            As for `allreduce`.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 3.2 (Blocking Send and Receive Operations) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> if cc.size() > 1 and cc.rank() == 0:
        ...     cc.send(np.arange(3.0), dest=1)
        ... elif cc.rank() == 1:
        ...     got = cc.recv(np.empty(3), source=0)
        """
        self._exchange(x, dest, None, None, tag, timeout)

    def isend(
        self, x: Array | Number | None, dest: int | None, *, tag: int = 0
    ) -> _core.Request[None]:
        """Start a `send` and return at once; see `iallreduce`.
        Local.
        """
        return self._exchange(x, dest, None, None, tag, None, False)

    def recv(
        self, out: ArrayT, source: int | None, *, tag: int = 0, timeout: float | None = None
    ) -> ArrayT:
        """Receive an array from one rank, which calls `send`.
        Local. The call waits for the message.

        Parameters
        ----------
        out : array
            The destination of the data: a contiguous, writable array of the size of the message.
        source : int or None
            The rank that sends it. None or ``MPI.PROC_NULL`` is no rank: nothing is received, and
            `out` is returned as it is.
        tag : int
            The tag of the `send`.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        CollectivesError
            As for `allreduce`.
        MismatchError
            If the message has another number of elements, or another dtype: view both arrays as
            bytes to read it as another one. MPI's messages do not tell their dtype, and the number
            of bytes is compared; with ``COLLECTIVES_VALIDATE=1``, both. The communicator is broken
            afterwards, also that of a sender that hears of it, which gets the error, too.

        Notes
        -----
        Section 3.2 (Blocking Send and Receive Operations) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> after = cc.rank() + 1 if cc.rank() + 1 < cc.size() else None
        >>> before = cc.rank() - 1 if cc.rank() > 0 else None
        >>> got = cc.recv(np.zeros(1), before)
        >>> cc.send(got + 1, after)
        >>> float(got[0]) == cc.rank()
        True
        """
        return self._exchange(None, None, out, source, tag, timeout)

    def irecv(self, out: ArrayT, source: int | None, *, tag: int = 0) -> _core.Request[ArrayT]:
        """Start a `recv` and return at once; see `iallreduce`.
        Local.
        """
        return self._exchange(None, None, out, source, tag, None, False)

    def sendrecv(
        self,
        x: Array | Number | None,
        dest: int | None,
        out: ArrayT,
        source: int | None,
        *,
        tag: int = 0,
        timeout: float | None = None,
    ) -> ArrayT:
        """Send an array to one rank while receiving one from another, or from the same.
        Local. The call waits for both messages.

        Parameters
        ----------
        x, dest
            As for `send`.
        out, source
            As for `recv`; `out` has the dtype of `x`, and shares no memory with it.
        tag : int
            The tag of both messages.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        CollectivesError
            As for `recv`.

        Notes
        -----
        Section 3.10 (Send-Receive) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> after, before = (cc.rank() + 1) % cc.size(), (cc.rank() - 1) % cc.size()
        >>> got = cc.sendrecv(np.array([cc.rank()]), after, np.empty(1, int), before)
        >>> int(got[0]) == before
        True
        """
        return self._exchange(x, dest, out, source, tag, timeout)

    def isendrecv(
        self,
        x: Array | Number | None,
        dest: int | None,
        out: ArrayT,
        source: int | None,
        *,
        tag: int = 0,
    ) -> _core.Request[ArrayT]:
        """Start a `sendrecv` and return at once; see `iallreduce`.
        Local.
        """
        return self._exchange(x, dest, out, source, tag, None, False)

    def _sender(self, tag: int) -> int | None:
        """Return a rank from which a message with a tag has come, for `recv`, or None. Local."""
        return self._meeting.sender(FIRST_TAG + _number("tag", tag, TAGS))

    def _peer(self, name: str, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return _number(name, value, self.size)
        except ArgumentError as error:
            if isinstance(value, int) and value == self._proc_null:
                return None
            raise ArgumentError(f"{error}, or None{alone(value)}") from None

    def _exchange(
        self,
        x: Any,
        dest: int | None,
        out: Any,
        source: int | None,
        tag: Any,
        timeout: float | None,
        blocking: bool = True,
    ) -> Any:
        dest, source = self._peer("dest", dest), self._peer("source", source)
        tag = _number("tag", tag, TAGS)
        if dest is not None and x is None:
            raise ArgumentError("x is None, and must be the array to send")
        if source is not None and out is None:
            raise ArgumentError("out is None, and must be the array that is received into")
        if dest is None and source is None:
            return self._skip(out, timeout, blocking)
        x = None if dest is None else x
        return self._post(x, dest, out, source, tag, timeout, blocking)

    def _skip(self, out: Any, timeout: float | None, blocking: bool) -> Any:
        """Return the result of a call without any message."""
        self._engine.check_usable()
        if timeout is not None:
            _core.seconds(timeout)
        if blocking:
            return out
        return _core.Request(self._engine, self._cut(None, None, 0, 0).plan, (out,))

    def _post(
        self,
        x: Any,
        dest: int | None,
        out: Any,
        source: int | None,
        tag: int,
        timeout: float | None,
        blocking: bool,
    ) -> Any:
        choice = self._exchanges.get((dest, source))
        if choice is None:
            choice = self._cut(dest, source, dest is not None, source is not None)
            self._exchanges[dest, source] = choice
        cut = partial(self._cut, dest, source)
        into = None if source is None else out
        exchange: Any = self._engine.exchange
        if self._engine.agree is not None and not self._engine.compares_messages:
            exchange = partial(_described, self._engine, source)
        try:
            return exchange(choice, x, into, tag, timeout, blocking, cut, out)
        except BufferError as error:
            if not hasattr(error, "device_shape"):
                raise

        def message(x: Any, out: Any, blocking: bool) -> Any:
            return exchange(choice, x, out, tag, timeout, blocking, cut, out)

        result = self._devices().message(self._engine, x, into, message, blocking)
        return out if blocking else result

    def _cut(self, dest: int | None, source: int | None, sends: int, receives: int) -> _core.Choice:
        """Return the plan of `sends` messages to `dest` and `receives` from `source`, if any."""
        from collectives.plans import program
        from collectives.plans.rounds import IN, OUT, Message, Round, Run
        from collectives.plans.schedule import Plan

        messages = []
        for b in range(sends):
            messages.append(Message(True, dest or 0, Run(IN, b, 1), Run(IN, b, 1)))
        for b in range(sends, sends + receives):
            messages.append(Message(False, source or 0, Run(OUT, b, 1), Run(OUT, b, 1)))
        plan = Plan(
            algorithm=_direct(sends, receives),
            p=self.size,
            rank=self.rank,
            root=0,
            nblocks=sends + receives,
            cut=1,
            rounds=(Round(messages),),
            tmp=0,
            parcels=(),
        )
        whole, split = (program.pack(plan, whole=whole) for whole in (True, False))
        return _core.Choice(_core.Plan(plan, whole, split), 0, "")


class _Description:
    """The description of a received message, which follows it: the message is complete when both
    have come and it is the one that was due.
    """

    def __init__(self, engine: _core.Engine, source: int | None, out: Any) -> None:
        self.engine, self.source = engine, source
        self.due = None if out is None else _said(out, "out")
        self.came = None if out is None else np.zeros(RECORD, np.uint8)
        self.message: _core.Request
        self.timeout: float | None = None

    def test(self) -> bool:
        """Return whether the message is complete, once the description is. Local."""
        self._compare()
        return self.message.test()

    def place(self, _: Any) -> Any:
        """Return the result of the message, once the description is complete. Local."""
        self._compare()
        return self.message.wait(self.timeout)

    def _compare(self) -> None:
        if self.came is None or self.due == (came := from_record(self.came.tobytes())):
            return
        engine = self.engine
        sent, due = (each.split() for each in (came, self.due or ""))
        fault = ""
        if sent[-1] == due[-1]:
            fault = f"out is too {'short' if int(sent[0]) > int(due[0]) else 'long'}: "
        error = MismatchError(
            f"{fault}rank {self.source} sends {came}, and rank {engine.rank} receives {self.due}; "
            f"pass arrays of one count and dtype, or views of their bytes"
        )
        if engine.broken is None:
            engine.broken = f"the communicator is broken: {error}"
            engine.give_up(str(error), error)
        raise error


# Threads post a message and its description together, or descriptions would meet others' messages.
_posting = threading.Lock()


def _described(
    engine: _core.Engine,
    source: int | None,
    choice: _core.Choice,
    x: Any,
    out: Any,
    tag: int,
    timeout: float | None,
    blocking: bool,
    cut: Any,
    result: Any,
) -> Any:
    """Run `Engine.exchange` with a description behind each message: MPI's messages have no dtype
    that their receiver could compare.
    """
    said = None if x is None else np.frombuffer(to_record(_said(x, "x"), RECORD), np.uint8)
    description = _Description(engine, source, out)
    description.timeout = timeout
    with _posting:
        message = engine.exchange(choice, x, out, tag, timeout, False, cut, result)
        message.aside = True
        description.message = message
        request = engine.exchange(
            choice, said, description.came, tag, timeout, False, cut, None, description
        )
    if not blocking:
        return request
    request.aside = True
    return request.wait(timeout)


def _said(array: Any, name: str) -> str:
    """Describe an array of a message."""
    _, count, _, dtype, _ = _core.examine(array, name, moves=True)
    return f"{words.count(count, 'element')} of {dtype}"


def _number(name: str, value: Any, limit: int) -> int:
    """Return an integer argument of any integer type, if it is in the range below `limit`."""
    try:
        number = index(value)
    except Exception:  # also of a user's type
        number = -1
    if not 0 <= number < limit:
        wildcard = f"ANY_{name.upper()}"
        hint = ""
        if number and value == getattr(sys.modules.get("mpi4py.MPI"), wildcard, None):
            hint = f"; there are no wildcards such as MPI.{wildcard}"
        raise ArgumentError(
            f"{name} is {shown(value)}, and must be an integer in 0..{limit - 1}{hint}"
        )
    return number


@cache
def _direct(sends: int, receives: int) -> Algorithm:
    """Return a row of the registry for messages: sent ones are the first parts, then received."""
    from collectives.algorithms.registry import Algorithm
    from collectives.algorithms.spec import Collective

    contract = Collective(
        "sendrecv" if sends and receives else "send" if sends else "recv",
        inputs=lambda r, p, root: range(sends),
        outputs=lambda r, p, root: range(sends, sends + receives),
        sources=lambda part, r, p, root: 0,
    )
    return Algorithm(
        collective=contract,
        name="direct",
        generate=lambda r, p: iter(()),
        blocks=lambda p: sends + receives,
        cost=None,
        source="",
        requires=(),
        same_bits=False,
        keeps_order=True,
        included=True,
    )
