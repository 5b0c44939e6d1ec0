"""Collectives in the background: submitted by any thread, and run when all ranks have them.

`submit` takes the arguments of a collective and returns a `Handle` at once. `engine` has the public
functions, and the work, which one thread at a time does. `group` has the turns of the ranks of a
communicator: a round compares their submissions, by place (`_core.Window`) or by name (`matching`),
and `schedule` picks the next one and runs it. `steps` has submissions of several collectives.
Nothing here communicates by itself: all communication is by calls of two duplicates of the
communicator.
"""

from collectives.background.engine import (
    flush,
    join,
    start,
    stop,
    submit,
    submit_many,
    when_complete,
)
from collectives.background.handle import Handle

__all__ = ["Handle", "flush", "join", "start", "stop", "submit", "submit_many", "when_complete"]
