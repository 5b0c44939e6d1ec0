"""Collectives in the background: orders, fusion, pieces, priorities, mismatches, stalls, joins."""

import random
import threading
import time

import numpy as np
import pytest

import collectives as cc
from collectives import background
from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    MismatchError,
    StallError,
    StallWarning,
    UnsupportedTypeError,
)

SUBMIT = background.submit


@pytest.fixture(scope="module")
def comm(world):
    made = world.comm.dup()
    yield made
    made.free()


@pytest.fixture
def other(comm, monkeypatch):
    """A communicator with a short deadline, which a test may break."""
    made = comm.dup()
    made.timeout = 5
    return made


def numbers(shape, dtype):
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def of(comm, shape, dtype=np.float64):
    """The contribution of a rank; the total is that of `total`."""
    return numbers(shape, dtype) * np.array(comm.rank + 1, dtype)


def total(comm, shape, dtype=np.float64):
    return numbers(shape, dtype) * np.array(comm.size * (comm.size + 1) // 2, dtype)


SHAPES = [(), (0,), (1,), (3, 5), (1000,), (70000,), (5, 0), (300, 300)]


@pytest.mark.parametrize("named", [False, True])
def test_many_arrays(comm, named):
    """Of several dtypes and lengths, in place and apart, in one order."""
    handles = []
    for k, shape in enumerate(SHAPES * 6):
        dtype = (np.float32, np.float64, np.int32)[k % 3]
        x = np.asarray(of(comm, shape, dtype))
        out = (None, x, np.empty_like(x))[k % 3]
        name = f"array {k}" if named else None
        handle = SUBMIT("allreduce", x, out, name=name, group=comm)
        handles.append((handle, out, shape, dtype))
    for handle, out, shape, dtype in handles:
        result = handle.wait()
        assert out is None or result is out
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, total(comm, shape, dtype))
        assert handle.done()
        assert handle.exception() is None


def test_orders_that_differ(comm):
    """Names match, whatever the order in which threads submit."""
    names = list(range(150))
    random.Random(comm.rank).shuffle(names)
    handles = {}

    def submit(some):
        for k in some:
            handles[k] = SUBMIT("allreduce", np.full(k, 1.0), name=f"name {k}", group=comm)

    threads = [threading.Thread(target=submit, args=(names[k::3],)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, handle in handles.items():
        np.testing.assert_array_equal(handle.wait(), np.full(k, float(comm.size)))


def test_long_arrays_go_by_pieces(comm):
    x = np.arange(5_000_003, dtype=np.int32)
    handle = SUBMIT("allreduce", x, x, group=comm)
    assert handle.wait() is x
    assert (x == np.arange(5_000_003, dtype=np.int32) * comm.size).all()
    root = comm.size - 1
    y = np.full(3_000_001, comm.rank, np.float32)
    assert (SUBMIT("broadcast", y, y, root=root, group=comm).wait() == root).all()


def test_what_is_urgent_comes_first(comm):
    """A long array runs by pieces, and what has a higher priority comes between them."""
    order = []
    long = SUBMIT("allreduce", np.ones(6_000_000), name="long", priority=-1, group=comm)
    long.add_done_callback(lambda handle: order.append("long"))
    urgent = SUBMIT("allreduce", np.ones(10), name="urgent", priority=5, group=comm)
    urgent.add_done_callback(lambda handle: order.append("urgent"))
    background.flush(comm)
    assert order == (["urgent", "long"] if comm.size > 1 else ["long", "urgent"])


def test_other_collectives(comm):
    rank, size = comm.rank, comm.size
    handles = [
        SUBMIT("allgather", np.array([rank]), group=comm),
        SUBMIT("broadcast", np.full(3, rank), root=size - 1, group=comm),
        SUBMIT("reduce", np.full(2, 1.0), root=0, op="max", group=comm),
        SUBMIT("reduce_scatter", np.arange(2.0 * size), group=comm),
        SUBMIT("alltoall", np.arange(size) + 10 * rank, group=comm),
        SUBMIT("scan", np.array([rank]), group=comm),
        SUBMIT("barrier", group=comm),
        SUBMIT("gather", np.array([rank]), root=size - 1, group=comm),
    ]
    results = [handle.wait() for handle in handles]
    np.testing.assert_array_equal(results[0].ravel(), np.arange(size))
    np.testing.assert_array_equal(results[1], np.full(3, size - 1))
    assert (results[2] is not None) == (rank == 0)
    np.testing.assert_array_equal(results[3], size * np.array([2.0 * rank, 2 * rank + 1]))
    np.testing.assert_array_equal(results[4], rank + 10 * np.arange(size))
    assert results[5][0] == rank * (rank + 1) // 2
    assert results[6] is None
    assert (results[7] is not None) == (rank == size - 1)


def test_arrays_that_lie_in_a_row_are_not_copied(comm):
    bucket = np.arange(600.0)
    parts = [bucket[k : k + 100] for k in range(0, 600, 100)]
    for k, part in enumerate(parts):
        SUBMIT("allreduce", part, part, op=cc.AVG, name=f"part {k}", group=comm)
    background.flush(comm)
    np.testing.assert_allclose(bucket, np.arange(600.0))


def test_scales_and_torch(comm):
    torch = pytest.importorskip("torch")
    x = torch.full((7,), 2.0, dtype=torch.bfloat16)
    handle = SUBMIT("allreduce", x, x, prescale=0.5, postscale=3.0, group=comm)
    assert handle.wait() is x
    assert (x == 3.0 * comm.size).all()


CODECS = ["none", "float16", "bfloat16", "int8", "int4", "sign", "topk:0.5", "randomk:0.5"]


@pytest.mark.parametrize("codec", [*CODECS, "powersgd:2"])
def test_compression(world, comm, codec):
    """Several arrays at once, some without a name, between others that are not compressed."""
    keeps = codec.startswith(("sign", "topk", "randomk", "powersgd"))
    rng = np.random.default_rng(7)
    arrays = [rng.normal(size=n).astype(np.float32).reshape(-1, 6) for n in (6, 600, 90_000)]
    for _ in range(3):
        handles = []
        for k, array in enumerate(arrays):
            x = array * np.float32(comm.rank + 1)
            name = f"{codec} {k}" if keeps or k == 1 else None
            options = {"compression": codec, "group": comm, "op": cc.AVG, "postscale": 2.0}
            handles.append(SUBMIT("allreduce", x, x if k == 1 else None, name=name, **options))
            SUBMIT("allreduce", np.ones(3), name=f"plain {k}", group=comm)
        results = [handle.wait() for handle in handles]
        background.flush(comm)
        for array, result in zip(arrays, results, strict=True):
            assert result.shape == array.shape
            world.agree(result.tobytes())
            wanted = array * np.float32(comm.size + 1)
            if codec in ("none", "float16", "bfloat16", "int8"):
                np.testing.assert_allclose(result, wanted, atol=0.1 * comm.size, rtol=0.02)
    assert f"(1, 6), op AVG, compression {handles[0].codec.name}: complete" in repr(handles[0])


def test_compression_that_differs_or_is_impossible(comm):
    with pytest.raises(ArgumentError, match="compression is given, and broadcast has none"):
        SUBMIT("broadcast", np.ones(2), compression="int8", group=comm)
    with pytest.raises(ArgumentError, match="keeps what it loses of an array"):
        SUBMIT("allreduce", np.ones(2), compression="sign", group=comm)
    with pytest.raises(ArgumentError, match="op is MAX"):
        SUBMIT("allreduce", np.ones(2), op="max", compression="int8", group=comm)
    if comm.size == 1:
        return
    codec = "int8" if comm.rank else "int4"
    handle = SUBMIT("allreduce", np.ones(2), name="codec", compression=codec, group=comm)
    with pytest.raises(MismatchError, match=r"compression int4\(.*compression int8\("):
        handle.wait()


@pytest.mark.parametrize("what", ["shape", "dtype", "op", "root", "scale", "kind", "priority"])
def test_submissions_that_differ(comm, what):
    """All ranks raise the same error, which says what each has submitted; and go on."""
    if comm.size == 1:
        pytest.skip("nobody differs")
    last = comm.rank == comm.size - 1
    x = np.ones(3 + (last and what == "shape"), np.float32 if last and what == "dtype" else None)
    options = {"op": cc.MAX} if last and what == "op" else {}
    if last and what == "scale":
        options["postscale"] = 2.0
    if last and what == "priority":
        options["priority"] = 7
    kind = "broadcast" if what == "root" or (what == "kind" and last) else "allreduce"
    if what == "root":
        options["root"] = int(last)
    before = SUBMIT("allreduce", np.ones(2), name="before", group=comm)
    wrong = SUBMIT(kind, x, name="wrong", group=comm, **options)
    after = SUBMIT("allreduce", np.ones(2), name="after", group=comm)
    with pytest.raises(MismatchError) as caught:
        wrong.wait()
    texts = comm.allgather_object(str(caught.value))
    assert len(set(texts)) == 1
    assert "'wrong' differs between ranks: rank" in texts[0]
    assert f"rank {comm.size - 1}: " in texts[0]
    assert type(wrong.exception()) is MismatchError
    assert before.wait()[0] == after.wait()[0] == comm.size
    assert SUBMIT("allreduce", np.ones(1), name="wrong", group=comm).wait()[0] == comm.size


def test_what_others_never_submit(other):
    """It ends with the ranks and names in the text, and what others do is not affected."""
    if other.size == 1:
        pytest.skip("there are no others")
    other.timeout = 0.4
    background.start(other)
    other.timeout = 60
    mine = SUBMIT("allreduce", np.ones(1), name=f"of rank {other.rank}", group=other)
    both = SUBMIT("allreduce", np.ones(2), name="of all", group=other)
    assert both.wait()[0] == other.size
    with pytest.raises(StallError, match=r"to submit 'of rank \d'") as caught:
        mine.wait()
    assert f"rank {other.rank} has waited" in str(caught.value)
    other.barrier()
    assert SUBMIT("allreduce", np.ones(2), name="later", group=other).wait()[0] == other.size
    background.stop(other)


def test_a_rank_that_does_not_come(other):
    """Others warn, then raise; nothing can be submitted any more."""
    if other.size == 1:
        pytest.skip("nobody else comes")
    other._engine.warning = 0.2
    other.timeout = 0.6
    background.start(other)
    other.barrier()
    if other.rank == 0:
        whom = r"for ranks? [\d, -]+ to submit 'alone'"
        handle = SUBMIT("allreduce", np.ones(1), name="alone", group=other)
        with pytest.warns(StallWarning, match=whom), pytest.raises(StallError, match=whom):
            handle.wait()
        with pytest.raises(CommunicatorError, match="nothing more can be submitted"):
            SUBMIT("allreduce", np.ones(1), group=other)
    cc.world().barrier()


def test_a_wait_with_a_timeout(other):
    """It raises, and the submission goes on."""
    background.start(other)
    if other.rank == 0 and other.size > 1:
        handle = SUBMIT("allreduce", np.ones(1), name="late", group=other)
        with pytest.raises(StallError, match=r"'late' is not complete after 0.1 s"):
            handle.wait(timeout=0.1)
        assert not handle.done()
        assert "in flight" in repr(handle)
    cc.world().barrier()
    if other.rank > 0 or other.size == 1:
        handle = SUBMIT("allreduce", np.ones(1), name="late", group=other)
    assert handle.wait(timeout=30)[0] == other.size
    assert repr(handle) == ("<Handle of 'late', allreduce of float64 (1,), op SUM: complete>")
    other.free()


def test_ranks_that_join(comm):
    """Rank r has r + 1 steps; who has none left takes part with zeros."""
    results = []
    for k in range(comm.rank + 1):
        one = SUBMIT("allreduce", np.ones(5), name=f"step {k}", group=comm)
        two = SUBMIT("allreduce", np.ones(3, np.float32), name=f"mean {k}", op="avg", group=comm)
        results.append((one.wait()[0], float(two.wait()[0])))
    assert background.join(comm) == comm.size - 1
    size = comm.size
    expected = [(float(size - k), np.float32((size - k) / size)) for k in range(comm.rank + 1)]
    np.testing.assert_allclose(results, expected, rtol=1e-6)
    assert SUBMIT("allreduce", np.ones(1), group=comm).wait()[0] == size


def test_other_collectives_while_a_rank_has_joined(comm):
    if comm.size == 1:
        pytest.skip("nobody has joined")
    if comm.rank:
        handle = SUBMIT("allgather", np.ones(1), name="all", group=comm)
        with pytest.raises(MismatchError, match=r"rank 0 has joined|rank 0 joined"):
            handle.wait()
    background.join(comm)


def test_groups_that_overlap(comm):
    """Several communicators with some of the ranks each, in different orders."""
    halves = comm.split(comm.rank % 2)
    background.start(halves)
    groups = [comm, halves] if comm.rank % 2 else [halves, comm]
    handles = []
    for k in range(30):
        for group in groups:
            name = f"{k}"
            handles.append((group, SUBMIT("allreduce", np.ones(100), name=name, group=group)))
    for group, handle in reversed(handles):
        assert handle.wait()[0] == group.size
    halves.free()


def test_callbacks_may_submit_and_wait(comm):
    seen = []

    def then(handle):
        seen.append(SUBMIT("allreduce", handle.wait(), name="second", group=comm).wait()[0])

    first = SUBMIT("allreduce", np.ones(1), name="first", group=comm)
    first.add_done_callback(then)
    background.flush(comm)
    limit = time.monotonic() + 30
    while not seen and time.monotonic() < limit:
        time.sleep(0.001)
    assert seen == [comm.size**2]
    first.add_done_callback(lambda handle: seen.append(handle))
    assert seen[1] is first


def test_nobody_waits(comm):
    """The background thread runs what is submitted, without any call of the program."""
    handle = SUBMIT("allreduce", np.ones(1000), group=comm)
    limit = time.monotonic() + 30
    while not handle.done() and time.monotonic() < limit:
        time.sleep(0.001)
    assert handle.done()


def test_arguments(comm):
    with pytest.raises(ArgumentError, match="kind is 'allreduc'; did you mean 'allreduce'"):
        SUBMIT("allreduc", np.ones(1), group=comm)
    with pytest.raises(ArgumentError, match="name is 3, and must be a text or None"):
        SUBMIT("allreduce", np.ones(1), name=3, group=comm)
    with pytest.raises(ArgumentError, match=r"priority is 1\.5, and must be an integer"):
        SUBMIT("allreduce", np.ones(1), priority=1.5, group=comm)
    with pytest.raises(ArgumentError, match="group is 7, and must be a Communicator or None"):
        SUBMIT("allreduce", np.ones(1), group=7)
    with pytest.raises(UnsupportedTypeError):
        SUBMIT("allreduce", np.array(["x"]), group=comm)
    with pytest.raises(ArgumentError, match="root is"):
        SUBMIT("broadcast", np.ones(1), root=comm.size, group=comm)
    with pytest.raises(ArgumentError, match="a positive number of seconds"):
        background.flush(comm, timeout=-1)


def test_a_name_that_is_in_flight(comm):
    if comm.size == 1:
        pytest.skip("nothing is in flight")
    if comm.rank == 0:
        handle = SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
        with pytest.raises(ArgumentError, match="name is 'twice', and what was submitted under it"):
            SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
    comm.barrier()
    if comm.rank:
        handle = SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
    assert handle.wait()[0] == comm.size
