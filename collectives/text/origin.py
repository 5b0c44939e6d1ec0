"""Origins: the places in a program that started an operation, or made a communicator."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import FrameType

DEPTH = 16  # number of frames to keep, the innermost ones
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def levels() -> int:
    """Return the `stacklevel` of a warning for the line that called the library. Local."""
    frame: FrameType | None = sys._getframe(1)
    count = 1
    within = PACKAGE, contextlib.__file__  # `with` statements of this library are functions
    while frame is not None and frame.f_code.co_filename.startswith(within):
        frame = frame.f_back
        count += 1
    return count


def place() -> str:
    """Return the place in the program that called the library. Local."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Origin:
    """The stack of the caller. Recording it is cheap: source lines are read when it is shown."""

    def __init__(self, frame: FrameType | None = None) -> None:
        walk = traceback.walk_stack(frame or sys._getframe(1))
        self.stack: traceback.StackSummary = traceback.StackSummary.extract(
            walk, limit=DEPTH, lookup_lines=False
        )

    def __str__(self) -> str:
        """Return the text of a traceback, outermost call first."""
        return "".join(traceback.StackSummary.from_list(self.stack[::-1]).format()).rstrip("\n")
