"""Communicators for programs that use mpi4py, whose collectives run here.

The input is an mpi4py communicator. The output is one of a subclass, on the same handle. MPI runs
point-to-point messages, windows, files and all other calls, including collectives that are not
served. Whether a collective is served depends only on arguments that MPI requires to be equal on
all ranks. Properties that may differ between ranks, such as the layout of data in memory, are
converted here. Of mpi4py's own classes, only the class methods that take lists of requests
(`requests.py`) and those that make windows (`windows.py`) are replaced.
"""

# ruff: noqa: E402  # a child of a rank is refused before MPI is initialised, which may wait in it

from collectives.process import processes

processes.refuse_child()

import mpi4py.MPI  # noqa: F401  # first: with --accelerate, this imports the modules below

from collectives.mpi4py.calls import Served
from collectives.mpi4py.communicators import (
    Cartcomm,
    Distgraphcomm,
    Graphcomm,
    Intracomm,
    accelerate,
)

__all__ = ["Cartcomm", "Distgraphcomm", "Graphcomm", "Intracomm", "Served", "accelerate"]
