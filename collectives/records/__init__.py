"""Records of calls: timelines of all ranks, and traces of one.

The records of the core (`tape`) are written to a file of trace events (`tracefile`, `timeline`),
from which `summary` computes the time of each collective. `trace` lists the calls of one
communicator. Nothing here changes the calls.
"""
