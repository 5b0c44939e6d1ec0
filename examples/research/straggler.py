"""Call an allreduce 20 times with one late rank: rank 1, or the one that the argument names.

    COLLECTIVES_TIMELINE=out.json collectives run -n 3 examples/research/straggler.py

Without an argument, the library chooses the algorithm, and a timeline shows which rank is late.
With its number as the argument, the algorithm is `stragglar` for this rank.
"""

import sys
import time

import numpy as np

import collectives as cc

comm = cc.world()
x = np.ones(100_000)
algorithm = f"stragglar:{int(sys.argv[1]) + comm.size}" if len(sys.argv) > 1 else None
for _ in range(20):
    if comm.rank == 1:
        time.sleep(0.05)
    comm.allreduce(x, out=x, algorithm=algorithm)
