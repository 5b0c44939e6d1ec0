"""Find the first call that differs between two runs of this program.

    COLLECTIVES_TRACE=run1 collectives run -n 3 examples/compare_runs.py
    COLLECTIVES_TRACE=run2 collectives run -n 3 examples/compare_runs.py --algorithm ring
    COLLECTIVES_TRACE=run3 collectives run -n 3 examples/compare_runs.py --spoil 2
    collectives compare run1 run2
    collectives compare run1 run3

A line is fitted by gradient descent. The algorithm changes only the rounding of sums. With
``--spoil``, the last rank reads one wrong number in that step.
"""

import argparse

import numpy as np

import collectives as cc

parser = argparse.ArgumentParser(description="Fit a line on all ranks.")
parser.add_argument("--algorithm", default="tree", help="that of the allreduce")
parser.add_argument("--spoil", type=int, metavar="STEP", help="give a rank a wrong number")
options = parser.parse_args()

comm = cc.world()
rng = np.random.default_rng(comm.rank)
x = rng.normal(size=(100, 8)).astype(np.float32)
y = x.sum(axis=1)
weights = np.zeros(8, np.float32)
for step in range(5):
    if step == options.spoil and comm.rank == comm.size - 1:
        x[17, 3] = 99
    gradient = x.T @ (x @ weights - y) / len(x)
    weights -= 0.1 * comm.allreduce(gradient, op=cc.AVG, algorithm=options.algorithm)
    loss = comm.allreduce(np.square(x @ weights - y).mean(), op="SUM_REPRODUCIBLE")
if comm.rank == 0:
    print(f"the loss is {loss / comm.size:.3f} after {step + 1} steps")
