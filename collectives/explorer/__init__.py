"""The explorer: a page in which one steps through algorithms.

In come the registered algorithms; out goes a folder of files that a browser opens. `cases` has what
the page plays, from the generators and their proofs, and `sources` their text, with the line that
each round comes from. The page itself knows no algorithm. It adds a clock, which gives each message
its time by the cost model. It fetches nothing, so that it works without a network.
"""

from __future__ import annotations

from collectives.explorer.page import explore, write

__all__ = ["explore", "write"]
