"""Planned calls: arguments checked once, run again and again with the same arrays."""

import gc
import random
import re

import numpy as np
import pytest
from cases import LARGE, contribution, digest, verify
from forms import CUT, VECTOR, WHOLE, Allreduce, Alltoall, Broadcast, Scatter

import collectives as cc
from collectives import errors
from collectives.errors import ArgumentError, CommunicatorError, MismatchError

FORMS = (*WHOLE, *CUT)
every_form = pytest.mark.parametrize("form", FORMS)


def plan(form, comm, x, out=None, **changes):
    return comm.plan(form.collective, x, out, **form.options(comm.rank) | changes)


@every_form
def test_runs_again_with_what_is_in_the_arrays_then(world, form):
    comm = world.comm
    for choice in [None, *form.runnable()]:
        case = form(comm.size, 101, root=comm.size - 1, dtype="int32")
        x = case.x(comm.rank).copy()
        out = case.empty(comm.rank)
        planned = plan(case, comm, x, out, algorithm=choice)
        new = plan(case, comm, x, algorithm=choice)
        case.verify(planned(), comm.rank)
        x += 1 + comm.rank
        got = planned()
        want = case.call(comm, x, algorithm=choice)
        assert got is (None if want is None else out)
        again = new()
        x += 1 + comm.rank
        assert again is new.start().wait()
        if want is not None:
            assert digest(got) == digest(want)
            assert digest(again) == digest(case.call(comm, x, algorithm=choice))
        else:
            case.call(comm, x, algorithm=choice)


@every_form
def test_start_test_wait(world, form):
    comm = world.comm
    case = form(comm.size, 1009, root=0)
    planned = plan(case, comm, case.x(comm.rank).copy(), case.empty(comm.rank))
    for _ in range(3):
        assert planned.start() is planned
        while not planned.test():
            pass
        assert planned.test()
        case.verify(planned.wait(), comm.rank)
        assert planned.wait() is planned.wait()


@pytest.mark.parametrize("form", [form for form in FORMS if form is not Alltoall])
def test_in_place(world, form):
    comm = world.comm
    case = form(comm.size, 50, root=comm.size - 1)
    x, out = case.shared(comm.rank)
    before = x.copy()
    planned = plan(case, comm, x, out)
    for _ in range(3):
        x[...] = before
        case.verify(planned(), comm.rank)


def test_in_place_folds_what_it_has_written(world):
    comm = world.comm
    x = np.ones(3, np.int64)
    planned = comm.plan("allreduce", x, x)
    for k in range(1, 4):
        assert planned() is x
        assert (x == comm.size**k).all()


def test_many_in_flight_and_other_calls_in_between(world):
    comm = world.comm
    cases = [form(comm.size, 3 + 40 * k, root=k % comm.size) for k, form in enumerate(FORMS)]
    planned = [plan(case, comm, case.x(comm.rank).copy()) for case in cases]
    for turn in range(3):
        for each in planned:
            each.start()
        other = comm.iallreduce(np.ones(50))
        comm.barrier()
        order = list(range(len(cases)))
        random.Random(comm.rank + turn).shuffle(order)
        for k in order:
            cases[k].verify(planned[k].wait(), comm.rank)
        assert (other.wait() == comm.size).all()


@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_segments_are_those_of_the_plan(plain, segments, algorithm):
    comm = plain.comm
    case = Allreduce(comm.size, 1009)
    with segments(comm, 1000):
        planned = comm.plan("allreduce", case.x(comm.rank), algorithm=algorithm)
    for _ in range(2):
        case.verify(planned(), comm.rank)
        case.verify(planned.start().wait(), comm.rank)


def test_large(world):
    comm = world.comm
    x = contribution("SUM", "float32", LARGE, comm.rank)
    planned = comm.plan("allreduce", x)
    for _ in range(2):
        verify(planned(), "SUM", "float32", LARGE, comm.size)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_scales(world, collective):
    comm = world.comm
    form = next(form for form in FORMS if form.collective == collective)
    case = form(comm.size, 101, dtype="float64", root=comm.size - 1)
    x = case.x(comm.rank).copy()
    method = getattr(comm, collective)
    options = case.options(comm.rank) | {"op": cc.AVG, "prescale": 0.5, "postscale": -3.0}
    planned = comm.plan(collective, x, **options)
    for _ in range(3):
        got, want = planned(), method(x, **options)
        assert (got is None) == (want is None)
        assert got is None or digest(got) == digest(want)
        assert digest(x) == digest(case.x(comm.rank))
    with pytest.raises(errors.UnsupportedTypeError, match="need a floating dtype, and x is int64"):
        comm.plan(collective, np.ones(comm.size, np.int64), prescale=0.5)
    comm.barrier()


@pytest.mark.parametrize("form", [form for form in FORMS if form.collective != "barrier"])
def test_no_scales_where_the_method_has_none(world, form):
    if form.collective in ("allreduce", "reduce", "reduce_scatter"):
        return
    case = form(world.comm.size, 3)
    for changes in ({"prescale": 2.0}, {"postscale": 0.5}):
        with pytest.raises(ArgumentError, match=f"scale .* and {form.collective} has none; allred"):
            plan(case, world.comm, case.x(world.comm.rank), **changes)
    world.comm.barrier()


def test_barrier(world):
    comm = world.comm
    planned = comm.plan("barrier")
    for _ in range(5):
        assert planned() is None
        assert planned.start().wait() is None
    with pytest.raises(ArgumentError, match="prescale is 2"):
        comm.plan("barrier", prescale=2.0)
    told = rf"<PlannedCall of barrier '\S+' on {comm.size} ranks?(, .*groups of .* ranks?)?>"
    assert re.fullmatch(told, repr(planned))


def test_scatter_without_an_x(world):
    comm = world.comm
    case = Scatter(comm.size, 5, dtype="int32")
    out = case.empty(comm.rank)
    x = case.x(comm.rank).copy() if comm.rank == 0 else None
    planned = comm.plan("scatter", x, out)
    for _ in range(2):
        case.verify(planned(), comm.rank)
        if comm.rank == 0:
            x += 0


@pytest.mark.parametrize("name", ["allgatherv", "send", "nonsense", "iallreduce", None, 3, []])
def test_what_cannot_be_planned(world, name):
    with pytest.raises(ArgumentError, match=r"collective is .*, and must be one of allreduce, red"):
        world.comm.plan(name, np.ones(3))
    world.comm.barrier()


def test_vector_forms_cannot_be_planned(world):
    for form in VECTOR:
        with pytest.raises(ArgumentError, match=f"collective is '{form.name}', and must be one of"):
            world.comm.plan(form.name, np.ones(3))


def test_arguments_are_checked_at_once(world):
    comm = world.comm
    for text, arguments in {
        "x is a list": {"x": [1.0]},
        "x is None, and must be an array": {},
        "out has 4 elements": {"x": np.ones(3), "out": np.ones(4)},
        "op is 'total'": {"x": np.ones(3), "op": "total"},
        "has no algorithm 'x'": {"x": np.ones(3), "algorithm": "x"},
        "out overlaps x in part": {"x": (memory := np.ones(4))[:3], "out": memory[1:]},
    }.items():
        with pytest.raises(ArgumentError, match=text):
            comm.plan("allreduce", **arguments)
    with pytest.raises(ArgumentError, match="root is 99"):
        comm.plan("reduce", np.ones(3), root=99)
    assert (comm.plan("allreduce", np.ones(3))() == comm.size).all()


@pytest.mark.parametrize("kind", ["strided", "fortran", "strided memoryview", "misaligned"])
def test_an_input_that_would_be_packed_once(world, kind):
    """Later runs would read the copy, not what the array holds then."""
    comm = world.comm
    x = {
        "strided": np.ones(6)[::2],
        "fortran": np.ones((2, 3), order="F"),
        "strided memoryview": memoryview(np.ones(6))[::2],
        "misaligned": np.zeros(25, np.uint8)[1:].view(np.float64),
    }[kind]
    for collective in ("allreduce", "scan", "allgather"):
        with pytest.raises(errors.BufferError, match="x is not C-contiguous and aligned, and a pl"):
            comm.plan(collective, x)
    comm.barrier()


@pytest.mark.parametrize("kind", ["memoryview", "subclass", "read-only", "scalar", "bytearray"])
def test_inputs_that_are_read_where_they_lie(world, kind):
    comm = world.comm
    memory = np.ones(3)
    x = {
        "memoryview": memoryview(memory),
        "subclass": memory.view(np.recarray),
        "read-only": (locked := memory.view()),
        "scalar": np.float64(2.0),
        "bytearray": bytearray(3),
    }[kind]
    locked.flags.writeable = False
    planned = comm.plan("allreduce", x)
    for turn in range(2, 4):
        memory[:] = turn
        if kind == "bytearray":
            x[:] = bytes([turn] * 3)
        assert (planned() == comm.size * (2.0 if kind == "scalar" else turn)).all()


@pytest.mark.several
def test_an_alltoall_in_place_would_be_copied_once(world):
    comm = world.comm
    x = np.ones(comm.size)
    with pytest.raises(errors.BufferError, match="out overlaps x, and a planned alltoall reads x"):
        comm.plan("alltoall", x, x)
    comm.barrier()


def test_where_contents_are_not_read_any_layout_will_do(world):
    comm = world.comm
    case = Broadcast(comm.size, 6)
    x = case.x(comm.rank).copy()
    x = x if comm.rank == 0 else np.stack([x, x], axis=1)[:, 0]
    case.verify(comm.plan("broadcast", x)(), comm.rank)


def test_nothing_was_started(world):
    comm = world.comm
    planned = comm.plan("allreduce", np.ones(3))
    text = f"allreduce '.*' on {comm.size} ranks?.* was not started"
    for call in (planned.wait, planned.test):
        with pytest.raises(CommunicatorError, match=text):
            call()
    planned()
    with pytest.raises(CommunicatorError, match="was not started"):
        planned.wait()


@pytest.mark.several
def test_started_twice(plain):
    """Before the other ranks come, the second start is refused, and so is a call."""
    comm = plain.comm
    x = np.ones(3)
    planned = comm.plan("allreduce", x, algorithm="tree")
    if comm.rank == 0:
        planned.start()
        assert repr(planned).endswith(": in flight>")
        text = f"allreduce 'tree' on {comm.size} ranks.* is in flight; wait for it before the next"
        for call in (planned.start, planned):
            with pytest.raises(CommunicatorError, match=text):
                call()
        with pytest.raises(CommunicatorError, match="operations are in flight: allreduce 'tree'"):
            comm.free()
        plain.mpi.Barrier()
    else:
        plain.mpi.Barrier()
        planned.start()
    assert (planned.wait() == comm.size).all()
    comm.barrier()
    # A complete call need not have been waited for.
    planned.start()
    while not planned.test():
        pass
    planned.start()
    assert (planned.wait() == comm.size).all()
    assert (planned() == comm.size).all()


def test_freed_communicator(world):
    comm = world.comm.dup()
    x = np.ones(3)
    planned = comm.plan("allreduce", x)
    planned()
    comm.free()
    for call in (planned, planned.start, lambda: comm.plan("barrier")):
        with pytest.raises(CommunicatorError, match="the communicator was freed"):
            call()
    del planned
    gc.collect()


def test_dropped_in_flight(plain):
    """Nobody keeps the plan, the arrays or the request: it still runs, and disturbs nobody."""
    comm = plain.comm
    outs = [np.zeros(4000, np.int64) for _ in range(4)]
    if comm.rank:
        plain.mpi.Barrier()
    for k, out in enumerate(outs):
        comm.plan("allreduce", np.full(4000, k + comm.rank), out).start()
        gc.collect()
    junk = [np.full(4000, -1) for _ in range(10)]
    if not comm.rank:
        plain.mpi.Barrier()
    wanted = [comm.size * k + comm.size * (comm.size - 1) // 2 for k in range(4)]
    for _ in range(100000):  # any wait makes progress on all operations
        done = all((out == want).all() for out, want in zip(outs, wanted, strict=True))
        if comm.allreduce(np.array([done]), op=cc.LAND)[0]:
            break
    for out, want in zip(outs, wanted, strict=True):
        assert (out == want).all()
    gc.collect()
    comm.barrier()
    assert len(junk) == 10


def test_many_are_made_and_forgotten(world):
    comm = world.comm
    for k in range(60):
        planned = comm.plan("allreduce", np.full(100, k))
        assert (planned.start().wait() == comm.size * k).all()
        if k % 20 == 0:
            gc.collect()


def test_planning_is_local(world):
    """Ranks find out that their plans differ when they run them."""
    comm = world.comm
    if comm.rank == 0:
        with pytest.raises(ArgumentError, match="collective is 'x'"):
            comm.plan("x")
    planned = comm.plan("allreduce", np.ones(3 + (comm.rank == 0)))
    if comm.size > 1:
        with pytest.raises(MismatchError, match=r"count=4, .*count=3, "):
            planned()
    comm.barrier()


@pytest.mark.several
def test_ranks_that_run_different_things(world):
    comm = world.comm
    one = comm.plan("allreduce", np.ones(3))
    two = comm.plan("allreduce", np.ones(4))
    with pytest.raises(MismatchError, match=r"allreduce\(count=4, .*allreduce\(count=3, "):
        (one if comm.rank else two)()
    with pytest.raises(MismatchError, match=r"barrier\(.*allreduce\(count=4, |allreduce.*barrier"):
        two.start() if comm.rank else comm.barrier()
    assert (two() == comm.size).all()
    # A planned call and another with the same arguments are the same to the others.
    result = one() if comm.rank else comm.allreduce(np.ones(3))
    assert (result == comm.size).all()


@pytest.mark.several
def test_stall(world, fresh, stalls):
    comm = fresh(validate=False, timeout=0.3)
    planned = comm.plan("allreduce", np.ones(3), algorithm="butterfly")
    if comm.rank < comm.size - 1:
        with stalls(comm, r"allreduce 'butterfly' .* timed out after 0\.3 s") as caught:
            planned()
        if caught.type is errors.StallError:
            for call in (planned, planned.start):
                with pytest.raises(CommunicatorError, match="is broken: rank"):
                    call()
            with pytest.raises(CommunicatorError, match="was not started"):
                planned.wait()
    del planned
    gc.collect()
    world.mpi.Barrier()


def test_user_function(world):
    comm = world.comm
    x = np.array([comm.rank, -comm.rank])
    planned = cc.plan("allreduce", x, op=cc.reduction(lambda a, b: np.maximum(a, b, out=b)))
    for k in range(3):
        x += 1
        assert planned().tolist() == [comm.size + k, k + 1]
    gc.collect()
    assert planned.start().wait().tolist() == [comm.size + 2, 3]
