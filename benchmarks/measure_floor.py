"""Compare an allreduce of 8 bytes on more ranks than cores with a program that does nothing else.

The program is floor_of_waits.c, which needs a C compiler. Run it on a machine as quiet as may be::

    python benchmarks/measure_floor.py [--ranks 4,8] [--turns 7]

The program, planned calls and calls are timed in turns; each number is a median over the turns.
"""

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from turns import alone, options, say

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
        alone(call, TIMES // 10)
        say(f"{1e6 * alone(call, TIMES):.2f} us")


def microseconds(command):
    """Run a command; return the times that it prints."""
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return [float(each) for each in re.findall(r"([\d.]+) us", result.stdout)]


def main():
    arguments = options(__doc__, turns=7, ranks="4,8", rank=False)
    if arguments.rank:
        rank()
        return
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/floor_of_waits"
        subprocess.run(["cc", "-O2", "-o", program, str(HERE / "floor_of_waits.c")], check=True)
        for ranks in arguments.ranks.split(","):
            run = [sys.executable, "-m", "collectives", "run", "-n", ranks, __file__, "--rank"]
            rows = [
                [*microseconds([program, ranks, str(LOOKS)]), *microseconds(run)]
                for _ in range(arguments.turns)
            ]
            floor, planned, called = map(statistics.median, zip(*rows, strict=True))
            print(
                f"{ranks} ranks: program {floor:.1f} us, planned call {planned:.1f}, call "
                f"{called:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
