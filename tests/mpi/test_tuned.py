"""What the ranks have measured decides: a profile, the probe at the start, trials in calls."""

import contextlib

import numpy as np
import pytest
from mpi4py import MPI

import collectives as cc
from collectives.choice import chooser, profile, select
from collectives.choice.model import Parameters
from collectives.choice.profile import Profile, Row, Section
from collectives.errors import ArgumentError
from collectives.process import binding

SETTLED = chooser.PERIOD * chooser.TIMES  # calls for each alternative


@contextlib.contextmanager
def profile_of(world, algorithm):
    """Let this process know of a profile, as if rank 0 had told it, or of none."""
    before = profile._known
    profile._known = profile.NOTHING
    if algorithm is not None:
        p, transport = world.comm.size, world.comm.transport
        hosts = profile.hosts_of(world.comm._chooser.groups)
        rows = {"allreduce": {p: (Row(1023, algorithm, 0, ((8, 1e-6),)),)}}
        section = Section(transport, binding.library_name(MPI), hosts, "today", "", {}, rows)
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
        decision = comm.explain("allgather", 1 << 20)
        assert decision.parameters == known
        assert decision.predicted > 0
        if comm.transport != "shm":
            assert "what was measured here (the start-up probe)" in decision.reason
        world.agree(decision.algorithm.name)


def test_other_words_are_refused(environ):
    with environ(COLLECTIVES_TUNE="on"), pytest.raises(ArgumentError, match="COLLECTIVES_TUNE"):
        cc.Communicator()


class Recorded:
    """The calls that the trials were asked about, and whose time each added to."""

    def __init__(self, monkeypatch):
        self.asked = []
        begin = chooser.Trials.begin

        def watched(trials, call, timeout):
            slot, choice, due = begin(trials, call, timeout)
            self.asked.append((call, slot))
            return slot, choice, due

        monkeypatch.setattr(chooser.Trials, "begin", watched)

    @property
    def trials(self):
        return [call for call, slot in self.asked if slot > 0]


@pytest.fixture
def tried(environ):
    with environ(COLLECTIVES_TUNE="online"), cc.Communicator() as comm:
        yield comm


def alternatives(comm):
    """Return how many there are for an allreduce of 8 bytes."""
    decision = comm._chooser.decide("allreduce", None, 8)
    return len(select.alternatives(decision, chooser.ALTERNATIVES))


def test_trials_are_right_and_few_and_end(world, tried, monkeypatch):
    recorded = Recorded(monkeypatch)
    comm = tried
    calls = SETTLED * alternatives(comm) + 1
    x = np.arange(2, dtype=np.float32) + comm.rank
    want = np.arange(2) * comm.size + comm.size * (comm.size - 1) / 2
    for _ in range(2 * calls):
        np.testing.assert_array_equal(comm.allreduce(x), want)
    if comm.size == 1:
        assert recorded.asked == []
        return
    world.agree(recorded.asked)
    trials = recorded.trials
    assert len(trials) == chooser.TIMES * alternatives(comm)
    assert all(20 * (i + 1) == call for i, call in enumerate(trials))
    assert recorded.asked[-1] == (calls, -1)  # and nothing is asked after that
    settled = comm.explain("allreduce", 8)
    world.agree((settled.algorithm.name, settled.reason, settled.measured))
    assert "tried online" in settled.reason
    assert settled.measured.seconds > 0
    # What has settled holds when the choices are made again, and for other forms of the call.
    comm.forget()
    for _ in range(calls):
        comm.allreduce(x)
    assert recorded.asked[-1] == (calls, -1)
    planned = comm.plan("allreduce", x)
    assert settled.algorithm.name in repr(planned)
    request = comm.iallreduce(x)
    assert settled.algorithm.name in repr(request)
    request.wait()


@pytest.mark.several
def test_the_fastest_stays(world, tried, monkeypatch):
    """Whatever ranks take for the fastest, they agree on what is so for the slowest of them."""
    comm = tried
    rank = comm.rank
    wanted = []

    def note(trials, slot, seconds):
        # Of rank 0, the first alternative is the fastest; the others know better.
        wanted[:] = [trials.decisions[2].algorithm.name]
        trials.times[slot].append([1.0, 0.01 if rank == 0 else 0.9, 0.5, 0.8, 0.8][slot])

    monkeypatch.setattr(chooser.Trials, "note", note)
    x = np.ones(2, np.float32)
    for _ in range(SETTLED * alternatives(comm) + 1):
        comm.allreduce(x)
    settled = comm.explain("allreduce", 8)
    assert settled.algorithm.name == wanted[0]
    assert settled.reason.startswith("tried online: 0.50 of the time of ")
    assert settled.measured.seconds == 0.5


def test_every_form_counts_for_itself(world, tried, monkeypatch):
    """Nonblocking and planned calls are no trials; classes do not count each other's calls."""
    recorded = Recorded(monkeypatch)
    comm = tried
    x = np.ones(2, np.float32)
    planned = comm.plan("allreduce", x)
    for _ in range(50):
        comm.iallreduce(x).wait()
        planned()
        comm.allreduce(x, algorithm="ring")
    assert recorded.asked == []
    for _ in range(15):
        comm.allreduce(x)
        comm.allreduce(np.ones(1000))
        for root in range(comm.size):
            comm.broadcast(x, root=root)
    assert recorded.trials == []
    for _ in range(5):
        comm.allreduce(x)
    assert recorded.trials == ([20] if comm.size > 1 else [])


def test_other_order_and_vector_forms(world, tried, monkeypatch):
    """What may run at all is what is tried."""
    recorded = Recorded(monkeypatch)
    comm = tried
    first = cc.reduction(lambda a, b: np.copyto(b, a), commutative=False)
    counts = np.arange(comm.size) + 1
    mine = np.full(comm.rank + 1, comm.rank, np.int32)
    every = np.repeat(np.arange(comm.size), counts)
    sent = np.full(comm.size, comm.rank, np.int32)
    for _ in range(45):
        got = comm.allreduce(np.full(3, comm.rank, np.int32), op=first)
        assert got.tolist() == [0] * 3
        np.testing.assert_array_equal(comm.allgatherv(mine, counts=counts), every)
        got = comm.alltoallv(sent, np.ones(comm.size, int))
        assert got.tolist() == list(range(comm.size))
    if comm.size > 1:
        assert 20 in recorded.trials
    world.agree(recorded.asked)
