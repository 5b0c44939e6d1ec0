"""Compressed allreduce: within the bounds of each codec, and the same bits on all ranks."""

import re

import ml_dtypes
import numpy as np
import pytest

import collectives as cc
from collectives import _core, compression
from collectives.compression import (
    BFloat16,
    Float16,
    Int4,
    Int8,
    NoCompression,
    Piece,
    PowerSGD,
    RandomK,
    Sign,
    TopK,
)
from collectives.errors import ArgumentError, BufferError, MismatchError, UnsupportedTypeError

CODECS = {
    "none": NoCompression,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": lambda: Int8(block=64),
    "int4": lambda: Int4(block=16),
    "sign": lambda: Sign(block=64),
    "topk": lambda: TopK(0.1),
    "randomk": lambda: RandomK(0.1),
    "powersgd": lambda: PowerSGD(2),
}
SHAPES = ((), (0,), (65,), (3, 0), (40, 30), (7, 5, 11))


def sample(shape, rank, dtype=np.float32, seed=0):
    rng = np.random.default_rng([seed, rank])
    return rng.normal(size=shape).astype(dtype)


def exact(shape, size, dtype=np.float32, seed=0):
    return sum(sample(shape, r, dtype, seed).astype(np.float64) for r in range(size))


def bits_of(x):
    return np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_all_ranks_have_the_same_bits(group, name):
    comm, codec = group.comm, CODECS[name]()
    for shape in SHAPES:
        for call in range(2):
            x = sample(shape, comm.rank, seed=call)
            before = x.copy()
            got = comm.allreduce(x, compression=codec, name=str(shape))
            assert got.shape == shape
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(x, before)
            group.agree(bits_of(got))


def step_bound(shape, size, block, levels):
    """Return by how much a sum may differ: a step of each rank's block, and one of the sum's."""
    steps = [np.abs(sample(shape, r)).max() / levels for r in range(size)]
    return sum(steps) + (np.abs(exact(shape, size)).max() + sum(steps)) / levels


@pytest.mark.parametrize(("codec", "levels"), [(Int8(), 127), (Int4(), 7)], ids=["int8", "int4"])
def test_quantised_sums(world, codec, levels):
    comm = world.comm
    for shape in ((1,), (65,), (1009,)):
        got = comm.allreduce(sample(shape, comm.rank), compression=codec)
        bound = step_bound(shape, comm.size, codec.block, levels)
        assert np.abs(got - exact(shape, comm.size)).max() <= bound * (1 + 1e-5)


def test_halves(group):
    comm = group.comm
    for codec, eps in ((Float16(), 2.0**-11), (BFloat16(), 2.0**-8)):
        got = comm.allreduce(sample((1009,), comm.rank), compression=codec)
        total = sum(np.abs(sample((1009,), r)) for r in range(comm.size))
        error = np.abs(got - exact((1009,), comm.size))
        assert (error <= (comm.size + 1) * eps * total + 1e-7).all()


def test_no_compression_is_the_ordinary_sum(group):
    comm = group.comm
    x = sample((1009,), comm.rank)
    assert bits_of(comm.allreduce(x, compression="none")) == bits_of(comm.allreduce(x))


def test_the_largest_elements(group):
    comm = group.comm
    x = np.full(100, 0.001, np.float32)
    x[comm.rank] = 5 + comm.rank
    got = comm.allreduce(x, compression=TopK(0.01, error_feedback=False))
    wanted = np.zeros(100, np.float32)
    wanted[: comm.size] = 5 + np.arange(comm.size)
    np.testing.assert_array_equal(got, wanted)


def test_random_elements_are_the_same_on_all_ranks(plain):
    comm = plain.comm
    ones = np.ones(100, np.float32)
    biased = RandomK(0.05)
    got = comm.allreduce(ones, compression=biased, name="x")
    chosen = np.flatnonzero(got)
    assert len(chosen) == 5
    assert list(chosen // 20) == [0, 1, 2, 3, 4]  # one in each row
    assert (got[chosen] == comm.size).all()
    # The second time, the part that was not sent has doubled.
    again = comm.allreduce(ones, compression=biased, name="x")
    others = np.setdiff1d(np.flatnonzero(again), chosen)
    assert (again[others] == 2 * comm.size).all()
    unbiased = RandomK(0.05, error_feedback=False)
    total = sum(comm.allreduce(ones, compression=unbiased) for _ in range(200))
    # Each element is 20 with a probability of 1/20: Hoeffding, 1e-9 for 100 elements.
    bound = 20 * np.sqrt(np.log(2 * 100 / 1e-9) / (2 * 200))
    assert np.abs(total / (200 * comm.size) - 1).max() <= bound
    assert total.sum() == 200 * 100 * comm.size


def test_matrices_of_low_rank_are_exact(group):
    comm = group.comm
    left, right = sample((40, 2), 0, seed=1), sample((2, 30), 0, seed=2)
    x = (left @ right * (1 + comm.rank)).astype(np.float32)
    codec = PowerSGD(2)
    got = comm.allreduce(x, compression=codec, name="w")
    wanted = left @ right * (comm.size * (comm.size + 1) // 2)
    np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())
    bias = comm.allreduce(np.arange(30.0), compression=codec, name="bias")
    np.testing.assert_array_equal(bias, np.arange(30.0) * comm.size)


def kept(codec, comm):
    """Return what all ranks keep of their sums, as if it were sent now."""
    state = codec._states[comm]["x"]
    return state.residual


@pytest.mark.parametrize("name", ["topk", "randomk", "powersgd"])
def test_error_feedback_loses_nothing(plain, name):
    """The sum of all results and of the errors that ranks keep is the sum of all inputs."""
    comm, codec, shape = plain.comm, CODECS[name](), (40, 30)
    given, received = np.zeros(shape), np.zeros(shape)
    for call in range(12):
        given += exact(shape, comm.size, seed=call)
        received += comm.allreduce(sample(shape, comm.rank, seed=call), compression=codec, name="x")
    left = comm.allreduce(kept(codec, comm).astype(np.float64)).reshape(shape)
    np.testing.assert_allclose(received + left, given, atol=2e-3)
    assert np.abs(left).max() > 0.1  # it had to keep something


def test_error_feedback_of_signs_loses_nothing(plain):
    """Each encoding has a residual: that of the owner counts as well."""
    comm, codec, count = plain.comm, Sign(block=16), 333
    given, received = np.zeros(count), np.zeros(count)
    for call in range(12):
        given += exact((count,), comm.size, seed=call)
        received += comm.allreduce(
            sample((count,), comm.rank, seed=call), compression=codec, name="x"
        )
    state = codec._states[comm]["x"]
    left = state.residual.astype(np.float64)
    part = codec._parts("x", count, comm.size)[comm.rank]
    left[part.start : part.stop] += state.second
    np.testing.assert_allclose(received + comm.allreduce(left), given, atol=2e-3)


@pytest.mark.parametrize("name", ["sign", "topk", "randomk", "powersgd"])
def test_error_feedback_sends_a_constant_in_the_end(plain, name):
    """The mean of many calls comes to the array that was given each time."""
    comm, codec, shape = plain.comm, CODECS[name](), (20, 12)
    x = sample(shape, comm.rank)
    total = np.zeros(shape)
    calls = 100
    for _ in range(calls):
        total += comm.allreduce(x, compression=codec, name="x")
    error = np.linalg.norm(total / calls - exact(shape, comm.size))
    assert error <= 0.25 * np.linalg.norm(exact(shape, comm.size))


@pytest.mark.parametrize("name", CODECS)
def test_one_encoding_contracts(world, name):
    """|x - C(x)|^2 <= (1 - delta) |x|^2, seen by a rank alone, which encodes at most twice."""
    alone = world.comm.split(world.comm.rank)
    with alone:
        options = {} if name in ("none", "float16", "bfloat16", "int8", "int4") else {"name": "x"}
        for seed in range(5):
            x = sample((40, 30), 0, seed=seed)
            codec = CODECS[name]()
            got = alone.allreduce(x, compression=codec, **options)
            left = float(((got - x) ** 2).sum()) / float((x**2).sum())
            delta = {"sign": 0.3, "topk": 0.1, "randomk": 0.05, "powersgd": 0.05}
            assert left <= 1 - delta.get(name, 0.98)


@pytest.mark.parametrize("name", ["int8", "int4", "sign", "topk", "randomk"])
def test_the_result_does_not_depend_on_the_batch(world, name):
    """Each array has the result that it has alone, whatever it is reduced with.

    That is not so where the library folds, whose rounding depends on the place in a message.
    """
    comm = world.comm
    shapes = {"a": (40, 30), "b": (1,), "c": (0,), "d": (333,), "e": (12, 70)}
    alone, fused = CODECS[name](), CODECS[name]()
    for call in range(2):
        wanted, pieces = {}, []
        for key, shape in shapes.items():
            x = sample(shape, comm.rank, seed=call)
            wanted[key] = comm.allreduce(x, compression=alone, name=key).reshape(-1)
            pieces.append(Piece(key, x.reshape(-1), shape))
        for request in fused.allreduce(comm, pieces):
            request.wait()
        for piece in pieces:
            if name == "randomk":
                np.testing.assert_allclose(piece.x, wanted[piece.key], rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(piece.x, wanted[piece.key])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(world, name, dtype):
    comm = world.comm
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = sample((40, 30), comm.rank).astype(kind)
    got = comm.allreduce(x, compression=CODECS[name](), name="x")
    assert got.dtype == kind
    world.agree(bits_of(got))
    pieces = [
        Piece("half", x.reshape(-1).copy(), x.shape),
        Piece("whole", sample((333,), comm.rank), (333,)),
    ]
    for request in CODECS[name]().allreduce(comm, pieces):
        request.wait()
    world.agree([bits_of(piece.x) for piece in pieces])


def test_out_in_place_and_scales(group):
    comm, codec = group.comm, Int8(block=32)
    x = sample((100,), comm.rank)
    first = comm.allreduce(x, compression=Int8(block=32))
    out = np.empty_like(x)
    assert comm.allreduce(x, out=out, compression=Int8(block=32)) is out
    np.testing.assert_array_equal(out, first)
    y = x.copy()
    assert comm.allreduce(y, out=y, compression=codec) is y
    np.testing.assert_array_equal(y, first)
    mean = comm.allreduce(x, op=cc.AVG, compression=Int8(block=32))
    np.testing.assert_allclose(mean, first / comm.size, rtol=1e-6)
    scaled = comm.allreduce(
        x, op="avg", prescale=4.0, postscale=comm.size / 4, compression=Int8(block=32)
    )
    np.testing.assert_allclose(scaled, first, rtol=1e-6)
    strided = np.repeat(x, 2)[::2]
    np.testing.assert_array_equal(comm.allreduce(strided, compression=Int8(block=32)), first)
    turned = np.asfortranarray(np.empty((10, 10), np.float32))
    comm.allreduce(x.reshape(10, 10), out=turned, compression=Int8(block=32))
    np.testing.assert_array_equal(turned, first.reshape(10, 10))


def test_numbers(world):
    comm = world.comm
    got = comm.allreduce(1.5, compression="int8")
    assert got == pytest.approx(1.5 * comm.size, rel=0.02 * (1 + comm.size))


@pytest.mark.any_mpi
@pytest.mark.ranks(2)
def test_torch(world):
    torch = pytest.importorskip("torch")
    comm = world.comm
    x = torch.from_numpy(sample((100,), comm.rank))
    got = comm.allreduce(x, compression=Int8())
    assert type(got) is torch.Tensor
    wanted = comm.allreduce(x.numpy(), compression=Int8())
    np.testing.assert_array_equal(got.numpy(), wanted)
    half = comm.allreduce(x.to(torch.bfloat16), compression="bfloat16")
    assert half.dtype == torch.bfloat16
    world.agree(half.float().numpy().tobytes())


def test_several_communicators_keep_apart(world):
    comm, codec = world.comm, TopK(0.1)
    other = comm.dup()
    with other:
        x = sample((100,), comm.rank)
        first = comm.allreduce(x, compression=codec, name="x")
        np.testing.assert_array_equal(other.allreduce(x, compression=codec, name="x"), first)
        assert codec.nbytes == 2 * 400
        assert (codec.calls(comm, "x"), codec.calls(other, "x")) == (1, 1)
        second = comm.allreduce(x, compression=codec, name="x")
        assert (second != first).any()
        codec.reset(comm)
        assert codec.nbytes == 400
        np.testing.assert_array_equal(comm.allreduce(x, compression=codec, name="x"), first)
    codec.reset()
    assert codec.nbytes == 0


def test_runs_are_repeated_and_calls_differ(world):
    comm = world.comm
    x = sample((300,), comm.rank)
    runs = [
        [bits_of(comm.allreduce(x, compression=codec)) for _ in range(2)]
        for codec in (Int8(), Int8(), Int8(seed=1))
    ]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite(world, name):
    """It is in the result, on all ranks, and it is gone in the call after the next one."""
    comm, codec = world.comm, CODECS[name]()
    x = sample((40, 30), comm.rank)
    if comm.rank == 0:
        x[3, 4] = np.nan
        x[20, 2] = np.inf
    got = comm.allreduce(x, compression=codec, name="x")
    world.agree(bits_of(got))
    if name != "randomk":  # that may not have chosen them
        assert not np.isfinite(got[3, 4])
        assert not np.isfinite(got[20, 2])
    if name in ("int8", "int4", "sign", "topk", "none"):
        assert np.isfinite(got[10:15]).all()
    for _ in range(2):
        got = comm.allreduce(sample((40, 30), comm.rank), compression=codec, name="x")
        assert np.isfinite(got).all()


def test_names_are_needed(world):
    comm = world.comm
    x = np.ones((40, 30), np.float32)
    for name in ("sign", "topk:0.1", "randomk:0.1", "powersgd"):
        with pytest.raises(ArgumentError, match=r"pass name=, another one for each array"):
            comm.allreduce(x, compression=name)
    comm.allreduce(x, compression=Sign(error_feedback=False))
    codec = TopK(0.5)
    comm.allreduce(x, compression=codec, name="x")
    with pytest.raises(ArgumentError, match=r"'x' has 3 elements and had 1200 before"):
        comm.allreduce(x[0, :3], compression=codec, name="x")
    pieces = [Piece("y", np.ones(3, np.float32), (3,))] * 2
    with pytest.raises(ArgumentError, match=r"two arrays have the name 'y'"):
        next(iter(codec.allreduce(comm, pieces)))


def test_what_is_not_compressed(world):
    comm, x = world.comm, np.ones(8, np.float32)
    fold = cc.reduction(lambda incoming, accumulator: np.add(incoming, accumulator, accumulator))
    for options, error, text in (
        ({"op": cc.MAX}, ArgumentError, "op is MAX, and a compressed allreduce has only SUM"),
        ({"op": fold}, ArgumentError, "has only SUM and AVG"),
        ({"algorithm": "ring"}, ArgumentError, "algorithm is given"),
        ({"compression": "zip"}, ArgumentError, "compression is 'zip', and must be one of none,"),
        ({"compression": "topk:a"}, ArgumentError, "'a' is no number for topk"),
        ({"compression": "topk:2"}, ArgumentError, "fraction is 2.0, and must be above 0"),
        ({"compression": "none:2"}, ArgumentError, "those from int8 on"),
        ({"compression": 8}, ArgumentError, "compression is 8, and must be a codec"),
        ({"compression": Int8}, ArgumentError, "must be a codec"),
        ({"compression": None, "name": "x"}, ArgumentError, "name is 'x', and no compression"),
        ({"name": 3}, ArgumentError, "name is 3, and must be text"),
        ({"prescale": "a"}, ArgumentError, "prescale is 'a'"),
        ({"timeout": -1}, ArgumentError, "timeout is -1"),
        ({"out": x[1:]}, BufferError, "out has 7 elements"),
    ):
        with pytest.raises(error, match=text):
            comm.allreduce(x, **{"compression": "int8", **options})
    for dtype in (np.int32, np.complex64, bool):
        with pytest.raises(UnsupportedTypeError, match=r"only float16, bfloat16"):
            comm.allreduce(x.astype(dtype), compression="int8")
    with pytest.raises(TypeError, match="compression"):
        comm.iallreduce(x, compression="int8")
    for make, text in (
        (lambda: Int8(0), "block is 0"),
        (lambda: Int8(1.5), "block is 1.5"),
        (lambda: Int4(seed=-1), "seed is -1"),
        (lambda: TopK(0), "fraction is 0"),
        (lambda: RandomK("a"), "fraction is 'a'"),
        (lambda: PowerSGD(0), "rank is 0"),
    ):
        with pytest.raises(ArgumentError, match=text):
            make()


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ({"compression": "int4"}, r"compression=int4\(block=256\)"),
        ({"compression": Int8(block=32)}, r"compression=int8\(block=32\)"),
        ({"prescale": 2.0}, "prescale=2"),
        ({"op": cc.AVG}, "op=AVG"),
        ({"name": "y"}, "name='y'"),
    ],
)
@pytest.mark.several
def test_ranks_that_compress_differently(either, odd, text):
    comm, x = either.comm, np.ones(8, np.float32)
    options = odd if comm.rank == 0 else {}
    with pytest.raises(MismatchError, match="the ranks do not agree") as caught:
        comm.allreduce(x, **{"compression": Int8(), "name": "x", **options})
    told = str(caught.value)
    assert "compression=int8(block=512), shape=(8,), dtype=float32" in told
    assert re.search(text, told), told
    either.agree(told)
    assert comm.allreduce(x, compression="none")[0] == comm.size  # it is usable


@pytest.mark.several
def test_ranks_that_disagree_about_the_calls(either):
    comm, x, codec = either.comm, np.ones(8, np.float32), RandomK(0.5)
    comm.allreduce(x, compression=codec, name="x")
    if comm.rank == 0:
        codec.reset()
    with pytest.raises(MismatchError, match=r"calls before=0.*calls before=1"):
        comm.allreduce(x, compression=codec, name="x")


@pytest.mark.several
def test_a_rank_whose_arguments_are_wrong(either):
    comm, x = either.comm, np.ones(8, np.float32)
    wrong = x.astype(np.int32) if comm.rank == 0 else x
    error, text = (
        (UnsupportedTypeError, "x is int32")
        if comm.rank == 0
        else (MismatchError, r"rank 0 refused .*x is int32")
    )
    with pytest.raises(error, match=text):
        comm.allreduce(wrong, compression="int8")
    assert comm.allreduce(x, compression="none")[0] == comm.size


@pytest.mark.several
def test_a_rank_that_does_not_compress(world, fresh):
    x = np.ones(8, np.float32)
    options = {"compression": "int8"} if world.comm.rank else {}
    with pytest.raises(MismatchError, match=r"allreduce\(compression=int8\(block=512\)") as caught:
        world.comm.allreduce(x, **options)
    assert "called allreduce(count=8, dtype=float32, op=SUM" in str(caught.value)
    if world.comm.transport != "shm":
        return  # only ranks that share memory compare calls without being asked to
    with pytest.raises(MismatchError, match=r"compressed_allreduce\(\)"):
        fresh(validate=False, timeout=20).allreduce(x, **options)


class Halving:
    """A codec of a user's own: it halves what it sends."""

    name = "halving"

    def allreduce(self, comm, pieces):
        for piece in pieces:
            piece.x[:] *= 0.5
            yield comm.iallreduce(piece.x, out=piece.x)


def test_a_codec_of_ones_own(world):
    comm = world.comm
    got = comm.allreduce(np.ones(8), compression=Halving())
    np.testing.assert_array_equal(got, np.full(8, comm.size / 2))
    assert isinstance(Halving(), compression.Compressor)


def test_texts():
    for text, name in (
        ("none", "none"),
        ("int8", "int8(block=512)"),
        ("int4:32", "int4(block=32)"),
        ("topk:0.05", "topk(0.05)"),
        ("powersgd:4", "powersgd(rank=4)"),
    ):
        codec = compression.compressor(text)
        assert codec.name == name
        assert compression.compressor(text) is codec
        assert compression.compressor(codec) is codec
    assert set(compression.NAMES) == set(CODECS)
    assert "compressed_allreduce" in _core.MAKINGS
