"""The faults that the fake GPU finds, with their places in the program.

FakeGpuError
├── Race              two accesses without an order between them
├── InvalidAddress    an address that is unknown, freed, or beyond the end
├── InvalidHandle     a stream, event or exported handle that is ended, freed or one's own
├── InvalidArgument   a size, pitch or grid that a GPU refuses
├── WrongDevice       a stream, event, kernel or memory of another device
├── StillInUse        memory given back that work, or another process, still uses
├── Leak              something is left at the end
└── Stalled           something was waited for beyond the deadline
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


class FakeGpuError(RuntimeError):
    """A GPU's runtime would have failed, or worse, would not have noticed."""


class Race(FakeGpuError):
    """Two accesses to the same bytes, one of them a write, have no order."""


class InvalidAddress(FakeGpuError):
    """An address is not, or no longer, inside of an allocation."""


class InvalidHandle(FakeGpuError):
    """A stream, an event or an exported handle cannot be used so."""


class InvalidArgument(FakeGpuError):
    """A GPU's runtime refuses this value."""


class WrongDevice(FakeGpuError):
    """Something belongs to another device."""


class StillInUse(FakeGpuError):
    """Memory is given back while something uses it."""


class Leak(FakeGpuError):
    """Something was made and not given back."""


class Stalled(FakeGpuError):
    """Something did not happen within the deadline."""


HERE = str(Path(__file__).parent) + "/fake_"


def caller() -> str:
    """Return file and line of the innermost Python frame that is not of the fake."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith(HERE) and file != contextlib.__file__:
            break
        frame = frame.f_back
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-3:])}:{frame.f_lineno}"
