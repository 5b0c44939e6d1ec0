"""What a call becomes on its way to a transport, and requests that are on a stream already."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from collectives import _core
from collectives.devices.driver import Driver
from collectives.devices.job import Job, give_up
from collectives.errors import StallError
from collectives.process.waiting import Naps, Wait

NAPS = Naps(nap=1e-4)  # between two looks at the device


class Call(NamedTuple):
    """A call that was checked, and that the ranks have agreed on.

    Attributes
    ----------
    devices : Devices
        What its communicator has for arrays of devices.
    engine : Engine
    driver : Driver
    job : Job
    blocking : bool
    timeout : float or None
    """

    devices: Any
    engine: _core.Engine
    driver: Driver
    job: Job
    blocking: bool
    timeout: float | None

    @property
    def device(self) -> int:
        """The device of the arrays."""
        return self.job.arrays[0].device


class StreamRequest:
    """A call whose work is on the caller's stream already. It is used like a `DeviceRequest`.

    Work that is put on the stream later sees the result, whether it was waited for or not.
    """

    origin = None

    def __init__(
        self,
        call: Call,
        event: int,
        give: Callable[[int], None],
        group: Any,
        by_host: bool,
        place: str,
    ) -> None:
        self.engine = call.engine
        self._driver, self._job, self._device = call.driver, call.job, call.device
        self._event, self._give, self._group = event, give, group
        self._by_host, self._place = by_host, place
        self._placed, self._got = False, None
        self._lock = threading.Lock()

    def test(self) -> bool:
        """Return whether the result is in order of the caller's stream. Local.

        Raises
        ------
        CollectivesError
            If the operation has failed.
        """
        if self._job.before is not None and not self._job.before[0].test():
            return False
        if self._by_host and not self._is_done():
            return False
        self._result()
        return True

    def wait(self, timeout: float | None = None, host: bool = False) -> Any:
        """Return the result, as soon as it is in order of the caller's stream.
        Local, but it may wait for what the other ranks do.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which it raises `StallError`, by default the communicator's.
        host : bool
            Whether to wait until the result is complete, so that the host may read it.

        Returns
        -------
        array or None
            What the blocking form returns.

        Raises
        ------
        StallError
            If the deadline passes. The communicator is broken then.
        CollectivesError
            If the operation has failed.
        """
        if timeout is not None:
            _core.seconds(timeout)
        if self._job.before is not None:
            self._job.before[0].wait(timeout)
        if host or self._by_host:
            wait = Wait(NAPS, lambda waited: self._look(waited, timeout))
            while not self._is_done():
                wait.turn()
        return self._result()

    def state(self) -> str:
        """Return what has become of it, for messages. Local."""
        return f"{self._job.title} is on its stream"

    def where(self) -> str:
        """Return the place in the program that started it. Local."""
        return self._place

    def __repr__(self) -> str:
        return f"<StreamRequest of {self._job.title}>"

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():
            self._give(self._event)

    def _look(self, waited: float, timeout: float | None = None) -> None:
        """End the communicator if this has `waited` too long, or for a rank that is gone. Local."""
        limit = self.engine.timeout if timeout is None else timeout
        try:
            self.engine.check_host()
            if waited > limit:
                raise StallError(
                    f"rank {self.engine.rank} waited {limit:g} s for the end of "
                    f"{self._job.title} by NCCL, started at {self._place}; another rank has not "
                    f"called it, or its stream waits for something else"
                )
        except Exception as error:
            self._fail(error)
            raise

    def _is_done(self) -> bool:
        try:
            with self._driver.on(self._device):
                done = self._driver.done(self._event)
            if not done:
                self._group.check()
        except Exception as error:
            self._fail(error)
            raise
        return done

    def _fail(self, error: Exception) -> None:
        """Break the communicator, and end what waits on the device."""
        give_up(self.engine, self._job.title, error)
        with contextlib.suppress(Exception):
            self._group.abort()

    def _result(self) -> Any:
        """Return what the caller gets."""
        with self._lock:
            if not self._placed:
                self._got, self._placed = self._job.finished(), True
            return self._got
