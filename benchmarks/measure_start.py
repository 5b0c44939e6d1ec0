"""Take the time of a program's start: MPI's own, the import of collectives, and its first world().

Run it as ``mpiexec -n 2 python benchmarks/measure_start.py``, twice: in the first run Python
compiles the sources. NumPy is imported before. The printed times are those of the slowest rank.
"""

import time

import numpy as np


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


def main():
    names = ("MPI", "import", "world", "first call")
    times = []
    for part in (start_mpi, start_library, make_world, call):
        start = time.perf_counter()
        part()
        times.append(1e3 * (time.perf_counter() - start))

    import collectives as cc

    slowest = cc.allreduce(np.array(times), op=cc.MAX)
    if cc.rank() == 0:
        print(", ".join(f"{name} {each:.1f} ms" for name, each in zip(names, slowest, strict=True)))


if __name__ == "__main__":
    main()
