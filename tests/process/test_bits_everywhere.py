"""With ``bits="size"``, each element has the same bits on 2 to 9 ranks by any transport.

Each program compares all elements of arrays of 40 lengths, at different places, with a fold in
pairs, or of scans from rank 0 up.
"""

from pathlib import Path

import pytest
from commands import command
from programs import passes

SUPPORT = Path(__file__).resolve().parents[1] / "support"
HOLD = f"""
import os, sys
sys.path.insert(0, {str(SUPPORT)!r})
from any_size import FEW, PLACES, contribution, folded, same, scanned
import collectives as cc

rank, p = cc.rank(), cc.size()
x, want = contribution(rank), folded(p)

def hold(transport, nodes, **variables):
    os.environ.update(variables)
    with cc.Communicator(bits="size") as comm:
        assert (comm.transport, comm.nodes) == (transport, nodes), (comm.transport, comm.nodes)
        for n, at in PLACES:
            part = slice(at, at + n)
            same(comm.allreduce(x[part]), want[part])
        same(comm.allreduce(x), want)
        for got, part in zip(comm.allreduce_many([x[part] for part in FEW]), FEW, strict=True):
            same(got, want[part])
        for part in FEW:
            got = comm.reduce(x[part], root=p // 2)
            if rank == p // 2:
                same(got, want[part])
            same(comm.scan(x[part]), scanned(rank + 1)[part])
            even = slice(part.start, part.stop - (part.stop - part.start) % p)
            if even.stop > even.start:
                same(comm.reduce_scatter(x[even]), want[even].reshape(p, -1)[rank])
    for name in variables:
        del os.environ[name]

hold("shm", 1)
hold("shm", 1, COLLECTIVES_SHM_READS="0", COLLECTIVES_SHM_STORES="streamed")
hold("shm", 1, COLLECTIVES_SHM_READS="0", COLLECTIVES_SHM_LANE="8192")
"""
WITHOUT_MPI = 'hold("host", 1, COLLECTIVES_SHM="0")'
WITH_MPI = """
from mpi4py import MPI
mpi = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
hold(mpi, 1, COLLECTIVES_SHM="0")
hold(mpi, 2, COLLECTIVES_HOST=f"host {rank % 2}")
if p > 3:
    hold(mpi, -(-p // 3), COLLECTIVES_HOST=f"host {rank // 3}")
    hold(mpi, 2, COLLECTIVES_HOST=f"host {rank == 1}")
"""


@pytest.mark.parametrize(
    "ranks", [5, *(pytest.param(p, marks=pytest.mark.slow) for p in (3, 7, 9))]
)
@pytest.mark.any_mpi
def test_without_mpi(ranks):
    done = command("run", "--no-mpi", "-n", str(ranks), "-c", HOLD + WITHOUT_MPI)
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize(
    "ranks", [4, *(pytest.param(p, marks=pytest.mark.slow) for p in (2, 6, 8))]
)
@pytest.mark.each_mpi("mpich")
def test_with_mpi(ranks):
    passes(HOLD + WITH_MPI, ranks)
