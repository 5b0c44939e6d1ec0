"""Arguments that may be passed as x and as out, and those that are refused."""

import array
import mmap
import re
from fractions import Fraction

import numpy as np
import pytest
from cases import contribution, digest
from dtypes import dtype_of
from forms import Allreduce

import collectives as cc
from collectives import errors


def total(comm, n=5):
    """Return the sum over ranks of the values of `mine`."""
    return comm.size * np.arange(n, dtype=np.float64) + comm.size * (comm.size - 1) / 2


def mine(comm, n=5):
    return np.arange(n, dtype=np.float64) + comm.rank


def test_bytes_and_bytearrays(world):
    comm = world.comm
    for kind in (bytes, bytearray):
        y = comm.allreduce(kind([1, 2, 3]))
        assert y.dtype == np.uint8
        np.testing.assert_array_equal(y, np.array([1, 2, 3]) * comm.size)
    assert comm.allreduce(b"").shape == (0,)


def test_scalars_and_no_dimensions(world):
    comm = world.comm
    for x in (np.float32(2.5), np.array(2.5, np.float32)):
        y = comm.allreduce(x)
        assert isinstance(y, np.ndarray)
        assert (y.shape, y.dtype, float(y)) == ((), np.float32, 2.5 * comm.size)
    out = np.empty((), np.float32)
    assert comm.allreduce(np.float32(2.5), out) is out
    assert out == 2.5 * comm.size
    assert comm.allreduce(np.bool_(comm.rank == 0), op=cc.LOR)


def test_fortran_order(world):
    """Elements correspond by index, whatever their order in memory."""
    comm = world.comm
    x = np.arange(12.0).reshape(3, 4) + comm.rank
    want = comm.allreduce(x)
    got = comm.allreduce(np.asfortranarray(x))
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, want)
    mixed = x if comm.rank % 2 else np.asfortranarray(x)
    np.testing.assert_array_equal(comm.allreduce(mixed), want)
    np.testing.assert_array_equal(comm.allreduce(x.T), want.T)


def test_results_in_fortran_order(world):
    """They are where their index says, whichever way the call ends."""
    comm = world.comm
    x = np.arange(12.0).reshape(3, 4) + comm.rank
    want = comm.allreduce(x)
    for source in (x, np.asfortranarray(x)):
        out = np.zeros((3, 4), order="F")
        assert comm.allreduce(source, out) is out
        np.testing.assert_array_equal(out, want)
        out[:] = 0
        request = comm.iallreduce(source, out, prescale=0.5)
        assert request.wait() is out
        np.testing.assert_array_equal(out, want / 2)
        out[:] = 0
        assert request.wait() is out  # is written once
        assert (out == 0).all()
    turned = np.zeros((4, 3), order="F")
    comm.allreduce(x, turned)
    np.testing.assert_array_equal(turned, want.reshape(4, 3))


def test_in_place_in_fortran_order(world):
    comm = world.comm
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4) + comm.rank)
    want = comm.allreduce(x)
    assert comm.allreduce(x, x) is x
    np.testing.assert_array_equal(x, want)
    memory = np.arange(9.0).reshape(3, 3) + comm.rank
    want = comm.allreduce(memory)
    comm.allreduce(memory, memory.T)  # reads all of it before it writes
    np.testing.assert_array_equal(memory.T, want)


def test_other_calls_with_results_in_fortran_order(world):
    comm, p = world.comm, world.comm.size
    out = np.zeros((p, 2, 3), order="F")
    x = np.arange(6).reshape(2, 3) + 10.0 * comm.rank
    rows = comm.allgather(x)
    np.testing.assert_array_equal(comm.allgather(x, out), rows)
    got = comm.gather(x, np.zeros((p, 2, 3), order="F"), root=p - 1)
    np.testing.assert_array_equal(got, rows if comm.rank == p - 1 else None)
    got = comm.scatter(rows if comm.rank == 0 else None, np.zeros((2, 3), order="F"))
    np.testing.assert_array_equal(got, x)
    got = comm.broadcast(x if comm.rank == 0 else None, np.zeros((2, 3), order="F"))
    np.testing.assert_array_equal(got, rows[0])
    got = comm.allgatherv(x, np.zeros((2 * p, 3), order="F"))
    np.testing.assert_array_equal(got, rows.reshape(-1, 3))
    got = comm.sendrecv(x, comm.rank, np.zeros((2, 3), order="F"), comm.rank)
    np.testing.assert_array_equal(got, x)
    got = comm.isendrecv(x, comm.rank, np.zeros((2, 3), order="F"), comm.rank).wait()
    np.testing.assert_array_equal(got, x)


def test_numbers_of_python(world):
    comm = world.comm
    for x, dtype in ((3, np.int64), (2.5, np.float64), (1 + 2j, np.complex128)):
        y = comm.allreduce(x)
        assert (y.shape, y.dtype) == ((), dtype)
        assert y == comm.size * x
    assert comm.allreduce(-(2**63), op=cc.MIN) == -(2**63)
    assert comm.allreduce(comm.rank == 0, op=cc.LOR).dtype == bool
    assert comm.allgather(comm.rank).tolist() == list(range(comm.size))
    assert comm.broadcast(comm.rank + 0.5) == 0.5
    out = np.empty((), np.int64)
    assert comm.scan(1, out) is out
    assert out == comm.rank + 1
    assert comm.iallreduce(1).wait() == comm.size
    if comm.rank == 0:
        comm.isend(7, 0)
        assert comm.recv(out, 0) == 7


@pytest.mark.parametrize("algorithm", Allreduce.runnable())
def test_any_alignment_of_elements(world, algorithm):
    """Vector kernels begin and end anywhere; what lies around the result is not touched."""
    comm = world.comm
    for offset in (1, 3, 7):
        x = contribution("SUM", "float32", 300, comm.rank)
        frame = np.full(300 + 16, 7.5, np.float32)
        out = frame[offset : offset + 300]
        comm.allreduce(x, out, algorithm=algorithm)
        assert digest(out) == digest(comm.allreduce(x, algorithm=algorithm))
        assert (frame[:offset] == 7.5).all()
        assert (frame[offset + 300 :] == 7.5).all()


OUTPUTS = {
    "ndarray": lambda: np.empty(5),
    "other shape": lambda: np.empty((5, 1)),
    "memoryview": lambda: memoryview(bytearray(40)).cast("d"),
    "array.array": lambda: array.array("d", bytes(40)),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs(world, kind):
    comm = world.comm
    out = OUTPUTS[kind]()
    assert comm.allreduce(mine(comm), out) is out
    np.testing.assert_array_equal(np.asarray(out).reshape(5), total(comm))


def released():
    view = memoryview(bytearray(40))
    view.release()
    return view


def closed():
    memory = mmap.mmap(-1, 40)
    memory.close()
    return memory


@pytest.mark.parametrize("make", [released, closed])
@pytest.mark.parametrize(
    "call",
    [
        lambda comm, gone: comm.allreduce(gone),
        lambda comm, gone: comm.broadcast(gone, root=0),
        lambda comm, gone: comm.allreduce(np.ones(40, np.uint8), gone),
        lambda comm, gone: comm.iallgather(gone),
        lambda comm, gone: comm.allgatherv(gone, counts=[40] * comm.size),
        lambda comm, gone: comm.plan("allreduce", gone),
        lambda comm, gone: comm.allreduce_many([gone]),
        lambda comm, gone: comm.isend(gone, 0),
        lambda comm, gone: comm.irecv(gone, 0),
    ],
)
def test_memory_that_is_gone(plain, make, call):
    with pytest.raises(errors.BufferError, match=r"is an? (memoryview|mmap) whose memory cannot"):
        call(plain.comm, make())


def test_in_place_through_another_object(world):
    """The same memory is the same place, whichever object leads to it."""
    comm = world.comm
    x = mine(comm)
    comm.allreduce(x, memoryview(x))
    np.testing.assert_array_equal(x, total(comm))
    x = mine(comm)
    comm.allreduce(x[:], x.reshape(5, 1))
    np.testing.assert_array_equal(x, total(comm))


def test_neighbours_do_not_overlap(world):
    comm = world.comm
    memory = np.zeros(10)
    memory[:5] = mine(comm)
    comm.allreduce(memory[:5], memory[5:])
    np.testing.assert_array_equal(memory[5:], total(comm))
    np.testing.assert_array_equal(memory[:5], mine(comm))


def strided():
    return np.empty(10)[::2]


def read_only():
    array = np.empty(5)
    array.flags.writeable = False
    return array


REFUSED_OUTPUTS = {
    "strided": (strided, r"out is not C-contiguous \(shape \(5,\), strides \(16,\) bytes\)"),
    "fortran, too long": (
        lambda: np.empty((5, 2), order="F"),
        "out has 10 elements, and the result has 5",
    ),
    "strided fortran": (lambda: np.empty((6, 2), order="F")[:5], "out is not C-contiguous"),
    "bytes": (lambda: bytes(40), "out is a read-only bytes, and would be written"),
    "misaligned": (
        lambda: np.zeros(41, np.uint8)[1:].view(np.float64),
        "out is not aligned to its dtype float64",
    ),
    "too short": (lambda: np.empty(4), "out has 4 elements, and the result has 5"),
    "unsigned": (lambda: np.empty(5, np.uint64), "out is uint64 and x is float64"),
    "number": (lambda: 3.5, "out is a float, which has no buffer"),
    "scalar": (lambda: np.float64(3), "out is a.* float64|out is a read-only"),
    "object": (object, "out is an object, which has no buffer$"),
    "operation": (lambda: cc.MAX, "out is a Reduction, .*; an operation is passed by name, as op="),
    "masked": (lambda: np.ma.zeros(5), "out is a masked array"),
}


@pytest.mark.parametrize("kind", REFUSED_OUTPUTS)
def test_refused_outputs(world, kind):
    make, text = REFUSED_OUTPUTS[kind]
    for call in (world.comm.allreduce, world.comm.broadcast, world.comm.iallreduce):
        with pytest.raises(errors.BufferError, match=text):
            call(mine(world.comm), make())
    world.comm.barrier()


def test_refused_in_place(world):
    for x, text in (
        (strided(), "out is not C-contiguous"),
        (read_only(), "out is read-only"),
    ):
        with pytest.raises(errors.BufferError, match=text):
            world.comm.allreduce(x, x)
    world.comm.barrier()


@pytest.mark.parametrize("shift", [-4, -1, 1, 4])
def test_partial_overlap_is_refused(world, shift):
    memory = np.zeros(20)
    with pytest.raises(errors.BufferError, match="out overlaps x in part; pass out=x"):
        world.comm.allreduce(memory[5:10], memory[5 + shift : 10 + shift])
    world.comm.barrier()


REFUSED_INPUTS = {
    "None": (None, errors.BufferError, "x is None, and must be an array: every rank contributes"),
    "large number": (2**63, errors.ArgumentError, "x is 9223372036854775808, which is no int64;"),
    "fraction": (Fraction(1, 2), errors.BufferError, "x is a Fraction, which has no buffer"),
    "dict": ({}, errors.BufferError, "x is a dict, .*; .*, such as broadcast_object$"),
    "masked": (np.ma.zeros(3), errors.BufferError, r"x is a masked array; pass x.filled\(...\)"),
    "times": (np.array(["2020"], "M8[s]"), TypeError, "x has dtype datetime64"),
    "long complex": (np.zeros(2, np.clongdouble), TypeError, "x has dtype complex256, which"),
    "swapped": (
        np.zeros(2, np.dtype("f8").newbyteorder()),
        TypeError,
        "byte-swapped dtype '.f8'; pass x.astype",
    ),
}


@pytest.mark.parametrize("kind", REFUSED_INPUTS)
def test_refused_inputs(world, kind):
    x, error, text = REFUSED_INPUTS[kind]
    with pytest.raises(error, match=text) as caught:
        world.comm.allreduce(x)
    assert isinstance(caught.value, cc.CollectivesError)
    world.comm.barrier()


def test_every_dtype_is_listed(world):
    with pytest.raises(cc.errors.UnsupportedTypeError) as caught:
        world.comm.allreduce(np.array([None]))
    listed = re.search("supported are (.*)", str(caught.value)).group(1).split(", ")
    for name in listed:
        comm = world.comm
        y = comm.broadcast(np.ones(3, dtype_of(name)))
        assert y.dtype.name == name
