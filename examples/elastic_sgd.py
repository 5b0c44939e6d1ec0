"""Least squares by gradient descent, in a job that continues after the loss of ranks.

    collectives run --elastic --no-mpi -n 4 examples/elastic_sgd.py --lose 1:200 2:400

Under Open MPI, it runs without --no-mpi, too. Each rank computes with its share of the rows. After
a loss, the remaining ranks return to the last commit and divide all rows again, so that the result
is that of one process.
"""

import argparse
import os
import signal

import numpy as np

import collectives as cc
from collectives import elastic

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--lose", nargs="*", default=[], metavar="RANK:STEP", help="ranks to be killed")
arguments = parser.parse_args()
ends = {tuple(map(int, each.split(":"))) for each in arguments.lose}

rng = np.random.default_rng(1)  # the same data on all ranks
x = rng.normal(size=(1200, 20))
y = x @ rng.normal(size=20) + 0.1 * rng.normal(size=1200)
first = cc.world().rank


def train(state: elastic.State) -> None:
    comm = state.comm
    print(f"rank {first} is rank {comm.rank} of {comm.size} from step {state.step}", flush=True)
    mine = slice(comm.rank, None, comm.size)
    while state.step < arguments.steps:
        if (first, state.step) in ends:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = x[mine].T @ (x[mine] @ state.weights - y[mine])
        state.weights -= 0.1 * comm.allreduce(gradient) / len(x)
        state.step += 1
        if state.step % 50 == 0:
            state.commit()


state = elastic.State(weights=np.zeros(20), step=0)
elastic.run(state, train)
if state.comm.rank == 0:
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    print(f"{state.comm.size} ranks are left; distance {np.abs(state.weights - best).max():.1e}")
