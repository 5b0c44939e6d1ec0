"""broadcast: the root's bits on every rank."""

import numpy as np
import pytest
from cases import DTYPES, LARGE, contribution, digest, longer, names, sizes

import collectives as cc
from collectives.errors import BufferError, MismatchError

ALGORITHMS = names("broadcast")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_matrix(world, algorithm, dtype):
    comm = world.comm
    for turn, n in enumerate(sizes(comm.size)):
        root = turn % comm.size
        x = contribution("SUM", dtype, n, comm.rank)
        y = comm.broadcast(x, root=root, algorithm=algorithm)
        assert y.dtype == x.dtype
        assert y is not x
        assert digest(y) == digest(contribution("SUM", dtype, n, root))
        assert digest(x) == digest(contribution("SUM", dtype, n, comm.rank))


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, None])
def test_every_root_of_every_communicator(group, algorithm):
    comm = group.comm
    for root in range(comm.size):
        for n in (1, comm.size + 1, 1009):
            x = contribution("SUM", "int32", n, comm.rank)
            y = comm.broadcast(x, root=root, algorithm=algorithm)
            np.testing.assert_array_equal(y, contribution("SUM", "int32", n, root))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large(world, algorithm):
    comm = world.comm
    root = comm.size - 1
    y = comm.broadcast(
        contribution("SUM", "float64", LARGE, comm.rank), root=root, algorithm=algorithm
    )
    assert digest(y) == digest(contribution("SUM", "float64", LARGE, root))


@pytest.mark.parametrize("nbytes", [64, 1000])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_segments(plain, segments, algorithm, nbytes):
    comm = plain.comm
    root = comm.size // 2
    for n in (1009, longer(nbytes)):
        x = contribution("SUM", "float32", n, comm.rank)
        with segments(comm, nbytes):
            y = comm.broadcast(x, root=root, algorithm=algorithm)
        assert digest(y) == digest(contribution("SUM", "float32", n, root))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_place_and_into_out(world, algorithm):
    comm = world.comm
    root = comm.size - 1
    want = digest(contribution("SUM", "float32", 1009, root))
    x = contribution("SUM", "float32", 1009, comm.rank).copy()
    out = np.full_like(x, np.nan)
    assert comm.broadcast(x, out, root=root, algorithm=algorithm) is out
    assert digest(out) == want
    assert comm.broadcast(x, x, root=root, algorithm=algorithm) is x
    assert digest(x) == want


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nan_payloads_survive(world, algorithm):
    """Bits are moved, not numbers."""
    comm = world.comm
    bits = np.arange(100, dtype=np.uint32) + 0x7F800001
    x = bits.view(np.float32) if comm.rank == 0 else np.zeros(100, np.float32)
    y = comm.broadcast(x, algorithm=algorithm)
    np.testing.assert_array_equal(y.view(np.uint32), bits)


def test_no_x(world):
    """Without an array there is nothing that says what comes."""
    comm = world.comm
    text = "x is None on rank 0, which is the root, and must be the array to send"
    with pytest.raises(BufferError if comm.rank == 0 else MismatchError, match=text):
        comm.broadcast(None, np.empty(3))
    if comm.size == 1:
        return
    text = "x and out are None on rank 1, which has to know what rank 0, the root, sends; pass out"
    error = BufferError if comm.rank == 1 else MismatchError
    with pytest.raises(error, match=text) as caught:
        comm.broadcast(None if comm.rank == 1 else np.empty(3))
    if comm.rank == 1:
        assert "or as x an array with the shape and dtype of the root's" in str(caught.value)
        assert "broadcast_object needs neither" in str(caught.value)
    x = np.arange(3.0)
    got = comm.broadcast(x if comm.rank == 0 else None, np.empty(3))
    np.testing.assert_array_equal(got, x)


def test_text_travels_as_bytes(world):
    text = b"the root's words"
    x = np.frombuffer(text, np.uint8) if world.comm.rank == 0 else np.empty(len(text), np.uint8)
    assert cc.broadcast(x).tobytes() == text
