"""A job that hangs, and the command that names the rank that the others wait for.

    collectives run -n 4 examples/who_is_late.py --how sleeps
    collectives status                              # in a second terminal

The last rank sleeps, stops itself, makes another call, or leaves, and the others wait for it until
Ctrl-C.
"""

import argparse
import os
import signal
import time

import numpy as np

import collectives as cc

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--how", choices=["sleeps", "stops", "differs", "leaves"], default="sleeps")
arguments = parser.parse_args()

comm = cc.world()
x = np.ones(1000)
for _ in range(3):
    comm.allreduce(x, out=x)
if comm.rank == 0:
    print(f"rank {comm.size - 1} {arguments.how}", flush=True)
if comm.rank == comm.size - 1:
    if arguments.how == "sleeps":
        time.sleep(3600)
    elif arguments.how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif arguments.how == "differs":
        comm.recv(x, source=0)
    raise SystemExit
try:
    comm.allreduce(x, out=x)
except cc.errors.PeerLostError:  # the last rank has left; without shared memory, nobody notices
    time.sleep(3600)
