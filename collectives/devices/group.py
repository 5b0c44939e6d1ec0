"""The arrays of a grouped call that are on devices: each is a call by itself."""

from __future__ import annotations

from typing import Any

from collectives import _core
from collectives.devices import runtime
from collectives.devices.arrays import read
from collectives.devices.calls import Devices, Options
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError

ALLREDUCE = _core.COLLECTIVES.index("allreduce")


class DeviceGroup:
    """What `_core.Group` is for arrays of the host, for those of devices, without packing."""

    def __init__(
        self, engine: _core.Engine, arrays: list[Any], outs: list[Any], arguments: tuple[Any, ...]
    ) -> None:
        op, algorithm, prescale, postscale = arguments
        devices: Devices = engine.devices()
        self.count, self.arrays, self.places = len(arrays), arrays, list(outs)
        self._refuse_host(devices)
        self._jobs = []
        for i, (x, out) in enumerate(zip(arrays, outs, strict=True)):
            options = Options(op, 0, algorithm, prescale, postscale)
            try:
                self._jobs.append(devices.job(engine, ALLREDUCE, x, out, options))
            except (ArgumentError, UnsupportedTypeError) as error:
                raise type(error)(f"arrays[{i}]: {error}") from error
            if self._jobs[-1].finish is None:  # nothing is left that can fail
                self.places[i] = self._jobs[-1].result

    def _refuse_host(self, devices: Devices) -> None:
        """Raise an error if some arrays are in host memory."""
        places: dict[str, str] = {}
        driver = runtime.driver_for("an array")
        for i, x in enumerate(self.arrays):
            found = read(x, f"arrays[{i}]", driver, devices._reads)
            where = "in host memory" if found is None else f"on cuda:{found.device}"
            places.setdefault("host" if found is None else "device", f"arrays[{i}] is {where}")
        if len(places) > 1:
            raise BufferError(
                f"{' and '.join(places.values())}; pass those in host memory in another call"
            )

    def overlap(self) -> tuple[str, str] | None:
        """Return the names of two arrays of which one is written where the other is read or
        written, or None. Local.
        """
        spans = []
        for i, job in enumerate(self._jobs):
            source, target = job.source, job.target
            assert source is not None
            assert target is not None
            spans.append((target.address, target.nbytes, True, i))
            if source.address != target.address:
                spans.append((source.address, source.nbytes, False, i))
        return _core.overlapping([each for each in spans if each[1]])

    def sizes(self, most: int) -> list[tuple[str, int]]:
        """Return the (dtype, number of elements) of each; of the first ones only, if there are
        more than `most`. Local.
        """
        arrays = [job.arrays[0] for job in self._jobs[:most]]
        return [(each.dtype, each.count) for each in arrays]

    def checksum(self) -> int:
        """Return a number that depends on the dtypes and numbers of elements. Local."""
        return _core.checksum(self.sizes(self.count))

    def parts(self, apart: int, most: int) -> list[list[int]]:
        """Return the numbers of the arrays of each collective: each is one by itself. Local."""
        return [[i] for i in range(self.count)]

    def array(self, i: int) -> tuple[Any, Any]:
        """Return array `i` and its `out`. Local."""
        return self.arrays[i], self.places[i]

    def store(self, i: int, result: Any) -> None:
        """Take the result of array `i` over. Local."""
        self.places[i] = result

    def results(self) -> list[Any]:
        """Return what the caller gets, when all is complete. Local."""
        return self.places
