"""Which algorithm runs, and why.

In come a collective, a number of ranks and of bytes, and what was measured on this machine; out
goes a `Decision` with its reason. `select` decides, `profile` and ``measured.json`` hold what was
measured, `model` has the cost formulas, `online` tries alternatives in a program's own calls.
Nothing is run here but those trials and the probe of the model.
"""

from __future__ import annotations

from collectives.choice.select import Decision, Timing, decide

__all__ = ["Decision", "Timing", "decide"]
