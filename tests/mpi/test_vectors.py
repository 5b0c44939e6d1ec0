"""The vector forms: each rank gives, or gets, a number of elements of its own."""

import contextlib
import itertools

import numpy as np
import pytest
from conftest import environment
from forms import VECTOR, Allgatherv, Alltoallv, Gatherv, ReduceScatterv, Scatterv
from promises import Promises

import collectives as cc
from collectives import Communicator, errors
from collectives.algorithms import Exchange
from collectives.errors import (
    ArgumentError,
    BufferError,
    MismatchError,
    PeerAbortedError,
    StallError,
)


class TestAllgatherv(Promises):
    form = Allgatherv


class TestGatherv(Promises):
    form = Gatherv


class TestScatterv(Promises):
    form = Scatterv


class TestReduceScatterv(Promises):
    form = ReduceScatterv


class TestAlltoallv(Promises):
    form = Alltoallv


every_form = pytest.mark.parametrize("form", VECTOR)
EXCHANGED = (Allgatherv, Gatherv, Alltoallv)


def nearly_equal(n, p):
    """Return how n elements are cut where no counts are said."""
    return np.array([n * (r + 1) // p - n * r // p for r in range(p)])


@pytest.mark.parametrize("form", EXCHANGED)
def test_counts_that_are_not_told_are_exchanged(group, form):
    comm = group.comm
    for turn, n in enumerate((0, 1, 3, comm.size + 1, 300)):
        case = form(comm.size, n, dtype="int32", root=turn % comm.size)
        out = case.empty(comm.rank) if turn % 2 else None
        case.verify(case.call(comm, None, out, exchange=True), comm.rank)
        request = case.call(comm, None, out, exchange=True, start=True)
        case.verify(request.wait(), comm.rank)


@pytest.mark.parametrize("form", [Scatterv, ReduceScatterv])
def test_nearly_equal_parts_by_default(world, form):
    comm = world.comm
    for n in (0, 1, 2, 7, 8, 9, 1009):
        case = form(comm.size, 1, dtype="int64", root=comm.size - 1)
        case.counts = nearly_equal(n, comm.size)
        got = case.call(comm, exchange=True)
        assert got.size == n * (comm.rank + 1) // comm.size - n * comm.rank // comm.size
        case.verify(got, comm.rank)
        case.verify(case.call(comm, exchange=True, start=True).wait(), comm.rank)


def test_scatterv_to_the_sizes_of_the_outs(world):
    comm = world.comm
    for root in range(comm.size):
        case = Scatterv(comm.size, 50, root=root, seed=root)
        out = case.empty(comm.rank)
        x = case.x(comm.rank) if comm.rank == root else None
        assert comm.scatterv(x, out, root=root) is out
        case.verify(out, comm.rank)
        assert comm.scatterv(x, out, root=root, counts=case.counts) is out
        case.verify(out, comm.rank)


@pytest.mark.several
def test_scatterv_with_some_outs(world):
    """Lengths on some ranks only say nothing."""
    comm = world.comm
    out = np.zeros(1) if comm.rank == 0 else None
    text = r"out is given on some ranks and not on others \(1.*\); give it on all, or counts"
    with pytest.raises(ArgumentError, match=text):
        comm.scatterv(np.ones(comm.size), out)
    comm.barrier()
    y = comm.scatterv(np.ones(comm.size), out, counts=[1] * comm.size)
    assert (y is out) == (comm.rank == 0)


def test_scatterv_without_an_x(world):
    comm = world.comm
    text = "x is None, and must be an array on the root and where out is None"
    for counts in (None, [1] * comm.size):
        with pytest.raises(ArgumentError, match=text):
            comm.scatterv(None, counts=counts)
    with pytest.raises(ArgumentError if comm.rank == comm.size - 1 else MismatchError, match=text):
        comm.scatterv(None, np.zeros(1), root=comm.size - 1)
    comm.barrier()


@pytest.mark.parametrize("root", [-1, 99, None, "0", 2**70])
def test_scatterv_with_a_wrong_root_and_no_counts(world, root):
    """The root is used before the engine sees it, but it is refused."""
    with pytest.raises(ArgumentError, match=r"root is .*, and must be "):
        world.comm.scatterv(np.ones(world.comm.size), root=root)
    world.comm.barrier()


@every_form
def test_any_sequence_of_integers_is_good(world, form):
    comm = world.comm
    p = comm.size
    case = form(p, 1, dtype="int32")
    case.counts = np.ones_like(case.counts)
    for make in (
        lambda: [1] * p,
        lambda: (1,) * p,
        lambda: (1 for _ in range(p)),
        lambda: np.ones(p, np.int8),
        lambda: np.ones(2 * p, np.uint64)[::2],
        lambda: [True] * p,
    ):
        changes = {"receive_counts": make()} if form is Alltoallv else {}
        case.verify(case.call(comm, counts=make(), **changes), comm.rank)


@every_form
def test_wrong_counts(world, form):
    comm = world.comm
    p = comm.size
    case = form(p, 1)
    case.counts = np.ones_like(case.counts)
    for counts in (
        [1] * (p - 1),
        [1] * (p + 1),
        [1] * (p - 1) + [-1],
        np.ones(p),
        "1" * p,
        3,
        [None] * p,
        [2**64] * p,
        np.ones((p, 2), int),
    ):
        with pytest.raises(ArgumentError, match=r"(?s)^counts is .*, and must be .*\d") as caught:
            case.call(comm, counts=counts)
        assert f" {p} " in str(caught.value)
        if form is Alltoallv:
            with pytest.raises(ArgumentError, match=r"(?s)^receive_counts is .*, and must be .*\d"):
                case.call(comm, receive_counts=counts)
    case.verify(case.call(comm), comm.rank)


@every_form
def test_counts_that_do_not_fit_the_input(world, form):
    comm = world.comm
    case = form(comm.size, 3)
    case.counts = np.full_like(case.counts, 3)
    n = case.x(comm.rank).size
    x = np.ones(n + 1, np.float32)
    text = f"x has {n + 1} elements and its counts say {n}; they must be equal"
    if form is Scatterv and comm.rank:
        with pytest.raises(MismatchError, match=text):
            case.call(comm, x)
    else:
        with pytest.raises(ArgumentError, match=text):
            case.call(comm, x)
    case.verify(case.call(comm), comm.rank)


def test_more_elements_than_there_can_be(world):
    comm = world.comm
    counts = [2**62] * comm.size
    counts[comm.rank] = 1
    if comm.size < 3:
        pytest.skip("two such counts have a sum that fits")
    with pytest.raises(ArgumentError, match=f"counts is .*, no more than {2**63 - 1} in all"):
        comm.allgatherv(np.ones(1), counts=counts)
    comm.barrier()


@every_form
@pytest.mark.several
def test_a_wrong_count_on_one_rank_is_told(world, form):
    """Also arguments that are refused before the ranks would exchange their counts."""
    comm = world.comm
    case = form(comm.size, 3)
    for odd in {0, comm.size - 1}:
        for exchange in (False, True):
            if comm.rank == odd:
                with pytest.raises(ArgumentError, match="counts is 'abc', and must be"):
                    case.call(comm, counts="abc")
            else:
                text = rf"rank {odd} refused {form.name}\(ArgumentError: counts is 'abc'"
                with pytest.raises(MismatchError, match=text):
                    case.call(comm, exchange=exchange)
            comm.barrier()


@pytest.mark.parametrize("form", [Allgatherv, Gatherv])
@pytest.mark.several
def test_counts_on_some_ranks_only(world, form):
    comm = world.comm
    case = form(comm.size, 3)
    with pytest.raises(MismatchError, match=rf"called allgather\(.*called {form.name}\(counts="):
        case.call(comm, exchange=comm.rank == 0)
    case.verify(case.call(comm), comm.rank)


def test_receive_counts_that_are_not_what_is_sent(world):
    """Under validation the ranks look, before anything is sent that would not be received."""
    comm = world.comm
    p = comm.size
    for wrong in (0, 3):
        received = [2] * p
        if comm.rank == p - 1:
            received[0] = wrong
        if comm.rank == p - 1:
            error, text = ArgumentError, rf"receive_counts is .*, and rank 0 sends 2.* not {wrong}"
        else:
            error, text = MismatchError, rf"rank {p - 1} refused alltoallv\(ArgumentError: receive"
        with pytest.raises(error, match=text):
            comm.alltoallv(np.ones(2 * p), [2] * p, receive_counts=received)
        comm.barrier()


@pytest.mark.several
def test_receive_counts_that_are_not_what_is_sent_without_validation(world, fresh):
    comm = fresh(validate=False, timeout=60.0)
    p = comm.size
    received = [2] * p
    if comm.rank == p - 1:
        received[0] = 3
        text = (
            rf"alltoall '[a-z]+' on {p} ranks: rank {p - 1}, .* got 16 bytes from rank 0 where 24"
        )
        with pytest.raises(MismatchError, match=text):
            comm.alltoallv(np.ones(2 * p), [2] * p, receive_counts=received)
    else:
        # This rank may be slower than that one: it hears of the error, and if it shares no
        # memory with it, it may wait for messages that were not sent.
        told = (PeerAbortedError,)
        if comm.transport != "shm":
            told, comm.timeout = (PeerAbortedError, StallError), 2.0
        with contextlib.suppress(*told):
            comm.alltoallv(np.ones(2 * p), [2] * p, receive_counts=received)
    world.mpi.Barrier()


@pytest.mark.parametrize("n", [3, 1_000_000])
def test_other_receive_counts_than_a_rank_sends_to_itself(world, fresh, n):
    """It would read what lies behind its array."""
    comm = fresh(validate=False, timeout=2.0)
    sent = [0] * comm.size
    sent[comm.rank] = n
    for wrong in (n + 1, n - 1):
        received = [0] * comm.size
        received[comm.rank] = wrong
        with pytest.raises(ArgumentError, match=rf"rank {comm.rank} sends {n} .*, not {wrong}$"):
            comm.alltoallv(np.ones(n), sent, receive_counts=received)
    world.mpi.Barrier()


def test_alltoallv_through_third_ranks(world):
    """In Bruck's algorithm ranks pass on what others send; they would not know how much."""
    comm = world.comm
    if comm.size < 4:
        pytest.skip("up to three ranks, every block takes one step")
    case = Alltoallv(comm.size, 3)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="alltoallv takes 'direct' or 'pairwise'"):
            case.call(comm, algorithm="bruck")
    case.verify(case.call(comm), comm.rank)
    x = np.arange(comm.size)
    np.testing.assert_array_equal(comm.alltoall(x, algorithm="bruck"), [comm.rank] * comm.size)


def test_alltoallv_through_one_rank(world):
    """Only that rank has blocks of others, and all ranks refuse it."""
    comm = world.comm
    if comm.size < 3:
        pytest.skip("a block passes through a third rank")

    def generate(r, p):
        way = [0, 1, 2]  # of block 2, from rank 0 to rank 2
        for source, target in itertools.pairwise(way):
            if r == source:
                yield Exchange(send=(target, 2))
            elif r == target:
                yield Exchange(recv=(source, 2))
        others = [q for q in range(p) if q != r]
        yield Exchange(
            send=[(q, r * p + q) for q in others if r * p + q != 2],
            recv=[(q, q * p + r) for q in others if q * p + r != 2],
        )

    cc.algorithms.algorithm("alltoall", name="by_one")(generate)
    try:
        case = Alltoallv(comm.size, 3)
        for _ in range(2):
            with pytest.raises(ArgumentError, match="'by_one', in which blocks pass through ranks"):
                case.call(comm, algorithm="by_one")
        x = np.arange(comm.size)
        got = comm.alltoall(x, algorithm="by_one")
        np.testing.assert_array_equal(got, [comm.rank] * comm.size)
    finally:
        cc.algorithms.unregister("alltoall", "by_one")


@every_form
def test_one_rank_has_everything(world, form):
    comm = world.comm
    for owner in range(comm.size):
        case = form(comm.size, 1, dtype="int32", root=owner)
        case.counts = np.zeros_like(case.counts)
        case.counts[..., owner] = 500
        for choice in form.algorithms():
            case.verify(case.call(comm, algorithm=choice), comm.rank)


def test_joined_along_the_first_axis(world):
    comm = world.comm
    p, rank = comm.size, comm.rank
    x = np.full((rank, 3, 2), rank)
    y = comm.allgatherv(x)
    assert y.shape == (p * (p - 1) // 2, 3, 2)
    np.testing.assert_array_equal(y[:, 0, 0], np.repeat(np.arange(p), np.arange(p)))
    y = comm.gatherv(x, root=p - 1)
    assert y is None if rank < p - 1 else y.shape == (p * (p - 1) // 2, 3, 2)
    rows = np.arange(2 * p * 3).reshape(2 * p, 3)
    counts = [3] * p
    counts[-1] += 3 * p
    mine = rows[rank:][: counts[rank] // 3]
    np.testing.assert_array_equal(comm.scatterv(rows, counts=counts), mine)
    np.testing.assert_array_equal(comm.reduce_scatterv(rows, counts=counts), p * mine)
    z = comm.alltoallv(rows, counts)
    n = p * counts[rank]
    assert z.shape == (n // 3, 3)
    np.testing.assert_array_equal(z, np.tile(mine, (p, 1)))


def test_flat_where_rows_are_cut(world):
    comm = world.comm
    p = comm.size
    counts = [2] * (p - 1) + [3 * p - 2 * (p - 1)]
    x = np.arange(3 * p).reshape(p, 3)
    y = comm.scatterv(x, counts=counts)
    np.testing.assert_array_equal(y.reshape(-1), x.reshape(-1)[2 * comm.rank :][: y.size])
    assert y.shape == ((y.size // 3, 3) if y.size % 3 == 0 else (y.size,))


def test_partial_overlap(world):
    comm = world.comm
    p = comm.size
    memory = np.zeros(5 * p + 1)
    with pytest.raises(BufferError, match=r"out overlaps x in part; pass (x as the part|out=x)"):
        comm.allgatherv(memory[5 * comm.rank + 1 :][:5], memory[:-1], counts=[5] * p)
    with pytest.raises(BufferError, match=r"out overlaps x in part; pass out(=x| as this rank's)"):
        comm.reduce_scatterv(memory[:-1], memory[5 * comm.rank + 1 :][:5], counts=[5] * p)
    comm.barrier()


@pytest.mark.several
def test_many_ranks_say_a_checksum(world):
    """Eight counts are told as they are, more as a checksum; either way a difference shows."""
    comm = world.comm
    counts = [1] * comm.size
    if comm.rank == 0:
        counts[0], counts[1] = 0, 2
    text = "checksum" if comm.size > 8 else r"counts=\[0, 2.*counts=\[1, 1"
    with pytest.raises(MismatchError, match=text):
        comm.reduce_scatterv(np.ones(comm.size), counts=counts)
    comm.barrier()


@pytest.mark.parametrize(
    ("count", "kind", "text"),
    [
        (2**62, ArgumentError, "a process can address 140737488355328 bytes"),
        (2**43, errors.CommunicatorError, "there is no memory"),
    ],
)
@pytest.mark.several
def test_counts_that_no_memory_can_hold(fresh, count, kind, text):
    comm = fresh(validate=False, timeout=20)
    receive_counts = [1] * comm.size
    receive_counts[comm.rank - 1] = count
    with pytest.raises(kind, match=text):
        comm.alltoallv(np.ones(comm.size), [1] * comm.size, receive_counts=receive_counts)
    comm.barrier()


@every_form
def test_counts_that_change_in_place(world, form):
    """Counts are compared by their values with those of the last call."""
    comm = world.comm
    case = form(comm.size, 40, dtype="int32")
    told = case.options(comm.rank)
    told = {name: told[name] for name in told if name.endswith("counts")}
    for kind in (list, np.array, list):
        held = {name: kind(counts.tolist()) for name, counts in told.items()}
        for turn in range(4):
            other = form(comm.size, 30 + 20 * (turn // 2), dtype="int32", seed=turn % 2)
            for name, counts in other.options(comm.rank).items():
                if name in held:
                    held[name][:] = counts.tolist()
            other.verify(other.call(comm, **held), comm.rank)


@pytest.mark.parametrize("reads", ["0", "auto"])
@pytest.mark.parametrize("start", [False, True])
def test_blocks_for_which_pages_have_no_room(reads, start):
    """Each rank knows only its own blocks: long ones go by messages, or are read where they are."""
    with environment(COLLECTIVES_SHM_LANE="4096", COLLECTIVES_SHM_READS=reads):
        comm = Communicator(timeout=20)
    p = comm.size
    rng = np.random.default_rng(1)  # the same on all ranks
    for _ in range(30):
        table = rng.choice([0, 1, 10, 11, 100, 511, 512, 513, 3000, 20_000], (p, p))
        x = np.concatenate([np.arange(n) + 1000 * q for q, n in enumerate(table[comm.rank])])
        told = {"receive_counts": table[:, comm.rank]} if rng.integers(2) else {}
        call = comm.ialltoallv if start else comm.alltoallv
        got = call(x + comm.rank, table[comm.rank], **told)
        got = got.wait() if start else got
        want = [np.arange(n) + 1000 * comm.rank + q for q, n in enumerate(table[:, comm.rank])]
        np.testing.assert_array_equal(got, np.concatenate(want))
    comm.free()


@pytest.mark.several
@pytest.mark.parametrize(
    ("shared", "sizes"),
    [
        (shared, sizes)
        for shared in ("0", "auto")
        for sizes in [(5000, 3), (3, 5000), (5000, 6000), (6000, 5000)]
    ]
    + [("auto", (0, 3))],
)
def test_other_lengths_than_are_due(world, shared, sizes):
    """Also those for which pages have no room, and by messages that are too long for Open MPI."""
    shared = {"COLLECTIVES_SHM": shared, "COLLECTIVES_SHM_LANE": "4096"}
    with environment(**shared, COLLECTIVES_VALIDATE="0"):
        comm = Communicator(timeout=5.0)
    p, last = comm.size, comm.rank == comm.size - 1
    sent, due = sizes
    counts = [0] * p
    counts[-1] = 0 if last else sent
    received = [due] * (p - 1) + [0] if last else [0] * p
    text = rf"got ({8 * sent}|more) bytes from rank \d where {8 * due}"
    with contextlib.suppress(PeerAbortedError, StallError):
        if last:
            with pytest.raises(MismatchError, match=text):
                comm.alltoallv(np.ones(sum(counts)), counts, receive_counts=received)
        else:
            with contextlib.suppress(MismatchError):  # the receiver may have told it
                comm.alltoallv(np.ones(sum(counts)), counts, receive_counts=received)
    world.mpi.Barrier()
