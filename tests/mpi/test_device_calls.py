"""Messages, grouped calls and arrays of JAX on a GPU that is not there."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_devices import (  # noqa: F401
    MARKS,
    TRANSPORTS,
    DLPackArray,
    Exporter,
    Tensor,
    group,
    on_device,
)

import collectives as cc
from collectives.errors import ArgumentError, BufferError

pytest_plugins = ["fake_devices"]  # the fixtures
pytestmark = MARKS


def test_messages(gpu, comm, stream):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    kind = Exporter if gpu.order.mode == "lazy" else Tensor
    for n in (0, 1, 30_000):
        x = on_device(gpu, np.full(n, comm.rank, np.float32), stream, kind)
        out = on_device(gpu, np.full(n, -1, np.float32), stream, kind)
        assert comm.sendrecv(x, right, out, left) is out
        x.put(np.full(n, -2, np.float32))  # later than it was read
        assert (out.get() == left).all()
    if comm.size > 1 and comm.rank < 2:
        peer = 1 - comm.rank
        requests = [comm.irecv(out, peer), comm.isend(x, peer)]
        assert cc.wait_all(requests) == [out, None]
        assert (out.get() == -2).all()
        # One of them may have its array in host memory.
        if comm.rank == 0:
            comm.send(x, 1, tag=5)
            assert comm.recv(np.empty(n, np.float32), 1)[0] == -2
        else:
            assert comm.recv(np.empty(n, np.float32), 0, tag=5)[-1] == -2
            comm.send(x, 0)
    assert comm.sendrecv(x, None, out, None) is out


def test_messages_that_are_refused(gpu, plain_comm, stream):
    x = on_device(gpu, np.ones(6, np.float32), stream)
    host, me = np.ones(6, np.float32), plain_comm.rank
    refused = {
        "x is on cuda:0 and out is in host memory": (x, host),
        "x is in host memory and out is on cuda:0": (host, x),
        "out overlaps x; pass arrays that share no memory": (x, x),
        "out is float64 and x is float32": (x, on_device(gpu, np.ones(6), stream)),
    }
    for match, (given, out) in refused.items():
        with pytest.raises(BufferError, match=match):
            plain_comm.sendrecv(given, me, out, me)
    out = on_device(gpu, np.zeros(6, np.float32), stream)
    assert (plain_comm.sendrecv(x, me, out, me).get() == 1).all()


def test_folds_in_pairs(gpu, comm, stream):
    """The host's kernels fold in one pass, those of the device perhaps in several."""
    x = np.random.default_rng(comm.rank).normal(size=5000).astype(np.float32)
    for name in ("all_to_all", "direct", "near_halving"):
        for n in (1, 5000):
            options = {"algorithm": name, "bits": "size"}
            want = comm.allreduce(x[:n], **options)
            got = comm.allreduce(on_device(gpu, x[:n], stream), **options).get()
            np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_exact_sums_are_refused(gpu, plain_comm, stream):
    x = on_device(gpu, np.ones(6, np.float32), stream)
    for call in (
        lambda: plain_comm.allreduce(x, op=cc.SUM_REPRODUCIBLE),
        lambda: plain_comm.ireduce(x, op="sum_reproducible"),
        lambda: plain_comm.plan("allreduce", x, op=cc.SUM_REPRODUCIBLE),
    ):
        with pytest.raises((ArgumentError, BufferError), match=r"pass (arrays|a copy) in host mem"):
            call()
    assert (plain_comm.allreduce(x).get() == plain_comm.size).all()


def test_a_message_that_is_waited_for_again(gpu, stream):
    with group(False) as made:
        x = on_device(gpu, np.ones(6, np.float32), stream)
        out = on_device(gpu, np.zeros(6, np.float32), stream)
        request = made.isendrecv(x, made.rank, out, made.rank)
        while not request.test():
            pass
        assert request.wait(host=True) is out
        assert "has arrived" in repr(request)
    assert (request.wait(host=True).get() == 1).all()


def test_many_arrays_in_one_call(gpu, comm, stream):
    sizes = (1, 0, 300, 5000)
    given = [np.full(n, comm.rank + n, np.int32) for n in sizes]
    arrays = [on_device(gpu, each, stream) for each in given]
    want = [comm.size * n + comm.size * (comm.size - 1) // 2 for n in sizes]
    got = comm.allreduce_many(arrays)
    started = comm.iallreduce_many(arrays, [each.empty_like() for each in arrays], op="sum")
    for each, n, total in zip((*got, *started.wait()), 2 * sizes, 2 * want, strict=True):
        assert isinstance(each, Tensor)
        assert each.shape == (n,)
        assert (each.get() == total).all()
    assert comm.allreduce_many(arrays, arrays)[2] is arrays[2]
    assert (arrays[3].get() == want[3]).all()


@pytest.fixture
def jax(gpu, stream, monkeypatch):
    """A class of arrays that stand for those of JAX, which nobody may write."""

    class JaxArray(DLPackArray):
        sharding = "the device"

    def empty(shape, dtype):
        if dtype.name == "int16":
            raise TypeError("no such dtype")
        return Tensor(gpu, shape, dtype.name, stream=stream)

    def from_dlpack(array):
        gpu.read(array.address, array.nbytes)  # a fault, unless the host has seen it complete
        return JaxArray(gpu, array.shape, array.dtype.name, stream=stream, memory=array.memory)

    JaxArray.__module__ = "jaxlib.fake"
    names = {"dlpack": SimpleNamespace(from_dlpack=from_dlpack)}
    names["config"] = SimpleNamespace(jax_enable_x64=True)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(**names))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(empty=empty, ndarray=Tensor))
    return JaxArray


def test_results_that_cannot_be_written(gpu, comm, stream, jax):
    x = on_device(gpu, np.full(700, comm.rank, np.float32), stream, jax)
    total = comm.size * (comm.size - 1) / 2
    for got in (comm.allreduce(x), comm.iallreduce(x).wait(), comm.allreduce_many([x])[0]):
        assert isinstance(got, jax)
        assert (got.get() == total).all()
    out = on_device(gpu, np.zeros(700, np.float32), stream)
    assert comm.allreduce(x, out) is out
    gathered = comm.gather(x, root=0)
    assert gathered is None if comm.rank else gathered.shape == (comm.size, 700)


def test_arrays_of_jax_that_are_refused(gpu, plain_comm, stream, jax):
    x = on_device(gpu, np.ones(7, np.float32), stream, jax)
    with pytest.raises(BufferError, match="out is a JAX array, which is immutable"):
        plain_comm.allreduce(x, x)
    with pytest.raises(BufferError, match="immutable: no second run could write it"):
        plain_comm.plan("allreduce", x)
    with pytest.raises(BufferError, match="CuPy makes no array of int16; pass out"):
        plain_comm.allreduce(on_device(gpu, np.ones(7, np.int16), stream, jax))
