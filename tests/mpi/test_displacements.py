"""Vector forms whose parts do not lie one after the other (`displs`)."""

import numpy as np
import pytest

from collectives.errors import ArgumentError, BufferError, MismatchError

GAP = -1


def layout(p, order="backwards"):
    """Return counts, displacements and the elements that an array with these parts needs."""
    counts = [(2 * r + 1) % 4 for r in range(p)]
    starts = np.zeros(p, int)
    at = 1
    for r in reversed(range(p)) if order == "backwards" else range(p):
        starts[r] = at
        at += counts[r] + 1
    return counts, starts.tolist(), at


def part(source, n):
    return np.arange(n) + 100 * source


def scattered(parts, starts, total):
    whole = np.full(total, GAP)
    for values, start in zip(parts, starts, strict=True):
        whole[start : start + len(values)] = values
    return whole


@pytest.mark.parametrize("start", [False, True])
def test_allgatherv(group, start):
    """Each rank has its own displacements, or none."""
    comm, p, rank = group.comm, group.comm.size, group.comm.rank
    counts, starts, total = layout(p, "backwards" if rank % 2 else "forwards")
    parts = [part(r, n) for r, n in enumerate(counts)]
    call = comm.iallgatherv if start else comm.allgatherv
    for told in (counts, None):
        out = np.full(total, GAP)
        got = call(parts[rank], out, counts=told, displs=starts)
        assert (got.wait() if start else got) is out
        np.testing.assert_array_equal(out, scattered(parts, starts, total))
    out = np.full(total, GAP) if rank == 0 else None
    got = comm.allgatherv(parts[rank], out, displs=starts if rank == 0 else None)
    want = scattered(parts, starts, total) if rank == 0 else np.concatenate(parts)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("start", [False, True])
def test_gatherv(either, start):
    comm, p, rank = either.comm, either.comm.size, either.comm.rank
    counts, starts, total = layout(p)
    parts = [part(r, n) for r, n in enumerate(counts)]
    for root in range(p):
        mine = rank == root
        out = np.full(total, GAP) if mine else None
        told = {"counts": counts, "displs": starts} if mine else {}
        got = (comm.igatherv if start else comm.gatherv)(parts[rank], out, root=root, **told)
        got = got.wait() if start else got
        assert got is out
        if mine:
            np.testing.assert_array_equal(out, scattered(parts, starts, total))


@pytest.mark.parametrize("start", [False, True])
def test_scatterv(either, start):
    comm, p, rank = either.comm, either.comm.size, either.comm.rank
    counts, starts, total = layout(p)
    parts = [part(r, n) for r, n in enumerate(counts)]
    for root in range(p):
        mine = rank == root
        x = scattered(parts, starts, total) if mine else None
        out = np.full(counts[rank], GAP)
        told = {"counts": counts, "displs": starts} if mine else {}
        got = (comm.iscatterv if start else comm.scatterv)(x, out, root=root, **told)
        assert (got.wait() if start else got) is out
        np.testing.assert_array_equal(out, parts[rank])


def test_parts_that_overlap_where_they_are_read(either):
    """All ranks may get the same elements."""
    comm = either.comm
    x = np.arange(5.0) if comm.rank == 0 else None
    told = {"counts": [3] * comm.size, "displs": [1] * comm.size} if comm.rank == 0 else {}
    np.testing.assert_array_equal(comm.scatterv(x, np.empty(3), **told), [1, 2, 3])


@pytest.mark.parametrize("start", [False, True])
def test_alltoallv(group, start):
    comm, p, rank = group.comm, group.comm.size, group.comm.rank
    table = [[(s + 2 * d) % 3 for d in range(p)] for s in range(p)]
    sent, got = table[rank], [table[s][rank] for s in range(p)]
    starts = [4 * (p - 1 - d) + 1 for d in range(p)]  # backwards, with gaps
    x = scattered([part(10 * rank + d, n) for d, n in enumerate(sent)], starts, 4 * p)
    want = scattered([part(10 * s + rank, n) for s, n in enumerate(got)], starts, 4 * p)
    call = comm.ialltoallv if start else comm.alltoallv
    for told in (got, None):
        out = np.full(4 * p, GAP)
        result = call(x, sent, out, receive_counts=told, displs=starts, receive_displs=starts)
        assert (result.wait() if start else result) is out
        np.testing.assert_array_equal(out, want)
    packed = np.concatenate([part(10 * rank + d, n) for d, n in enumerate(sent)])
    got = comm.alltoallv(x, sent, displs=starts)
    np.testing.assert_array_equal(got, comm.alltoallv(packed, sent))


def test_as_mpi_does_it(world):
    comm, mpi, p, rank = world.comm, world.mpi, world.comm.size, world.comm.rank
    counts, starts, total = layout(p)
    mine = part(rank, counts[rank])
    ours, theirs = np.full(total, GAP), np.full(total, GAP)
    comm.allgatherv(mine, ours, counts=counts, displs=starts)
    mpi.Allgatherv(mine, [theirs, counts, starts, None])
    np.testing.assert_array_equal(ours, theirs)
    told = {"counts": counts, "displs": starts} if rank == 0 else {}
    ours, theirs = np.empty(counts[rank], int), np.empty(counts[rank], int)
    x = np.arange(total)
    comm.scatterv(x if rank == 0 else None, ours, **told)
    mpi.Scatterv([x, counts, starts, None] if rank == 0 else None, theirs)
    np.testing.assert_array_equal(ours, theirs)


def test_a_request_that_is_tested_only(world):
    """The parts of a complete call are in their places, though nobody has waited."""
    comm = world.comm
    counts, starts, total = layout(comm.size)
    out = np.full(total, GAP)
    request = comm.iallgatherv(part(comm.rank, counts[comm.rank]), out, displs=starts)
    while not request.test():
        pass
    parts = [part(r, n) for r, n in enumerate(counts)]
    np.testing.assert_array_equal(out, scattered(parts, starts, total))


def test_in_place(world):
    """The input may be any part of the output: all is read before that is written."""
    comm = world.comm
    counts, starts, total = layout(comm.size)
    parts = [part(r, n) for r, n in enumerate(counts)]
    out = np.full(total, GAP)
    x = out[: counts[comm.rank]]
    x[:] = parts[comm.rank]
    comm.allgatherv(x, out, counts=counts, displs=starts)
    want = scattered(parts, starts, total)
    np.testing.assert_array_equal(out[want != GAP], want[want != GAP])


def test_what_is_not_looked_at(world):
    """Displacements of other ranks than the root, and of empty parts, mean nothing."""
    comm, p, rank = world.comm, world.comm.size, world.comm.rank
    out = np.empty(p) if rank == 0 else None
    comm.gatherv(np.ones(1), out, displs=list(range(p)) if rank == 0 else "nonsense")
    counts = [0] * p
    assert comm.allgatherv(np.empty(0), np.empty(0), counts=counts, displs=[99] * p).size == 0


BAD = {
    "displs is 3, and must be a sequence of": 3,
    "displs is .*, and must be .* numbers of elements, one for each": [0],
    "displs is .*, none of them negative": None,
    r"displs is .*, and with 2 elements from 99 on, part 0 ends outside of out, which has": 99,
}


@pytest.mark.parametrize("text", BAD)
def test_wrong_displacements(world, text):
    comm, p = world.comm, world.comm.size
    starts = BAD[text]
    if starts == [0]:
        starts = [0] * (p + 1)
    elif starts is None:
        starts = [-1] * p
    elif starts == 99:
        starts = [99, *range(0, 2 * p - 2, 2)]
    with pytest.raises(ArgumentError, match=f"(?s){text}"):
        comm.allgatherv(np.ones(2), np.empty(2 * p), counts=[2] * p, displs=starts)
    comm.barrier()


@pytest.mark.several
def test_parts_that_overlap_where_they_are_written(world):
    comm, p = world.comm, world.comm.size
    with pytest.raises(ArgumentError, match=r"displs is .* the parts 0 and 1 of out overlap"):
        comm.allgatherv(np.ones(2), np.empty(2 * p), counts=[2] * p, displs=range(p))
    with pytest.raises(ArgumentError, match=r"receive_displs is .* the parts 0 and 1 of out over"):
        comm.alltoallv(np.ones(2 * p), [2] * p, np.empty(2 * p), receive_displs=range(p))
    comm.barrier()


def test_nothing_to_be_placed_in(world):
    comm, p = world.comm, world.comm.size
    with pytest.raises(ArgumentError, match="displs says where parts begin in out, and out is Non"):
        comm.allgatherv(np.ones(1), displs=range(p))
    with pytest.raises(ArgumentError, match="receive_displs says where parts begin in out, and"):
        comm.alltoallv(np.ones(p), [1] * p, receive_displs=range(p))
    with pytest.raises(
        ArgumentError if comm.rank == 0 else MismatchError, match="displs says where parts begin in"
    ):
        comm.gatherv(np.ones(1), displs=range(p))
    comm.barrier()


def test_outputs_are_checked(world):
    comm, p = world.comm, world.comm.size
    for out, text in (
        (np.empty(p, np.float32), "out is float32 and x is float64; they must be equal"),
        (np.empty(4 * p)[::2], "out is not C-contiguous"),
    ):
        with pytest.raises(BufferError, match=text):
            comm.allgatherv(np.ones(1), out, displs=range(p))
    comm.barrier()
