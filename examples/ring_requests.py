"""Exchange arrays with both neighbours in a ring, and wait for all at the end of a block.

    collectives run -n 4 examples/ring_requests.py

The program keeps none of the requests, and rank 0 prints where they were started.
"""

import numpy as np

import collectives as cc

comm = cc.world()
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
mine = np.full(3, comm.rank)
before, after, total = np.empty_like(mine), np.empty_like(mine), np.empty_like(mine)
with comm.requests() as scope:
    comm.isendrecv(mine, right, out=before, source=left)
    comm.isendrecv(mine, left, out=after, source=right)
    comm.iallreduce(mine, out=total)
assert (before == left).all()
assert (after == right).all()
assert (total == comm.size * (comm.size - 1) // 2).all()
if comm.rank == 0:
    print(f"{len(scope.forgotten)} requests were left to the block:")
    for line in scope.forgotten:
        print(" ", line.rpartition("/")[2])
