"""One list of cases over every kind of array that is installed."""

import array
import gc
import importlib
import importlib.util

import ml_dtypes
import numpy as np
import pytest
import specials
from cases import contribution, reference, verify
from dtypes import dtype_of
from exporters import Exporter, Table

import collectives as cc
from collectives import errors

# Dtypes that frameworks have too, and that have a format in the buffer protocol.
COMMON = tuple(name for name in cc._core.DTYPES if name != "float128")
COMMON += ("float8_e4m3fn", "float8_e5m2")
BUFFERS = tuple(name for name in cc._core.DTYPES if name not in ("bfloat16", "float128"))


class NumPy:
    """Functions that make and read arrays of one kind; these are NumPy's.

    Attributes
    ----------
    needs : tuple of str
        The modules of the kind.
    result : type
        The kind whose arrays come back.
    immutable : bool
    shapes : bool
        Whether it has arrays of any number of dimensions.
    dtypes : tuple of str
    """

    needs = ()
    immutable = False
    shapes = True
    dtypes = (*COMMON, "float128", "complex256")

    def make(self, x):
        return x.copy()

    def look(self, x):
        """Return what it has as a new NumPy array; a test fails where it is of another kind."""
        assert type(x) is np.ndarray
        return x.copy()

    def gaps(self, x):
        """Return the same numbers with gaps between them in memory."""
        return np.stack([x, x], axis=-1)[..., 0]


class MemoryView(NumPy):
    dtypes = (*BUFFERS, "float128", "complex256")

    def make(self, x):
        return memoryview(x.copy())

    def gaps(self, x):
        return memoryview(super().gaps(x))


class ArrayModule(NumPy):
    shapes = False
    dtypes = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64")

    def make(self, x):
        return array.array(x.dtype.char, x.tobytes())

    gaps = None


class Torch(NumPy):
    needs = ("torch",)
    dtypes = COMMON

    def make(self, x):
        import torch

        # torch reads neither bfloat16 nor float8 from NumPy: by their bits.
        raw = torch.frombuffer(bytearray(x.tobytes() or b"\0"), dtype=torch.uint8)
        raw = raw[: x.nbytes].clone()
        return raw.view(getattr(torch, x.dtype.name)).reshape(x.shape)

    def look(self, x):
        import torch

        assert type(x) is torch.Tensor
        assert x.is_contiguous()
        assert not x.requires_grad
        name = str(x.dtype).removeprefix("torch.")
        raw = bytes(x.reshape(-1).view(torch.uint8).tolist()) if x.numel() else b""
        return np.frombuffer(raw, dtype_of_any(name)).reshape(x.shape)

    def gaps(self, x):
        import torch

        made = self.make(x)
        return torch.stack([made, made], dim=-1)[..., 0]


class TorchSubclass(Torch):
    """Without the exchange functions of its own, as torch had none before 2.10."""

    def make(self, x):
        import torch

        class Plain(torch.Tensor):
            pass

        return super().make(x).as_subclass(Plain)


class Jax(NumPy):
    needs = ("jax",)
    dtypes = COMMON
    immutable = True
    gaps = None

    def make(self, x):
        import jax

        with jax.enable_x64(True):
            return jax.numpy.asarray(x)

    def look(self, x):
        import jax

        assert type(x) is type(jax.numpy.ones(1))
        assert x.devices() == {jax.devices("cpu")[0]}
        return np.array(x)


class TensorFlow(NumPy):
    needs = ("tensorflow",)
    dtypes = COMMON
    immutable = True
    gaps = None

    def make(self, x):
        import tensorflow

        return tensorflow.convert_to_tensor(x)

    def look(self, x):
        import tensorflow

        assert type(x) is type(tensorflow.ones(1))
        return x.numpy()


class Foreign(NumPy):
    """Of a library that has DLPack and nothing else: results are NumPy's."""

    dtypes = BUFFERS

    def make(self, x):
        return Exporter(np.array(x))

    def gaps(self, x):
        return Exporter(super().gaps(x))


KINDS = {
    "numpy": NumPy(),
    "memoryview": MemoryView(),
    "array.array": ArrayModule(),
    "foreign": Foreign(),
    "torch": Torch(),
    "torch subclass": TorchSubclass(),
    "jax": Jax(),
    "tensorflow": TensorFlow(),
}


def dtype_of_any(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.fixture(params=KINDS)
def kind(request):
    for module in KINDS[request.param].needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
        importlib.import_module(module)
    return KINDS[request.param]


@pytest.fixture
def mutable(kind):
    if kind.immutable:
        pytest.skip("arrays of this kind are immutable")
    return kind


def mine(comm, shape=(5,)):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + comm.rank


def total(comm, shape=(5,)):
    return sum(
        np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + r for r in range(comm.size)
    )


# -- results are of the caller's kind --------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (), (0,), (2, 3), (3, 0, 2), (1, 5, 1)])
def test_new_results(world, kind, shape):
    comm = world.comm
    if len(shape) != 1 and not kind.shapes:
        pytest.skip("arrays of this kind have one dimension")
    x = kind.make(mine(comm, shape))
    for got in (comm.allreduce(x), comm.iallreduce(x).wait(), comm.allreduce(x, postscale=1.0)):
        got = kind.look(got)
        assert got.shape == shape
        np.testing.assert_array_equal(got, total(comm, shape))
    for root in range(comm.size):
        got = comm.reduce(x, root=root)
        if comm.rank == root:
            np.testing.assert_array_equal(kind.look(got), total(comm, shape))
        else:
            assert got is None
        got = kind.look(comm.broadcast(x, root=root))
        np.testing.assert_array_equal(got, mine(comm, shape) - comm.rank + root)
    np.testing.assert_array_equal(np.asarray(memory(x)).reshape(shape), mine(comm, shape))


def memory(x):
    """Return the numbers that an array has now, whatever its kind."""
    if isinstance(x, Exporter):
        return x.array
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def test_dtypes(world, kind):
    comm = world.comm
    for name in kind.dtypes:
        if name not in cc._core.DTYPES:
            continue
        op = "LOR" if name == "bool" else "SUM"
        x = kind.make(contribution(op, name, 11, comm.rank))
        verify(kind.look(comm.allreduce(x, op=getattr(cc, op))), op, name, 11, comm.size)


def test_dtypes_that_are_only_moved(world, kind):
    comm = world.comm
    for name in kind.dtypes:
        bits = np.arange(32 * 7, dtype=np.uint8) + comm.rank
        values = bits.view(dtype_of_any(name)) if name != "bool" else bits > 50
        got = kind.look(comm.broadcast(kind.make(values), root=comm.size - 1))
        want = np.arange(32 * 7, dtype=np.uint8) + comm.size - 1
        assert got.dtype == values.dtype
        assert got.tobytes() == (want.tobytes() if name != "bool" else (want > 50).tobytes())
        if name not in cc._core.DTYPES:
            text = f"x has dtype {name}, which can be moved from rank to rank but not folded"
            with pytest.raises(errors.UnsupportedTypeError, match=text):
                comm.allreduce(kind.make(values))


@pytest.mark.several
def test_nans_of_ranks_become_one(world, kind):
    comm = world.comm
    for name in ("float16", "bfloat16", "float32", "float64"):
        if name not in kind.dtypes:
            continue
        inputs = [specials.contribution(name, 101, r) for r in range(comm.size)]
        got = kind.look(comm.allreduce(kind.make(inputs[comm.rank])))
        want = specials.folded("SUM", inputs)
        np.testing.assert_array_equal(specials.bits(got), specials.bits(want), err_msg=name)


def test_scales(world, kind):
    comm = world.comm
    x = kind.make(contribution("SUM", "float32", 7, comm.rank))
    got = kind.look(comm.allreduce(x, prescale=2.0, postscale=0.5))
    verify(got, "SUM", "float32", 7, comm.size)
    got = comm.reduce(x, root=comm.size - 1, prescale=4.0, op=cc.AVG)
    if comm.rank == comm.size - 1:
        verify(kind.look(got), "AVG", "float32", 7, comm.size, scale=4.0)
    np.testing.assert_array_equal(memory(x), contribution("SUM", "float32", 7, comm.rank))


def test_gaps_in_the_input(world, kind):
    if kind.gaps is None:
        pytest.skip("arrays of this kind have no gaps")
    x = kind.gaps(mine(world.comm, (2, 3)))
    np.testing.assert_array_equal(kind.look(world.comm.allreduce(x)), total(world.comm, (2, 3)))


def test_many_results_in_flight(plain, kind):
    """Temporary arrays live as long as their operation, results as long as they are needed."""
    comm = plain.comm
    requests = [comm.iallreduce(kind.make(mine(comm, (3000,)) + k)) for k in range(12)]
    gc.collect()
    junk = [kind.make(np.full(3000, -1, np.float32)) for _ in range(24)]
    got = [request.wait() for request in requests]
    del requests
    gc.collect()
    for k, result in enumerate(got):
        np.testing.assert_array_equal(kind.look(result), total(comm, (3000,)) + comm.size * k)
    assert len(junk) == 24


def test_waiting_twice_gives_one_result(world, kind):
    request = world.comm.iallreduce(kind.make(mine(world.comm)))
    while not request.test():
        pass
    assert request.wait() is request.wait()
    np.testing.assert_array_equal(kind.look(request.wait()), total(world.comm))


def test_a_result_that_nobody_takes(world, kind):
    request = world.comm.iallreduce(kind.make(mine(world.comm)))
    while not request.test():
        pass
    del request
    gc.collect()


def test_a_large_result(world, kind):
    comm = world.comm
    n = 600_000  # beyond 4 MiB, from where on huge pages are asked for
    want, bound = reference("SUM", "float64", 4099, comm.size)
    if "float64" not in kind.dtypes:
        pytest.skip("arrays of this kind have no float64")
    got = kind.look(comm.allreduce(kind.make(contribution("SUM", "float64", n, comm.rank))))
    assert got.dtype == np.float64
    assert (np.abs(got - np.resize(want, n)) <= np.resize(bound, n)).all()


# -- out -------------------------------------------------------------------------------------------


def test_outputs(world, mutable):
    comm = world.comm
    x = mutable.make(mine(comm))
    out = mutable.make(np.zeros(5, np.float32))
    assert comm.allreduce(x, out) is out
    np.testing.assert_array_equal(np.ravel(memory(out)), total(comm))
    assert comm.iallreduce(x, out, op=cc.MAX).wait() is out
    np.testing.assert_array_equal(np.ravel(memory(out)), mine(comm) - comm.rank + comm.size - 1)
    assert comm.broadcast(x, out, root=0) is out
    np.testing.assert_array_equal(np.ravel(memory(out)), mine(comm) - comm.rank)


def test_in_place(world, mutable):
    x = mutable.make(mine(world.comm))
    assert world.comm.allreduce(x, x) is x
    np.testing.assert_array_equal(memory(x), total(world.comm))


def test_outputs_of_another_kind(world, kind):
    comm = world.comm
    out = np.zeros(5, np.float32)
    assert comm.allreduce(kind.make(mine(comm)), out) is out
    np.testing.assert_array_equal(out, total(comm))
    if not kind.immutable:
        out = kind.make(np.zeros(5, np.float32))
        assert comm.allreduce(mine(comm), out) is out
        np.testing.assert_array_equal(memory(out), total(comm))


def test_refused_outputs(world, mutable):
    comm = world.comm
    x = mutable.make(mine(comm))
    for n, dtype, text in (
        (4, np.float32, "out has 4 elements, and the result has 5"),
        (5, np.int32, "out is int32 and x is float32"),
    ):
        with pytest.raises(errors.BufferError, match=text):
            comm.allreduce(x, mutable.make(np.zeros(n, dtype)))
    if mutable.gaps is not None:
        with pytest.raises(errors.BufferError, match="out is not C-contiguous"):
            comm.allreduce(x, mutable.gaps(np.zeros(5, np.float32)))
    comm.barrier()


def test_immutable_outputs(world, kind):
    if not kind.immutable:
        pytest.skip("arrays of this kind are mutable")
    comm = world.comm
    x = kind.make(mine(comm))
    for call in (comm.allreduce, comm.broadcast, comm.iallreduce):
        for out in (x, kind.make(mine(comm))):
            with pytest.raises(errors.BufferError, match=r"out is a .*, which is immutable; omit"):
                call(x, out)
    np.testing.assert_array_equal(memory(x), mine(comm))
    comm.barrier()


# -- kinds together --------------------------------------------------------------------------------


def test_each_rank_its_kind(world, kind):
    """The ranks agree on the dtype's name, not on the library."""
    comm = world.comm
    other = comm.rank % 2
    x = mine(comm) if other else kind.make(mine(comm))
    got = comm.allreduce(x)
    np.testing.assert_array_equal((NumPy() if other else kind).look(got), total(comm))
    if "float8_e5m2" in kind.dtypes:
        values = np.arange(5, dtype=ml_dtypes.float8_e5m2)
        got = comm.broadcast(values if other else kind.make(values))
        np.testing.assert_array_equal((NumPy() if other else kind).look(got), values)


@pytest.mark.several
def test_other_dtypes_are_told_apart(world):
    comm = world.comm
    kind = ml_dtypes.float8_e5m2 if comm.rank else ml_dtypes.float8_e4m3fn
    with pytest.raises(errors.MismatchError, match=r"dtype=float8_e4m3fn.*dtype=float8_e5m2"):
        comm.broadcast(np.zeros(5, kind))
    comm.barrier()


# -- exchange functions that do not work -----------------------------------------------------------


def test_results_by_exchange_functions(world):
    comm = world.comm
    table = Table()
    x = table.new_class()(mine(comm))
    got = comm.allreduce(x)
    assert type(got) is table.kind
    np.testing.assert_array_equal(got.array, total(comm))
    assert x.settled()
    table.allocation_error = b"there is none left"
    with pytest.raises(
        errors.CommunicatorError, match="the library of x has no memory for the result"
    ):
        comm.allreduce(x)
    assert isinstance(table.reported, MemoryError)
    assert str(table.reported) == "there is none left"
    assert x.settled()
    comm.barrier()


def test_bfloat16_for_numpy_by_another_library(world):
    """The result is of `ml_dtypes`, which is imported here."""
    bits = np.arange(5, dtype=np.float32).astype(ml_dtypes.bfloat16)
    x = Exporter(bits, code=4)
    got = world.comm.allreduce(x)
    np.testing.assert_array_equal(got, bits * world.comm.size)
    assert got.dtype == dtype_of("bfloat16")
