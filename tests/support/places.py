"""This rank and the number of ranks, by whatever started them: mpiexec, or torchrun."""

from __future__ import annotations

import os
from typing import NoReturn

IS_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ

if IS_TORCHRUN:
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
else:
    from mpi4py import MPI

    RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def abort() -> NoReturn:
    """End the job."""
    if not IS_TORCHRUN:
        MPI.COMM_WORLD.Abort(1)
    os._exit(1)
