"""broadcast: the root's bits on every rank."""

import numpy as np
import pytest
from forms import Broadcast
from promises import Promises

import collectives as cc
from collectives.errors import BufferError, MismatchError


class TestBroadcast(Promises):
    form = Broadcast
    whole = True


@pytest.mark.parametrize("algorithm", Broadcast.runnable())
def test_nan_payloads_survive(world, algorithm):
    """Bits are moved, not numbers."""
    comm = world.comm
    bits = np.arange(100, dtype=np.uint32) + 0x7F800001
    x = bits.view(np.float32) if comm.rank == 0 else np.zeros(100, np.float32)
    y = comm.broadcast(x, algorithm=algorithm)
    np.testing.assert_array_equal(y.view(np.uint32), bits)


def test_no_x(world):
    """Without an array, the length and the dtype of the result are unknown."""
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
