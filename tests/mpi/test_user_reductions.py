"""Operations that a user writes: cc.reduction, in every collective that folds."""

import functools
import gc
import pickle

import numpy as np
import pytest
from cases import FULL, LARGE, contribution
from dtypes import DTYPES, dtype_of
from forms import REDUCING, Allreduce, Exscan, Reduce, ReduceScatter, Scan

import collectives as cc
from collectives import errors
from collectives.errors import ArgumentError, CommunicatorError, PeerAbortedError, StallError

every_form = pytest.mark.parametrize("form", REDUCING)


def further(incoming, accumulator):
    """Keep whichever is further from zero; of equals, the positive one."""
    a, b = (each.astype(complex) for each in (incoming, accumulator))
    better = (np.abs(a) > np.abs(b)) | ((np.abs(a) == np.abs(b)) & (a.real > b.real))
    accumulator[better] = incoming[better]


def product(incoming, accumulator):
    """Multiply 2x2 matrices of 16-bit numbers, one in each element: the order matters."""
    left, right = (each.view(np.uint16).reshape(-1, 2, 2) for each in (incoming, accumulator))
    right[:] = left @ right


def joined(incoming, accumulator):
    """Join numbers of hexadecimal digits as strings are joined."""
    shift = np.zeros_like(accumulator)
    for digits in range(1, 17):
        shift[accumulator >> np.uint64(4 * digits - 4) > 0] = digits
    accumulator |= incoming << (np.uint64(4) * shift)


FURTHER = cc.reduction(further)
PRODUCT = cc.reduction(product, commutative=False)
JOINED = cc.reduction(joined, commutative=False, name="joined")


def folded(function):
    """Return a function that folds arrays in their order."""

    def step(left, right):
        right = right.copy()
        function(left, right)
        return right

    return functools.partial(functools.reduce, step)


def matrices(n, rank):
    return np.random.default_rng([n, rank]).integers(0, 2**64 - 1, n, np.uint64, endpoint=True)


def ordered(form):
    rows = [cc.algorithms.get(form.collective, name) for name in form.algorithms()]
    return [row.name for row in rows if row.keeps_order]


@every_form
def test_every_dtype(world, form):
    for dtype in DTYPES:
        hold_dtype(world.comm, form, dtype)


def hold_dtype(comm, form, dtype):
    seen = set()

    def watched(incoming, accumulator):
        seen.add((incoming.dtype, accumulator.dtype, incoming.ndim, incoming.size))
        assert incoming.size == accumulator.size
        assert accumulator.flags.writeable
        further(incoming, accumulator)

    for n in (0, 1, 101) if dtype == "float32" else (33,):
        case = form(comm.size, n, dtype=dtype, root=comm.size - 1)
        inputs = [case.x(r) for r in range(comm.size)]
        got = case.call(comm, op=cc.reduction(watched))
        want = case.folds(folded(further), inputs, comm.rank)
        assert (got is None) == (want is None)
        if got is not None:
            np.testing.assert_array_equal(got, want)
    assert {(a, b, ndim) for a, b, ndim, _ in seen} <= {(dtype_of(dtype), dtype_of(dtype), 1)}
    assert all(size for *_, size in seen)


@pytest.mark.parametrize("op", [PRODUCT, JOINED], ids=["product", "joined"])
@every_form
def test_the_order_of_the_ranks_is_kept(world, segments, form, op):
    comm = world.comm
    p = comm.size
    for name in ordered(form):
        for n, nbytes in ((0, 0), (1, 0), (p + 1, 0), (1009, 1000)):
            case = form(p, n, dtype="uint64", root=n % p)
            length = case.total if case.cut else n
            inputs = [
                np.full(length, r + 1, np.uint64) if op is JOINED else matrices(length, r)
                for r in range(p)
            ]
            x = inputs[comm.rank]
            before = x.copy()
            with segments(comm, nbytes):
                got = case.call(comm, x, op=op, algorithm=name)
                again = case.call(comm, x, case.empty(comm.rank), op=op, algorithm=name, start=True)
                again = again.wait()
            np.testing.assert_array_equal(x, before)
            want = case.folds(folded(op.function), inputs, comm.rank)
            assert (got is None) == (again is None) == (want is None)
            if want is not None:
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(again, want)


def test_joined_reads_as_the_ranks_stand(world):
    """Of eight ranks: 0x12345678 everywhere, and one digit more on each in a scan."""
    comm = world.comm
    x = np.array([comm.rank + 1], np.uint64)
    digits = "".join(f"{r + 1:x}" for r in range(comm.size))
    assert f"{int(comm.allreduce(x, op=JOINED, algorithm='tree')[0]):x}" == digits
    assert f"{int(comm.scan(x, op=JOINED)[0]):x}" == digits[: comm.rank + 1]


@pytest.mark.parametrize("form", [Allreduce, Reduce, ReduceScatter])
def test_large_and_in_order(world, form):
    comm = world.comm
    n = 2**16 if not FULL else LARGE
    case = form(comm.size, n // comm.size if form.cut else n, dtype="uint64")
    length = case.total
    inputs = [matrices(length, r) for r in range(comm.size)]
    for name in ordered(form):
        got = case.call(comm, inputs[comm.rank], op=PRODUCT, algorithm=name)
        want = case.folds(folded(product), inputs, comm.rank)
        assert (got is None) == (want is None)
        assert got is None or (got == want).all()


@every_form
def test_algorithms_that_fold_in_another_order_are_refused(world, form):
    """By name; and where none is named, one that keeps the order is chosen."""
    comm = world.comm
    case = form(comm.size, 50, dtype="uint64")
    length = case.total
    inputs = [matrices(length, r) for r in range(comm.size)]
    able = ordered(form)
    for name in form.algorithms():
        if name in able:
            continue
        text = (
            f"op is not commutative, and {form.collective} '{name}' does not fold in rank order; "
            f"pass algorithm=None or one that does: {', '.join(able)}"
        )
        with pytest.raises(ArgumentError, match=text):
            case.call(comm, inputs[comm.rank], op=PRODUCT, algorithm=name)
        case.call(comm, op=FURTHER, algorithm=name)  # whose order does not matter
    for n in (1, 50, 5000):
        case = form(comm.size, n, dtype="uint64")
        inputs = [matrices(case.total, r) for r in range(comm.size)]
        got = case.call(comm, inputs[comm.rank], op=PRODUCT)
        want = case.folds(folded(product), inputs, comm.rank)
        assert got is None if want is None else (got == want).all()


@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_commutative_ones_run_everywhere(world, segments, algorithm):
    comm = world.comm
    inputs = [contribution("SUM", "int32", 1009, r) for r in range(comm.size)]
    want = folded(further)(inputs)
    for nbytes in (0, 256):
        with segments(comm, nbytes):
            got = comm.allreduce(inputs[comm.rank], op=FURTHER, algorithm=algorithm)
            x = inputs[comm.rank].copy()
            assert comm.allreduce(x, x, op=FURTHER, algorithm=algorithm) is x
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(x, want)


def test_many_in_flight(plain):
    comm = plain.comm
    p = comm.size
    inputs = [[contribution("SUM", "int64", 50 + k, r) for r in range(p)] for k in range(20)]
    requests = [comm.iallreduce(each[comm.rank], op=FURTHER) for each in inputs]
    blocking = comm.allreduce(inputs[0][comm.rank])
    gc.collect()
    for request, each in zip(reversed(requests), reversed(inputs), strict=True):
        np.testing.assert_array_equal(request.wait(), folded(further)(each))
    np.testing.assert_array_equal(blocking, np.sum(inputs[0], axis=0))


def test_scales(world):
    comm = world.comm
    x = np.arange(5.0) + comm.rank
    got = comm.allreduce(x, op=FURTHER, prescale=2.0, postscale=0.25)
    np.testing.assert_array_equal(got, (np.arange(5.0) + comm.size - 1) / 2)
    with pytest.raises(errors.UnsupportedTypeError, match="need a floating dtype"):
        comm.allreduce(np.ones(3, int), op=FURTHER, prescale=2.0)
    comm.barrier()


@pytest.mark.parametrize("collective", ["allreduce", "scan"])
def test_a_function_that_raises(world, fresh, collective):
    """The rank that folds gets its error; the others hear of it, or wait in vain."""
    comm = fresh(validate=False, timeout=60.0 if world.comm.transport == "shm" else 3.0)

    def fails(incoming, accumulator):
        raise KeyError("no such fold")

    algorithm = "tree" if collective == "allreduce" else "chain"
    call = getattr(comm, collective)
    told = "nothing"
    world.mpi.Barrier()
    try:
        call(np.ones(3), op=cc.reduction(fails), algorithm=algorithm)
    except KeyError as error:
        told = error.args[0]
    except (StallError, PeerAbortedError):
        told = "stall"
    everything = world.mpi.allgather(told)
    assert ("no such fold" in everything) == (comm.size > 1)
    if told != "nothing":
        with pytest.raises(CommunicatorError, match=r"is broken: rank \d+ (failed|stalled)"):
            comm.barrier()
    world.mpi.Barrier()


@pytest.mark.several
def test_a_function_that_raises_in_a_request(world, fresh):
    comm = fresh(validate=False, timeout=10.0)

    def fails(incoming, accumulator):
        world.mpi.Barrier()  # nobody gives up before all are here
        raise ZeroDivisionError

    request = comm.iallreduce(np.ones(3), op=cc.reduction(fails), algorithm="all_to_all")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            request.wait()
    with pytest.raises(CommunicatorError, match="failed in allreduce 'all_to_all'"):
        comm.barrier()
    world.mpi.Barrier()


@pytest.mark.several
def test_an_operand_that_is_written(world, fresh):
    """`incoming` may be the caller's own array: writing it is refused."""
    comm = fresh(validate=False, timeout=10.0)
    x = np.ones(3)

    def swapped(incoming, accumulator):
        world.mpi.Barrier()  # nobody gives up before all are here
        incoming += accumulator

    with pytest.raises(ValueError, match="read-only"):
        comm.allreduce(x, op=cc.reduction(swapped), algorithm="all_to_all")
    assert (x == 1).all()
    world.mpi.Barrier()


@pytest.mark.several
def test_interrupts_come_through(world, fresh):
    comm = fresh(validate=False, timeout=10.0)

    def interrupted(incoming, accumulator):
        world.mpi.Barrier()  # nobody gives up before all are here
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comm.allreduce(np.ones(3), op=cc.reduction(interrupted), algorithm="all_to_all")
    world.mpi.Barrier()


@pytest.mark.parametrize("fn", [None, 3, "max", [np.add]])
def test_no_function(fn):
    with pytest.raises(ArgumentError, match=r"fn is .*, and must be a function of two arrays"):
        cc.reduction(fn)


def test_names():
    assert repr(FURTHER) == "<Reduction further>"
    assert (JOINED.name, JOINED.commutative) == ("joined", False)
    assert cc.reduction(functools.partial(further)).name == "function"
    assert FURTHER.dtypes() == list(DTYPES)
    again = pickle.loads(pickle.dumps(JOINED))
    assert (again.name, again.function, again.commutative) == ("joined", joined, False)


@pytest.mark.several
def test_different_operations_are_told(world):
    comm = world.comm
    x = np.ones(3, np.uint64)
    with pytest.raises(errors.MismatchError, match=r"op=(joined|SUM).*op=(joined|SUM)"):
        comm.scan(x, op=JOINED if comm.rank else cc.SUM)
    comm.barrier()


@pytest.mark.parametrize("form", [Scan, Exscan])
def test_ufuncs_with_an_output(world, form):
    """A function that users may have: one of NumPy that writes into its last argument."""
    comm = world.comm
    case = form(comm.size, 100, dtype="int64")
    op = cc.reduction(lambda a, b: np.gcd(a, b, out=b), name="gcd")
    inputs = [case.x(r) for r in range(comm.size)]
    got = case.call(comm, op=op)
    want = case.folds(folded(op.function), inputs, comm.rank)
    assert got is None if want is None else (got == want).all()


@pytest.mark.several
def test_a_function_that_returns_its_result():
    """It has not written it: every rank would end with its own array."""
    comm = cc.Communicator()
    with pytest.raises((ArgumentError, PeerAbortedError), match="returned a new array, and must"):
        comm.allreduce(np.ones(3), op=cc.reduction(lambda x, y: x + y))


def test_a_function_that_returns_its_argument(world):
    for fold in (lambda x, y: np.add(x, y, out=y), lambda x, y: np.add(x, y, out=y[:])):
        assert world.comm.allreduce(np.ones(3), op=cc.reduction(fold))[0] == world.comm.size
