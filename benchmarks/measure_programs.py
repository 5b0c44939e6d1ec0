"""Measure calls of public programs for mpi4py, on a plain and on an accelerated communicator.

Install the programs, and run it in the environment of each MPI; it leaves out missing ones::

    pip install heat pylops-mpi mpi4py-fft
    mpiexec -n 2 python benchmarks/measure_programs.py

For each call it prints the time of the fastest turn on the slowest rank, in ms, with both, and by
how much the accelerated one is faster. Others on the machine disturb the fastest turn least.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI
from turns import in_turns, options, row, say, slowest

from collectives.mpi4py import accelerate
from collectives.process.binding import library_name

Call = Callable[[], Any]


def heat_statistics(comm: MPI.Intracomm) -> Call:
    import heat as ht

    x = ht.random.randn(1000, 16, split=0, comm=ht.MPICommunication(comm))
    return lambda: (ht.mean(x, axis=0), ht.std(x, axis=0), ht.max(x), x.sum())


def heat_means(comm: MPI.Intracomm) -> Call:
    import heat as ht

    x = ht.random.randn(1000, 8, split=0, comm=ht.MPICommunication(comm))
    return lambda: ht.cluster.KMeans(4, max_iter=5, tol=-1.0, init="random").fit(x)


def pylops_solver(comm: MPI.Intracomm) -> Call:
    import pylops
    import pylops_mpi

    matrix = np.random.default_rng(comm.rank).normal(size=(100, 100)) + 10 * np.eye(100)
    operator = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrix)], base_comm=comm)
    x, zero = (pylops_mpi.DistributedArray(100 * comm.size, base_comm=comm) for _ in range(2))
    x[:], zero[:] = 1.0, 0.0
    y = operator @ x
    return lambda: pylops_mpi.cgls(operator, y, x0=zero, niter=5, tol=0)


def pylops_laplacian(comm: MPI.Intracomm) -> Call:
    import pylops_mpi

    operator = pylops_mpi.MPILaplacian((256, 256), (0, 1), (1, 1), (1, 1), base_comm=comm)
    x = pylops_mpi.DistributedArray(1 << 16, base_comm=comm)
    x[:] = 1.0
    return lambda: operator @ x


def fft(comm: MPI.Intracomm) -> Call:
    from mpi4py_fft import PFFT, newDistArray

    plan = PFFT(comm, (48, 48, 48), dtype=float)
    x, y = newDistArray(plan, False), newDistArray(plan, True)
    x[:] = 1.0
    return lambda: (plan.forward(x, y), plan.backward(y, x))


CALLS: dict[str, tuple[str, Callable[[MPI.Intracomm], Call]]] = {
    "Heat: mean, std, max, sum": ("heat", heat_statistics),
    "Heat: KMeans, 5 steps": ("heat", heat_means),
    "PyLops-MPI: cgls, 5 steps": ("pylops_mpi", pylops_solver),
    "PyLops-MPI: Laplacian": ("pylops_mpi", pylops_laplacian),
    "mpi4py-fft: 48 x 48 x 48": ("mpi4py_fft", fft),
}


def main() -> None:
    """Print a table."""
    turns = options(__doc__, turns=(int, 41)).turns
    plain, fast = MPI.COMM_WORLD.Dup(), accelerate(MPI.COMM_WORLD.Dup())
    say(f"{plain.size} ranks, {library_name(MPI)}")
    say(row("ms", ("plain", "accelerated", "gain")))
    for name, (package, prepared) in CALLS.items():
        if find_spec(package) is None:
            continue
        ways = {"plain": prepared(plain), "accelerated": prepared(fast)}
        times = in_turns(ways, turns, slowest, warm=8)
        best = [1e3 * min(each) for each in times.values()]
        say(row(name, [*best, best[0] / best[1]], ".2f"))


if __name__ == "__main__":
    main()
