"""The explorer, an HTML page to step through algorithms, and the course, which has chapters.

Both are in a folder of files that a browser opens, made from the registered algorithms. `cases`
makes the data that the page plays, from the generators and their proofs. `sources` adds their
source text, with the line of each round. `machines` describes the machines of the simulation. The
page itself contains no algorithm and no machine. It computes the time of each message by the cost
model. It works without a network, because it loads only its own files.
"""

from __future__ import annotations

from collectives.explorer.page import explore, write

__all__ = ["explore", "write"]
