"""The choice of the algorithm, and its reason.

The choice depends on the collective, the numbers of ranks and bytes, and measurements on this
machine. The result is a `Decision` with its reason. `chooser` keeps the plans of a communicator,
and tries alternatives in a program's own calls. `select` decides. `profile` and ``measured.json``
hold measurements. `model` has the time by the cost formulas, and measures their parameters. Nothing
else is run here.
"""

from __future__ import annotations

from collectives.choice.select import Decision, Timing, decide

__all__ = ["Decision", "Timing", "decide"]
