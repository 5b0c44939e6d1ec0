"""The examples of the language of rounds, in shared memory and by messages."""

import os

import language
import numpy as np
import pytest
from conftest import environment
from forms import CUT, VECTOR, WHOLE

import collectives as cc
from collectives.algorithms.groups import Groups
from collectives.errors import MismatchError

CASES = [
    (form, name)
    for collective, name in language.EXAMPLES
    for form in (*WHOLE, *CUT, *VECTOR)
    # Ranks that pass blocks on do not know the lengths of an alltoallv.
    if form.collective == collective and form.name != "alltoallv"
]


@pytest.mark.several
@pytest.mark.parametrize("shared", ["0", "auto"])
@pytest.mark.parametrize(("form", "name"), CASES)
def test_examples_are_right(form, name, shared):
    with environment(COLLECTIVES_SHM=shared):
        comm = cc.Communicator(timeout=20)
    with language.registered():
        for n in (0, 1, 7, 1000):
            case = form(comm.size, n, root=comm.size - 1)
            case.verify(case.call(comm, algorithm=name), comm.rank)
    comm.free()


@pytest.mark.several
@pytest.mark.parametrize("shared", ["0", "auto"])
def test_depths_that_differ_are_named(shared):
    """The number of blocks is part of the name of the algorithm, which ranks compare."""
    with environment(COLLECTIVES_SHM=shared, COLLECTIVES_VALIDATE="1"):
        comm = cc.Communicator(timeout=20)
    declared = {"name": "uneven", "blocks": lambda p, nbytes: 2 + (comm.rank == 1)}
    cc.algorithms.algorithm("broadcast", **declared)(language.pipelined_chain)
    try:
        with pytest.raises(MismatchError, match=r"uneven in 2 blocks.*uneven in 3 blocks"):
            comm.broadcast(np.ones(10), algorithm="uneven")
    finally:
        cc.algorithms.unregister("broadcast", "uneven")
    comm.free()


def test_the_depth_follows_the_size(plain):
    with language.registered():
        for n, blocks in ((1, 1), (512, 4), (1000, 4), (1 << 16, 32), (512, 4)):
            found = plain.comm.explain("broadcast", 8 * n, algorithm="pipelined_chain")
            assert found.algorithm.blocks(plain.comm.size) == blocks
            x = np.arange(n) * (plain.comm.rank == 0.0)
            got = plain.comm.broadcast(x, algorithm="pipelined_chain")
            np.testing.assert_array_equal(got, np.arange(n))


def test_the_groups_are_hosts(plain):
    with language.registered():
        found = plain.comm.explain("alltoall", 64, algorithm="hierarchical_alltoall")
        hosts = plain.mpi.allgather(os.environ.get("COLLECTIVES_HOST", ""))
        assert found.algorithm.groups == Groups.read([hosts.index(each) for each in hosts])
