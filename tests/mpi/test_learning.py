"""Calls learn the same on all ranks, with the same bits, and only from calls that they may."""

import contextlib
import re

import numpy as np
import pytest
from cases import FULL

import collectives as cc
from collectives import _core
from collectives.algorithms import get, names
from collectives.choice import profile
from collectives.choice.chooser import Chooser
from collectives.choice.lessons import Lesson
from collectives.choice.sections import Learned
from collectives.errors import ArgumentError, MismatchError, PeerAbortedError, StallError
from collectives.plans.order import order

COUNTS = (2, 5000, 70_001)  # elements of float32: too short to be stored in several ways; long ones


@pytest.fixture
def comm(world, environ):
    with environ(COLLECTIVES_VALIDATE="0"), cc.Communicator() as made:
        yield made


@pytest.fixture
def learned(monkeypatch):
    """The settings that stayed, one for each time that something was learned."""
    found = []
    learn = Lesson.learn

    def watched(lesson, which, winner, times, is_far):
        found.append((lesson.place, winner, sorted(times)))
        learn(lesson, which, winner, times, is_far)

    monkeypatch.setattr(Lesson, "learn", watched)
    return found


def uneven(comm, n):
    """Return floats whose sums depend on the order of folds."""
    return np.random.default_rng(comm.rank).normal(0, 1e3, n).astype(np.float32)


def ran(comm, calls):
    """Return the settings that some calls ran."""
    with comm.trace() as trace:
        calls()
    return [(each.algorithm, each.segment, each.reason) for each in trace]


def test_ranks_agree_on_what_they_learn(world, comm, learned):
    x = uneven(comm, 5000)
    want = comm.allreduce(x, algorithm="all_to_all") if comm.size == 2 else comm.allreduce(x)
    comm._engine.settle(lambda: np.testing.assert_array_equal(comm.allreduce(x), want))
    if comm.size == 1 or comm.transport != "shm":
        assert learned == []
        return
    ((place, _, finalists),) = learned
    assert place == ("allreduce", None, 15, 0, False, "any")
    assert 0 in finalists
    decision = comm.explain("allreduce", x.nbytes)
    assert decision.trials
    assert decision.measured.seconds > 0
    assert "here" in decision.reason
    assert all(f"by {name}" in str(decision) for _, name in decision.trials)
    now = ran(comm, lambda: comm.allreduce(x))
    world.agree((decision.name(), decision.reason, learned, now))
    assert now[0][0] == decision.algorithm.name


def test_a_class_with_other_settings_begins_again(comm, segments, learned, monkeypatch):
    """Nothing of the settings before is taken for one of the new ones, which may be fewer."""
    monkeypatch.setattr(Lesson, "finalists", lambda lesson, times, most: [0, len(times) - 1])
    monkeypatch.setattr(Lesson, "fastest", lambda lesson, times: len(times) - 1)
    x = uneven(comm, 100_003)
    want = comm.allreduce(x)

    def call():
        np.testing.assert_array_equal(comm.allreduce(x), want)

    comm._engine.settle(call)
    for nbytes in (0, 4 << 10):
        with segments(comm, nbytes):
            assert {(segment, "learned" in why) for _, segment, why in ran(comm, call)} == {
                (nbytes, False)
            }
            comm._engine.settle(call)
        call()
    for calls in range(5, 100, 9):  # amid trials
        left = iter(range(calls))

        def call_and_leave(left=left):
            call()
            if next(left, None) is None:
                raise TimeoutError

        with contextlib.suppress(TimeoutError):
            comm._engine.settle(call_and_leave)
        with segments(comm, 0):
            call()
    before = len(learned)
    comm._engine.settle(call)
    if comm.size > 1 and comm.transport == "shm":
        assert len(learned) > before


def test_whoever_comes_first_decides_for_all(world, comm, monkeypatch):
    """Ranks that would decide differently do the same all the time."""
    monkeypatch.setattr(Lesson, "fastest", lambda lesson, times: comm.rank % len(times))
    monkeypatch.setattr(Lesson, "finalists", lambda lesson, times, most: [0, 1 + comm.rank % 2])
    monkeypatch.setattr(Lesson, "cost", lambda lesson, which: comm.rank)
    x = np.ones(5000, np.float32)

    def calls():
        for _ in range(600):
            comm.allreduce(x)

    before = ran(comm, calls)
    comm._engine.settle(lambda: comm.allreduce(x))
    world.agree((before, ran(comm, calls)))


def cut(comm, x):
    return x[: len(x) // comm.size * comm.size]


REDUCING = {
    "allreduce": lambda comm, x, how=None: comm.allreduce(x, algorithm=how),
    "reduce": lambda comm, x, how=None: comm.reduce(x, root=comm.size - 1, algorithm=how),
    "reduce_scatter": lambda comm, x, how=None: comm.reduce_scatter(cut(comm, x), algorithm=how),
    "scan": lambda comm, x, how=None: comm.scan(x, algorithm=how),
}


@pytest.mark.parametrize("name", REDUCING)
def test_equal_orders_of_folds_give_equal_bits(world, comm, name):
    x = uneven(comm, 5003)
    found = {}
    for each in names(name):
        row = get(name, each)
        if row.refusal(comm.size) is None:
            result = REDUCING[name](comm, x, each)
            bits = b"" if result is None else result.tobytes()
            every = tuple(world.mpi.allgather(bits))
            assert found.setdefault(order(row, comm.size, comm.size - 1), every) == every, each
    if comm.size > 3:
        assert 1 < len(set(found.values())) <= len(found)  # a + b has the bits of b + a


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("n", COUNTS)
def test_bits_stay_the_same(comm, monkeypatch, name, n):
    """For many calls, with trials again and again."""
    turn = iter(range(1 << 30))
    monkeypatch.setattr(Lesson, "fastest", lambda lesson, times: next(turn) % len(times))
    x = uneven(comm, max(n, comm.size))
    first = REDUCING[name](comm, x)
    left = 2000 if FULL else 600

    def call():
        nonlocal left
        left -= 1
        np.testing.assert_array_equal(REDUCING[name](comm, x), first)

    while left > 0:
        comm._engine.settle(call)


def test_forms_of_a_call_may_be_mixed(world, comm, learned):
    """Whatever form a rank uses, it runs what the others do."""
    x, out = uneven(comm, 5000), np.empty(5000, np.float32)
    want = comm.allreduce(x)
    planned = comm.plan("allreduce", x, out=out)
    forms = [
        lambda: comm.allreduce(x),
        lambda: comm.iallreduce(x).wait(),
        planned,
        lambda: planned.start().wait(),
    ]
    for k in range(800):
        np.testing.assert_array_equal(forms[(comm.rank + k // 7) % 4](), want)
    assert world.mpi.allgather(len(learned)).count(len(learned)) == comm.size


def test_nonblocking_calls_learn_if_the_program_waits_for_them(world, comm, learned):
    x, out = uneven(comm, 5000), np.empty(5000, np.float32)
    comm._engine.settle(lambda: comm.iallreduce(x).wait())
    planned = comm.plan("reduce", x, root=0, out=out if comm.rank == 0 else None)
    comm._engine.settle(lambda: planned.start().wait())
    if comm.size > 1 and comm.transport == "shm":
        assert [place[0] for place, _, _ in learned] == ["allreduce", "reduce"]
    world.agree(learned)


def test_nonblocking_calls_that_nobody_waits_for_tell_nothing(world, comm, monkeypatch):
    """Only when one is complete is known: its time is not that of a call."""
    told = []
    fastest = Lesson.fastest
    monkeypatch.setattr(
        Lesson, "fastest", lambda lesson, times: told.append(times) or fastest(lesson, times)
    )
    x = np.ones(5000, np.float32)

    def call():
        if comm.rank:
            world.mpi.Barrier()
        request = comm.iallreduce(x)
        if comm.rank == 0:  # it cannot be complete: the others have not begun
            world.mpi.Barrier()
        while not request.test():
            pass

    comm._engine.settle(call)
    every = world.mpi.allreduce(told)
    assert all(each == [] for times in every for each in times)
    assert bool(every) == (comm.size > 1 and comm.transport == "shm")


def test_a_rank_may_start_calls_long_before_the_others(world, comm):
    """No start waits for others, whatever they have to decide."""
    x = np.ones(5000, np.float32)
    requests = []

    def start():
        requests.extend(comm.iallreduce(x) for _ in range(700))

    if comm.rank == 0:
        start()
    world.mpi.Barrier()
    if comm.rank != 0:
        start()
    for request in requests:
        assert request.wait()[0] == comm.size


def test_nothing_is_tried_while_it_rests(world, comm, learned):
    x = np.ones(5000, np.float32)
    comm._engine.rest(True)
    assert len(set(ran(comm, lambda: [comm.allreduce(x) for _ in range(2000)]))) == 1
    assert learned == []


def test_other_arrays_are_tried_anew(comm, learned):
    if comm.transport != "shm" or comm.size == 1:
        pytest.skip("arrays are of one kind")
    x, shared = np.ones(5000, np.float32), comm.empty(5000, np.float32)
    shared[:] = 1
    for each in (x, shared):
        comm._engine.settle(lambda each=each: comm.allreduce(each, out=each))
        each[:] = 1
    assert len(learned) == 2


def test_classes_learn_for_themselves_and_forms_of_ordered_folds_too(comm, learned):
    first = cc.reduction(lambda a, b: np.copyto(b, a), commutative=False)
    x = np.full(2000, comm.rank, np.int32)

    def call():
        assert comm.allreduce(x, op=first)[0] == 0

    comm._engine.settle(call)
    assert all(place[4] for place, _, _ in learned)
    for root in range(comm.size):
        comm._engine.settle(lambda root=root: comm.broadcast(x, root=root))
    if comm.transport == "shm" and comm.size > 1:
        assert {place[3] for place, _, _ in learned if place[0] == "broadcast"} == {
            *range(comm.size)
        }


def test_forgetting_keeps_what_was_learned(world, comm):
    x = np.ones(5000, np.float32)
    comm._engine.settle(lambda: comm.allreduce(x))
    before = ran(comm, lambda: comm.allreduce(x))
    if comm.rank % 2:
        comm.forget()
    assert ran(comm, lambda: comm.allreduce(x)) == before
    world.agree(before)


def test_a_named_algorithm_stays(comm, learned):
    x = np.ones(70_001, np.float32)
    comm._engine.settle(lambda: comm.allreduce(x, algorithm="ring"))
    assert {name for name, _, _ in ran(comm, lambda: comm.allreduce(x, algorithm="ring"))} == {
        "ring"
    }
    assert comm.explain("allreduce", x.nbytes, algorithm="ring").algorithm.name == "ring"


@pytest.mark.parametrize("variables", [{"COLLECTIVES_TUNE": "0"}])
def test_learning_can_be_switched_off(environ, learned, variables):
    with environ(**variables), cc.Communicator() as comm:
        comm._engine.settle(lambda: comm.allreduce(np.ones(5000)))
    assert learned == []


def test_other_words_are_refused(environ):
    with environ(COLLECTIVES_TUNE="on"), pytest.raises(ArgumentError, match="COLLECTIVES_TUNE"):
        cc.Communicator()


def test_between_hosts_only_on_request(world, environ, learned):
    x = np.arange(2, dtype=np.float32) + world.comm.rank
    want = np.arange(2) * world.comm.size + world.comm.size * (world.comm.size - 1) / 2
    for word in ("", "online"):
        with environ(COLLECTIVES_SHM="0", COLLECTIVES_TUNE=word), cc.Communicator() as comm:
            comm._engine.settle(lambda: np.testing.assert_array_equal(comm.allreduce(x), want))
            assert len(learned) == (word == "online" and comm.size > 1)
            world.agree(ran(comm, lambda: comm.iallreduce(x).wait()))


@pytest.mark.several
def test_mixed_forms_between_hosts_are_an_error_of_the_call(world, environ):
    """If settings are tried on request, only blocking calls can meet for it."""
    with environ(COLLECTIVES_SHM="0", COLLECTIVES_TUNE="online", COLLECTIVES_VALIDATE="0"):
        comm = cc.Communicator(timeout=3)
    x = np.ones(70_001, np.float32)  # long arrays are tried soon

    def calls():
        for _ in range(40):
            comm.allreduce(x) if comm.rank else comm.iallreduce(x).wait()

    with pytest.raises((MismatchError, StallError, PeerAbortedError)) as caught:
        calls()
    if caught.type is PeerAbortedError:  # messages by UCX bring the error of rank 0
        assert re.match(r"rank \d (on .* )?gave up: \w+: ", str(caught.value))
    elif comm.rank:
        assert str(caught.value).startswith(
            "allreduce: before it, the ranks meet to try settings (COLLECTIVES_TUNE=online), for "
            "which it has to be a blocking call on all of them: barrier"
        )
    else:
        assert str(caught.value).startswith("allreduce")
    world.mpi.Barrier()


@pytest.fixture
def cores():
    """A function that says whether other processes take the cores; at first they do not."""
    _core.assume_cores(False)
    yield _core.assume_cores
    _core.assume_cores(None)


LONG = 70_001  # elements of float32


@pytest.mark.parametrize("is_far", [False, True])  # one of them is no reason to learn again
@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_calls_that_take_another_time_than_before_learn_again(
    comm, learned, cores, monkeypatch, seconds, is_far
):
    if comm.transport != "shm" or comm.size == 1:
        pytest.skip("nothing is learned")

    def before(chooser, place, decision):
        name = decision.algorithm.name
        return None, Learned(place[2], False, name, name, 0, 0, is_far, seconds, decision.nbytes)

    monkeypatch.setattr(Chooser, "_before", before)
    x = uneven(comm, LONG)
    while not learned:
        comm.allreduce(x)
    assert learned[0][0][0] == "allreduce"


def skip_unless_others_can_disturb(comm):
    if comm.transport != "shm" or comm.size == 1:
        pytest.skip("nothing is learned")
    if comm._engine.spins < 64:
        pytest.skip("ranks take the cores from each other")


def test_nothing_is_learned_while_other_processes_take_the_cores(comm, learned, cores):
    skip_unless_others_can_disturb(comm)
    x = uneven(comm, LONG)
    cores(True)
    for _ in range(600):
        comm.allreduce(x)
    assert learned == []
    cores(False)
    while not learned:
        comm.allreduce(x)


def test_trials_of_ranks_that_lose_their_cores_tell_nothing(comm, learned, cores, monkeypatch):
    skip_unless_others_can_disturb(comm)
    begun = []
    settings = Lesson.settings
    monkeypatch.setattr(
        Lesson, "settings", lambda lesson, which: begun.append(which) or settings(lesson, which)
    )
    x = uneven(comm, LONG)
    while not begun:
        comm.allreduce(x)
    cores(True)
    for _ in range(600):
        comm.allreduce(x)
    assert learned == []
    cores(False)
    comm._engine.settle(lambda: comm.allreduce(x))  # at once: else it rests for 64 times as long
    assert learned


def test_the_next_program_begins_with_it(world, environ, tmp_path, monkeypatch):
    file = str(world.mpi.bcast(tmp_path / "profile.json"))
    n = 5000
    with environ(COLLECTIVES_PROFILE=file):
        with cc.Communicator() as comm:
            if comm.transport != "shm" or comm.size == 1:
                pytest.skip("nothing is learned")
            comm._engine.settle(lambda: comm.allreduce(np.ones(n, np.float32)))
            want = comm.explain("allreduce", 4 * n)
            if comm.rank == 0:
                profile.write_learned()
            profile.write_learned()  # the others have nothing, and a second time is no harm
            world.mpi.Barrier()
        known = profile.read(file)
        monkeypatch.setattr(profile, "_known", profile._known_from(known.text()))
        with cc.Communicator() as comm:
            found = comm.explain("allreduce", 4 * n)
            assert found.reason == "learned by an earlier program"
            assert found.name() == want.name()
            assert comm.allreduce(np.ones(n, np.float32))[0] == comm.size
            algorithm, _, reason = ran(comm, lambda: comm.allreduce(np.ones(n, np.float32)))[0]
            assert (algorithm, reason) == (want.algorithm.name, found.reason)
            # Measurements learn anew: cores may be nearer or farther than they were.
            comm._engine.settle(lambda: comm.allreduce(np.ones(n, np.float32)))
            assert comm.explain("allreduce", 4 * n).trials
