"""scan and exscan: each rank gets what the ranks up to it, or before it, give together."""

import numpy as np
import pytest
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
