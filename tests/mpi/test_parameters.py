"""Algorithms with a parameter: ``kary:3`` is the tree in which each rank has three children."""

import numpy as np
import pytest
from cases import contribution, digest, longer, names, sizes, verify

import collectives as cc
from collectives.errors import ArgumentError

PARAMETERS = [
    (collective, f"{name}:{value}")
    for collective in ("allreduce", "broadcast")
    for name in names(collective)
    if cc.algorithms.get(collective, name).parameters
    for value in (2, 3, 16)
]

each = pytest.mark.parametrize(("collective", "algorithm"), PARAMETERS)


def call(comm, collective, x, **options):
    return getattr(comm, collective)(x, **options)


def hold(comm, collective, y, n, root=0):
    if collective == "allreduce":
        verify(y, "SUM", "float32", n, comm.size)
    else:
        assert digest(y) == digest(contribution("SUM", "float32", n, root))


def test_there_are_some():
    assert {collective for collective, _ in PARAMETERS} == {"allreduce", "broadcast"}


@each
def test_every_communicator(group, collective, algorithm):
    comm = group.comm
    for turn, n in enumerate(sizes(comm.size)):
        root = turn % comm.size
        rooted = {"root": root} if collective == "broadcast" else {}
        x = contribution("SUM", "float32", n, comm.rank)
        hold(comm, collective, call(comm, collective, x, algorithm=algorithm, **rooted), n, root)
        request = call(comm, f"i{collective}", x, algorithm=algorithm, **rooted)
        hold(comm, collective, request.wait(), n, root)


@each
def test_segments(plain, segments, collective, algorithm):
    comm = plain.comm
    n = longer(64)
    x = contribution("SUM", "float32", n, comm.rank)
    want = call(comm, collective, x, algorithm=algorithm)
    with segments(comm, 64):
        got = call(comm, collective, x, algorithm=algorithm)
    hold(comm, collective, got, n)
    assert digest(got) == digest(want)


@each
def test_planned(world, collective, algorithm):
    comm = world.comm
    x = contribution("SUM", "float32", 1009, comm.rank)
    planned = comm.plan(collective, x, algorithm=algorithm)
    hold(comm, collective, planned(), 1009)
    assert repr(planned).startswith(f"<PlannedCall of {collective} '{algorithm}' on ")


@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_the_default_has_a_name_of_its_own(world, collective):
    comm = world.comm
    value = cc.algorithms.get(collective, "kary").parameters["k"]
    x = contribution("SUM", "float32", 1009, comm.rank)
    both = [call(comm, collective, x, algorithm=name) for name in ("kary", f"kary:{value}")]
    assert digest(both[0]) == digest(both[1])


@pytest.mark.parametrize("text", ["1", "0", "-2", "x", "", "2.5", "3:4", " 4"])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_wrong_parameters(world, collective, text):
    wanted = rf"{collective} 'kary' takes an integer from 2 on as k, as in 'kary:\d', not '{text}'"
    for _ in range(2):
        with pytest.raises(ArgumentError, match=wanted):
            call(world.comm, collective, np.ones(3), algorithm=f"kary:{text}")
    world.comm.barrier()


def test_no_parameter_where_none_is_taken(world):
    with pytest.raises(ArgumentError, match="allreduce 'ring' takes no parameter, not '4'"):
        world.comm.allreduce(np.ones(3), algorithm="ring:4")
    with pytest.raises(ArgumentError, match="allreduce has no algorithm 'xyz'; it has: "):
        world.comm.allreduce(np.ones(3), algorithm="xyz:4")
    world.comm.barrier()


@pytest.mark.several
def test_ranks_with_different_parameters(world):
    comm = world.comm
    with pytest.raises(cc.errors.MismatchError, match=r"algorithm=kary:3.*algorithm=kary:5"):
        comm.allreduce(np.ones(3), algorithm="kary:5" if comm.rank else "kary:3")
    comm.barrier()
