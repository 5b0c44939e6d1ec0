"""Files of MPICH in ``/dev/shm``, which nobody removes when a job is killed.

MPICH maps a file of the host in ``MPI_Init`` and removes its name in ``MPI_Finalize``: a job
that ends otherwise leaves some megabytes behind. Once all ranks have mapped it, it needs no name.
"""

from __future__ import annotations

import contextlib
import functools
import os

PREFIX = "/dev/shm/mpich_shm_"


def remove() -> None:
    """Remove the names of MPICH's files that this process has mapped. Local, when all ranks of the
    host have come through ``MPI_Init``.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        found = {line.rstrip("\n").partition("/")[2] for line in maps if PREFIX in line}
        for each in found:
            with contextlib.suppress(OSError):
                os.unlink(f"/{each}")


@functools.cache
def remove_once() -> None:
    """Do the same, and nothing when it is called again. Local."""
    remove()
