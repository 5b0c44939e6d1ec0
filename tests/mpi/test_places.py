"""MINLOC and MAXLOC on pairs of a value and an index, in every collective that folds."""

import numpy as np
import pytest
from forms import REDUCING, Allreduce

import collectives as cc
from collectives import background
from collectives.errors import UnsupportedTypeError

VALUES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
VALUES += ("float32", "float64", "longdouble")
OPS = [cc.MINLOC, cc.MAXLOC]

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def pair_dtype(value, index="int32", align=True):
    return np.dtype([("value", value), ("index", index)], align=align)


def pairs(dtype, n, rank):
    """Return pairs with few values, so that many are equal, and NaNs and zeros of either sign."""
    random = np.random.default_rng([n, rank])
    x = np.zeros(n, dtype)
    x["value"] = random.integers(0, 4, n)
    x["index"] = random.integers(-3, 3, n)
    if dtype["value"].kind == "f":
        x["value"][random.random(n) < 0.2] = np.nan
        x["value"][random.random(n) < 0.2] *= -1
    return x


def key(op, pair):
    """Return what the pair that wins is the smallest by."""
    value, index = pair["value"], pair["index"]
    sign = 1 if op is cc.MINLOC else -1
    number = sign * float(value)
    is_minus = bool(np.signbit(value)) if value.dtype.kind == "f" else False
    return value == value, 0 if value != value else number, index, -sign * is_minus


def winners(op, inputs):
    """Return the pairs that win, from arrays of the ranks."""
    made = inputs[0].copy()
    for i in range(len(made)):
        made[i] = min((each[i] for each in inputs), key=lambda pair: key(op, pair))
    return made


def hold(got, want):
    """Hold pairs against each other, with their NaNs and the signs of their zeros."""
    for name in ("value", "index"):
        np.testing.assert_array_equal(got[name], want[name])
    number = ~np.isnan(want["value"]) if want["value"].dtype.kind == "f" else slice(None)
    np.testing.assert_array_equal(
        np.signbit(got["value"].astype(float))[number],
        np.signbit(want["value"].astype(float))[number],
    )


@each_op
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", REDUCING)
def test_every_value(world, form, value, op):
    comm = world.comm
    for index, align, n in (("int32", True, 33), ("int64", True, 7), ("int32", False, 101)):
        dtype = pair_dtype(value, index, align)
        case = form(comm.size, n, root=comm.size - 1)
        inputs = [pairs(dtype, case.total if case.cut else n, r) for r in range(comm.size)]
        got = case.call(comm, inputs[comm.rank], op=op)
        want = case.folds(lambda rows: winners(op, rows), inputs, comm.rank)
        assert (got is None) == (want is None)
        if got is not None:
            assert got.dtype == dtype
            hold(got, want)


@each_op
@pytest.mark.parametrize("align", [False, True])
def test_many_pairs_by_every_algorithm(world, segments, op, align):
    """Elements of 12 bytes do not divide the tiles in which arrays are folded."""
    comm = world.comm
    dtype = pair_dtype("float64", align=align)
    inputs = [pairs(dtype, 5003, r) for r in range(comm.size)]
    want = winners(op, inputs)
    for name in Allreduce.runnable():
        for nbytes in (0, 1000):
            with segments(comm, nbytes):
                got = comm.allreduce(inputs[comm.rank], op=op, algorithm=name)
            hold(got, want)
            world.agree(got.tobytes())


def test_of_equal_values_the_lowest_index_wins(world):
    comm = world.comm
    x = np.array((2.5, 100 - comm.rank), pair_dtype("float64", "int64"))
    for op in OPS:
        got = comm.allreduce(x, op=op)
        assert (got["value"], got["index"]) == (2.5, 100 - comm.size + 1)
    assert comm.allreduce(x, op="maxloc")["index"] == 100 - comm.size + 1


def test_in_flight_planned_and_in_place(world):
    comm = world.comm
    dtype = pair_dtype("float32")
    inputs = [pairs(dtype, 50, r) for r in range(comm.size)]
    want = winners(cc.MINLOC, inputs)
    x = inputs[comm.rank].copy()
    hold(comm.iallreduce(x, op=cc.MINLOC).wait(), want)
    out = np.empty_like(x)
    planned = comm.plan("allreduce", x, out, op=cc.MINLOC)
    for _ in range(2):
        hold(planned(), want)
    assert comm.allreduce(x, x, op=cc.MINLOC) is x
    hold(x, want)


def test_in_the_background(world):
    """Arrays of pairs are not joined with others."""
    dtype = pair_dtype("float64", align=False)
    inputs = [pairs(dtype, 50, r) for r in range(world.comm.size)]
    x = inputs[world.comm.rank]
    handles = [background.submit("allreduce", x, op=cc.MAXLOC, name=f"pairs {k}") for k in range(3)]
    for each in handles:
        hold(each.wait(), winners(cc.MAXLOC, inputs))


def test_names_of_fields_may_differ(world):
    comm = world.comm
    names = ("value", "index") if comm.rank else ("v", "i")
    x = np.zeros(3, np.dtype([(names[0], "f8"), (names[1], "i4")]))
    x[names[0]] = -comm.rank
    x[names[1]] = comm.rank
    got = comm.allreduce(x, op=cc.MINLOC)
    assert got.dtype == x.dtype
    assert (got[names[1]] == comm.size - 1).all()


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("float64", "MINLOC is not defined on float64; it is on pairs of a value, which is an"),
        ("float64,float64", "MINLOC is not defined on .*'f0', '<f8'.*; it is on pairs of a value"),
        ("float64,int16", "index, which is int32 or int64, such as numpy.dtype"),
        ("complex64,int32", "MINLOC is not defined on"),
        ("float64,int32,int32", "MINLOC is not defined on"),
        (">f8,>i4", "x has dtype .*; supported are"),
        ("O,i4", "x has dtype .*; supported are"),
    ],
)
def test_other_dtypes(world, dtype, text):
    with pytest.raises(UnsupportedTypeError, match=text):
        world.comm.allreduce(np.zeros(3, dtype), op=cc.MINLOC)
    world.comm.barrier()


def test_other_operations_on_pairs(world):
    x = np.zeros(3, pair_dtype("float64"))
    with pytest.raises(UnsupportedTypeError, match="pass its fields one by one"):
        world.comm.allreduce(x)
    with pytest.raises(UnsupportedTypeError, match="pass its fields one by one"):
        world.comm.broadcast(x)
    with pytest.raises(UnsupportedTypeError, match="need a floating dtype"):
        world.comm.allreduce(x, op=cc.MINLOC, prescale=2.0)
    world.comm.barrier()


def test_what_they_fold():
    assert "float64,int32" in cc.MINLOC.dtypes()
    assert all(np.dtype(each).names for each in cc.MAXLOC.dtypes())
    assert "float16,int32" not in cc.MAXLOC.dtypes()


def test_objects(world):
    comm = world.comm
    assert comm.allreduce_object((-(comm.rank % 2), comm.rank), cc.MINLOC) == (
        (-1, 1) if comm.size > 1 else (0, 0)
    )
    assert comm.allreduce_object((comm.rank // 2, comm.rank), "maxloc") == (
        (comm.size - 1) // 2,
        (comm.size - 1) // 2 * 2,
    )


def test_functions_fold_structures(world):
    """Means that know of how many numbers they are."""
    comm = world.comm
    dtype = np.dtype([("sum", "f8"), ("count", "i4"), ("label", "S3")])

    def joined(incoming, accumulator):
        assert incoming.dtype == accumulator.dtype == dtype
        accumulator["sum"] += incoming["sum"]
        accumulator["count"] += incoming["count"]
        later = incoming["label"] > accumulator["label"]
        accumulator["label"][later] = incoming["label"][later]

    x = np.zeros(1001, dtype)
    x["sum"], x["count"], x["label"] = comm.rank, 1, b"abcdefgh"[comm.rank % 8 :][:1]
    op = cc.reduction(joined)
    for got in (comm.allreduce(x, op=op), comm.iallreduce(x, op=op).wait()):
        assert got.dtype == dtype
        assert (got["sum"] == sum(range(comm.size))).all()
        assert (got["count"] == comm.size).all()
        assert (got["label"] == max(b"abcdefgh"[r % 8 :][:1] for r in range(comm.size))).all()


def test_functions_fold_raw_bytes_in_order(world):
    comm = world.comm

    def product(incoming, accumulator):
        left, right = (each.view(np.uint8).reshape(-1, 2, 2) for each in (incoming, accumulator))
        right[:] = left @ right

    def made(rank):
        return np.random.default_rng(rank).integers(0, 255, (300, 2, 2), np.uint8)

    op = cc.reduction(product, commutative=False)
    x = made(comm.rank).reshape(-1).view("V4")
    want = made(0)
    for rank in range(1, comm.size):
        want = want @ made(rank)
    got = comm.allreduce(x, op=op).view(np.uint8).reshape(-1, 2, 2)
    np.testing.assert_array_equal(got, want)
    counts = [100 * (r + 1) for r in range(comm.size)]
    whole = np.resize(x, sum(counts))
    part = comm.reduce_scatterv(whole, counts=counts, op=op)
    first = sum(counts[: comm.rank])
    rows = np.arange(first, first + counts[comm.rank]) % 300
    np.testing.assert_array_equal(part.view(np.uint8).reshape(-1, 2, 2), want[rows])
