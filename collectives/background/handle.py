"""The handle that `submit` returns: a collective that runs in the background."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Generator
from typing import Any

from collectives import _core
from collectives.background.copies import Copies
from collectives.errors import ArgumentError, CollectivesError
from collectives.process.waiting import Wait
from collectives.text.words import error_text, shown


def nameless(collective: str, number: int) -> str:
    """Return the key of a submission without a name, which differs from all names. Local."""
    return f"\0{collective} without a name, number {number}"


def called(key: str) -> str:
    """Return the name of the submission with a `key` in texts. Local."""
    return key[1:] if key.startswith("\0") else repr(key)


def call_back(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the program; print and ignore an exception in it, except for Ctrl-C."""
    try:
        function(*arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and is_main_thread():
            raise
        traceback.print_exc()  # sys.excepthook may end the job


def is_main_thread() -> bool:
    """Return whether this is the thread that gets signals. Local."""
    return threading.get_ident() == threading.main_thread().ident


def check_name(name: Any, priority: Any) -> None:
    """Raise an error if a submission cannot have this name, or this priority."""
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"name is {shown(name)}, and must be a text or None")
    if type(priority) is not int or not -(2**63) <= priority < 2**63:
        raise ArgumentError(f"priority is {shown(priority)}, and must be an integer of 64 bits")
    if name is not None and (name[:1] == "\0" or not _is_encodable(name)):
        raise ArgumentError(
            f"name is {shown(name)}, and must be Unicode text without a null character in front"
        )


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Handle(_core.Task):
    """A collective that was submitted, and runs in the background.

    It keeps its arrays until it is complete. Do not write `x`, and do not use `out`, before.

    Attributes
    ----------
    name : str or None
        The name that it was submitted with.
    """

    __slots__ = ("copies",)

    copies: Copies | None  # of arrays on a device: those in host memory are submitted
    value: Any
    callbacks: Any

    def __dir__(self) -> list[str]:
        shown = {"name", "done", "wait", "exception", "add_done_callback"}
        return sorted(shown.union(name for name in super().__dir__() if name[:2] == "__"))

    @property
    def is_held(self) -> bool:
        """True if it is compared only when its elements are in host memory."""
        return self.copies is not None and self.copies.is_held

    def done(self) -> bool:
        """Return whether the collective is complete, or has failed. Local."""
        return self.complete

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the collective is complete; return its result.
        Local, but it waits for the submissions of the other ranks.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which it raises `StallError`. The collective continues, and can be waited
            for again. By default, the deadline of the communicator ends it.

        Returns
        -------
        array or None
            The result of the collective: `out`, or a new array.

        Raises
        ------
        MismatchError
            If other ranks submitted another collective under this name, or in this place. Later
            submissions are not affected.
        StallError
            If the deadline has passed; the text names the ranks that are missing.
        PeerLostError, PeerAbortedError, MPIError
            If another rank has ended or given up, or MPI fails. Nothing can be submitted for this
            communicator any more.
        CommunicatorError
            If the device of a rank fails, on all ranks: nothing can be submitted any more. Or, only
            on this rank, if there is no memory for the result on the device.
        """
        wait = None if timeout is None else Wait(timeout=_core.seconds(timeout))
        if not self.complete:
            self.group.engine.wait_for(self, wait, timeout)
        if self.error is not None:
            self.group.told |= self.error is self.group.error
            raise self.error
        # The result of arrays on a device is still in host memory.
        result = self.value if self.takes_steps else self._result()
        if self.copies is None:
            return result
        try:
            return self.copies.taken(result)
        except CollectivesError:  # there is no memory for the result
            raise
        except RuntimeError as error:
            self.group.told = True
            raise self.group.arrivals.failed(error) from error

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result in a coroutine of asyncio or trio, while others run. Local."""
        return _core.awaited(self)

    def finish(self) -> None:
        """Make the result of a compressed allreduce. Local."""
        self.value = self.arrays.finish()

    def exception(self) -> BaseException | None:
        """Return the error with which the collective has ended, or None. Local."""
        error: BaseException | None = self.error
        self.group.told |= error is self.group.error
        return error

    def add_done_callback(self, function: Callable[[Handle], object]) -> None:
        """Call a function with this handle when the collective is complete. Local.

        Parameters
        ----------
        function : callable
            It is called on the thread that found the collective complete: a waiting thread, or the
            background thread; or at once, if it is complete already. It may submit and wait. An
            exception in it is printed and ignored.
        """
        if not self.call_at_end(function):
            call_back(function, self)

    def run_callbacks(self) -> None:
        """Call the functions of `add_done_callback`, once. Local."""
        functions, self.callbacks = self.callbacks, None
        for function in functions or ():
            call_back(function, self)

    def describe(self) -> str:
        """Return the submission in words. Local."""
        if self.codec is not None:
            what = f"{self.kind} of {self.arrays.dtype} {self.arrays.shape}, op {self.arrays.op}"
            return f"{what}, compression {self.codec.name}{self._priority()}"
        if self.steps is not None:
            return f"{self.steps.text}{self._priority()}"
        what = f"{self.kind} of {self.dtype} {tuple(self.shape)}"
        if self.kind == "barrier":
            what = "barrier"
        if self.operation is not None:
            what += f", op {self.operation}"
        if self.kind in ("reduce", "broadcast", "gather", "scatter"):
            what += f", root {self.root}"
        if self.scales != (1.0, 1.0):
            what += ", scaled by {:g} and {:g}".format(*self.scales)
        if self.bits is not None:
            what += f", bits {self.bits}"
        if self.terms is not None:
            what += f", {self.terms}"
        return what + self._priority()

    def _priority(self) -> str:
        return f", priority {self.priority}" if self.priority else ""

    def __repr__(self) -> str:
        state = "in flight"
        if self.complete:
            state = "complete" if self.error is None else f"failed: {error_text(self.error)}"
        return f"<Handle of {called(self.key)}, {self.describe()}: {state}>"
