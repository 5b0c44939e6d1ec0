"""gatherv and scatterv with counts that only the root knows, as in MPI."""

import contextlib

import numpy as np
import pytest
from forms import Gatherv, Scatterv

from collectives import _core
from collectives.errors import ArgumentError, MismatchError, PeerAbortedError, StallError

both = pytest.mark.parametrize("form", [Gatherv, Scatterv])
ends = pytest.mark.parametrize("start", [False, True])


def told(case, comm):
    """Return the counts on the root, and None elsewhere."""
    return case.counts if comm.rank == case.root else None


@both
@ends
def test_on_the_root_only(either, form, start):
    comm = either.comm
    for root in range(comm.size):
        for turn, n in enumerate((0, 1, 2, 300, 20_000)):
            case = form(comm.size, n, dtype="int64", root=root, seed=turn)
            out = case.empty(comm.rank) if form is Scatterv or turn % 2 else None
            x = None if form is Scatterv and comm.rank != root else case.x(comm.rank)
            options = {"counts": told(case, comm), "root": root}
            got = getattr(comm, "i" * start + case.name)(x, out, **options)
            case.verify(got.wait() if start else got, comm.rank)


@both
def test_every_algorithm(either, form):
    comm = either.comm
    case = form(comm.size, 100, dtype="int32", root=comm.size - 1)
    for name in form.algorithms():
        case.verify(case.call(comm, counts=told(case, comm), algorithm=name), comm.rank)


@both
@ends
def test_on_some_other_ranks_too(either, form, start):
    """A rank that knows them may pass them."""
    comm = either.comm
    case = form(comm.size, 50, dtype="int64", root=comm.size // 2)
    knows = comm.rank == case.root or comm.rank % 2
    got = case.call(comm, counts=case.counts if knows else None, start=start)
    case.verify(got.wait() if start else got, comm.rank)


def test_parts_without_an_out(either):
    """A rank that knows neither its count nor anything else gets what the root says."""
    comm = either.comm
    counts = np.arange(comm.size)
    root = comm.rank == 0
    x = np.arange(counts.sum(), dtype=np.float32) if root else np.empty(0, np.float32)
    got = comm.scatterv(x, counts=counts if root else None)
    first = comm.rank * (comm.rank - 1) // 2
    np.testing.assert_array_equal(got, np.arange(first, first + comm.rank))


def test_as_mpi_does_it(world):
    comm, mpi = world.comm, world.mpi
    counts = np.arange(1, comm.size + 1, dtype=np.int32)
    x = np.full(comm.rank + 1, comm.rank)
    for root in range(comm.size):
        mine = comm.rank == root
        theirs = np.empty(counts.sum(), int) if mine else None
        mpi.Gatherv(x, [theirs, counts] if mine else None, root)
        got = comm.gatherv(x, counts=counts if mine else None, root=root)
        assert (got is None) == (theirs is None)
        np.testing.assert_array_equal(got, theirs)


@both
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.several
def test_nobody_waits_for_a_root_that_comes_later(plain, form, start):
    """A nonblocking call with counts returns at once, whatever the root does first."""
    comm = plain.comm
    case = form(comm.size, 3, dtype="int64")
    if comm.rank == 0:
        comm.recv(np.empty(1), comm.size - 1)
        request = case.call(comm, start=True)
    else:
        request = case.call(comm, start=True)
        if comm.rank == comm.size - 1:
            comm.send(np.ones(1), 0)
    if start:
        while not request.test():
            pass
    case.verify(request.wait(), comm.rank)
    case.verify(request.wait(), comm.rank)


@both
@pytest.mark.several
def test_a_wrong_length_on_one_rank(world, form):
    """The ranks that can know raise the error; under validation all do."""
    comm = world.comm
    counts, last = [2] * comm.size, comm.size - 1
    root = comm.rank == 0
    if form is Gatherv:
        text = "x has 3 elements and its counts say 2; they must be equal"
        x, out = np.ones(3 if comm.rank == last else 2), None
    else:
        text = "out has 3 elements, and the result has 2; they must be equal"
        x, out = np.ones(2 * comm.size) if root else None, np.ones(3 if comm.rank == last else 2)
    call = comm.gatherv if form is Gatherv else comm.scatterv
    if comm.rank == last:
        with pytest.raises(ArgumentError, match=text):
            call(x, out, counts=counts if root else None)
    else:
        with pytest.raises(MismatchError, match=rf"rank {last} refused "):
            call(x, out, counts=counts if root else None)
    comm.barrier()


@both
@pytest.mark.several
def test_other_counts_than_the_root_has(world, fresh, form):
    comm = fresh(validate=False, timeout=60.0)
    last = comm.size - 1
    case = form(comm.size, 1, dtype="int64")
    case.counts = np.full(comm.size, 2)
    other = case.counts.copy()
    other[0] += 1
    if comm.transport == "shm":

        def call():
            case.call(comm, counts=other if comm.rank == last else case.counts)
            comm.barrier()  # who waits for nobody hears of it in the next call

        text = f"do not agree: counts is not the same on rank {last} as on rank 0, the root; pass"
        with pytest.raises((MismatchError, PeerAbortedError), match=text):
            call()
    elif comm.rank == last:
        text = rf"counts is \[3.*\] on rank {last}, and \[2.*\] on rank 0, the root; pass the same"
        with pytest.raises(MismatchError, match=text):
            case.call(comm, counts=other)
    else:
        comm.timeout = 2.0
        with contextlib.suppress(StallError, PeerAbortedError):
            case.call(comm)
    world.mpi.Barrier()


@both
@pytest.mark.several
def test_not_on_the_root(world, fresh, form):
    """Counts on another rank than the root are an error on that rank at least."""
    comm = fresh(validate=False, timeout=60.0)
    last = comm.size - 1
    case = form(comm.size, 2, dtype="int64")
    if comm.transport == "shm":

        def call():
            case.call(comm, counts=case.counts if comm.rank == last else None)
            comm.barrier()  # who waits for nobody hears of it in the next call

        text = f"do not agree: counts is given on rank {last} and not on rank 0, the root; pass the"
        with pytest.raises((MismatchError, PeerAbortedError), match=text):
            call()
    elif comm.rank == last:
        with pytest.raises(MismatchError, match="and none on rank 0, the root; pass the same"):
            case.call(comm)
    else:
        comm.timeout = 2.0
        with contextlib.suppress(StallError, PeerAbortedError):
            case.call(comm, counts=None)
    world.mpi.Barrier()


@both
@ends
@pytest.mark.several
def test_the_root_knows_no_counts(plain, form, start):
    """It takes the lengths of the blocks, also of those for which no page has room."""
    comm = plain.comm
    for root in range(comm.size):
        for turn, n in enumerate((0, 1, 9, 10, 11, 20_000, 300_000)):
            case = form(comm.size, n, dtype="int64", root=root, seed=turn)
            x = None if form is Scatterv and comm.rank != root else case.x(comm.rank)
            got = getattr(comm, "i" * start + case.name)(x, case.empty(comm.rank), root=root)
            case.verify(got.wait() if start else got, comm.rank)


@pytest.mark.several
def test_a_wrong_length_without_validation(world, fresh):
    """The root of a gatherv, and the rank of a scatterv, see it with the block."""
    text = r"rank {}, round 1: got 8 bytes from rank {} where 16 were due"
    for form in (Gatherv, Scatterv):
        comm = fresh(validate=False, timeout=2.0)
        last, counts = comm.size - 1, [1] * comm.size
        if form is Gatherv:
            counts[last] = 2
            knows, other = 0, last
        else:
            knows, other = last, 0
        root = comm.rank == 0
        x = np.ones(comm.size if form is Scatterv else 1) if root or form is Gatherv else None
        out = np.ones(2 if comm.rank == last else 1) if form is Scatterv else None
        call = comm.gatherv if form is Gatherv else comm.scatterv
        if comm.transport == "shm" and comm.rank == knows:
            with pytest.raises(MismatchError, match=text.format(knows, other)):
                call(x, out, counts=counts if root else None)
        elif comm.rank == last and comm.transport != "shm":
            with pytest.raises((ArgumentError, BufferError), match="they must be equal"):
                call(x, out, counts=counts if root else None)
        else:
            with contextlib.suppress(StallError, PeerAbortedError, MismatchError):
                call(x, out, counts=counts if root else None)
        world.mpi.Barrier()


@pytest.mark.several
def test_a_result_of_another_length_than_the_blocks(world, fresh):
    """The root of a gatherv without counts refuses it, and the communicator remains usable."""
    comm = fresh(validate=False, timeout=20.0)
    out = np.empty(1) if comm.rank == 0 else None
    if comm.rank == 0:
        text = rf"out has 1 elements, and the result has {2 * comm.size}; they must be equal"
        with pytest.raises(BufferError, match=text):
            comm.gatherv(np.ones(2), out)
    elif comm.transport == "shm":
        comm.gatherv(np.ones(2))
    if comm.transport == "shm":
        assert comm.allreduce(1) == comm.size
    else:
        comm.timeout = 2.0
        with contextlib.suppress(StallError, PeerAbortedError):
            comm.rank and comm.gatherv(np.ones(2))
    world.mpi.Barrier()


@both
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.several
def test_a_root_that_does_not_come(world, fresh, stalls, form, start, knows):
    """One error says so, and nothing is left in flight."""
    comm = fresh(validate=False, timeout=0.3)
    case = form(comm.size, 20_000)

    def call():
        got = case.call(comm, counts=case.counts if knows else None, start=start)
        return got.wait() if start else got

    if comm.rank and form is Gatherv and comm.transport == "shm":
        with contextlib.suppress(StallError):  # there may be room for the block
            call()
        assert not _core.pending(comm._engine)
    elif comm.rank:
        # On two hosts, rank 1 is the first of the other one, and waits for the root itself.
        with stalls(
            comm,
            rf"rank {comm.rank} timed out after 0\.3 s: .*waits for rank [01]( on host \d)? to",
        ):
            call()
        assert not _core.pending(comm._engine)
    world.mpi.Barrier()
