"""Algorithms as the XML of MSCCL: read, proven and registered, or written.

`document` reads a file into thread blocks and steps, and refuses one that is malformed. `replay`
executes it symbolically on all ranks, and finds deadlocks, races and wrong results. `rounds` turns
the messages of a correct file into rounds of numbered blocks, and `export` writes a registered
algorithm as XML. Nothing here runs on a GPU, and no file is executed as a program.
"""

from collectives.msccl.export import export
from collectives.msccl.rounds import Reading, read

__all__ = ["Reading", "export", "read"]
