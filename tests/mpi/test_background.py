"""Collectives in the background: orders, fusion, pieces, priorities, mismatches, stalls, joins."""

import asyncio
import io
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import collectives as cc
from collectives import background
from collectives.background.group import Group
from collectives.background.handle import is_main_thread
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
    """A communicator that a test may break."""
    made = comm.dup()
    made.timeout = 60
    return made


def give_up_soon(handle):
    """Let a submission reach its deadline that other ranks are known to lack."""
    group, limit = handle.group, time.monotonic() + 60
    while handle.key not in group.missing:
        assert time.monotonic() < limit
        time.sleep(0.001)
    group.timeout = 0.0
    with pytest.raises(StallError, match=r"to submit '") as caught:
        handle.wait(60)
    group.timeout = 60
    return str(caught.value)


def until_warned(handle, warnings):
    """Wait for a submission, which cannot be complete, until there is a warning."""
    limit = time.monotonic() + 60
    while not warnings and time.monotonic() < limit:
        with pytest.raises(StallError, match=r"is not complete after 0\.1 s"):
            handle.wait(timeout=0.1)


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
    """A long array runs by pieces, and arrays of a higher priority come between them."""
    order, urgent_is_there = [], threading.Event()

    def add(incoming, accumulator):
        assert urgent_is_there.wait(60)  # at most two pieces are under way
        accumulator += incoming

    op, x = cc.reduction(add), np.ones(6_000_000)
    long = SUBMIT("allreduce", x, op=op, name="long", priority=-1, group=comm)
    long.add_done_callback(lambda handle: order.append("long"))
    urgent = SUBMIT("allreduce", np.ones(10), name="urgent", priority=5, group=comm)
    urgent.add_done_callback(lambda handle: order.append("urgent"))
    urgent_is_there.set()
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


@pytest.mark.any_mpi
@pytest.mark.ranks(2)
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
    with pytest.raises(ArgumentError, match="stores the lost part of an array"):
        SUBMIT("allreduce", np.ones(2), compression="sign", group=comm)
    with pytest.raises(ArgumentError, match="op is MAX"):
        SUBMIT("allreduce", np.ones(2), op="max", compression="int8", group=comm)
    if comm.size == 1:
        return
    codec = "int8" if comm.rank else "int4"
    handle = SUBMIT("allreduce", np.ones(2), name="codec", compression=codec, group=comm)
    with pytest.raises(MismatchError, match=r"compression int4\(.*compression int8\("):
        handle.wait()


@pytest.mark.parametrize(
    "what", ["shape", "dtype", "op", "root", "scale", "kind", "priority", "terms"]
)
@pytest.mark.several
def test_submissions_that_differ(comm, what):
    """All ranks raise the same error, which names the submission of each, and continue."""
    last = comm.rank == comm.size - 1
    x = np.ones(3 + (last and what == "shape"), np.float32 if last and what == "dtype" else None)
    options = {"op": cc.MAX} if last and what == "op" else {}
    if last and what == "scale":
        options["postscale"] = 2.0
    if last and what == "priority":
        options["priority"] = 7
    if what == "terms":
        options["terms"] = "packed from (2,), (1,)" if last else "packed from (1,), (2,)"
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


@pytest.mark.several
def test_dtypes_and_functions_that_differ(comm):
    """The numbers of dtypes without kernels, and those of functions, may be the same."""
    last = comm.rank == comm.size - 1

    def add(incoming, accumulator):
        accumulator["value"] += incoming["value"]

    first = cc.reduction(add)
    others = (cc.reduction(add, name=f"add {k}") for k in range(10000))
    other = next(each for each in others if each.number == first.number)
    same, odd = ([("value", "f8"), (name, "i8")] for name in ("index", "another"))
    for dtype, op in ((odd if last else same, first), (same, other if last else first)):
        x = np.zeros(3, dtype)
        wrong = SUBMIT("allreduce", x, op=op, name="wrong", group=comm)
        with pytest.raises(MismatchError, match="'wrong' differs between ranks"):
            wrong.wait()
    made = SUBMIT("allreduce", np.ones(3, same), op=first, name="right", group=comm).wait()
    assert (made["value"] == comm.size).all()


@pytest.mark.several
def test_ranks_that_look_for_a_match_for_long(other):
    """Ranks have different things in flight for a second, and then the same."""
    background.start(other)
    first, second = ("a", "b") if other.rank == 0 else ("b", "a")
    one = SUBMIT("allreduce", np.ones(1), name=first, group=other)
    time.sleep(1)
    two = SUBMIT("allreduce", np.ones(1), name=second, group=other)
    assert one.wait(30)[0] == two.wait(30)[0] == other.size


@pytest.mark.several
def test_what_others_never_submit(other):
    """It ends with the ranks and names in the text, and other submissions are not affected."""
    background.start(other)
    mine = SUBMIT("allreduce", np.ones(1), name=f"of rank {other.rank}", group=other)
    both = SUBMIT("allreduce", np.ones(2), name="of all", group=other)
    assert both.wait()[0] == other.size
    told = give_up_soon(mine)
    assert f"to submit 'of rank {other.rank}'" in told
    assert f"rank {other.rank} has waited" in told
    other.barrier()
    assert SUBMIT("allreduce", np.ones(2), name="later", group=other).wait()[0] == other.size
    background.stop(other)


@pytest.mark.several
def test_a_rank_that_does_not_come(other):
    """Others warn, then raise; nothing can be submitted any more."""
    other._engine.warning = 0.2
    background.start(other)
    other.barrier()
    if other.rank == 0:
        whom = r"for ranks? [\d, -]+ to submit 'alone'"
        handle = SUBMIT("allreduce", np.ones(1), name="alone", group=other)
        with pytest.warns(StallWarning, match=whom) as warned:
            until_warned(handle, warned.list)
        handle.group.timeout = 0.0
        with pytest.raises(StallError, match=whom):
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
    assert handle.wait(timeout=60)[0] == other.size
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


@pytest.mark.several
def test_other_collectives_while_a_rank_has_joined(comm):
    if comm.rank:
        handle = SUBMIT("allgather", np.ones(1), name="all", group=comm)
        with pytest.raises(MismatchError, match=r"rank 0 has joined|rank 0 joined"):
            handle.wait()
    background.join(comm)


@pytest.mark.several
def test_a_signal_handler_cannot_wait_in_the_middle_of_the_work(comm, monkeypatch):
    """It would wait for its own thread; a submission runs when the thread continues."""
    background.start(comm)
    begin, made = Group._begin_round, []

    def interrupted(group):
        if is_main_thread() and not made:
            made.append(SUBMIT("barrier", name="of a handler", group=comm))
            with pytest.raises(CommunicatorError, match="inside the work of the background"):
                made[0].wait(5)
        return begin(group)

    monkeypatch.setattr(Group, "_begin_round", interrupted)
    for _ in range(20):  # the background thread may begin some of the rounds
        with background.engine.at_once(comm):
            assert SUBMIT("allreduce", np.ones(1), group=comm).wait() == [comm.size]
    made[0].wait()


def test_callbacks_may_submit_and_wait(comm):
    seen = []

    def then(handle):
        seen.append(SUBMIT("allreduce", handle.wait(), name="second", group=comm).wait()[0])

    first = SUBMIT("allreduce", np.ones(1), name="first", group=comm)
    first.add_done_callback(then)
    background.flush(comm)
    limit = time.monotonic() + 60
    while not seen and time.monotonic() < limit:
        time.sleep(0.001)
    assert seen == [comm.size**2]
    first.add_done_callback(lambda handle: seen.append(handle))
    assert seen[1] is first


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, ValueError])
def test_exceptions_in_callbacks_are_printed(comm, monkeypatch, kind):
    """Whichever thread calls, and submissions and callbacks after it run."""
    printed = io.StringIO()  # while another thread writes, capfd may lose text that it reads
    monkeypatch.setattr(sys, "stderr", printed)

    def fails(*_):
        raise kind("a fault of the program")

    def submit():
        handle = SUBMIT("allreduce", np.ones(1), group=comm)
        handle.add_done_callback(fails)
        return handle

    background.start(comm)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    request = comm.irecv(np.empty(1), before)
    background.when_complete(request, fails)
    if comm.rank == 0:
        handle = submit()
    comm.barrier()  # nothing is complete before it
    sent = comm.isend(np.ones(1), after)
    if comm.rank:
        handle = submit()
    called = [threading.Event() for _ in range(2)]
    last = comm.ibarrier()
    background.when_complete(last, called[0].set)
    SUBMIT("allreduce", np.ones(1), group=comm).add_done_callback(lambda _: called[1].set())
    assert [each.wait(30) for each in called] == [True, True]
    assert (handle.wait(30)[0], request.wait()[0]) == (comm.size, 1)
    cc.wait_all([sent, last])
    limit = time.monotonic() + 60
    while (
        printed.getvalue().count(f"{kind.__name__}: a fault of the program") < 2
    ):  # by two threads
        assert time.monotonic() < limit, printed.getvalue()
        time.sleep(0.01)


def test_nobody_waits(comm):
    """The background thread runs submissions, without any call of the program."""
    handle = SUBMIT("allreduce", np.ones(1000), group=comm)
    limit = time.monotonic() + 60
    while not handle.done() and time.monotonic() < limit:
        time.sleep(0.001)
    assert handle.done()


def test_rounds_of_few_and_of_many(comm):
    """After as many as a short round has, some ranks wait at once, and others look now and then."""
    for turn in range(30):
        few = [SUBMIT("allreduce", np.ones(3), name=f"few {k}", group=comm) for k in range(4)]
        time.sleep(0.001)
        comm.barrier()
        one = SUBMIT("allreduce", np.ones(3), name="one", group=comm)
        if (comm.rank + turn) % 2 == 0:
            one.wait(30)
        while not one.done():
            time.sleep(0.0005)
        assert [handle.wait(30)[0] for handle in [*few, one]] == [comm.size] * 5


def test_threads_that_submit_and_wait_at_once(comm):
    failed = []

    def work(thread):
        try:
            for k in range(200):
                handle = SUBMIT("allreduce", np.full(2, 1.0), name=f"{thread}.{k}", group=comm)
                assert handle.wait(30)[1] == comm.size
        except Exception as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []


class Slow(Counter):
    """A counter during whose first use of a key other threads run."""

    def __missing__(self, key):
        time.sleep(0.05)
        return 0


def test_threads_without_names_have_numbers_of_their_own(comm, monkeypatch):
    monkeypatch.setattr(comm._background, "nameless", Slow())
    gate, results = threading.Barrier(8), []

    def work():
        gate.wait(30)
        results.append(SUBMIT("allreduce", np.ones(1), group=comm).wait(30)[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert comm._background.nameless == {"allreduce": 8}
    assert results == [comm.size] * 8


@pytest.mark.several
def test_what_comes_after_it_was_given_up(other):
    """Nothing that is submitted later is mixed up with it."""
    background.start(other)
    if other.rank == 0:
        own = SUBMIT("allreduce", np.full(2, 1.0), name="own", group=other)
    late = None
    if other.rank:
        late = SUBMIT("allreduce", np.full(2, 5.0), name="late", group=other)
    give_up_soon(own if other.rank == 0 else late)
    other.barrier()
    if other.rank == 0:  # alone again, until the others come
        again = SUBMIT("allreduce", np.full(2, 7.0), name="next", group=other)
    other.barrier()
    if other.rank:
        again = SUBMIT("allreduce", np.full(2, 7.0), name="next", group=other)
    assert again.wait(30)[0] == 7.0 * other.size


def test_factors_that_are_nan(comm):
    handles = [
        SUBMIT("allreduce", np.ones(1), prescale=float("nan"), name=f"{k}", group=comm)
        for k in range(3)
    ]
    assert all(np.isnan(handle.wait(30)[0]) for handle in handles)


def test_nameless_ones_after_a_join(comm):
    """Ranks that had less to submit count on from the same number."""
    for _ in range(2):
        for _ in range(1 + comm.rank):
            SUBMIT("allreduce", np.ones(2), group=comm).wait(30)
        assert background.join(comm, timeout=60) == comm.size - 1


def test_many_in_opposite_orders(comm):
    """More than a rank tells the others of at a time."""
    names = range(5000)
    order = names if comm.rank % 2 else reversed(names)
    x = np.ones(1)
    handles = {k: SUBMIT("allreduce", x, np.empty(1), name=f"{k}", group=comm) for k in order}
    assert all(handles[k].wait(60)[0] == comm.size for k in names)


def test_a_name_like_that_of_one_without(comm):
    name = "allreduce without a name, number 1"
    for k in range(2):
        named = {"name": name} if (k + comm.rank) % 2 else {}
        handle = SUBMIT("allreduce", np.ones(2), group=comm, **named)
        if k == 0:
            first = handle
    assert first.wait(30)[0] == handle.wait(30)[0] == comm.size


def test_timeline(comm, tmp_path):
    """Each submission has its phases, one after the other, and those of one array are together."""
    path = comm.broadcast_object(str(tmp_path / "timeline.json"))
    with comm.timeline(path):
        for k in range(3):
            SUBMIT("allreduce", np.ones(10 + k), name=f"layer {k}", group=comm)
        SUBMIT("allgather", np.ones(2), name="alone", group=comm)
        background.flush(comm)
    events = json.loads(Path(path).read_text())
    events = events if isinstance(events, list) else events["traceEvents"]
    mine = [each for each in events if each["ph"] == "X" and each["pid"] == comm.rank]
    for name in ("layer 0", "layer 2", "alone"):
        of_it = [each for each in mine if each["args"].get("algorithm") == name]
        whole = [each for each in of_it if "communicator" in each["args"]]
        assert len(whole) == 1
        assert whole[0]["args"]["transport"] == "background"
        names = [each["name"] for each in of_it if each is not whole[0]]
        assert "communicate" in names
        if comm.size > 1:
            assert names[0] == "queue"
            assert "negotiate" in names
        end = whole[0]["ts"] + whole[0]["dur"] + 0.01
        assert all(whole[0]["ts"] <= each["ts"] <= end for each in of_it)


def test_a_reduction_in_python(comm):
    """Of several arrays at once, on whichever thread works."""
    largest = cc.reduction(lambda a, b: np.maximum(a, b, out=b), name="largest")
    handles = [
        SUBMIT("allreduce", np.full(k + 1, float(comm.rank)), op=largest, name=f"{k}", group=comm)
        for k in range(5)
    ]
    for k, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.wait(), np.full(k + 1, comm.size - 1.0))


def test_arguments(comm):
    with pytest.raises(ArgumentError, match="kind is 'allreduc'; did you mean 'allreduce'"):
        SUBMIT("allreduc", np.ones(1), group=comm)
    with pytest.raises(ArgumentError, match="name is 3, and must be a text or None"):
        SUBMIT("allreduce", np.ones(1), name=3, group=comm)
    with pytest.raises(ArgumentError, match=r"priority is 1\.5, and must be an integer"):
        SUBMIT("allreduce", np.ones(1), priority=1.5, group=comm)
    for wrong in (2**70, -(2**63) - 1):
        with pytest.raises(ArgumentError, match="must be an integer of 64 bits"):
            SUBMIT("allreduce", np.ones(1), priority=wrong, group=comm)
    for wrong in ("a\udc80", "\0 in front"):
        with pytest.raises(ArgumentError, match="must be Unicode text without a null character"):
            SUBMIT("allreduce", np.ones(1), name=wrong, group=comm)
    for call in (background.stop, background.flush, background.start, background.join):
        with pytest.raises(ArgumentError, match="group is 'x', and must be a Communicator"):
            call("x")
    with pytest.raises(ArgumentError, match="group is 7, and must be a Communicator or None"):
        SUBMIT("allreduce", np.ones(1), group=7)
    with pytest.raises(UnsupportedTypeError):
        SUBMIT("allreduce", np.array(["x"]), group=comm)
    with pytest.raises(ArgumentError, match="counts is None, and alltoallv needs the elements"):
        SUBMIT("alltoallv", np.ones(1), group=comm)
    with pytest.raises(ArgumentError, match="counts is given, and allgatherv takes none"):
        SUBMIT("allgatherv", np.ones(1), counts=[1] * comm.size, group=comm)
    with pytest.raises(ArgumentError, match="root is"):
        SUBMIT("broadcast", np.ones(1), root=comm.size, group=comm)
    with pytest.raises(ArgumentError, match="a positive number of seconds"):
        background.flush(comm, timeout=-1)


@pytest.mark.several
def test_a_name_that_is_in_flight(comm):
    if comm.rank == 0:
        handle = SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
        with pytest.raises(ArgumentError, match="name is 'twice', and an earlier submission"):
            SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
    comm.barrier()
    if comm.rank:
        handle = SUBMIT("allreduce", np.ones(1), name="twice", group=comm)
    assert handle.wait()[0] == comm.size
