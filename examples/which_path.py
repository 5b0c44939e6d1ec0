"""Print the algorithm and the path of some calls.

collectives run -n 2 examples/which_path.py
COLLECTIVES_SHM=0 collectives run -n 2 examples/which_path.py
"""

import numpy as np

import collectives as cc

comm = cc.world()
with comm.trace() as trace:
    for length in 1, 1_000, 1_000_000:
        comm.allreduce(np.ones(length))
    comm.allgather(np.ones(1_000))
    comm.barrier()
if comm.rank == 0:
    for call in trace:
        print(f"{call.collective:10} {call.nbytes:9} bytes: {call.algorithm}, {call.transport}")
