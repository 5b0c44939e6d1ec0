"""The driver of this process: CuPy's, loaded when an array of a device needs it."""

from __future__ import annotations

import importlib.util

from collectives.devices.driver import Driver
from collectives.errors import BufferError
from collectives.text.words import plain

_driver: Driver | None = None


def use(driver: Driver | None) -> Driver | None:
    """Set the driver of this process, or with None CuPy's when it is needed; return the one before.
    Local.
    """
    global _driver
    before, _driver = _driver, driver
    return before


def found() -> Driver | str:
    """Return the driver of this process, or the reason why there is none. Local."""
    global _driver
    if _driver is None:
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed: pip install cupy-cuda12x"
        try:
            from collectives.devices.cupy_driver import CupyDriver

            _driver = CupyDriver()
        except Exception as error:  # CuPy's own, and those of libraries that it loads
            return f"CuPy cannot use one: {plain(error)}"
    return _driver


def driver_for(name: str) -> Driver:
    """Return the driver of this process. Local."""
    driver = found()
    if isinstance(driver, str):
        raise BufferError(
            f"{name} is on a CUDA device, and {driver}; or pass a copy in host memory"
        )
    return driver
