"""Take the time of a program's start: MPI's own, the import of collectives, and its first world().

Run it as ``mpiexec -n 2 python benchmarks/measure_start.py``, twice: in the first run Python
compiles the sources. NumPy is imported before. The printed times are those of the slowest rank.

Without MPI, run it by ``collectives run --no-mpi`` or by ``torchrun``: a rank of torchrun imports
torch before, as its program would. With ``-H host1:2,host2:2``, the script runs itself so on the
ranks of several hosts, and also prints the time from the start of the command until the first call
has ended on all ranks.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np

WITHOUT_MPI = "COLLECTIVES_RENDEZVOUS", "TORCHELASTIC_RUN_ID"


def start_mpi():
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()


def start_library():
    import collectives  # noqa: F401


def make_world():
    import collectives as cc

    cc.world()


def call():
    import collectives as cc

    cc.allreduce(np.ones(1))


def start_on(hosts):
    start = time.perf_counter()
    words = [sys.executable, "-m", "collectives", "run", "--no-mpi", "-H", hosts, __file__]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        line = command.stdout.readline()
        seconds = time.perf_counter() - start
    if command.returncode == 0:
        print(f"{line.rstrip()}, in all {seconds:.2f} s")
    return command.returncode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-H", dest="hosts", help="hosts and their numbers of ranks")
    hosts = parser.parse_args().hosts
    if hosts is not None:
        return start_on(hosts)
    parts = {"import": start_library, "world": make_world, "first call": call}
    if not any(name in os.environ for name in WITHOUT_MPI):
        parts = {"MPI": start_mpi, **parts}
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        import torch.distributed  # noqa: F401
    times = []
    for part in parts.values():
        start = time.perf_counter()
        part()
        times.append(1e3 * (time.perf_counter() - start))

    import collectives as cc

    slowest = cc.allreduce(np.array(times), op=cc.MAX)
    if cc.rank() == 0:
        pairs = zip(parts, slowest, strict=True)
        print(", ".join(f"{name} {each:.1f} ms" for name, each in pairs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
