"""Compare an allreduce of 8 bytes on more ranks than cores with a program that does nothing else.

The program is floor_of_waits.c, which needs a C compiler. Run it on a machine as quiet as may be::

    python benchmarks/measure_floor.py [--ranks 4,8] [--turns 7]

The program, planned calls and calls are timed in turns; each number is a median over the turns.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOOKS = 1
TIMES = 20000


def rank():
    """Time both forms of the call on this rank; print the microseconds on rank 0."""
    import numpy as np

    import collectives as cc

    comm = cc.world()
    x, out = np.ones(1), np.empty(1)
    planned = comm.plan("allreduce", x, out=out)
    for call in (planned, lambda: comm.allreduce(x, out=out)):
        for _ in range(TIMES // 10):
            call()
        start = time.perf_counter()
        for _ in range(TIMES):
            call()
        if comm.rank == 0:
            print(f"{(time.perf_counter() - start) / TIMES * 1e6:.2f} us")


def microseconds(command):
    """Run a command; return the times that it prints."""
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return [float(each) for each in re.findall(r"([\d.]+) us", result.stdout)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank()
        return
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/floor_of_waits"
        subprocess.run(["cc", "-O2", "-o", program, str(HERE / "floor_of_waits.c")], check=True)
        for ranks in options.ranks.split(","):
            run = [sys.executable, "-m", "collectives", "run", "-n", ranks, __file__, "--rank"]
            rows = [
                [*microseconds([program, ranks, str(LOOKS)]), *microseconds(run)]
                for _ in range(options.turns)
            ]
            floor, planned, called = map(statistics.median, zip(*rows, strict=True))
            print(
                f"{ranks} ranks: program {floor:.1f} us, planned call {planned:.1f}, call "
                f"{called:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
