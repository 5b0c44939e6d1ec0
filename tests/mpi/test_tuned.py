"""Measurements of the ranks decide: a profile, and the probe at the start."""

import contextlib

import numpy as np

import collectives as cc
from collectives.choice import profile, sections
from collectives.choice.model import Parameters
from collectives.choice.profile import Profile
from collectives.choice.sections import Row, Section


@contextlib.contextmanager
def profile_of(world, algorithm):
    """Let this process know of a profile, as if rank 0 had told it, or of none."""
    before = profile._known
    profile._known = profile.NOTHING
    if algorithm is not None:
        p, transport = world.comm.size, world.comm.transport
        hosts = sections.hosts_of(world.comm._chooser.groups)
        rows = {"allreduce": {p: (Row(1023, algorithm, 0, ((8, 1e-6),)),)}}
        section = Section(transport, world.comm._library, hosts, "today", "", {}, rows)
        profile._known = profile._known_from(Profile("", 1, "", (section,)).text())
    try:
        yield
    finally:
        profile._known = before


def test_the_profile_of_rank_0_is_that_of_all(world):
    rank = world.comm.rank
    mine = "tree" if rank == 0 else [None, "ring"][rank % 2]
    with profile_of(world, mine), cc.Communicator() as comm:
        decision = comm.explain("allreduce", 8)
        if comm.size == 1:
            return
        assert decision.algorithm.name == "tree"
        assert decision.measured == (1e-6, 8, comm.size, "the profile of today")
        assert "profile" not in comm.explain("allreduce", 1024).reason
        assert comm.allreduce(np.ones(2, np.float32)).tolist() == [comm.size] * 2
        with comm.dup() as other:
            world.agree(other.explain("allreduce", 8).algorithm.name)


def test_without_a_profile_of_rank_0_there_is_none(world):
    with profile_of(world, None if world.comm.rank == 0 else "ring"), cc.Communicator() as comm:
        for nbytes in (8, 512):
            assert "profile" not in comm.explain("allreduce", nbytes).reason
            world.agree(comm.explain("allreduce", nbytes).algorithm.name)
        comm.allreduce(np.ones(2))


def test_the_probe_gives_all_ranks_the_same_numbers(world, environ):
    with environ(COLLECTIVES_TUNE="probe"), cc.Communicator() as comm:
        known = comm._chooser.parameters
        world.agree(known)
        if comm.size == 1:
            assert known is None
            return
        assert isinstance(known, Parameters)
        assert known.alpha > 0
        assert known.beta >= 0
        assert known.gamma >= 0
        if comm.nodes == 1 or comm.size == 2:
            assert known.gap is None
        else:
            assert known.gap >= 0
        decision = comm.explain("allgather", 1 << 20)
        assert decision.parameters == known
        assert decision.predicted > 0
        if comm.transport != "shm":
            assert "the times measured here (the start-up probe)" in decision.reason
        world.agree(decision.algorithm.name)
