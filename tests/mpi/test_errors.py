"""Errors of one rank's own: what they say, and that the communicator works afterwards."""

import pickle
import re
import time

import numpy as np
import pytest
from forms import Allreduce

import collectives as cc
from collectives.errors import ArgumentError, CommunicatorError, StallError, UnsupportedTypeError


@pytest.fixture(autouse=True)
def works_afterwards(world):
    yield
    assert (world.comm.allreduce(np.ones(3)) == world.comm.size).all()


def test_the_spellings_of_mpi4py_are_explained(world):
    MPI, comm, x = pytest.importorskip("mpi4py.MPI"), world.comm, np.ones(3)
    for call, text in (
        (lambda: comm.allreduce(x, op=MPI.SUM), r"op is .*; pass op=collectives\.SUM$"),
        (lambda: comm.allreduce(x, MPI.SUM), "out is an Op, .* passed by name, as op="),
        (lambda: comm.allreduce([x, MPI.DOUBLE]), "x is a list, .*; pass the array alone"),
        (lambda: comm.allreduce(MPI.IN_PLACE, x), "x is MPI.IN_PLACE; pass the array itself"),
        (lambda: comm.allreduce(x, out=MPI.IN_PLACE), "out is MPI.IN_PLACE; pass the array itself"),
        (lambda: comm.recv(x, MPI.ANY_SOURCE), "no wildcards such as MPI.ANY_SOURCE"),
        (lambda: comm.recv(x, 0, tag=MPI.ANY_TAG), "no wildcards such as MPI.ANY_TAG"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bcast", "; use broadcast for arrays and broadcast_object for other objects"),
        ("Reduce_scatter_block", "; use reduce_scatter"),
        ("all_to_all_single", "; use alltoall for arrays and alltoall_object for other objects"),
        ("get_world_size", "; use size"),
        ("nonsense", ""),
    ],
)
def test_names_of_other_libraries_are_explained(world, name, text):
    for owner in (cc, world.comm):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'{text}$"):
            getattr(owner, name)
        assert name not in dir(owner)
        assert name not in dir(type(owner))


def test_an_op_may_be_called_by_its_name(world, fresh):
    x = np.arange(1.0, 4.0) + world.comm.rank
    for comm in (world.comm, fresh(validate=True, timeout=60)):
        for name, op in (("sum", cc.SUM), ("MAX", cc.MAX), ("Avg", cc.AVG), ("prod", cc.PROD)):
            wanted = comm.allreduce(x, op=op)
            assert (comm.allreduce(x, op=name) == wanted).all()
            assert (comm.iallreduce(x, op=name).wait() == wanted).all()
            assert (comm.allreduce_many([x], op=name)[0] == wanted).all()
            assert (comm.plan("allreduce", x, op=name)() == wanted).all()
        counts = [1] * comm.size
        y = np.ones(comm.size)
        assert comm.reduce_scatterv(y, counts=counts, op="sum") == comm.size
        assert (comm.scan(y, op="sum") == comm.rank + 1).all()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("AVG", "bool"),
        ("AVG", "int32"),
        ("MIN", "complex64"),
        ("BAND", "float32"),
        ("LOR", "float64"),
    ],
)
def test_op_has_no_kernel(world, op, dtype):
    reduction = getattr(cc, op)
    text = f"{op} is not defined on {dtype}; it is on {', '.join(reduction.dtypes())}"
    with pytest.raises(UnsupportedTypeError, match=text):
        world.comm.allreduce(np.ones(3, dtype), op=reduction)


def test_arguments_are_by_name(world):
    with pytest.raises(TypeError):
        world.comm.allreduce(np.ones(3), None, cc.SUM)
    with pytest.raises(TypeError):
        world.comm.allreduce(np.ones(3), nonsense=1)


@pytest.mark.parametrize("value", ["2", None, 2j, np.ones(3), 10**400])
@pytest.mark.parametrize("name", ["prescale", "postscale"])
def test_scales_are_numbers(world, name, value):
    for call in (world.comm.allreduce, world.comm.reduce, world.comm.iallreduce):
        with pytest.raises(ArgumentError, match=f"{name} is .*, and must be a real number"):
            call(np.ones(3), **{name: value})


@pytest.mark.parametrize("value", [2, np.float32(2), np.int8(2), True + True, np.array(2.0)])
def test_scales_are_any_numbers(world, value):
    comm = world.comm
    y = comm.allreduce(np.ones(3), prescale=value, postscale=value)
    assert (y == 4 * comm.size).all()


def test_errors_are_also_what_a_caller_would_guess(world):
    with pytest.raises(ValueError, match="root is 99"):
        world.comm.reduce(np.ones(3), root=99)
    with pytest.raises(TypeError, match="x has dtype object"):
        world.comm.allreduce(np.array([None]))
    with pytest.raises(BufferError, match="out has 4 elements"):
        world.comm.allreduce(np.ones(3), np.ones(4))


def test_errors_pickle(world):
    with pytest.raises(ArgumentError) as caught:
        world.comm.allreduce(np.ones(3), algorithm="x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is ArgumentError
    assert str(again) == str(caught.value)


@pytest.mark.several
@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_stall(world, fresh, stalls, algorithm):
    """The last rank does not come. The others name it, and the communicator is broken."""
    comm = fresh(validate=False, timeout=0.3)
    p = comm.size
    told = ""
    if comm.rank < p - 1:
        start = (
            f"^allreduce '{algorithm}' on {p} ranks: rank {comm.rank} timed out after 0.3 s: round "
        )
        with stalls(comm, start) as caught:
            comm.allreduce(np.ones(p), algorithm=algorithm)
        told = str(caught.value)
        if caught.type is StallError:
            text = (
                f"the communicator is broken: rank {comm.rank} stalled in allreduce '{algorithm}'"
            )
            for call in (comm.barrier, comm.dup, lambda: comm.allreduce(np.ones(3))):
                with pytest.raises(CommunicatorError, match=text):
                    call()
    everything = world.mpi.allgather(told)
    if any("gave up" in each for each in everything):  # whom that rank would have waited for
        assert any(each.startswith("allreduce") for each in everything)
    else:
        assert re.search(rf"for rank {p - 1} (on host \d )?to ", " ".join(everything))


@pytest.mark.several
def test_stall_of_a_request(world, fresh, stalls):
    comm = fresh(validate=False, timeout=0.3)
    if comm.rank < comm.size - 1:
        with stalls(comm, r"allreduce 'butterfly' .* timed out after 0\.3 s") as caught:
            request = comm.iallreduce(np.ones(3), algorithm="butterfly")
            request.wait()
        if caught.type is StallError:
            for again in (request.wait, request.test):
                with pytest.raises(StallError, match="timed out"):
                    again()
            with pytest.raises(CommunicatorError, match="is broken: rank"):
                comm.barrier()
    world.mpi.Barrier()


@pytest.mark.several
def test_stall_of_a_barrier(world, fresh, stalls):
    comm = fresh(validate=False, timeout=0.3)
    if comm.rank > 0:
        with stalls(comm, r"barrier '[^']+' .* for rank \d+ (on .* )?to "):
            comm.barrier()
    world.mpi.Barrier()


@pytest.mark.several
def test_stall_under_validation(world, fresh, stalls):
    """A rank that does not come is noticed before anything starts."""
    comm = fresh(validate=True, timeout=0.3)
    if comm.rank < comm.size - 1:
        with stalls(comm, rf"rank {comm.rank} called allreduce\(count=3.*0\.3 s") as caught:
            comm.allreduce(np.ones(3))
        if caught.type is StallError:
            with pytest.raises(CommunicatorError, match="broken"):
                comm.barrier()
    world.mpi.Barrier()


@pytest.mark.several
def test_a_later_timeout_counts_under_validation(world, fresh, stalls):
    comm = fresh(validate=True, timeout=1000.0)
    comm.timeout = 0.3
    if comm.rank < comm.size - 1:
        with stalls(comm, r"0\.3 s"):
            comm.barrier()
    world.mpi.Barrier()


def calls_with_a_deadline(comm):
    """Return every other way to say a deadline, as functions of it."""
    x = np.ones(3)
    return {
        "barrier": lambda t: comm.barrier(timeout=t),
        "allreduce_many": lambda t: comm.allreduce_many([x, x], timeout=t),
        "iallreduce_many": lambda t: comm.iallreduce_many([x, x]).wait(timeout=t),
        "plan": lambda t: comm.plan("allreduce", x)(timeout=t),
        "plan.wait": lambda t: comm.plan("allreduce", x).start().wait(timeout=t),
        "broadcast_object": lambda t: comm.broadcast_object("x", timeout=t),
        "gather_object": lambda t: comm.gather_object("x", root=1, timeout=t),
        "allgather_object": lambda t: comm.allgather_object("x", timeout=t),
        "scatter_object": lambda t: comm.scatter_object(None, timeout=t),
        "recv": lambda t: comm.recv(x.copy(), 0, timeout=t),
        "sendrecv": lambda t: comm.sendrecv(x, 0, x.copy(), 0, timeout=t),
    }


# Under validation, the start waits for all ranks, and has the deadline of the communicator.
@pytest.mark.parametrize(
    ("name", "validate"),
    [
        (name, validate)
        for name in calls_with_a_deadline(None)
        for validate in (False, True)
        if not validate or name not in ("iallreduce_many", "plan.wait")
    ],
)
@pytest.mark.several
def test_a_deadline_of_its_own(world, fresh, name, validate):
    """Rank 0 does not come, and rank 1 waits for it as long as its call says."""
    comm = fresh(validate=validate, timeout=1000.0)
    if comm.rank == 1:
        with pytest.raises(StallError, match=r"\brank 1 .*timed out after 0\.2 s"):
            calls_with_a_deadline(comm)[name](0.2)
    world.mpi.Barrier()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1"])
def test_a_deadline_is_a_positive_number(world, timeout):
    comm = world.comm
    text = f"timeout is {timeout!r}, and must be a positive number of seconds"

    def assign(seconds):
        comm.timeout = seconds

    calls = calls_with_a_deadline(comm)
    calls["send"] = lambda t: comm.send(np.ones(3), 0, timeout=t)
    calls["timeout"] = assign
    calls["Communicator"] = lambda t: cc.Communicator(timeout=t)
    calls["world"] = lambda t: cc.allreduce(np.ones(3), timeout=t)
    for name in calls:
        if comm.size > 1 or name != "gather_object":  # there is no rank 1
            with pytest.raises(ArgumentError, match=text):
                calls[name](timeout)


def test_a_refused_deadline_leaves_the_request(world):
    comm = world.comm
    planned = comm.plan("allreduce", np.ones(3)).start()
    many = comm.iallreduce_many([np.ones(3), np.ones(4)])
    for request in (planned, many):
        with pytest.raises(ArgumentError, match="timeout is 0, and must be"):
            request.wait(0)
    assert (planned.wait() == comm.size).all()
    assert [y.tolist() for y in many.wait(60.0)] == [[comm.size] * 3, [comm.size] * 4]


def test_a_deadline_may_be_later_than_that_of_the_communicator(fresh):
    comm = fresh(validate=False, timeout=0.2)
    planned = comm.plan("allreduce", np.ones(3))
    for call in (
        lambda: comm.barrier(timeout=60),
        lambda: comm.iallreduce(np.ones(3)).wait(timeout=float("inf")),
        lambda: comm.allreduce_many([np.ones(3)], timeout=np.float32(60)),
        lambda: planned(60),
    ):
        if comm.rank == 0:
            time.sleep(0.5)
        call()


def test_a_deadline_is_of_one_call(world):
    """The next call waits as long as the communicator says, with the same operation in the core."""
    comm = world.comm
    planned = comm.plan("barrier")
    for call in (comm.barrier, planned):
        call(timeout=30)
        if comm.rank == 0:
            time.sleep(0.5)
        call()


def test_late_is_not_too_late(world):
    """A rank that comes within the deadline is waited for."""
    if world.comm.rank == 0:
        time.sleep(0.3)
    world.comm.barrier()
