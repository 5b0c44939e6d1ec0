"""Messages between two ranks: send, recv and sendrecv."""

from __future__ import annotations

import sys
from functools import cache, partial
from operator import index
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.calls.base import Calls
from collectives.errors import ArgumentError, BufferError
from collectives.process import binding
from collectives.text.words import shown

if TYPE_CHECKING:
    from collectives.algorithms.registry import Algorithm
    from collectives.arrays.types import Array, ArrayT, Number

# The number of tags that MPI's smallest upper bound leaves beside those of the collectives, minus
# one.
TAGS = 16383
FIRST_TAG = 16384  # of MPI's, which is tag 0 here
OBJECTS = TAGS  # the tag of messages that carry objects


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
            If the message has another number of bytes. The communicator is broken afterwards.

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
            if isinstance(value, int) and value == binding.load().PROC_NULL:
                return None
            raise ArgumentError(f"{error}, or None") from None

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
        self._engine.check_whole()
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
        try:
            return self._engine.exchange(choice, x, into, tag, timeout, blocking, cut, out)
        except BufferError as error:
            if not hasattr(error, "device_shape"):
                raise

        def message(x: Any, out: Any, blocking: bool) -> Any:
            return self._engine.exchange(choice, x, out, tag, timeout, blocking, cut, out)

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
