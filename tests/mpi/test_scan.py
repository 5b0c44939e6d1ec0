"""scan and exscan: each rank gets what the ranks up to it, or before it, give together."""

import numpy as np
import pytest
from cases import names
from forms import Exscan, Scan
from promises import Promises

import collectives as cc
from collectives import errors


class TestScan(Promises):
    form = Scan


class TestExscan(Promises):
    form = Exscan


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_no_mean(world, collective):
    text = f"op is AVG, and a {collective} has a number of contributions of its own on each rank"
    with pytest.raises(errors.ArgumentError, match=text):
        getattr(world.comm, collective)(np.ones(3), op=cc.AVG)
    with pytest.raises(TypeError, match="prescale"):
        getattr(world.comm, collective)(np.ones(3), prescale=2.0)
    world.comm.barrier()


@pytest.mark.parametrize("algorithm", names("exscan"))
def test_the_first_rank_has_none_before_it(group, algorithm):
    """It gets None, and an `out` that it passes is neither written nor looked at."""
    comm = group.comm
    x = np.full(5, comm.rank + 1)
    out = np.full(5, -7)
    y = comm.exscan(x, out, algorithm=algorithm)
    if comm.rank == 0:
        assert y is None
        assert (out == -7).all()
        assert comm.exscan(x, "not an array", algorithm=algorithm) is None
    else:
        assert y is out
        assert (out == comm.rank * (comm.rank + 1) // 2).all()
        comm.exscan(x, out, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", names("exscan"))
def test_an_exscan_is_one_step_behind(world, algorithm):
    comm = world.comm
    x = np.random.default_rng(comm.rank).integers(-99, 99, 1009)
    through = comm.scan(x, algorithm=algorithm)
    before = comm.exscan(x, algorithm=algorithm)
    np.testing.assert_array_equal(through, x if before is None else before + x)
    everything = comm.broadcast(through, root=comm.size - 1)
    np.testing.assert_array_equal(everything, comm.allreduce(x))


@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("algorithm", names("scan"))
def test_nan_goes_on(world, algorithm, op):
    """From the rank that has it to all that follow, and to none before."""
    comm = world.comm
    middle = comm.size // 2
    x = np.array([np.nan if comm.rank == middle else comm.rank, comm.rank], np.float32)
    y = comm.scan(x, op=getattr(cc, op), algorithm=algorithm)
    assert np.isnan(y[0]) == (comm.rank >= middle)
    assert y[1] == (0 if op == "MIN" else comm.rank)


def test_where_parts_begin(world):
    """What scan is used for: rank r's elements begin where those of the ranks before end."""
    comm = world.comm
    start = cc.exscan(np.array(comm.rank + 2))
    start = 0 if start is None else int(start)
    assert start == sum(r + 2 for r in range(comm.rank))
    assert int(cc.iscan(np.array(comm.rank + 2)).wait()) == start + comm.rank + 2
    request = cc.iexscan(np.array(1.5))
    assert request.wait() is None if comm.rank == 0 else request.wait() == 1.5 * comm.rank
