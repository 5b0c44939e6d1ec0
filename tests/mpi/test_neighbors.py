"""Collectives between neighbours, of grids and of graphs."""

import random

import numpy as np
import pytest
from cases import FULL, LARGE
from mpi4py import MPI

from collectives.calls import neighbors
from collectives.check import check
from collectives.errors import ArgumentError, BufferError, MismatchError, UnsupportedTypeError

UNSET = 7  # what no block has


@pytest.fixture(autouse=True)
def works_afterwards(world):
    yield
    assert (world.comm.allreduce(np.ones(3)) == world.comm.size).all()


def grids(p):
    """Return dims and periods, with open ends, rings, and dimensions of one and two places."""
    found = [((p,), (False,)), ((p,), (True,)), ((1, p), (True, False)), ((p, 1), (True, True))]
    found += [((2, p // 2), (True, False)), ((p // 2, 2), (True, True))] * (p % 2 == 0)
    return found


def block(r, k, n, dtype=np.int64):
    """Return what rank `r` sends to its destination number `k`."""
    return (np.arange(n) + 1000 * r + 100 * k + 8).astype(dtype)


def random_lists(p, seed):
    """Return the sources and destinations of all ranks of a graph, with repetitions and loops."""
    rng = random.Random(seed)
    arrows = [(rng.randrange(p), rng.randrange(p)) for _ in range(rng.randrange(4 * p))]
    sources, destinations = [[] for _ in range(p)], [[] for _ in range(p)]
    for s, d in arrows:
        destinations[s].append(d)
    for s, d in rng.sample(arrows, len(arrows)):
        sources[d].append(s)
    return sources, destinations


def senders(topology):
    """Return, for each source of this rank, its number and the slot in which it sends."""
    near = topology._neighborhood
    found = {}
    for s in range(near.size):
        for k, (d, slot) in enumerate(zip(near.destinations[s], near.arrivals[s], strict=True)):
            if d == topology.comm.rank:
                found[slot] = s, k
    assert [found.get(k, (None, 0))[0] for k in range(len(topology.sources))] == list(
        topology.sources
    )
    return [found.get(k) for k in range(len(topology.sources))]


def verify(topology, n, dtype=np.int64):
    """Run both collectives, into arrays of the caller and into new ones."""
    comm, here = topology.comm, senders(topology)
    ends, near = len(topology.sources), len(topology.destinations)
    x = block(comm.rank, 0, n, dtype)
    unset = np.full(n, UNSET, dtype)
    wanted = np.array([unset if each is None else block(each[0], 0, n, dtype) for each in here])
    out = np.full((ends, n), UNSET, dtype)
    assert topology.neighbor_allgather(x, out) is out
    assert out.tobytes() == wanted.tobytes()
    blank = np.array([np.zeros(n) if each is None else block(each[0], 0, n) for each in here])
    new = topology.neighbor_allgather(x)
    np.testing.assert_array_equal(new, blank.reshape(ends, n).astype(dtype))
    x = np.array([block(comm.rank, k, n, dtype) for k in range(near)], dtype).reshape(near, n)
    wanted = np.array([unset if each is None else block(*each, n, dtype) for each in here])
    out = np.full((ends, n), UNSET, dtype)
    assert topology.neighbor_alltoall(x, out) is out
    assert out.tobytes() == wanted.tobytes()
    started = np.full((ends, n), UNSET, dtype)
    request = topology.ineighbor_alltoall(x, started)
    planned = topology.plan("neighbor_alltoall", x, np.full((ends, n), UNSET, dtype))
    assert request.wait() is started
    for got in (started, planned(), planned()):
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("n", [0, 1, 11, 1009, LARGE if FULL else LARGE // 2])
def test_on_grids(either, n):
    for dims, periods in grids(either.comm.size):
        grid = either.comm.cart(dims, periods)
        verify(grid, n)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "complex128"])
def test_dtypes(world, dtype):
    verify(world.comm.cart(world.comm.size, True), 5, dtype)


def test_on_parts_of_the_world(group):
    verify(group.comm.cart((0, 0), (True, False)), 17)


@pytest.mark.parametrize("seed", range(6))
def test_on_graphs(either, seed):
    sources, destinations = random_lists(either.comm.size, seed)
    rank = either.comm.rank
    graph = either.comm.graph(sources[rank], destinations[rank])
    assert graph.sources == tuple(sources[rank])
    assert graph.destinations == tuple(destinations[rank])
    for n in (0, 3, 20000):
        verify(graph, n)


def test_a_graph_without_neighbours(world):
    graph = world.comm.graph([], [])
    assert graph.neighbor_alltoall(np.ones(0), np.ones(0)).shape == (0,)
    assert graph.neighbor_allgather(np.ones(3)).shape == (0, 3)


def test_only_some_have_neighbours(world):
    """Those who have none make the call, and need not know how long the blocks of others are."""
    comm = world.comm
    ring = [comm.rank] if comm.rank else []
    graph = comm.graph(ring, ring)
    x = np.full((len(ring), 3000), comm.rank)
    assert graph.neighbor_alltoall(x, np.empty_like(x)).tolist() == x.tolist()


def test_blocks_for_a_neighbour_on_both_sides(world):
    """A block for the rank before arrives as the block from the rank after."""
    comm = world.comm
    ring = comm.cart((comm.size,), True)
    before, after = ring.neighbor_alltoall(np.array([[comm.rank, -1], [comm.rank, 1]]))
    assert before.tolist() == [(comm.rank - 1) % comm.size, 1]
    assert after.tolist() == [(comm.rank + 1) % comm.size, -1]


def test_agrees_with_mpi(world):
    comm = world.comm
    ours = comm.cart((0, 0), (True, False))
    theirs = MPI.Intracomm(world.mpi).Create_cart(ours.dims, ours.periods)
    assert ours.dims == tuple(MPI.Compute_dims(comm.size, 2))
    assert ours.coords == tuple(theirs.coords)
    for r in range(comm.size):
        assert ours.coords_of(r) == tuple(theirs.Get_coords(r))
        assert ours.rank_of(ours.coords_of(r)) == r
    for dim in range(2):
        for by in (1, -1, 2, 5):
            wanted = [None if r == MPI.PROC_NULL else r for r in theirs.Shift(dim, by)]
            assert list(ours.shift(dim, by)) == wanted
    x = np.arange(5.0) + comm.rank
    got, wanted = np.full((2, 4, 5), -1.0)
    theirs.Neighbor_allgather(x, wanted)
    ours.neighbor_allgather(x, got)
    np.testing.assert_array_equal(got, wanted)
    x = np.arange(8.0) + 10 * comm.rank
    got, wanted = np.full((2, 4, 2), -1.0)
    theirs.Neighbor_alltoall(x, wanted)
    ours.neighbor_alltoall(x, got)
    np.testing.assert_array_equal(got, wanted)
    theirs.Free()


@pytest.mark.parametrize("gives", ["counts", "nothing"])
@pytest.mark.parametrize("with_places", [False, True])
def test_vector_forms(either, gives, with_places):
    """The length of a block depends on who sends it, and in which slot."""
    comm = either.comm
    topologies = [comm.cart(dims, periods) for dims, periods in grids(comm.size)]
    for seed in range(4):
        lists = random_lists(comm.size, seed)
        topologies.append(comm.graph(lists[0][comm.rank], lists[1][comm.rank]))
    for topology in topologies:
        check_vectors(topology, gives == "counts", with_places)


def check_vectors(topology, counts_given, with_places):
    comm, here = topology.comm, senders(topology)
    length = lambda r, k: (3 * r + 5 * k) % 7 * 50  # noqa: E731
    sent = [length(comm.rank, k) for k in range(len(topology.destinations))]
    x = np.concatenate([[0], *(block(comm.rank, k, n) for k, n in enumerate(sent))])[1:]
    received = [4 if each is None else length(*each) for each in here]
    wanted = [None if each is None else block(*each, length(*each)) for each in here]
    options = {"receive_counts": received} if counts_given else {}
    starts = np.cumsum([0, *received])[:-1]
    if with_places:  # in reversed order, with gaps
        starts = sum(received) + len(received) - np.cumsum(received) - np.arange(len(received)) - 1
        options["receive_displs"] = starts
    elif not counts_given:  # then there is no block of a source that is None
        starts = np.cumsum(
            [0, *(0 if each is None else n for each, n in zip(here, received, strict=True))]
        )
    out = np.full(sum(received) + len(received), UNSET)
    if not with_places:
        out = out[: sum(received) if counts_given else starts[-1]]
    assert topology.neighbor_alltoallv(x, sent, out, **options) is out
    again = np.full_like(out, UNSET)
    assert topology.ineighbor_alltoallv(x, sent, again, **options).wait() is again
    np.testing.assert_array_equal(again, out)
    for each, start in zip(wanted, starts, strict=False):
        if each is not None:
            np.testing.assert_array_equal(out[start : start + len(each)], each)
    if with_places:
        assert (out == UNSET).sum() == len(out) - sum(len(w) for w in wanted if w is not None)
    lengths = [4 if each is None else length(each[0], 0) for each in here]
    mine = block(comm.rank, 0, length(comm.rank, 0))
    total = [block(each[0], 0, n) for each, n in zip(here, lengths, strict=True) if each]
    got = topology.neighbor_allgatherv(mine)
    np.testing.assert_array_equal(got, np.concatenate([[0], *total])[1:])
    got = topology.ineighbor_allgatherv(mine, counts=lengths).wait()
    assert len(got) == sum(lengths)


def test_arrays_of_any_kind(world):
    """Columns of a matrix of one dtype, and vectors of another, in one call."""
    comm = world.comm
    grid = comm.cart((comm.size,))
    u = np.full((4, 5), float(comm.rank))
    notes = np.array([comm.rank], np.int8)
    out = np.full(1, -1, np.int8)
    result = grid.neighbor_alltoallw([u[:, 1], notes], [out, u[:, -1]])
    assert result[0] is out
    assert out == [comm.rank - 1]
    expected = comm.rank + 1 if comm.rank + 1 < comm.size else comm.rank
    assert (u[:, -1] == expected).all()
    assert (u[:, :-1] == comm.rank).all()


def test_arrays_of_any_kind_later(world):
    comm = world.comm
    ring = comm.cart(comm.size, True)
    u = np.zeros((3, 4))
    request = ring.ineighbor_alltoallw(
        [np.full(3, comm.rank + 0.5), np.full(2, comm.rank)], [u[0, :2].view(np.int64), u[:, 3]]
    )
    request.wait()
    assert (u[0, :2].view(np.int64) == (comm.rank - 1) % comm.size).all()
    assert (u[:, 3] == (comm.rank + 1) % comm.size + 0.5).all()


def test_many_in_flight(world):
    ring = world.comm.cart(world.comm.size, True)
    requests = [ring.ineighbor_allgather(np.full(n, n)) for n in range(40)]
    random.Random(world.comm.rank).shuffle(requests)
    for request in requests:
        got = request.wait()
        assert (got == got.shape[1]).all()


def test_in_place_the_input_is_copied(world):
    ring = world.comm.cart(world.comm.size, True)
    x = np.array([[world.comm.rank, -1], [world.comm.rank, 1]])
    wanted = ring.neighbor_alltoall(x)
    assert ring.neighbor_alltoall(x, x) is x
    np.testing.assert_array_equal(x, wanted)


def test_the_algorithms_are_proven(world):
    comm = world.comm
    for dims, periods in grids(comm.size):
        grid = comm.cart(dims, periods)
        for name in (neighbors.ALLGATHER, neighbors.ALLTOALL):
            proof = check(grid.algorithm(name), p=comm.size)
            assert proof.depth == (comm.size > 1)


# -- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "periods", "text"),
    [
        (-1, False, "dims is -1, and must have no negative number"),
        ("ab", False, "dims is 'ab', and must be a sequence of integers"),
        ((17, 19), False, "dims is \\(17, 19\\), which is a grid of 323 ranks"),
        ((0, 0), [True], "periods is \\[True\\], and must be a bool, or 2"),
    ],
)
def test_wrong_grids(world, dims, periods, text):
    with pytest.raises(ArgumentError, match=text):
        world.comm.cart(dims, periods)


def test_wrong_neighbours(world):
    p = world.comm.size
    with pytest.raises(ArgumentError, match=rf"sources\[1\] is {p}, and must be .* 0..{p - 1}"):
        world.comm.graph([0, p], [])


def test_different_grids(world):
    comm = world.comm
    if comm.size == 1:
        return
    with pytest.raises(MismatchError, match=r"rank 0 called cart\(dims=.*, periods=\(True,\)\)"):
        comm.cart(comm.size, comm.rank == 0)


def test_a_neighbour_that_does_not_know_it(world):
    comm = world.comm
    if comm.size == 1:
        return
    text = (
        "rank 0 lists rank 1 as a destination 2 times, but rank 1 lists rank 0 as a source 1 time"
    )
    with pytest.raises(MismatchError, match=text):
        comm.graph([0] * (comm.rank == 1), [1, 1] * (comm.rank == 0))


def test_wrong_arrays(world):
    comm = world.comm
    ring = comm.cart(comm.size, True)
    with pytest.raises(ArgumentError, match="x has 3 elements, which 2 destinations cannot share"):
        ring.neighbor_alltoall(np.ones(3))
    with pytest.raises(BufferError, match="out has 5 elements, and the result has 4"):
        ring.neighbor_allgather(np.ones(2), np.ones(5))
    with pytest.raises(BufferError, match="out is float32 and x is float64"):
        ring.neighbor_allgather(np.ones(2), np.ones(4, np.float32))
    with pytest.raises(UnsupportedTypeError):
        ring.neighbor_allgather(np.array([{}]))
    with pytest.raises(ArgumentError, match=r"counts is .*one for each destination"):
        ring.neighbor_alltoallv(np.ones(2), [1, 1, 0])
    with pytest.raises(ArgumentError, match="arrays has 1 item, and must have 2"):
        ring.neighbor_alltoallw([np.ones(2)], [None, None])
    with pytest.raises(ArgumentError, match="must be 'neighbor_allgather' or 'neighbor_alltoall'"):
        ring.plan("allgather", np.ones(2))
    x = np.ones(2)
    with pytest.raises(BufferError, match="out overlaps x, and a planned call"):
        ring.plan("neighbor_alltoall", x, x)
    alone = comm.graph([], [])
    with pytest.raises(ArgumentError, match="x has 1 elements, and this rank has no destination"):
        alone.neighbor_alltoall(np.ones(1))


class OnDevice:
    """An object that looks like an array of CuPy."""

    __module__ = "cupy"
    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (3,),
        "typestr": "<f8",
        "data": (4096, False),
        "version": 3,
    }

    def __dlpack_device__(self):
        return 2, 0


def test_arrays_on_devices(world):
    ring = world.comm.cart(world.comm.size, True)
    text = "neighbor_allgather takes arrays in host memory, and x or out is on a device"
    with pytest.raises(BufferError, match=text):
        ring.neighbor_allgather(OnDevice())
    with pytest.raises(BufferError, match=text):
        ring.neighbor_allgather(np.ones(3), OnDevice())
    with pytest.raises(BufferError, match=text):
        ring.plan("neighbor_allgather", OnDevice())


def test_unknown_lengths(world):
    """A rank without destinations does not know how much comes."""
    comm = world.comm
    if comm.size == 1:
        return
    star = comm.graph([*range(1, comm.size)] * (comm.rank == 0), [0] * (comm.rank > 0))
    if comm.rank == 0:
        with pytest.raises(ArgumentError, match="out is None, and this rank has no destination"):
            star.neighbor_alltoall(np.empty(0))
    elif world.comm._engine.agree is not None:
        with pytest.raises(MismatchError, match="rank 0 refused neighbor_alltoall"):
            star.neighbor_alltoall(np.ones(2))


def test_different_lengths(world):
    comm = world.comm
    if comm.size == 1:
        return
    ring = comm.dup().cart(comm.size, True)
    with pytest.raises(MismatchError):
        ring.neighbor_allgather(np.ones(3 + (comm.rank == 0)))


def test_what_each_rank_called_is_said(world, environ):
    """Ranks that share memory compare calls, also without the agreement before each call."""
    with environ(COLLECTIVES_VALIDATE="0"):
        comm = world.comm.dup()
    if comm.size == 1 or comm._segment is None or comm.nodes > 1:
        return
    ring = comm.cart(comm.size, True)
    text = (
        r"rank 0 called neighbor_alltoall\(count=2, dtype=float64\); .* called allreduce\(count=3"
    )
    call, x = (comm.allreduce, np.ones(3)) if comm.rank else (ring.neighbor_alltoall, np.ones(4))
    with pytest.raises(MismatchError, match=text):
        call(x)


def test_other_counts_than_are_sent(world):
    comm = world.comm
    if comm.size == 1:
        return
    ring = comm.dup().cart(comm.size, True)
    with pytest.raises((MismatchError, ArgumentError)):
        ring.neighbor_alltoallv(np.ones(4), [2, 2], receive_counts=[1, 3])


@pytest.mark.parametrize("n", [3, 1_000_000])
def test_other_counts_than_a_rank_sends_to_itself(world, n):
    """It would read what lies behind its array."""
    comm = world.comm
    loop = comm.graph([comm.rank], [comm.rank])
    for wrong in (n + 1, n - 1):
        counts = rf"counts is \[{wrong}\], and rank {comm.rank} sends {n} elements here"
        with pytest.raises(ArgumentError, match=f"^receive_{counts}"):
            loop.neighbor_alltoallv(np.ones(n), [n], receive_counts=[wrong])
        with pytest.raises(ArgumentError, match=f"^{counts}"):
            loop.neighbor_allgatherv(np.ones(n), counts=[wrong])
        text = rf"arrays\[0\] has {8 * n} bytes and goes to out\[0\] of .* {8 * wrong}; they must"
        with pytest.raises(ArgumentError, match=text):
            loop.neighbor_alltoallw([np.ones(n)], [np.ones(wrong)])
        comm.barrier()
