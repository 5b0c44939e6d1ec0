"""The explorer: a page in which one steps through algorithms, made of files and nothing else.

The page knows no algorithm. What it plays is written by Python from the registered generators and
their proofs (`cases`), with their text and the line that each round comes from (`sources`); what
the page adds is a clock, which gives each message its time by the rules of the model of costs. It
fetches nothing, so it works from a disk, and without a network.
"""

from __future__ import annotations

from collectives.explorer.page import explore, write

__all__ = ["explore", "write"]
