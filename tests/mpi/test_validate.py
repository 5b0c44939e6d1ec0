"""COLLECTIVES_VALIDATE: when it is read, and that it changes no result."""

import numpy as np
import pytest
from cases import contribution, digest
from forms import Allreduce

import collectives as cc


@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_read_when_a_communicator_is_made(world, environ, value, on):
    with environ(COLLECTIVES_VALIDATE=value), cc.Communicator() as comm:
        assert (comm._engine.agree is not None) == on
        comm.barrier()


@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_results_are_the_same(world, plain, algorithm):
    x = contribution("SUM", "float32", 1009, world.comm.rank)
    results = [each.comm.allreduce(x, algorithm=algorithm) for each in (world, plain)]
    assert digest(results[0]) == digest(results[1])


@pytest.mark.several
def test_long_arguments_are_cut(world):
    """The description of a rank has a fixed length; the others do not lose the rest."""
    comm = world.comm
    if comm.rank == 0:
        with pytest.raises(cc.errors.ArgumentError, match="has no algorithm"):
            comm.allreduce(np.ones(3), algorithm="long" * 1000)
    else:
        with pytest.raises(cc.errors.MismatchError, match="rank 0 refused allreduce"):
            comm.allreduce(np.ones(3))
    comm.barrier()


@pytest.mark.several
def test_long_descriptions_that_differ_at_their_end(world):
    comm = world.comm
    fields = [(f"a field with a long name {k}", "f8") for k in range(40)]
    fields.append((f"last {comm.rank % 2}", "f8"))
    x = np.zeros(3, fields)

    def first(incoming, accumulator):
        accumulator[fields[0][0]] += incoming[fields[0][0]]

    with pytest.raises(cc.errors.MismatchError, match="the ranks do not agree"):
        comm.allreduce(x, op=cc.reduction(first))
    comm.barrier()
