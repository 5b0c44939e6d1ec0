"""Calls that make communicators and arrays: what differs between ranks is an error on all."""

import gc
import re

import numpy as np
import pytest

import collectives as cc
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    MismatchError,
    UnsupportedTypeError,
)


@pytest.fixture(params=["agreement", "shm", "messages"])
def comm(request, environ, world):
    """A new communicator that finds differences between calls in one of three ways."""
    variables = {
        "agreement": {"COLLECTIVES_VALIDATE": "1"},
        "shm": {"COLLECTIVES_VALIDATE": "0"},
        "messages": {"COLLECTIVES_VALIDATE": "0", "COLLECTIVES_SHM": "0"},
    }[request.param]
    with environ(**variables):
        made = cc.Communicator(timeout=20)
    if made.size == 1:
        pytest.skip("one rank agrees with itself")
    yield made
    world.comm.barrier()


CALLS = {
    "dup": lambda comm, path: comm.dup(),
    "split": lambda comm, path: comm.split(0),
    "empty": lambda comm, path: comm.empty(3),
    "timeline": lambda comm, path: comm.timeline(path).start(),
}
PAIRS = [(one, other) for one in CALLS for other in CALLS if one < other]


def between_hosts(comm):
    """True if some ranks only hear of a mismatch by a deadline: those of the other host, to which
    nobody sends anything any more who has heard of it within his own.
    """
    shares = bool(comm._chooser.lanes)  # whether some ranks do, which are not alone on their host
    return comm._engine.agree is None and shares and comm.nodes > 1


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_ranks_make_different_things(comm, tmp_path, one, other):
    last = comm.size - 1
    name = other if comm.rank == last else one
    if between_hosts(comm):
        comm.timeout = 3
    with pytest.raises(CollectivesError) as caught:
        CALLS[name](comm, tmp_path / "timeline.json")
    if not between_hosts(comm):
        assert isinstance(caught.value, MismatchError)
        told = rf"ranks? [-0-9, ]+ called {one}\(\); rank {last} called {other}\(\)"
        told += r": is one of these calls under an if\?$"
        assert re.search(told, str(caught.value))


@pytest.mark.parametrize("making", CALLS)
def test_some_ranks_make_something_and_others_communicate(comm, tmp_path, making):
    """Between hosts, what differs is found by the length of messages; who gets none stalls."""
    hears = comm._engine.agree is not None or (comm._segment is not None and comm.nodes == 1)
    if not hears:
        comm.timeout = 2

    def communicate(comm, path):
        comm.barrier()
        comm.allreduce(np.ones(1000))

    call = communicate if comm.rank == comm.size - 1 else CALLS[making]
    with pytest.raises(CollectivesError) as caught:
        call(comm, tmp_path / "timeline.json")
    if hears:
        assert isinstance(caught.value, MismatchError)
        assert f"called {making}()" in str(caught.value)
        assert f"rank {comm.size - 1} called barrier(" in str(caught.value)


class Index:
    """An integer that fails when it is used."""

    def __index__(self):
        raise RuntimeError("no index")


ARGUMENTS = {
    "color is text": (
        lambda comm: comm.split("a"),
        r"color is 'a', .* an integer in 0\.\.2147483647, or None",
    ),
    "color is real": (
        lambda comm: comm.split(0.5),
        r"color is 0.5, .* an integer in 0\.\.2147483647, or None",
    ),
    "color is large": (lambda comm: comm.split(2**40), r"color is 1099511627776, .* in 0\.\.2147"),
    "color is negative": (
        lambda comm: comm.split(-5),
        r"color is -5, and must be an integer in 0\.\.",
    ),
    "key is text": (lambda comm: comm.split(0, "a"), "key is 'a', and must be an integer"),
    "key is large": (
        lambda comm: comm.split(0, 2**40),
        r"key is 1099511627776, .* -2147483648\.\.",
    ),
    "shape is text": (lambda comm: comm.empty("three"), "shape is 'three', and must be an integer"),
    "shape is None": (lambda comm: comm.empty(None), "shape is None, and must be an integer or"),
    "shape is negative": (lambda comm: comm.empty((2, -1)), "no negative dimension"),
    "bytes exceed an integer": (lambda comm: comm.empty(2**63, np.int8), "would have 9223372036"),
    "bytes exceed memory": (lambda comm: comm.empty(2**62), "would have 36893488147419103232 byt"),
    "dimension is large": (lambda comm: comm.empty((0, 10**40)), "and a process can address"),
    "dimensions are many": (
        lambda comm: comm.empty([1] * 99),
        "has 99 dimensions, and must",
    ),
    "shape is an error": (lambda comm: comm.empty(Index()), "raised RuntimeError: no index"),
    "elements are empty": (lambda comm: comm.empty(3, "V0"), "whose elements have no bytes"),
    "dtype is none": (lambda comm: comm.empty(3, "nonsense"), "dtype is 'nonsense', and must be"),
}


def right(name):
    """Return what other ranks call."""
    return (lambda comm: comm.split(0)) if name[0] in "ck" else (lambda comm: comm.empty(3))


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("who", ["all", "one"])
def test_arguments_are_refused(comm, name, who):
    """Before anything is lost: the communicator can be used afterwards."""
    call, text = ARGUMENTS[name]
    if who == "all" or comm.rank == 1:
        with pytest.raises(ArgumentError, match=text):
            call(comm)
    else:
        with pytest.raises(MismatchError, match=f"rank 1 refused .*: ArgumentError: .*{text}"):
            right(name)(comm)
    assert comm.allreduce(np.ones(2)).tolist() == [comm.size] * 2
    comm.free()


def test_objects_are_refused(world):
    with pytest.raises(UnsupportedTypeError, match="cannot hold Python objects"):
        world.comm.empty(3, object)
    world.comm.barrier()


def test_too_little_memory(world):
    """A size that fits into addresses and not into memory."""
    with pytest.raises(CommunicatorError, match=r"no (shared )?memory for an array"):
        world.comm.empty(2**46, np.int8)
    world.comm.barrier()


def test_shapes_that_can_be_read_once(world):
    assert world.comm.empty(iter([2, 3])).shape == (2, 3)


def test_integers_of_numpy(world):
    comm = world.comm
    assert comm.empty(np.int64(3)).shape == (3,)
    assert comm.empty((np.int8(2), 3)).shape == (2, 3)
    assert comm.empty([2, 3]).shape == (2, 3)
    part = comm.split(np.int32(comm.rank % 2), np.int64(-comm.rank))
    assert part.size == len(range(comm.rank % 2, comm.size, 2))
    part.free()


def test_limits_of_colors(world):
    comm = world.comm
    part = comm.split(2**31 - 1, -(2**31))
    assert (part.rank, part.size) == (comm.rank, comm.size)
    part.free()


def test_one_rank_asks_for_validation(world, environ):
    """The ranks agree on each call if any of them asks for it."""
    with (
        environ(COLLECTIVES_VALIDATE="1" if world.comm.rank == 0 else "0"),
        cc.Communicator() as comm,
    ):
        assert comm._engine.agree is not None
        assert comm.allreduce(np.ones(2)).tolist() == [comm.size] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLLECTIVES_TIMEOUT", "soon"),
        ("COLLECTIVES_STALL_WARNING", "-1"),
        ("COLLECTIVES_SHM", "perhaps"),
        ("COLLECTIVES_SHM_SPINS", "many"),
        ("COLLECTIVES_SHM_READS", "yes"),
        ("COLLECTIVES_SHM_STORES", "fast"),
        ("COLLECTIVES_TUNE", "well"),
    ],
)
def test_the_environment_of_one_rank_is_wrong(world, environ, name, value):
    odd = world.comm.size - 1
    whose = "" if world.comm.rank == odd else f"rank {odd}: "
    wrong = {name: value} if world.comm.rank == odd else {}
    with environ(**wrong), pytest.raises(ArgumentError, match=f"^{whose}{name} is '{value}'"):
        cc.Communicator()
    world.comm.barrier()


def test_the_timeout_of_one_rank_is_wrong(world):
    odd = world.comm.size - 1
    whose = "" if world.comm.rank == odd else f"rank {odd}: "
    with pytest.raises(ArgumentError, match=f"^{whose}timeout is -1, and must be a positive"):
        cc.Communicator(timeout=-1 if world.comm.rank == odd else 5)
    world.comm.barrier()


def test_long_objects_are_exchanged(world):
    """The part that does not fit into the first record follows."""
    meeting = world.comm._meeting
    mine = bytes([meeting.rank]) * (700 * (meeting.rank % 3))
    everybody = meeting.allgather(mine)
    assert everybody == [bytes([rank]) * (700 * (rank % 3)) for rank in range(meeting.size)]
    assert meeting.bcast("x" * 5000 if meeting.rank == 0 else None) == "x" * 5000


def test_a_broken_communicator_in_a_cycle_is_collected(world):
    """Its shared memory is there until it has left it."""
    made = cc.Communicator(timeout=20)
    made._engine.broken = "broken for a test"
    held = [made._segment]
    held.append(held)
    cycle = [made, held]
    cycle.append(cycle)
    del made, held, cycle
    gc.collect()
    world.comm.barrier()
