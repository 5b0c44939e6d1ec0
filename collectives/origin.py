"""Origins: where in a program an operation was started, or a communicator was made."""

from __future__ import annotations

import sys
import traceback
from types import FrameType

__all__ = ["Origin"]

DEPTH = 16  # frames that are kept: the innermost ones


class Origin:
    """The stack of the caller, as cheap as can be: no source line is read before it is shown.

    Parameters
    ----------
    frame : frame, optional
        The innermost frame to keep; that of the caller by default.
    """

    def __init__(self, frame: FrameType | None = None) -> None:
        walk = traceback.walk_stack(frame or sys._getframe(1))
        self.stack = traceback.StackSummary.extract(walk, limit=DEPTH, lookup_lines=False)

    def __str__(self) -> str:
        """Return the text of a traceback, outermost call first."""
        return "".join(traceback.StackSummary.from_list(self.stack[::-1]).format()).rstrip("\n")
