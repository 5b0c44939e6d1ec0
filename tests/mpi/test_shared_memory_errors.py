"""Ranks of a host that call different things, or do not come: everybody hears who did what."""

import re
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import collectives as cc
from collectives.errors import (
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
    SharedMemoryWarning,
    StallError,
    StallWarning,
)
from collectives.process import segment

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank agrees with itself")

X = np.ones(8)
SUM8 = r"allreduce\(count=8, dtype=float64, op=SUM, algorithm=\w+\)"

# The calls of one rank while the others call allreduce(X), and the errors of these.
ODD = {
    "collective": (lambda comm: comm.reduce(X), r"reduce\(count=8, dtype=float64, op=SUM, root=0,"),
    "barrier": (lambda comm: comm.barrier(), r"barrier\(algorithm=\w+\)"),
    "count": (lambda comm: comm.allreduce(X[:7]), r"allreduce\(count=7,"),
    "longer": (lambda comm: comm.allreduce(np.ones(1 << 18)), r"allreduce\(count=262144,"),
    "dtype": (lambda comm: comm.allreduce(X.view("i8")), r"allreduce\(count=8, dtype=int64,"),
    "op": (lambda comm: comm.allreduce(X, op=cc.MAX), r"allreduce\(count=8, dtype=float64, op=MAX"),
    "algorithm": (lambda comm: comm.allreduce(X, algorithm="tree"), r"op=SUM, algorithm=tree\)"),
    "prescale": (lambda comm: comm.allreduce(X, prescale=2.0), rf"{SUM8} with options [0-9a-f]+"),
    "vector": (
        lambda comm: comm.allgatherv(X, counts=[8] * comm.size),
        rf"allgatherv\(count={8 * MPI.COMM_WORLD.size}, dtype=float64, algorithm=",
    ),
    "started": (lambda comm: comm.iallreduce(X[:5]).wait(), r"allreduce\(count=5,"),
    "planned": (lambda comm: comm.plan("allreduce", X[:5])(), r"allreduce\(count=5,"),
}


def what_is_told(world, comm, call):
    """Make a call, and others until it shows; return what the ranks are told."""

    def go_on():
        call()
        for _ in range(3):
            comm.allreduce(X)

    with pytest.raises(MismatchError) as caught:
        go_on()
    with pytest.raises(CommunicatorError, match="the communicator is broken: rank"):
        comm.barrier()
    # On a crowded machine a rank may come after the others have stopped waiting for its word.
    told = world.mpi.allgather(str(caught.value))
    return [each for each in told if "has not reached it" not in each] or told[:1]


@pytest.mark.parametrize("kind", ODD)
def test_every_rank_is_told_who_called_what(world, fresh, kind):
    """Without any agreement beforehand."""
    call, text = ODD[kind]
    comm = fresh(validate=False, timeout=10.0)
    odd = comm.size // 2
    told = what_is_told(
        world, comm, lambda: call(comm) if comm.rank == odd else comm.allreduce(X, algorithm=None)
    )
    for each in told:
        assert "the ranks do not agree on call 1 of the communicator: " in each
        assert re.search(rf"\brank {odd} called [^;]*{text}", each), each
        assert re.search(rf"\branks? [^;]* called [^;]*{SUM8}", each), each


# Calls with parts of two elements for each rank; the ranks know all counts.
def two(comm):
    return [2] * comm.size


BY_PARTS = {
    "allgatherv": lambda comm, x: comm.allgatherv(x[:2], counts=two(comm)),
    "gatherv": lambda comm, x: comm.gatherv(x[:2], counts=two(comm)),
    "scatterv": lambda comm, x: comm.scatterv(x, counts=two(comm)),
    "reduce_scatterv": lambda comm, x: comm.reduce_scatterv(x, counts=two(comm)),
}
TO_ALL = {
    "alltoallv": lambda comm, x: comm.alltoallv(x, two(comm)),
    "told": lambda comm, x: comm.alltoallv(x, two(comm), receive_counts=two(comm)),
    "displacements": lambda comm, x: comm.alltoallv(
        x, two(comm), np.empty_like(x), displs=range(0, len(x), 2), receive_counts=two(comm)
    ),
    "started": lambda comm, x: comm.ialltoallv(x, two(comm), receive_counts=two(comm)).wait(),
    "awaited": lambda comm, x: [
        each.wait()
        for each in [comm.ialltoallv(x, two(comm), receive_counts=two(comm)) for _ in range(30)]
    ],
}


@pytest.mark.parametrize("collective", BY_PARTS)
@pytest.mark.parametrize("dtypes", [("f4", "i4"), ("i8", "u8"), ("g", "c16")])
def test_dtypes_of_parts_differ(world, fresh, collective, dtypes):
    comm = fresh(validate=False, timeout=10.0)
    x = np.zeros(2 * comm.size, dtypes[comm.rank == comm.size - 1])
    for each in what_is_told(world, comm, lambda: BY_PARTS[collective](comm, x)):
        assert len(set(re.findall(rf"called {collective}\([^;]*dtype=(\w+)", each))) == 2, each


@pytest.mark.parametrize("form", TO_ALL)
@pytest.mark.parametrize(
    "dtypes", [("f4", "i4"), ("f4", "i8"), ("u1", "?"), ("g", "c16"), ("f2", "G")]
)
def test_no_rank_reads_the_bits_of_another_dtype(world, fresh, form, dtypes):
    """In these calls the ranks compare nothing before they have the data."""
    comm = fresh(validate=False, timeout=10.0)
    x = np.ones(2 * comm.size, dtypes[comm.rank % 2])
    # Of many calls that are in flight, the record of the first may be gone.
    expected = (MismatchError, PeerAbortedError) if form == "awaited" else MismatchError
    with pytest.raises(expected) as caught:
        TO_ALL[form](comm, x)
    said = set(re.findall(r"called \w+v\(dtype=([^,)]+)", str(caught.value)))
    assert len(said) == 2 or form == "awaited", caught.value
    with pytest.raises(CommunicatorError):
        comm.barrier()
    world.mpi.Barrier()


NEIGHBOURS = {
    "equal": lambda row, x: row.neighbor_alltoall(x[:4]),
    "gathered": lambda row, x: row.neighbor_allgather(x[:4]),
    "parts": lambda row, x: row.neighbor_alltoallv(x[:4], [1, 3], receive_counts=[3, 1]),
    "started": lambda row, x: row.ineighbor_alltoallv(x[:4], [1, 3], receive_counts=[3, 1]).wait(),
}


@pytest.mark.parametrize("form", NEIGHBOURS)
def test_dtypes_of_neighbours_differ(world, fresh, form):
    row = fresh(validate=False, timeout=10.0).cart([world.comm.size], [True])
    x = np.ones(4, "f4" if row.comm.rank % 2 else "i4")
    with pytest.raises(MismatchError, match=r"float32.*int32|int32.*float32"):
        NEIGHBOURS[form](row, x)
    world.mpi.Barrier()


def keep(incoming, accumulator):
    accumulator["a"] += incoming["a"]


def pairs(value, index, align):
    return np.dtype([("value", value), ("index", index)], align=align)


# Dtypes without kernels, and operations, whose checksums were the same, or could be.
OTHERS = {
    "pairs": (pairs("f4", "i8", False), pairs("f8", "i4", True), cc.MAXLOC),
    "same length": ([("a", "f2"), ("b", "f8")], [("a", "c8"), ("b", "i2")], cc.reduction(keep)),
    "other length": ([("a", "f8"), ("b", "i4")], [("a", "u1"), ("b", "i2")], cc.reduction(keep)),
    "names": ([("a", "f8"), ("b", "i8")], [("a", "f8"), ("c", "i8")], cc.reduction(keep)),
    "layout": (
        [("a", "f8"), ("b", "i8")],
        {"names": ["a", "b"], "formats": ["f8", "i8"], "offsets": [8, 0]},
        cc.reduction(keep),
    ),
    "parts": ([("a", "f4", (2,))], [("a", "f4"), ("b", "f4")], cc.reduction(keep)),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_dtypes_without_kernels_differ(world, fresh, kind, n):
    comm = fresh(validate=False, timeout=10.0)
    *dtypes, op = OTHERS[kind]
    x = np.zeros(n, dtypes[comm.rank == comm.size - 1])
    for each in what_is_told(world, comm, lambda: comm.allreduce(x, op=op)):
        said = re.findall(r"called allreduce\(count=\d+, dtype=(.*?), op=", each)
        assert len(set(said)) > 1 or "with options" in each, each


@pytest.mark.parametrize("n", [1, 1000])
def test_operations_with_one_number_differ(world, fresh, n):
    """The number of an operation has few bits; its name has more."""

    def add(incoming, accumulator):
        accumulator += incoming

    comm = fresh(validate=False, timeout=10.0)
    first = cc.reduction(add)
    others = (cc.reduction(add, name=f"add {k}") for k in range(10000))
    op = next(each for each in others if each.number == first.number) if comm.rank else first
    for each in what_is_told(world, comm, lambda: comm.allreduce(np.ones(n), op=op)):
        assert len(set(re.findall("with options ([0-9a-f]+)", each))) == 2, each


def test_segments_differ(world, fresh, segments):
    """Ranks that read different settings would publish pieces of different lengths."""
    comm = fresh(validate=False, timeout=10.0)
    with segments(comm, 64 if comm.rank == 0 else 128):
        told = what_is_told(world, comm, lambda: comm.allreduce(np.ones(1000), algorithm="ring"))
    for each in told:
        assert len(set(re.findall(r"algorithm=ring\) with options ([0-9a-f]+)", each))) == 2, each


@pytest.mark.parametrize("collective", ["broadcast", "scatter", "reduce", "gather"])
def test_roots_differ(world, fresh, collective):
    """In a broadcast nobody who believes to be the root waits for anybody."""
    comm = fresh(validate=False, timeout=10.0)
    x = np.ones(2 * comm.size)
    told = what_is_told(world, comm, lambda: getattr(comm, collective)(x, root=comm.rank))
    for each in told:
        assert "the ranks do not agree on call 1 of the communicator: " in each
        for rank in range(comm.size):
            assert re.search(rf"\brank {rank} called {collective}\([^;]*root={rank}\b", each), each


def test_a_disagreement_that_shows_late(world, fresh):
    """The call that was different is named, not that in which it came out."""
    comm = fresh(validate=False, timeout=10.0)

    def calls():
        comm.allreduce(X)
        for count in (8, 8 - (comm.rank == 0), 8):
            comm.broadcast(X[:count], root=comm.rank)

    for each in what_is_told(world, comm, calls):
        assert "the ranks do not agree on call 2 of the communicator: " in each
        assert "root=0" in each
        assert "root=1" in each


def test_a_rank_comes_late(world, fresh, environ, monkeypatch):
    """The others warn once, with the call of each rank; then the call ends as it should."""
    with environ(COLLECTIVES_STALL_WARNING="0.3"):
        comm = fresh(validate=False, timeout=60.0)
    comm.barrier()
    comm.allreduce(X)
    late = comm.size - 1
    caught = []

    def warned(*words, **named):
        caught.append(warnings.WarningMessage(*words, **named))
        world.mpi.send(None, late)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warned)
        if comm.rank == late:  # it comes when all have warned
            for rank in range(late):
                world.mpi.recv(source=rank)
        y = comm.allreduce(X, algorithm="all_to_all")
    assert (y == comm.size).all()
    told = [str(each.message) for each in caught if each.category is StallWarning]
    if comm.rank == late:
        assert not told
        return
    assert len(told) == 1, told
    assert {each.filename for each in caught} == {__file__}
    assert re.match(
        rf"allreduce 'all_to_all' on {comm.size} ranks: rank {comm.rank} has waited [\d.]+ s: "
        rf"round 1, segment 1 of 1 waits for rank {late} to send \(call 3; ",
        told[0],
    ), told[0]
    for rank in range(comm.size):
        state = r"has left call 2" if rank == late else "is in call 3"
        assert re.search(
            rf"rank {rank} \(process \d+\) {state}, allreduce\(count=8, dtype=float64, op=SUM, ",
            told[0],
        ), told[0]


def test_what_was_started_is_left_when_it_is_complete(fresh):
    comm = fresh(validate=False, timeout=10)
    first, second = comm.iallreduce(X), comm.ibarrier()
    mine = comm._segment.ranks.index(comm.rank)
    first.wait()
    second.wait()
    assert "has left call 2, barrier" in comm._segment.doing()[mine]


@pytest.mark.parametrize("way", ["blocking", "started", "planned"])
def test_a_rank_does_not_come(world, fresh, way):
    """The others raise StallError, or hear that of the first one to do so."""
    comm = fresh(validate=False, timeout=0.4)
    planned = comm.plan("broadcast", X, root=0, algorithm="flat")
    call = {
        "blocking": lambda: comm.broadcast(X, root=0, algorithm="flat"),
        "started": lambda: comm.ibroadcast(X, root=0, algorithm="flat").wait(),
        "planned": planned,
    }[way]
    comm.barrier(timeout=60)
    told, error = "", None
    if comm.rank:
        with pytest.raises((StallError, PeerAbortedError)) as caught:
            call()
        told, error = str(caught.value), caught.type
    told = world.mpi.allgather((told, error))
    assert any(kind is StallError for _, kind in told[1:])
    for text, _ in told[1:]:
        assert re.search(
            rf"broadcast 'flat' on {comm.size} ranks, root 0: rank \d+ timed out after 0.4 s: "
            r"round 1, segment 1 of 1 waits for rank 0 to send \(call 2; .*"
            r"rank 0 \(process \d+\) has left call 1, barrier\(",
            text,
        ), text
    # A rank that comes later hears of it.
    with pytest.raises((PeerAbortedError, CommunicatorError), match=r"StallError|is broken: rank"):
        comm.broadcast(X, root=0, algorithm="flat")


def test_a_warning_that_is_an_error(world, fresh, environ):
    """It ends the call, and the others hear of it."""
    with environ(COLLECTIVES_STALL_WARNING="0.1"):
        comm = fresh(validate=False, timeout=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if comm.rank == 0:
            with pytest.raises(StallWarning, match="rank 0 has waited"):
                comm.allreduce(X)
    world.mpi.Barrier()
    if comm.rank:
        with pytest.raises(PeerAbortedError, match="rank 0 gave up: it was interrupted in"):
            comm.allreduce(X)


def test_a_fold_that_raises(world, fresh):
    """The others hear what it said."""
    comm = fresh(validate=False, timeout=10.0)

    def fold(left, right):
        if comm.rank == comm.size - 1:
            raise ValueError("this fold is unlucky")
        right += left

    def calls():
        op = cc.reduction(fold, name="unlucky", commutative=True)
        comm.allreduce(X, op=op, algorithm="all_to_all")
        comm.barrier()

    with pytest.raises((ValueError, PeerAbortedError), match="this fold is unlucky"):
        calls()


def test_no_room_for_a_segment(world, environ, monkeypatch):
    """The first rank of the host says so, once, and everything goes through MPI."""
    monkeypatch.setattr(segment, "_has_warned", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with environ(COLLECTIVES_SHM_LIMIT="1"):
            comms = [cc.Communicator() for _ in range(3)]
    for comm in comms:
        assert comm.transport != "shm"
        assert (comm.allreduce(X) == comm.size).all()
        comm.free()
    told = [str(each.message) for each in caught if each.category is SharedMemoryWarning]
    assert {each.filename for each in caught} <= {__file__}
    assert len(told) == (world.comm.rank == 0)
    for text in told:
        assert re.fullmatch(
            r"the ranks of this host cannot share memory and communicate through MPI, which is "
            r"slower: rank 0: the segments of this process would have more than 1 bytes "
            r"\(COLLECTIVES_SHM_LIMIT\)",
            text,
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLLECTIVES_SHM", "perhaps"),
        ("COLLECTIVES_SHM_LANE", "many"),
        ("COLLECTIVES_SHM_LIMIT", "-1"),
        ("COLLECTIVES_SHM_READS", "yes"),
        ("COLLECTIVES_SHM_STORES", "fast"),
        ("COLLECTIVES_STALL_WARNING", "soon"),
        ("COLLECTIVES_PROGRESS", "yes"),
    ],
)
def test_what_is_wrong_in_the_environment(world, environ, name, value):
    """All ranks are told; nobody is left waiting."""
    with environ(**{name: value}), pytest.raises(cc.errors.ArgumentError, match=f"{name} is '"):
        cc.Communicator()
    world.mpi.Barrier()
