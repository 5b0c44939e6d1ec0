"""Measure alpha, beta and gamma: what the cost formulas are multiplied by where no table helps.

Run it on two ranks of a quiet machine::

    mpiexec -n 2 python benchmarks/measure_model.py

It prints half a round trip of 8 bytes, half a round trip of 4 MiB for each byte, and the time of
one NumPy addition of float32 for each byte. `collectives/choice/model.py` rounds them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI
from turns import alone, in_turns, medians, options, say, slowest

SHORT, LONG = 8, 4 << 20  # bytes
MORE = 50  # times as many turns of the short message


def round_trip(comm: MPI.Comm, nbytes: int) -> Callable[[], None]:
    """Return a call that sends a message from rank 0 to rank 1 and back."""
    data = np.zeros(nbytes, np.uint8)

    def call() -> None:
        for sends in (comm.rank == 0, comm.rank == 1):
            if sends:
                comm.Send(data, 1 - comm.rank)
            else:
                comm.Recv(data, 1 - comm.rank)

    return call


def main() -> None:
    """Measure all three and print them on rank 0."""
    turns = options(__doc__, turns=60).turns
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"this needs 2 ranks, and there are {comm.size}")
    total, more = np.ones(LONG // 4, np.float32), np.ones(LONG // 4, np.float32)
    found = {
        **medians(in_turns({"alpha": round_trip(comm, SHORT)}, MORE * turns, slowest)),
        **medians(in_turns({"beta": round_trip(comm, LONG)}, turns, slowest)),
        **medians(in_turns({"gamma": partial(np.add, total, more, out=total)}, turns, alone)),
    }
    say(f"alpha {1e6 * found['alpha'] / 2:.2f} us")
    say(f"beta  {1e9 * found['beta'] / 2 / LONG:.3f} ns/B")
    say(f"gamma {1e9 * found['gamma'] / LONG:.3f} ns/B")


if __name__ == "__main__":
    main()
