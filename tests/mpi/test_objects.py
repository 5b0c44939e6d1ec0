"""Objects: they arrive as they were sent, with writable arrays, and no rank waits in vain."""

import pickle
import threading

import numpy as np
import pytest

from collectives import errors
from collectives.calls import objects, parcels
from collectives.errors import ArgumentError, MismatchError

SMALL, LARGE = 100, parcels.APART  # bytes: in the pickle, and beside it


class Opaque:
    """Pickles on no rank."""

    def __reduce__(self):
        raise RuntimeError("not this one")


def explode():
    raise LookupError("only the reader sees this")


class Explosive:
    """Pickles, and cannot be read."""

    def __reduce__(self):
        return explode, ()


def sample(rank):
    """Return an object with everything that goes another way through the pickle."""
    numbers = np.arange(LARGE, dtype=np.float64) + rank
    frozen = np.full(LARGE, rank, np.int16)
    frozen.flags.writeable = False
    return {
        "rank": rank,
        "text": f"rank {rank}" * rank,  # envelopes of other lengths
        "large": [numbers + k for k in range(rank % 3)],  # another number of buffers
        "small": np.arange(SMALL, dtype=np.uint8),
        "empty": np.zeros((0, 3)),
        "fortran": np.asfortranarray(numbers.reshape(4, -1)),
        "strided": numbers[::2],
        "frozen": frozen,
        "odd": np.full(LARGE + 1 + rank, rank, np.int8),
        "bytes": bytearray(b"x" * (LARGE + rank)),
        "none": None,
    }


def arrays_of(obj):
    yield from obj["large"]
    yield from (value for value in obj.values() if isinstance(value, np.ndarray))


def verify(got, rank):
    """Hold an object against that which a rank sent."""
    want = sample(rank)
    assert list(got) == list(want)
    for name in ("rank", "text", "bytes", "none"):
        assert got[name] == want[name]
    assert len(got["large"]) == len(want["large"])
    for mine, theirs in zip(arrays_of(got), arrays_of(want), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
        assert mine.flags.aligned
        # As from any pickle: what could be written before can be now.
        assert mine.flags.writeable == theirs.flags.writeable
        if mine.flags.writeable:
            mine[...] = 0
    assert got["fortran"].flags.f_contiguous


def roots(comm):
    return sorted({0, comm.size // 2, comm.size - 1})


def test_broadcast(group):
    comm = group.comm
    for root in roots(comm):
        obj = sample(comm.rank)
        got = comm.broadcast_object(obj if comm.rank == root else "ignored", root)
        assert (got is obj) == (comm.rank == root)
        verify(got, root)


def test_gather(group):
    comm = group.comm
    for root in roots(comm):
        obj = sample(comm.rank)
        got = comm.gather_object(obj, root=root)
        if comm.rank != root:
            assert got is None
            continue
        assert type(got) is list
        assert len(got) == comm.size
        assert got[root] is not obj
        for rank, each in enumerate(got):
            verify(each, rank)
        verify(obj, comm.rank)  # writing into the copy did not change it


def test_allgather(group):
    comm = group.comm
    obj = sample(comm.rank)
    got = comm.allgather_object(obj)
    assert len(got) == comm.size
    for rank, each in enumerate(got):
        verify(each, rank)
    verify(obj, comm.rank)


def test_scatter(group):
    comm = group.comm
    for root in roots(comm):
        objs = [sample(rank) for rank in range(comm.size)] if comm.rank == root else None
        got = comm.scatter_object(objs, root)
        verify(got, comm.rank)
        if comm.rank == root:
            verify(objs[root], root)


@pytest.mark.parametrize("obj", [None, 0, "", [], {"a": (1, 2.5, "é")}, b"\0" * 70_000, {1, 2}])
def test_as_mpi4py_does_it(world, obj):
    comm, mpi = world.comm, world.mpi
    mine = [comm.rank, obj]
    assert comm.broadcast_object(obj) == mpi.bcast(obj)
    assert comm.gather_object(mine) == mpi.gather(mine)
    assert comm.allgather_object(mine) == mpi.allgather(mine)
    objs = [[rank, obj] for rank in range(comm.size)] if comm.rank == 0 else None
    assert comm.scatter_object(objs) == mpi.scatter(objs)
    objs = [[comm.rank, rank, obj] for rank in range(comm.size)]
    assert comm.alltoall_object(objs) == mpi.alltoall(objs)


def test_objects_about_as_long_as_a_record(world):
    """Some ranks' objects come with their lengths, and others' later."""
    comm = world.comm
    fits = parcels.ROOM - len(parcels.pack(b"x" * 100, "obj").envelope) + 100
    for turn in range(3):
        each = [b"x" * (fits - 1 + (rank + turn) % 3) for rank in range(comm.size)]
        assert len(parcels.pack(each[0], "obj").envelope) == parcels.ROOM - 1 + turn
        with_array = [(text[:SMALL], np.full(LARGE, len(text), np.uint8)) for text in each]
        for objs in (each, with_array):
            root = turn % comm.size
            for got, due in zip(comm.allgather_object(objs[comm.rank]), objs, strict=True):
                np.testing.assert_equal(got, due)
            np.testing.assert_equal(comm.broadcast_object(objs[comm.rank], root), objs[root])
            np.testing.assert_equal(comm.scatter_object(objs, root), objs[comm.rank])
            got = comm.gather_object(objs[comm.rank], root)
            np.testing.assert_equal(got, objs if comm.rank == root else None)


def test_one_array_in_many_places(world):
    """An object that holds an array twice holds it twice afterwards."""
    shared = np.ones(LARGE)
    got = world.comm.allgather_object([shared, {"again": shared}])
    for first, other in got:
        assert other["again"] is first


def test_more_buffers_than_are_in_flight(world):
    comm = world.comm
    n = 3 * objects.IN_FLIGHT
    many = [np.full(LARGE, (k + comm.rank) % 251, np.uint8) for k in range(n)]
    got = comm.gather_object(many)
    every = comm.allgather_object(many[: n // 2])
    for rank in range(comm.size):
        if comm.rank == 0:
            assert [int(each[-1]) for each in got[rank]] == [(k + rank) % 251 for k in range(n)]
        assert [int(each[0]) for each in every[rank]] == [(k + rank) % 251 for k in range(n // 2)]


def test_buffers_that_are_sent_in_pieces(fresh):
    """Long messages are cut; the real limit would take all of a test's memory."""
    comm = fresh(validate=True, timeout=20)
    comm._engine.longest = 1 << 14
    obj = sample(comm.rank)
    got = comm.gather_object(obj)
    if comm.rank == 0:
        for rank, each in enumerate(got):
            verify(each, rank)
    objs = [sample(rank) for rank in range(comm.size)]
    verify(comm.scatter_object(objs), comm.rank)


def test_large_buffers_are_not_copied(world, monkeypatch):
    """The array's own memory is sent; the receiver's array lies where the bytes arrive."""
    seen = {}

    def spy(name, function):
        def call(*arguments):
            result = function(*arguments)
            seen[name] = (arguments, result)
            return result

        monkeypatch.setattr(parcels, name, call)

    spy("pack", parcels.pack)
    spy("unpack", parcels.unpack)
    comm = world.comm
    array = np.ones(LARGE)
    got = comm.broadcast_object(array)
    if comm.rank == 0:
        assert got is array
        parcel = seen["pack"][1]
        assert len(parcel.envelope) < 1000
        assert np.shares_memory(parcel.buffers[0], array)
    else:
        ((parcel,), result) = seen["unpack"]
        assert result is got
        assert np.shares_memory(parcel.buffers[0], got)


@pytest.mark.several
def test_messages_of_the_caller_are_not_taken(plain):
    """Sends under way between the same ranks meet nothing of an object's."""
    comm = plain.comm
    mine, theirs = np.full(LARGE, comm.rank, np.uint8), np.empty(LARGE, np.uint8)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests = [comm.isend(mine, right, tag=tag) for tag in (0, 16382)]
    comm.gather_object(np.zeros(LARGE), root=comm.size - 1)
    comm.scatter_object([np.zeros(LARGE)] * comm.size)
    for tag in (0, 16382):
        comm.recv(theirs, left, tag=tag)
        assert (theirs == left).all()
    for request in requests:
        request.wait()


def test_alltoall(group):
    comm = group.comm
    objs = [[comm.rank, sample(comm.rank), rank] for rank in range(comm.size)]
    got = comm.alltoall_object(objs)
    assert type(got) is list
    assert len(got) == comm.size
    for source, (sender, obj, receiver) in enumerate(got):
        assert (sender, receiver) == (source, comm.rank)
        verify(obj, source)
    for rank, (_, obj, _) in enumerate(objs):
        assert obj is not got[rank][1]
        verify(obj, comm.rank)  # writing into the copies did not change it


def test_alltoall_of_objects_that_differ_much(world):
    """A rank sends a length to another one that the others do not know."""
    comm = world.comm
    n = 2 * objects.IN_FLIGHT
    objs = [
        [np.full(LARGE + k, comm.rank * 10 + rank, np.uint8) for k in range(n * rank)]
        for rank in range(comm.size)
    ]
    for source, got in enumerate(comm.alltoall_object(objs)):
        assert [len(each) for each in got] == [LARGE + k for k in range(n * comm.rank)]
        assert all((each == source * 10 + comm.rank).all() for each in got)


class Leaving:
    def __reduce__(self):
        raise SystemExit(7)


CALLS = {
    "alltoall_object": lambda comm, obj: comm.alltoall_object([obj] * comm.size),
    "broadcast_object": lambda comm, obj: comm.broadcast_object(obj, comm.size - 1),
    "gather_object": lambda comm, obj: comm.gather_object(obj),
    "allgather_object": lambda comm, obj: comm.allgather_object(obj),
    "scatter_object": lambda comm, obj: comm.scatter_object([obj] * comm.size, comm.size - 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (threading.Lock(), r"cannot be pickled: TypeError: cannot pickle '_thread\.lock'"),
        (Opaque(), "cannot be pickled: RuntimeError: not this one"),
        (lambda: 0, "cannot be pickled: .*lambda"),
        (Leaving(), "cannot be pickled: SystemExit: 7"),
    ],
)
def test_unpicklable_on_one_rank(either, name, bad, text):
    comm = either.comm
    last = comm.size - 1
    obj = bad if comm.rank == last else np.ones(LARGE)
    what = r"objs\[0\]" if name in ("scatter_object", "alltoall_object") else "obj"
    with pytest.raises(ArgumentError, match=f"^{name}: rank {last}: {what} {text}") as caught:
        CALLS[name](comm, obj)
    assert (caught.value.__cause__ is not None) == (comm.rank == last)
    either.agree(str(caught.value))
    assert comm.allgather_object(comm.rank) == list(range(comm.size))


def test_unpicklable_on_all_ranks(world):
    comm = world.comm
    with pytest.raises(ArgumentError) as caught:
        comm.gather_object(threading.Lock())
    for rank in range(comm.size):
        assert f"rank {rank}: obj cannot be pickled" in str(caught.value)


def test_objects_that_cannot_be_read(either):
    comm = either.comm

    def objs():
        yield 0
        raise OSError("not this one")

    for call, odd in (comm.alltoall_object, comm.size - 1), (comm.scatter_object, 0):
        text = f"^{call.__name__}: rank {odd}: objs is .*: OSError: not this one"
        with pytest.raises(ArgumentError, match=text):
            call(objs() if comm.rank == odd else [1] * comm.size)
        assert comm.allgather_object(comm.rank) == list(range(comm.size))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_wrong_number_to_scatter(either, wrong):
    comm = either.comm
    n = comm.size + wrong
    text = f"^scatter_object: rank 0: objs has {n} objects, and must have {comm.size}, one for"
    with pytest.raises(ArgumentError, match=text):
        comm.scatter_object(range(n) if comm.rank == 0 else None)
    assert comm.scatter_object(range(comm.size)) == comm.rank
    text = f"^alltoall_object: rank 0: objs has {n} objects, and must have {comm.size}, one for"
    with pytest.raises(ArgumentError, match=text):
        comm.alltoall_object(range(n if comm.rank == 0 else comm.size))
    assert comm.alltoall_object(range(comm.size)) == [comm.rank] * comm.size


@pytest.mark.parametrize("objs", [None, 3])
def test_nothing_to_scatter(either, objs):
    comm = either.comm
    text = f"rank 0: objs is {objs}, and must be a sequence of {comm.size} objects"
    with pytest.raises(ArgumentError, match=text):
        comm.scatter_object(objs)


def test_what_cannot_be_read_is_the_readers_error(either):
    """It is raised where it is read, after everything has arrived."""
    comm = either.comm
    obj = [np.ones(LARGE), Explosive()]
    for call in (comm.gather_object, comm.broadcast_object):
        reads = (comm.rank == 0) == (call == comm.gather_object)
        if reads:
            with pytest.raises(LookupError, match="only the reader sees this"):
                call(obj)
        else:
            call(obj)
        assert comm.allgather_object(comm.rank) == list(range(comm.size))


@pytest.mark.parametrize("root", [-1, 10**6, "0", None, 0.0])
@pytest.mark.parametrize("name", ["broadcast_object", "gather_object", "scatter_object"])
def test_wrong_root(either, name, root):
    comm = either.comm
    kind = "" if isinstance(root, int) else "an integer "
    text = rf"root is {root!r}, and must be {kind}in 0\.\.{comm.size - 1}"
    with pytest.raises(ArgumentError, match=text):
        getattr(comm, name)([1] * comm.size, root)


@pytest.mark.several
def test_ranks_that_disagree(world):
    comm = world.comm
    with pytest.raises(MismatchError, match=r"rank 0 called gather_object\(root=1\)"):
        comm.gather_object(0, root=1 if comm.rank == 0 else 0)
    with pytest.raises(MismatchError, match=r"called allgather_object\(root=0\)"):
        comm.broadcast_object(0) if comm.rank == 0 else comm.allgather_object(0)
    assert comm.allgather_object(comm.rank) == list(range(comm.size))


def test_a_freed_communicator(world):
    comm = world.comm.dup()
    comm.free()
    with pytest.raises(errors.CommunicatorError, match="the communicator was freed"):
        comm.allgather_object(1)


def test_the_pickle_is_one():
    """Any reader of pickles can read an envelope, as pickle ignores bytes after the end."""
    parcel = parcels.pack({"a": np.ones(3)}, "obj")
    assert pickle.loads(parcel.envelope.tobytes())["a"].sum() == 3
