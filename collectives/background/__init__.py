"""Collectives in the background: submitted by any thread, in any order, and run as they are needed.

`submit` returns a `Handle` at once. The ranks find out what all of them have submitted, run small
arrays as one, long ones by pieces, and first what has the highest priority.
"""

from collectives.background.engine import flush, join, start, stop, submit
from collectives.background.handle import Handle

__all__ = ["Handle", "flush", "join", "start", "stop", "submit"]
