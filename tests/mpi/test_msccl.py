"""Algorithms of files of MSCCL, on real ranks."""

import numpy as np
import pytest

from collectives import msccl
from collectives.algorithms import get, unregister

CASES = [
    ("allreduce", "ring"),
    ("allreduce", "halving_doubling"),
    ("allgather", "bruck"),
    ("reduce_scatter", "ring"),
    ("alltoall", "bruck"),
    ("broadcast", "tree"),
]


@pytest.mark.parametrize(("collective", "name"), CASES)
def test_a_file_runs_as_its_algorithm(group, tmp_path, collective, name):
    comm = group.comm
    if comm.size < 2:
        pytest.skip("MSCCL needs two ranks")
    path = tmp_path / "of_a_file.xml"
    path.write_text(msccl.export(get(collective, name), comm.size))
    row = msccl.read(str(path)).algorithm
    rooted = {"root": comm.size - 1} if row.collective.rooted else {}
    x = (np.arange(12 * comm.size) + comm.rank).astype("float64")
    try:
        for _ in range(2):
            want = getattr(comm, collective)(x, algorithm=name, **rooted)
            got = getattr(comm, collective)(x, algorithm=row.name, **rooted)
            assert np.array_equal(got, want)
    finally:
        comm.barrier()
        unregister(collective, row.name)
