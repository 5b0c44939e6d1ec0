"""Collectives between neighbours of accelerated communicators, held against those of MPI."""

import numpy as np
import pytest
from mpi4py import MPI

from collectives.mpi4py import Served, accelerate, communicators

UNSET = 77


@pytest.fixture(scope="module", params=["1", "0"], ids=["validated", "unvalidated"])
def comm(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_VALIDATE", request.param)
        made = accelerate(MPI.COMM_WORLD.Dup())
        yield made
        made.Free()


def topologies(comm):
    """Yield communicators with grids, graphs, and a graph in which ranks send to one side only."""
    p, rank = comm.size, comm.rank
    yield comm.Create_cart([p], [True])
    yield comm.Create_cart([p], [False])
    yield comm.Create_cart(MPI.Compute_dims(p, 2), [False, True])
    ring = [r for q in range(p) for r in ((q - 1) % p, (q + 1) % p)]
    yield comm.Create_graph(range(2, 2 * p + 1, 2), ring)
    yield comm.Create_dist_graph_adjacent([(rank - 1) % p], [(rank + 1) % p])
    if "Open MPI" in MPI.Get_library_version():  # which fails where a rank has no neighbour
        return
    last = [] if rank == p - 1 else [rank + 1]
    yield comm.Create_dist_graph_adjacent([rank - 1] if rank else [], last)
    alone = [rank] if rank else []
    yield comm.Create_dist_graph_adjacent(alone, alone)


def each(comm):
    """Yield every topology with MPI's own communicator of the same, and the numbers of blocks."""
    for near in topologies(comm):
        kinds = {MPI.CART: MPI.Cartcomm, MPI.GRAPH: MPI.Graphcomm}
        plain = kinds.get(near.Get_topology(), MPI.Distgraphcomm)(near)
        yield near, plain, near.indegree, near.outdegree
        near.Free()


def both(near, plain, name, sent, before, spec=lambda out: out):
    """Run a call here and in MPI, which receive into copies of an array by a specification."""
    wanted = before.copy()
    getattr(plain, name)(sent, spec(wanted))
    out = before.copy()
    getattr(near, name)(sent, spec(out))
    np.testing.assert_array_equal(out, wanted)
    later = f"I{name.lower()}"
    out = before.copy()
    getattr(near, later)(sent, spec(out)).Wait()
    np.testing.assert_array_equal(out, wanted)
    names = [name, later] if runs_requests() else [name]
    if hasattr(near, f"{name}_init"):
        out = before.copy()
        request = getattr(near, f"{name}_init")(sent, spec(out))
        for _ in range(2):
            out[...] = before
            request.Start()
            request.Wait()
            np.testing.assert_array_equal(out, wanted)
        request.Free()
        names += [f"{name}_init"] * runs_requests()
    for each in names:
        assert near.served()[each].mpi == 0
        assert near.served()[each].here > 0


def runs_requests():
    """Say whether a thread may move requests on."""
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


@pytest.mark.parametrize("n", [1, 3000])
def test_equal_blocks(comm, n):
    for near, plain, ends, starts in each(comm):
        x = np.arange(starts * n) + 1000 * comm.rank
        both(near, plain, "Neighbor_alltoall", x, np.full(ends * n, UNSET))
        x = np.arange(n) + 1000 * comm.rank
        both(near, plain, "Neighbor_allgather", x, np.full((ends, n), UNSET))


# The arguments of calls of one number for each of `n` neighbours, which receive into `y`.
CALLS = {
    "Neighbor_alltoall": lambda n, x, y: (x, y),
    "Neighbor_alltoallv": lambda n, x, y: ([x, [1] * n], [y, [1] * n]),
    "Neighbor_alltoallw": lambda n, x, y: tuple(
        [each, ([1] * n, list(range(0, 8 * n, 8))), [MPI.LONG] * n] for each in (x, y)
    ),
    "Neighbor_allgather": lambda n, x, y: (x[:1], y),
    "Neighbor_allgatherv": lambda n, x, y: (x[:1], [y, [1] * n]),
}
WAYS = {
    "made": lambda near: near,
    "duplicate": lambda near: near.Dup(),
    "clone": lambda near: near.Clone(),
    "part": lambda near: near.Sub([True] * near.ndim),
    "accelerated": lambda near: accelerate(MPI.Cartcomm(near).Dup()),
}


@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "made") for name in CALLS), *(("Neighbor_alltoall", way) for way in WAYS)][1:],
)
def test_first_calls_on_short_periodic_grids(comm, monkeypatch, name, form, way):
    """A block that is sent to the left comes from the right, also if both are one rank; some MPIs
    exchange the blocks then.
    """
    monkeypatch.setattr(communicators, "FIRST", 3)
    for dims in ([comm.size], [comm.size, 1], [1, comm.size], MPI.Compute_dims(comm.size, 2)):
        grid = comm.Create_cart(dims, [True] * len(dims))
        near = WAYS[way](grid)
        ends = [rank for dim in range(len(dims)) for rank in near.Shift(dim, 1)]
        x = 100 * near.rank + np.arange(len(ends))
        y = np.full(len(ends), UNSET)
        called = {"blocking": name, "nonblocking": f"I{name.lower()}", "persistent": f"{name}_init"}
        if not hasattr(near, called[form]):
            pytest.skip("this MPI has no such call")
        request = getattr(near, called[form])(*CALLS[name](len(ends), x, y))
        if form == "persistent":
            request.Start()
        if request is not None:
            request.Wait()
        if form == "persistent":
            request.Free()
        took = [0 if "allgather" in name else k ^ 1 for k in range(len(ends))]
        if form == "blocking" or runs_requests():
            assert y.tolist() == [100 * rank + k for rank, k in zip(ends, took, strict=True)]
            assert near.served() == {called[form]: Served(1, 0)}
        if near is not grid:
            near.Free()
        grid.Free()


def test_sends_more_than_it_receives(comm):
    """If all send to one side, a rank may pass on another number of elements than it gets."""
    p, rank = comm.size, comm.rank
    last = [] if rank == p - 1 else [rank + 1]
    near = comm.Create_dist_graph_adjacent([rank - 1] if rank else [], last)
    x, out = np.full(rank + 1, rank), np.full(rank, UNSET)
    near.Neighbor_alltoall(x[: len(x) * len(last)], out)
    assert (out == rank - 1).all()
    out[:] = UNSET
    near.Neighbor_allgather(x, out)
    assert (out == rank - 1).all()
    near.Free()


def test_vectors_with_displacements(comm):
    for near, plain, ends, starts in each(comm):
        x = np.arange(10 * starts + 3, dtype=np.int32) + 1000 * comm.rank
        places, goals = np.arange(starts) * 10, np.arange(ends)[::-1] * 4
        before = np.full(4 * ends, UNSET, np.int32)

        def spec(out, ends=ends, goals=goals):
            return [out, ([3] * ends, goals)]

        both(near, plain, "Neighbor_alltoallv", [x, ([3] * starts, places)], before, spec)
        both(near, plain, "Neighbor_allgatherv", x[:3], before, spec)


def test_derived_datatypes(comm):
    """Columns of a matrix are sent, and received into columns."""
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Create_resized(0, 8).Commit()
    near = comm.Create_cart([comm.size], [True])
    u, before = np.arange(12.0).reshape(4, 3) + 100 * comm.rank, np.full((4, 3), float(UNSET))

    def spec(out):
        return [out, 1, column]

    both(near, MPI.Cartcomm(near), "Neighbor_alltoall", spec(u), before, spec)
    near.Free()
    column.Free()


def test_datatypes_of_each_block(comm):
    for near, plain, ends, starts in each(comm):
        x = np.arange(4.0 * starts) + 1000 * comm.rank
        sent = [x, ([4] * starts, [32 * k for k in range(starts)]), [MPI.DOUBLE] * starts]

        def spec(out, ends=ends):
            goals = [40 * k + 8 for k in range(ends)]
            return [out, ([4] * ends, goals), [MPI.DOUBLE] * ends]

        both(near, plain, "Neighbor_alltoallw", sent, np.full(5 * ends, float(UNSET)), spec)


def test_no_datatype_of_no_elements(comm):
    """Ranks at the ends of a row have none for the neighbour that they lack."""
    near = comm.Create_cart([comm.size], [False])
    ends = near.Shift(0, 1)
    counts = [int(rank != MPI.PROC_NULL) for rank in ends]
    kinds = [MPI.INT if n else MPI.DATATYPE_NULL for n in counts]
    x, y = np.full(2, comm.rank, "i4"), np.full(2, UNSET, "i4")
    near.Neighbor_alltoallw(*([each, (counts, [0, 4]), kinds] for each in (x, y)))
    assert y.tolist() == [rank if n else UNSET for rank, n in zip(ends, counts, strict=True)]
    assert near.served()["Neighbor_alltoallw"].here == 1
    near.Free()


def test_wrong_datatypes_of_each_block(comm):
    near = comm.Create_cart([comm.size], [True])
    x, kinds = np.zeros(2), [MPI.DOUBLE] * 2
    for text, sent in (
        ("sendbuf has 1 counts, 2 displacements and 2 data", [x, ([1], [0, 8]), kinds]),
        ("sendbuf has a negative displacement, -8", [x, ([1, 1], [0, -8]), kinds]),
        ("cannot map 'nonsense' to MPI datatype", [x, ([1, 1], [0, 8]), ["d", "nonsense"]]),
    ):
        with pytest.raises((ValueError, KeyError), match=text):
            near.Neighbor_alltoallw(sent, [x, ([1, 1], [0, 8]), kinds])
    near.Free()


def test_objects(comm):
    for near, plain, ends, starts in each(comm):
        mine = {"rank": comm.rank, "text": "x" * comm.rank}
        assert near.neighbor_allgather(mine) == plain.neighbor_allgather(mine)
        mine = [(comm.rank, k) for k in range(starts)]
        got = near.neighbor_alltoall(mine)
        assert got == plain.neighbor_alltoall(mine)
        assert len(got) == ends
        with pytest.raises(ValueError, match=f"expecting {starts} items, got {starts + 1}"):
            near.neighbor_alltoall([*mine, None])


def test_served_counts_what_ran_here(comm):
    near = comm.Create_cart([comm.size], [True])
    assert near.neighbor_allgather(comm.rank) == [(comm.rank + k) % comm.size for k in (-1, 1)]
    x = np.zeros(2)
    near.Neighbor_alltoall(x, np.empty(2))
    near.Neighbor_alltoall([x, MPI.DOUBLE], np.empty(2))
    assert near.served() == {
        "Neighbor_alltoall": Served(2, 0),
        "neighbor_allgather": Served(1, 0),
    }
    near.Free()
