"""Messages between two ranks: send, recv, and both at once."""

from __future__ import annotations

from operator import index
from typing import Any

from collectives import _core, schedule
from collectives.errors import ArgumentError
from collectives.registry import Algorithm
from collectives.schedule import IN, OUT, Message, Plan, Round, Run
from collectives.spec import Collective

__all__ = ["OBJECTS", "TAGS", "Messages"]

# As many as MPI's smallest upper bound leaves beside those of the collectives, less one.
TAGS = 16383
OBJECTS = TAGS  # the tag of what belongs to objects


class Messages:
    """What a communicator does between two of its ranks. The plans are one round of one rank."""

    rank: int
    size: int
    _engine: _core.Engine
    _exchange_plans: dict[tuple[int | None, int | None], _core.Plan]

    def send(self, x: Any, dest: int, *, tag: int = 0) -> None:
        """Send an array to one rank, which calls `recv`.
        Local: waits until the message is on its way, which may take until it is received.

        Parameters
        ----------
        x : array
            The data, as for `allreduce`.
        dest : int
            The rank that receives it.
        tag : int
            0 to 16382: messages of different tags do not meet.

        Raises
        ------
        ArgumentError, UnsupportedTypeError, MPIError, StallError
            As for `allreduce`.
        """
        self._exchange(x, self._peer("dest", dest), None, None, tag)

    def isend(self, x: Any, dest: int, *, tag: int = 0) -> _core.Request:
        """Start a `send` and return at once; see `iallreduce`.
        Local.
        """
        request: _core.Request = self._exchange(x, self._peer("dest", dest), None, None, tag, False)
        return request

    def recv(self, out: Any, source: int, *, tag: int = 0) -> Any:
        """Receive an array from one rank, which calls `send`.
        Local: waits for the message.

        Parameters
        ----------
        out : array
            Where the data goes: contiguous, writable, with as many bytes as are sent.
        source : int
            The rank that sends it.
        tag : int
            That of the `send`.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        ArgumentError, UnsupportedTypeError, MPIError, StallError
            As for `allreduce`.
        MismatchError
            If another number of bytes comes. The communicator is broken then.
        """
        return self._exchange(None, None, out, self._peer("source", source), tag)

    def irecv(self, out: Any, source: int, *, tag: int = 0) -> _core.Request:
        """Start a `recv` and return at once; see `iallreduce`.
        Local.
        """
        request: _core.Request = self._exchange(
            None, None, out, self._peer("source", source), tag, False
        )
        return request

    def sendrecv(self, x: Any, dest: int, out: Any, source: int, *, tag: int = 0) -> Any:
        """Send an array to one rank while receiving one from another, or from the same.
        Local: waits for both messages.

        Parameters
        ----------
        x, dest
            As for `send`.
        out, source
            As for `recv`; `out` has the dtype of `x`, and shares no memory with it.
        tag : int
            That of both messages.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        ArgumentError, UnsupportedTypeError, MPIError, MismatchError, StallError
            As for `recv`.
        """
        return self._exchange(x, self._peer("dest", dest), out, self._peer("source", source), tag)

    def isendrecv(self, x: Any, dest: int, out: Any, source: int, *, tag: int = 0) -> _core.Request:
        """Start a `sendrecv` and return at once; see `iallreduce`.
        Local.
        """
        request: _core.Request = self._exchange(
            x, self._peer("dest", dest), out, self._peer("source", source), tag, False
        )
        return request

    def _peer(self, name: str, value: Any) -> int:
        return _number(name, value, self.size)

    def _exchange(
        self,
        x: Any,
        dest: int | None,
        out: Any,
        source: int | None,
        tag: Any,
        blocking: bool = True,
    ) -> Any:
        plan = self._exchange_plans.get((dest, source))
        if plan is None:
            plan = self._exchange_plan(dest, source)
        tag = _number("tag", tag, TAGS)
        if dest is not None and x is None:
            raise ArgumentError("x is None, and must be the array to send")
        if source is not None and out is None:
            raise ArgumentError("out is None, and must be the array that is received into")
        return self._engine.exchange(plan, x, out, tag, blocking)

    def _exchange_plan(self, dest: int | None, source: int | None) -> _core.Plan:
        """Return the plan of a message to `dest` and one from `source`; None is no message."""
        messages = []
        if dest is not None:
            messages.append(Message(True, dest, Run(IN, 0, 1), Run(IN, 0, 1)))
        if source is not None:
            messages.append(Message(False, source, Run(OUT, 1, 1), Run(OUT, 1, 1)))
        plan = Plan(
            algorithm=_KINDS[dest is not None, source is not None],
            p=self.size,
            rank=self.rank,
            root=0,
            nblocks=2,
            cut=1,
            rounds=(Round(messages),),
            tmp=0,
            parcels=(),
        )
        whole, split = (schedule.pack(plan, whole=whole) for whole in (True, False))
        packed = self._exchange_plans[dest, source] = _core.Plan(plan, whole, split)
        return packed


def _number(name: str, value: Any, limit: int) -> int:
    """Return an argument that is an integer below a limit, of whatever type."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not 0 <= number < limit:
        raise ArgumentError(f"{name} is {value!r}, and must be an integer in 0..{limit - 1}")
    return number


def _kind(name: str, sends: bool, receives: bool) -> Algorithm:
    """Return the row that stands for a message in titles: part 0 is sent, part 1 is received."""
    contract = Collective(
        name,
        inputs=lambda r, p, root: range(1 if sends else 0),
        outputs=lambda r, p, root: range(1, 2 if receives else 1),
        sources=lambda part, r, p, root: 0,
    )
    return Algorithm(
        collective=contract,
        name="direct",
        generate=lambda r, p: iter(()),
        blocks=lambda p: 2,
        cost=None,
        source="",
        requires=(),
        same_bits=False,
        keeps_order=True,
        included=True,
    )


_KINDS = {
    (True, False): _kind("send", True, False),
    (False, True): _kind("recv", False, True),
    (True, True): _kind("sendrecv", True, True),
}
