"""A call on its way to a transport, and the common part of the requests of all transports."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives import _core
from collectives.devices.on_device import OnDevice
from collectives.errors import StallError
from collectives.process.waiting import Naps, Wait
from collectives.text.origin import place
from collectives.text.words import error_text

if TYPE_CHECKING:  # few programs need them
    from collectives.devices.arrays import DeviceArray
    from collectives.devices.columns import Columns, Part
    from collectives.devices.driver import Driver, Events

NAPS = Naps(nap=1e-4)  # between two looks at the device


class DeviceCall(NamedTuple):
    """A checked call on arrays of a device, for all transports."""

    kind: int  # the collective
    title: str  # its name in messages
    columns: Columns  # its parts and pieces
    source: DeviceArray | None
    target: DeviceArray | None
    parts: list[Part] | None  # the places of the parts of the source; None for equal rows
    target_parts: list[Part] | None
    is_risky: bool  # whether pieces would be written where others have yet to be read
    arguments: tuple[Any, int, str | None, str | None]  # the operation, root, algorithm and bits
    scales: tuple[float, float]  # the factors of contributions and of the result
    whole: int  # the elements that the ranks compare
    text: str  # the arguments that they compare under COLLECTIVES_VALIDATE=1
    result: Any  # the return value
    reduces: bool  # whether it folds
    is_shared: bool  # whether its plan sends no messages and uses shared memory alone
    asked: str | None  # the transport that the call or the environment asks for
    # Another request that has to be complete, and a function that returns the result then.
    before: tuple[_core.Request, Callable[[Any], Any]] | None = None
    finish: Callable[[Any], Any] | None = None  # turns the result into the return value

    @property
    def arrays(self) -> list[DeviceArray]:
        """The arrays that this rank reads or writes."""
        return [each for each in (self.source, self.target) if each is not None]

    def finished(self) -> Any:
        """Return the return value, when all of the call is complete. Called once."""
        if self.before is not None:
            self.before[1](self.result)
        return self.result if self.finish is None else self.finish(self.result)


class AgreedCall(NamedTuple):
    """A checked call on which the ranks have agreed."""

    devices: Any  # the `Devices` of its communicator
    engine: _core.Engine
    driver: Driver
    job: DeviceCall
    blocking: bool
    timeout: float | None

    @property
    def device(self) -> int:
        """The device of the arrays."""
        return self.job.arrays[0].device


def give_up(engine: _core.Engine, title: str, error: BaseException) -> None:
    """Mark a communicator as broken, and tell the other ranks that can be told."""
    if engine.broken is None:
        engine.broken = f"the communicator is broken: rank {engine.rank} failed in {title}"
        engine.give_up(f"it failed in {title}: {error_text(error)}")


class StartedCall(OnDevice):
    """A started call or message on arrays of devices: the base class of all requests."""

    origin = None  # as a `Request` has it
    _arrived: int | None = None  # an event: the result is on the device
    _events: Events | None = None  # takes that event back
    _request: _core.Request | None = None  # of the call on the host
    _error: BaseException | None = None
    _fatal: type[BaseException] = Exception  # the errors that break the communicator
    _is_finished = False  # whether all of it is enqueued
    _is_placed, _got = False, None

    def __init__(
        self,
        engine: _core.Engine,
        driver: Driver,
        device: int,
        title: str,
        arrays: Sequence[DeviceArray],
        finished: Callable[[], Any],
        before: tuple[_core.Request, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.engine: _core.Engine = engine
        self._driver, self._device, self._title = driver, device, title
        self._finished, self._before = finished, before
        self._lock = threading.RLock()
        self._place = place()
        if engine.started is not None:
            engine.started(self)
        streams = {each.stream for each in arrays}
        self._by_host = None in streams  # the stream of a library is not known
        self._streams = [each for each in streams if each is not None]

    # -- the part of each transport ------------------------------------------------------------

    def _moves(self) -> bool:
        """Make progress, and return whether all of the call is enqueued."""
        raise NotImplementedError

    def _enqueue(self, timeout: float | None) -> None:
        """Wait until all of the call is enqueued."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Keep memory that MPI or a device may still use from being used again."""

    def _awaited(self) -> _core.Request | None:
        """Return the request for which this call waits."""
        return self._request

    # -- the interface of requests -------------------------------------------------------------

    def test(self) -> bool:
        """Make progress, and return whether the result is in order of the caller's stream.
        Local.

        Returns
        -------
        bool

        Raises
        ------
        CollectivesError
            As for `Request.test`.
        """
        if not self._moves() or (self._before is not None and not self._before[0].test()):
            return False
        if self._by_host and not self._has_arrived():
            return False
        self._result()
        return True

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Wait until the result is in order of the caller's stream, and return it.
        Local, but it waits for the other ranks.

        Work that is put on the stream later sees the result. The stream is the current one of the
        array's library at the time of the call. If it is not known (DLPack, or an interface without
        a stream), the result is complete.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which it raises `StallError`, by default the communicator's. It limits
            each wait for other ranks; a call that goes through the host in pieces waits for each
            piece.
        host : bool
            Whether to wait until the result is complete, so that the host may read it.

        Returns
        -------
        array or None
            The result of the blocking form.

        Raises
        ------
        StallError
            If the deadline passes. The communicator is broken then.
        CollectivesError
            Otherwise, as for `Request.wait`.
        """
        if timeout is not None:
            _core.seconds(timeout)
        self._enqueue(timeout)
        if self._arrived is not None and (host or self._by_host):
            self._arrive(timeout)
        return self._result()

    def state(self) -> str:
        """Return the state of the call, for messages."""
        return self._title

    @property
    def taken(self) -> bool:
        """True if the program knows that it is complete."""
        return self._is_placed

    def where(self) -> str:
        """Return the place in the program that started it."""
        return self._place

    def __repr__(self) -> str:
        state = f"{self._title}: complete" if self._is_finished else self.state()
        return f"<{type(self).__name__} of {state}>"

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._arrived is not None and self._events is not None and not is_ending():
            self._events.give(self._arrived)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End the request for which this call waits if it has `waited` too long."""
        awaited = self._awaited()
        if awaited is not None:
            awaited._look(waited, timeout)

    # -- the end -------------------------------------------------------------------------------

    def _on(self) -> Any:
        return self._driver.on(self._device)

    def _guarded(self) -> _Guard:
        return _Guard(self)

    def _has_arrived(self) -> bool:
        """Return whether the result is on the device."""
        with self._guarded(), self._on():
            return self._arrived is None or self._driver.done(self._arrived)

    def _arrive(self, timeout: float | None) -> None:
        """Wait until the result is on the device."""
        assert self._arrived is not None
        with self._guarded(), self._on():
            self._driver.synchronize(self._arrived)

    def _result(self) -> Any:
        """Return the return value, once."""
        with self._lock:
            if not self._is_placed:
                self._got, self._is_placed = self._finished(), True
            return self._got

    def _fail(self, error: BaseException) -> None:
        """Keep an error; it breaks the communicator unless all of the call is enqueued."""
        if self._error is not None:
            return
        self._error = error
        if not self._is_finished:
            _core.note_staged(self, False)
            give_up(self.engine, self._title, error)
            self._abandon()


class _Guard:
    """A context that keeps the error of a request."""

    def __init__(self, request: StartedCall) -> None:
        self.request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self.request._fatal):
            self.request._fail(error)


class StreamRequest(StartedCall):
    """A call by NCCL, which is on the caller's stream already.

    Work that is put on the stream later sees the result, even before a wait.
    """

    def __init__(self, call: AgreedCall, event: int, events: Events, group: Any) -> None:
        job = call.job
        super().__init__(
            call.engine, call.driver, call.device, job.title, job.arrays, job.finished, job.before
        )
        self._arrived, self._events, self._group = event, events, group

    def _moves(self) -> bool:
        return True

    def _enqueue(self, timeout: float | None) -> None:
        if self._before is not None:
            self._before[0].wait(timeout)

    def _abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._group.abort()

    def state(self) -> str:
        """Return the state of the call, for messages."""
        return f"{self._title} is on its stream"

    def _has_arrived(self) -> bool:
        if super()._has_arrived():
            return True
        with self._guarded():
            self._group.check()
        return False

    def _arrive(self, timeout: float | None) -> None:
        """Poll until the call ends: NCCL waits on the device for ranks that may never call it."""
        wait = Wait(NAPS, lambda waited: self._look(waited, timeout))
        while not self._has_arrived():
            wait.turn()

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End the communicator if this has `waited` too long, or for a rank that is gone."""
        limit = self.engine.timeout if timeout is None else timeout
        with self._guarded():
            self.engine.check_host()
            if waited > limit:
                raise StallError(
                    f"rank {self.engine.rank} waited {limit:g} s for the end of "
                    f"{self._title} by NCCL, started at {self._place}; another rank has not "
                    f"called it, or its stream waits for something else"
                )
