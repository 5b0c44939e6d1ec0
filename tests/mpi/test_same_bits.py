"""All ranks get the same bits, of NaNs and zeros as well, wherever the arrays lie."""

import functools

import numpy as np
import pytest
import specials
from cases import digest
from forms import REDUCING, Allreduce

import collectives as cc

DTYPES = (*specials.FLOATS, *specials.COMPLEX)
FORMS = [(form, name) for form in REDUCING if not form.vector for name in form.runnable()]


def moved(values, offset):
    """Return a copy that begins so many elements into its memory."""
    memory = np.zeros(values.size + offset, values.dtype)
    memory[offset:] = values
    return memory[offset:]


def equal_bits(got, want, text):
    np.testing.assert_array_equal(specials.bits(got), specials.bits(want), err_msg=text)


@pytest.mark.usual("float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("which", "algorithm"), FORMS, ids=lambda x: getattr(x, "__name__", x))
def test_nans_and_zeros(plain, which, algorithm, dtype):
    """Each rank's arrays begin at another offset, in vectors and in cache lines."""
    comm = plain.comm
    p, rank = comm.size, comm.rank
    for turn, n in enumerate((1, 7, 33, 1009)):
        for op, _ in (case for case in specials.CASES if case[1] == dtype):
            form = which(p, n, dtype=dtype, op=op, root=turn % p)
            inputs = [specials.contribution(dtype, form.total, r) for r in range(p)]
            want = form.folds(functools.partial(specials.folded, op), inputs, rank)
            x = moved(inputs[rank], (rank + turn) % 5)
            out = None if want is None else moved(np.zeros_like(want), (3 * rank) % 7)
            got = form.call(comm, x, out, algorithm=algorithm)
            if want is not None:
                equal_bits(got, want, f"{op} n={n}")
            equal_bits(x, inputs[rank], f"the input of {op} n={n}")
            if which.collective == "allreduce":
                equal_bits(comm.allreduce(x, out=x, op=getattr(cc, op)), want, f"{op} in place")


@pytest.mark.parametrize("dtype", specials.COMPLEX)
@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_complex_products(plain, algorithm, dtype):
    comm = plain.comm
    x = specials.contribution(dtype, 1009, comm.rank)
    got = comm.allreduce(x, op=cc.PROD, algorithm=algorithm)
    plain.agree(digest(got))
    if comm.size > 1:
        equal_bits(got, specials.canonical(got), "canonical")


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_nans(world, dtype):
    """A scale is a fold too: every NaN that comes of it is the same."""
    comm = world.comm
    inputs = [specials.contribution(dtype, 101, r) for r in range(comm.size)]
    total = specials.folded("SUM", inputs)
    parts = total.view(total.real.dtype)
    half = specials.canonical((parts * 0.5).astype(parts.dtype)).view(total.dtype)
    nans = np.full_like(parts, np.nan).view(total.dtype)
    x = inputs[comm.rank]
    equal_bits(comm.allreduce(x, postscale=0.5), half, "half")
    for nan in (np.nan, -np.nan):
        equal_bits(comm.allreduce(x, postscale=nan), nans, "postscale=nan")
        equal_bits(comm.allreduce(x, prescale=nan), nans, "prescale=nan")


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_moved_keeps_its_bits(world, dtype):
    comm = world.comm
    x = specials.contribution(dtype, 101, comm.rank)
    last = specials.contribution(dtype, 101, comm.size - 1)
    equal_bits(comm.broadcast(x, root=comm.size - 1), last, "broadcast")
    equal_bits(comm.allgather(x)[-1], last, "allgather")
    first = comm.scan(x)
    if comm.rank == 0:
        equal_bits(first, x, "scan")
