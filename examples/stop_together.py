"""A run that stops on all ranks after the same step when it is asked to, and continues later.

    collectives run -n 2 examples/stop_together.py --state /tmp/state --pause 0.1
    collectives stop PID                        # in a second terminal; or press Ctrl-C
    collectives run -n 2 examples/stop_together.py --state /tmp/state

The second run continues with the step at which the first one has stopped, on any number of ranks.
"""

import argparse
import os
import time

import numpy as np

from collectives import elastic

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--state", required=True, metavar="FILE", help="where the state is saved")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each step")
arguments = parser.parse_args()

rng = np.random.default_rng(1)  # the same data on all ranks
x = rng.normal(size=(1200, 20))
y = x @ rng.normal(size=20)


def train(state: elastic.State) -> bool:
    """Return whether all steps are done."""
    comm = state.comm
    mine = slice(comm.rank, None, comm.size)
    while state.step < arguments.steps:
        if comm.stop_requested():
            state.save(arguments.state)
            return False
        gradient = x[mine].T @ (x[mine] @ state.weights - y[mine])
        state.weights -= 0.2 * comm.allreduce(gradient) / len(x)
        state.step += 1
        time.sleep(arguments.pause)
    return True


state = elastic.State(weights=np.zeros(20), step=0)
state.load(arguments.state)
if state.comm.rank == 0:
    print(f"process {os.getpid()} starts with step {state.step}", flush=True)
is_done = elastic.run(state, train)
print(
    f"rank {state.comm.rank} {'is done' if is_done else 'stops'} at step {state.step}", flush=True
)
if is_done:
    error = np.abs(x @ state.weights - y).max()
    assert error < 1e-6, error
