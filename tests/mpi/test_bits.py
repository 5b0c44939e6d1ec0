"""With ``bits="size"``, an element's bits depend on the contributions to it alone.

They are those of a fold from rank 0 up, which each rank computes here for itself.
"""

import functools

import ml_dtypes
import numpy as np
import pytest

import collectives as cc
from collectives import background
from collectives.algorithms import get, names
from collectives.errors import ArgumentError, MismatchError
from collectives.plans.order import is_in_rank_order

N = 150_000  # elements of the whole array
LENGTHS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 255, 257, 511, 1000]
LENGTHS += [1023, 1025, 2047, 3000, 4096, 4097, 5001, 8191, 9000, 12_289, 16_385, 20_000]
LENGTHS += [30_011, 32_768, 40_001, 65_537, 80_000, 100_003, 131_073, 149_999]
PLACES = [(n, (7919 * n) % (N - n + 1)) for n in LENGTHS]  # of a part of the whole array
OPS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


@pytest.fixture(scope="module")
def comm(plain):
    return plain.comm.dup(bits="size")


@functools.cache
def contribution(rank, dtype="float32"):
    """Return values of very different sizes, whose sums depend on the order of folds."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=N) * np.exp2(rng.integers(-6, 6, N))
    if dtype.startswith("complex"):
        x = x + 1j * rng.normal(size=N)
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@functools.cache
def folded(ranks, dtype="float32", op="SUM"):
    """Return the fold of the contributions of the first ranks, from rank 0 up."""
    with np.errstate(over="ignore"):
        return functools.reduce(OPS[op], [contribution(r, dtype) for r in range(ranks)])


def same(got, want):
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_forty_lengths_and_places(comm):
    assert len(PLACES) == 40
    x, want = contribution(comm.rank), folded(comm.size)
    same(comm.allreduce(x), want)
    for n, at in PLACES:
        part = slice(at, at + n)
        same(comm.allreduce(x[part]), want[part])
        out = x[part].copy()
        same(comm.iallreduce(out, out=out).wait(), want[part])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_dtypes_and_operations(comm, dtype, op):
    if dtype == "complex64" and op != "SUM":  # NumPy may multiply in another way
        return
    x, want = contribution(comm.rank, dtype), folded(comm.size, dtype, op)
    for n, at in PLACES[::5]:
        part = slice(at, at + n)
        same(comm.allreduce(x[part], op=op), want[part])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_scales_and_averages(comm, dtype):
    """They are applied to each element by itself."""
    x = contribution(comm.rank, dtype)
    options = [{"op": cc.AVG}, {"prescale": 0.3}, {"postscale": 0.7, "prescale": 3.0}]
    for each in options:
        want = comm.allreduce(x, **each)
        for n, at in PLACES[::3]:
            part = slice(at, at + n)
            same(comm.allreduce(x[part], **each), want[part])


def test_other_collectives_give_the_same(comm):
    p, rank = comm.size, comm.rank
    x, want = contribution(rank), folded(p)
    for n, at in PLACES[::3]:
        part = slice(at, at + n)
        for root in {0, p // 2, p - 1}:
            got = comm.reduce(x[part], root=root)
            if rank == root:
                same(got, want[part])
        cut = slice(at, at + n // p * p)
        if n >= p:
            same(comm.reduce_scatter(x[cut]), want[cut].reshape(p, -1)[rank])
        counts = np.diff(np.linspace(0, n, p + 1).astype(int) ** 2 // max(n, 1))
        start = at + int(counts[:rank].sum())
        whole = slice(at, at + int(counts.sum()))
        got = comm.reduce_scatterv(x[whole], counts=counts)
        same(got, want[start : start + int(counts[rank])])
        same(comm.scan(x[part]), folded(rank + 1)[part])
        got = comm.exscan(x[part])
        if rank:
            same(got, folded(rank)[part])


def test_packed_with_others(comm):
    x, want = contribution(comm.rank), folded(comm.size)
    arrays = [x[at : at + n] for n, at in PLACES]
    for got, (n, at) in zip(comm.allreduce_many(arrays), PLACES, strict=True):
        same(got, want[at : at + n])
    handles = [background.submit("allreduce", each, group=comm) for each in arrays]
    for handle, (n, at) in zip(handles, PLACES, strict=True):
        same(handle.wait(), want[at : at + n])


def test_planned_and_shared_arrays(comm):
    x, want = contribution(comm.rank), folded(comm.size)
    for n, at in PLACES[::6]:
        part = slice(at, at + n)
        shared = comm.empty(n, np.float32)
        shared[:] = x[part]
        same(comm.allreduce(shared), want[part])
        planned = comm.plan("allreduce", shared, out=shared)
        planned()
        same(shared, want[part])


def test_whatever_is_learned(comm):
    """Trials of other settings have the same bits, too."""
    x, want = contribution(comm.rank), folded(comm.size)
    for n in (100, 5000, 70_001):
        comm._engine.settle(lambda n=n: same(comm.allreduce(x[:n]), want[:n]))


def test_segments(comm, segments):
    x, want = contribution(comm.rank), folded(comm.size)
    for nbytes in (0, 1 << 12, 100 << 10):
        with segments(comm, nbytes):
            same(comm.allreduce(x[:100_003]), want[:100_003])


def test_mode_of_a_call(plain):
    comm = plain.comm
    x, want = contribution(comm.rank), folded(comm.size)
    assert comm.bits == "any"
    for n, at in PLACES[::4]:
        part = slice(at, at + n)
        same(comm.allreduce(x[part], bits="size"), want[part])
        same(comm.iallreduce(x[part], bits="size").wait(), want[part])
        same(comm.allreduce_many([x[part]], bits="size")[0], want[part])
        same(comm.plan("allreduce", x[part].copy(), bits="size")(), want[part])
        got = comm.reduce(x[part], bits="size")
        if comm.rank == 0:
            same(got, want[part])
    assert is_in_rank_order(comm.explain("allreduce", 1 << 20, bits="size").algorithm, comm.size)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_named_algorithms(comm, collective):
    """Those that the proof finds to fold in rank order; others are refused, with a remedy."""
    x = contribution(comm.rank)[: 5040 * comm.size]
    call = getattr(comm, collective)
    want = call(x)
    for name in names(collective):
        row = get(collective, name)
        if row.refusal(comm.size):
            continue
        if is_in_rank_order(row, comm.size):
            got = call(x, algorithm=name)
            if want is not None:
                same(got, want)
            continue
        with pytest.raises(ArgumentError) as caught:
            call(x, algorithm=name)
        told = str(caught.value)
        assert told.startswith(f"bits is 'size', and {collective} '{name}' on {comm.size} ranks")
        assert "pass algorithm=None, bits='any', or one of: " in told
        call(x, algorithm=name, bits="any")


def test_functions_and_codecs_are_refused(comm):
    x = contribution(comm.rank)[:1000].copy()

    def add(incoming, accumulator):
        accumulator += incoming

    with pytest.raises(
        ArgumentError, match=r"bits is 'size', and op is a function, whose .* in all"
    ):
        comm.allreduce(x, op=cc.reduction(add))
    with pytest.raises(ArgumentError, match="bits is 'size', and op is a function"):
        background.submit("allreduce", x, op=cc.reduction(add), group=comm)
    comm.allreduce(x, op=cc.reduction(add), bits="any")
    with pytest.raises(ArgumentError, match=r"compression is int8.*; pass 'float16' or 'bfloat16'"):
        comm.allreduce(x, compression="int8")
    with pytest.raises(ArgumentError, match="compression is int8"):
        background.submit("allreduce", x, compression="int8", group=comm)
    whole = comm.allreduce(contribution(comm.rank), compression="float16")
    for n, at in PLACES[::8]:
        part = slice(at, at + n)
        got = comm.allreduce(contribution(comm.rank)[part], compression="float16")
        same(got, whole[part])


def test_who_has_it(plain, environ):
    comm = plain.comm
    made = comm.dup(bits="size")
    assert made.bits == "size"
    assert made.dup().bits == "size"
    assert made.dup(bits="any").bits == "any"
    assert made.split(0).bits == "size"
    assert comm.split(0, bits="size").bits == "size"
    with environ(COLLECTIVES_BITS="size"), cc.Communicator() as other:
        assert other.bits == "size"
    with environ(COLLECTIVES_BITS="size"), cc.Communicator(bits="any") as other:
        assert other.bits == "any"
    with (
        environ(COLLECTIVES_BITS="some"),
        pytest.raises(ArgumentError, match="COLLECTIVES_BITS is 'some', and must be one of any"),
    ):
        cc.Communicator()


@pytest.mark.parametrize("bits", ["sizes", 1, b"size", []])
def test_no_such_mode(plain, bits):
    comm = plain.comm
    text = "bits is .*, and must be 'any', 'size' or None"
    with pytest.raises(ArgumentError, match=text):
        comm.allreduce(np.ones(3), bits=bits)
    with pytest.raises(ArgumentError, match=text):
        comm.dup(bits=bits)
    with pytest.raises(ArgumentError, match=text):
        cc.Communicator(bits=bits)


@pytest.mark.several
def test_ranks_differ_in_a_call(world):
    comm = world.comm
    bits = "size" if comm.rank == comm.size - 1 else None
    with pytest.raises(MismatchError, match=r"the ranks do not agree: .*, bits=size"):
        comm.allreduce(np.ones(3), bits=bits)
    assert comm.allreduce(np.ones(3))[0] == comm.size


@pytest.mark.several
def test_ranks_differ_in_shared_memory(plain):
    comm = plain.comm.dup()
    if comm.transport != "shm":
        return
    bits = "size" if comm.rank == comm.size - 1 else None
    with pytest.raises(MismatchError, match=r"algorithm=\w+, bits=size"):
        comm.allreduce(np.ones(3), bits=bits)


@pytest.mark.several
def test_ranks_differ_in_making(plain):
    comm = plain.comm
    text = "bits is (size on rank 0 and any|any on .* and size|size on)"
    for make in (comm.dup, cc.Communicator):
        with pytest.raises(MismatchError, match=text):
            make(bits="size" if comm.rank == 0 else "any")
