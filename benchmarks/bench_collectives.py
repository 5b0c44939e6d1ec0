"""Each collective on two ranks, beside MPI's own: blocks that ``collectives bench`` has timed."""

import pytest

from collectives.choice.select import size_text
from collectives.measuring.operations import OPERATIONS

FACTOR = 64
SIZES = [8 * FACTOR**k for k in range(4)]  # up to 2 MiB
CASES = [
    (name, nbytes) for name in OPERATIONS for nbytes in (SIZES if OPERATIONS[name].moves else [0])
]


@pytest.mark.parametrize("who", ["MPI", "ours"])
@pytest.mark.parametrize(("operation", "nbytes"), CASES)
def bench_collectives(replay, measured, operation, nbytes, who):
    rows = measured(f"{operation} -n 2 -b {SIZES[0]} -e {SIZES[-1]} -f {FACTOR}")
    rows = [row for row in rows if row["asked"] == nbytes]
    row = next(row for row in rows if (row["algorithm"] == "MPI") == (who == "MPI"))
    size = f" of {size_text(nbytes)}" if nbytes else ""
    keys = ("chosen", "bytes", "median_us", "min_us", "max_us", "algbw", "busbw", "iterations")
    information = {key: row[key] for key in keys}
    replay(row["blocks_us"], f"{operation}{size} on 2 ranks", **information)
