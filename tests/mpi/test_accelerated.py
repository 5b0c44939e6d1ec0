"""Accelerated communicators of mpi4py: their collectives against those of MPI itself."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from accelerated import (
    DERIVED,
    FORMS,
    MOVES,
    Form,
    Pair,
    as_it_is,
    folded,
    in_columns,
    moved,
    numbers,
    per_part,
    typed,
    vector_forms,
    with_type,
)
from mpi4py import MPI

from collectives import errors
from collectives.mpi4py import Cartcomm, Graphcomm, Intracomm, Served, accelerate

OPS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")


@pytest.mark.parametrize("form", [*FORMS, *DERIVED])
@pytest.mark.parametrize("name", MOVES)
def test_moves(pair: Pair, name: str, form: Form) -> None:
    for root in {0, pair.ours.size - 1}:
        got = moved(pair.ours, name, form, form, root)
        assert got == moved(pair.theirs, name, as_it_is, as_it_is, root)


@pytest.mark.parametrize("name", MOVES)
def test_each_rank_describes_its_memory_as_it_likes(pair: Pair, name: str) -> None:
    forms = [*FORMS, *DERIVED]
    for shift in range(len(forms)):
        sends = forms[(pair.ours.rank + shift) % len(forms)]
        receives = forms[(2 * pair.ours.rank + shift + 1) % len(forms)]
        got = moved(pair.ours, name, sends, receives, 0)
        assert got == moved(pair.theirs, name, as_it_is, as_it_is, 0)


@pytest.mark.parametrize("form", [*FORMS, *DERIVED])
def test_bcast(pair: Pair, form: Form) -> None:
    for root in {0, pair.ours.size - 1}:
        values = [1.5 * k for k in range(8)]
        is_root = pair.ours.rank == root
        spec, read = form(values if is_root else [-1.0] * 8)
        pair.ours.Bcast(spec, root=root)
        assert read() == values
    spec = b"12345678" if pair.ours.rank == 0 else bytearray(8)
    pair.ours.Bcast(spec)  # the root's is read-only
    assert spec == b"12345678"


@pytest.mark.parametrize("form", [as_it_is, with_type, in_columns, *DERIVED])
@pytest.mark.parametrize("place", [MPI.IN_PLACE, None], ids=["IN_PLACE", "None"])
def test_moves_in_place(pair: Pair, form: Form, place: Any) -> None:
    comm, p = pair.ours, pair.ours.size
    values = [k if k // 4 == comm.rank else -1.0 for k in range(4 * p)]
    spec, read = form(values)
    comm.Allgather(place, per_part(spec, p))
    assert read() == list(range(4 * p))
    spec, read = form(numbers(comm, 4 * p))
    comm.Alltoall(place, per_part(spec, p))
    assert read() == [100.0 * r + 4 * comm.rank + k for r in range(p) for k in range(4)]
    if comm.rank == p - 1:
        spec, read = form(values)
        comm.Gather(place, per_part(spec, p), root=p - 1)
        assert read() == list(range(4 * p))
        spec, read = form(list(range(4 * p)))
        comm.Scatter(per_part(spec, p), place, root=p - 1)
        assert read() == list(range(4 * p))
    else:
        spec, read = form(values[4 * comm.rank :][:4])
        comm.Gather(spec, None, root=p - 1)
        spec, read = form([-1.0] * 4)
        comm.Scatter(None, spec, root=p - 1)
        assert read() == values[4 * comm.rank :][:4]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["plain", "displaced", "derived"])
def test_vector_forms(pair: Pair, kind: str, in_place: bool) -> None:
    got = vector_forms(pair.ours, kind, in_place)
    assert got == vector_forms(pair.theirs, kind, in_place)


def _specs(array: Any, counts: list[int]) -> list[Any]:
    """Return specifications of the same parts, which begin at 0."""
    starts = [sum(counts[:r]) for r in range(len(counts))]
    return [
        [array, counts],
        (array, (tuple(counts), None)),
        [array, np.array(counts, np.int32)],
        [array, (counts, starts)],
        [array, counts, MPI.DOUBLE],
        [array, (np.array(counts), np.array(starts)), MPI.DOUBLE],
        [array, counts, starts, None],
        [array, np.array([counts, counts])[0], np.repeat(starts, 2)[::2], MPI.DOUBLE],
    ]


@pytest.mark.parametrize("more", [0, 3])
def test_counts_in_each_specification(pair: Pair, more: int) -> None:
    """The arrays may be longer than their parts, as in programs that allocate them once."""
    comm, p, rank = pair.ours, pair.ours.size, pair.ours.rank
    counts = [(3 * r + 2) % 5 for r in range(p)]
    total, mine = sum(counts), counts[rank]
    x = np.arange(mine) + 10.0 * rank
    whole = np.concatenate([np.arange(n) + 10.0 * r for r, n in enumerate(counts)])
    for k in range(8):
        root = k % p
        out, every = np.full(total + more, -1.0), np.full(total + more, -1.0)
        comm.Allgatherv(x, _specs(out, counts)[k])
        assert out.tolist() == [*whole, *[-1.0] * more]
        comm.Gatherv(x, _specs(every, counts)[k] if rank == root else None, root=root)
        assert every.tolist() == (out.tolist() if rank == root else [-1.0] * (total + more))
        got = np.full(mine, -1.0)
        comm.Scatterv(_specs(out, counts)[k] if rank == root else None, got, root=root)
        assert got.tolist() == x.tolist()
        sent, received = np.full(p * mine + more, 1.0 * rank), np.full(total + more, -1.0)
        comm.Alltoallv(_specs(sent, [mine] * p)[k], _specs(received, counts)[k])
        assert received.tolist() == [*np.repeat(np.arange(p), counts), *[-1.0] * more]
        part = np.full(mine, -1.0)
        told = (counts, tuple(counts), np.array(counts, np.int32))[k % 3]
        comm.Reduce_scatter(whole, part, told)
        assert part.tolist() == (p * x).tolist()


def test_parts_in_another_order(pair: Pair) -> None:
    """With gaps, and backwards; and where a part that is read is read twice."""
    comm, p, rank = pair.ours, pair.ours.size, pair.ours.rank
    for starts in ([3 * r + 1 for r in range(p)], [3 * (p - r) - 2 for r in range(p)]):
        outs = []
        for each in pair:
            out = np.full(3 * p, -1.0)
            each.Allgatherv(np.full(2, 1.0 * rank), [out, ([2] * p, starts)])
            each.Gatherv(np.full(2, 2.0 * rank), [out, ([2] * p, starts)] if rank == 0 else None)
            got = np.zeros(2)
            each.Scatterv([np.arange(3.0 * p), ([2] * p, [0] * p)] if rank == 0 else None, got)
            spec = [out, ([2] * p, starts)]
            each.Alltoallv([np.arange(3.0 * p) + rank, ([2] * p, starts)], spec)
            outs.append([*out, *got])
        assert outs[0] == outs[1]
    before = comm.served()["Allgatherv"].here
    comm.Allgatherv(np.ones(1), [np.empty(p), [1] * p])
    assert comm.served()["Allgatherv"].here == before + 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAX], ids=["SUM", "MAX"])
def test_folds(pair: Pair, op: MPI.Op, form: Form, in_place: bool) -> None:
    assert folded(pair.ours, op, form, in_place) == folded(pair.theirs, op, as_it_is, in_place)


@pytest.mark.parametrize("code", "bhilqBHILQfdgFD?")
def test_operations_and_dtypes(pair: Pair, code: str) -> None:
    """Calls that MPI defines have its result; all others are left to MPI."""
    n = 5
    values = (np.arange(n) * 3 + pair.ours.rank) % 4
    for name in OPS:
        op = getattr(MPI, name)
        x = values.astype(code)
        ours, theirs = np.zeros_like(x), np.zeros_like(x)
        before = pair.ours.served().get("Allreduce", Served(0, 0))
        try:
            pair.theirs.Allreduce(x, theirs, op)
        except MPI.Exception:
            continue
        pair.ours.Allreduce(x, ours, op)
        np.testing.assert_array_equal(ours, theirs, f"{name} of {x.dtype}")
        after = pair.ours.served()["Allreduce"]
        assert sum(after) == sum(before) + 1
        standard = code != "?" or name in ("LAND", "LOR", "LXOR")
        if standard and (code not in "fdgFD" or name in ("SUM", "PROD")):
            assert after.here == before.here + 1, name


@pytest.mark.parametrize("in_place", [False, True])
def test_alltoallw(pair: Pair, in_place: bool) -> None:
    results = []
    for comm in pair:
        args, y = typed(comm, in_place)
        comm.Alltoallw(*args)
        results.append(y.tolist())
        args, y = typed(comm, in_place)
        comm.Ialltoallw(*args).Wait()
        results.append(y.tolist())
    args, y = typed(pair.ours, in_place)
    request = pair.ours.Alltoallw_init(*args)
    request.Start()
    request.Wait()
    request.Free()
    results.append(y.tolist())
    assert all(each == results[0] for each in results)
    for name in ("Alltoallw", "Ialltoallw", "Alltoallw_init"):
        assert pair.ours.served()[name].here == 0


def test_alltoallw_of_addresses(pair: Pair) -> None:
    x, y = np.full(3, pair.ours.rank, "i4"), np.empty((pair.ours.size, 3), "i4")
    kinds = [
        [
            MPI.Datatype.Create_struct([3], [MPI.Get_address(row)], [MPI.INT]).Commit()
            for row in rows
        ]
        for rows in ([x] * pair.ours.size, y)
    ]
    none, one = [0] * pair.ours.size, [1] * pair.ours.size
    pair.ours.Alltoallw(*([MPI.BOTTOM, one, none, each] for each in kinds))
    assert y.tolist() == [[rank] * 3 for rank in range(pair.ours.size)]


def test_served(pair: Pair) -> None:
    comm = accelerate(pair.theirs.Dup())
    x = np.ones(3)
    assert comm.served() == {}
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Allreduce(MPI.IN_PLACE, [x.view("u1"), MPI.DOUBLE])
    comm.Bcast(x)
    comm.Barrier()
    wanted = {"Allreduce": Served(2, 0), "Barrier": Served(1, 0), "Bcast": Served(1, 0)}
    assert comm.served() == wanted
    other = accelerate(MPI.Intracomm(comm))  # another object of the same communicator
    other.Bcast(x)
    assert comm.served()["Bcast"] == (2, 0)
    assert other._comm is comm._comm
    comm.Free()


@pytest.mark.several
def test_messages_of_mpi_go_on_while_a_collective_waits(pair: Pair) -> None:
    """Another rank comes to the collective when it has what this one has sent before."""
    comm = pair.ours
    x = np.ones(1 << 19)  # too long to be sent without the receiver
    request = comm.Isend(x, 1) if comm.rank == 0 else MPI.REQUEST_NULL
    if comm.rank == 1:
        comm.Recv(np.empty_like(x), 0)
    comm.Barrier()
    request.Wait()


def test_communicators_that_are_made_of_it(pair: Pair) -> None:
    comm, p = pair.ours, pair.ours.size
    group = comm.Get_group()
    made: list[Any] = [comm.Dup(), comm.Clone(), comm.Split(comm.rank % 2, -comm.rank)]
    made += [comm.Split_type(MPI.COMM_TYPE_SHARED), comm.Create(group), comm.Create_group(group)]
    made += [comm.Create_cart([p], [True]), comm.Create_graph(range(1, p + 1), range(p))]
    made += [comm.Create_dist_graph_adjacent([comm.rank], [comm.rank]), made[6].Sub([True])]
    assert [type(each) for each in (made[0], made[6], made[7])] == [Intracomm, Cartcomm, Graphcomm]
    assert type(made[9]) is Cartcomm
    for each in made:
        assert isinstance(each, Intracomm)
        total = np.zeros(1)
        each.Allreduce(np.array([1.0]), total)
        assert total[0] == each.size
        assert each.served() == {"Allreduce": (1, 0)}
    assert made[6].Get_coords(comm.rank) == [comm.rank]
    assert made[6].neighbor_allgather(comm.rank) == [(comm.rank - 1) % p, (comm.rank + 1) % p]
    for each in reversed(made):
        each.Free()
        assert each == MPI.COMM_NULL
    assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    group.Free()


def test_what_it_is() -> None:
    comm = accelerate(MPI.COMM_WORLD)
    assert isinstance(comm, MPI.Intracomm)
    assert comm == MPI.COMM_WORLD
    assert accelerate(comm) is comm
    assert pickle.loads(pickle.dumps(comm)) == MPI.COMM_WORLD
    assert isinstance(pickle.loads(pickle.dumps(comm)), Intracomm)
    with pytest.raises(errors.ArgumentError, match="comm is 3, and must be an mpi4py intracommuni"):
        accelerate(3)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match=r"comm is MPI\.COMM_NULL, and must be"):
        accelerate(MPI.COMM_NULL)  # type: ignore[arg-type]


@pytest.mark.several
def test_an_intercommunicator_is_refused() -> None:
    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2)
    with pytest.raises(errors.ArgumentError, match="comm is an intercommunicator, whose collect"):
        accelerate(inter)  # type: ignore[arg-type]
    merged = accelerate(inter.Merge())
    merged.Barrier()
    for each in (merged, inter, half):
        each.Free()


def test_a_freed_communicator() -> None:
    """MPI's own error comes from each call, here and where another object has freed it."""
    comm = accelerate(MPI.COMM_WORLD.Dup())
    comm.Barrier()
    comm.Free()
    x = np.ones(2)
    calls: list[Any] = [comm.Barrier, lambda: comm.Bcast(x), lambda: comm.bcast(1)]
    calls += [lambda: comm.Iallreduce(MPI.IN_PLACE, x), lambda: comm.Bcast_init(x), comm.served]
    calls += [lambda: accelerate(comm).Bcast(x), lambda: comm.alltoall([1]), comm.Free]
    for call in calls:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_COMM
    none = accelerate(MPI.COMM_WORLD.Split(MPI.UNDEFINED))
    assert not none
    with pytest.raises(MPI.Exception):
        none.Barrier()


@pytest.mark.parametrize("name", ["Bcast", "Allgather", "Alltoallv", "Scatter"])
def test_a_datatype_that_cannot_be_packed(pair: Pair, name: str) -> None:
    """It is not committed: all ranks raise MPI's error, and none waits for another."""
    comm, p = pair.ours, pair.ours.size
    columns = MPI.DOUBLE.Create_vector(2, 1, 2)
    x, y = np.zeros(4), np.zeros(4 * p)
    specs: dict[str, Any] = {
        "Bcast": [[x, 1, columns]],
        "Allgather": [x[:2], [y, 1, columns]],
        "Alltoallv": [[np.zeros(2 * p), 2], [y, 1, columns]],
        "Scatter": [np.zeros(2 * p), [x, 1, columns]],
    }
    with pytest.raises(MPI.Exception) as caught:
        getattr(comm, name)(*specs[name])
    assert caught.value.Get_error_class() == MPI.ERR_TYPE
    comm.Barrier()
    columns.Commit()
    getattr(comm, name)(*specs[name])
    columns.Free()


class OnDevice:
    """An object that looks like an array on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("nobody may ask for it")


READ_ONLY = np.ones(4)
READ_ONLY.flags.writeable = False
WRONG = {
    "sendbuf has 3 elements, and 4 are wanted": (np.ones(3), np.ones(4)),
    "sendbuf and recvbuf have different datatypes": (np.ones(4, "f4"), np.ones(4)),
    "recvbuf is read-only, and would be written": (np.ones(4), READ_ONLY),
    "sendbuf is an array whose memory has gaps": (np.ones((4, 2))[:, 0], np.ones(4)),
    "sendbuf is a float, and must be a buffer": (1.5, np.ones(4)),
    "sendbuf is in the memory of a device": ([OnDevice(), 4, MPI.DOUBLE], np.ones(4)),
    "sendbuf has 32 bytes, and its counts and": ([np.ones(4), 5, MPI.DOUBLE], np.ones(5)),
    "sendbuf has a negative count, -1": ([np.ones(4), -1, MPI.DOUBLE], np.ones(4)),
    "sendbuf has a negative displacement, -1": ([np.ones(4), (4, -1), MPI.DOUBLE], np.ones(4)),
    "sendbuf has 7 bytes, which are no whole num": ([bytes(7), MPI.DOUBLE], np.ones(4)),
    "has 2 to 4 items, and this one 5": ([np.ones(4)] * 5, np.ones(4)),
    "needs a datatype": ([MPI.BOTTOM, 4], np.ones(4)),
    "cannot map 'nonsense' to MPI datatype": ([np.ones(4), "nonsense"], np.ones(4)),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments(pair: Pair, text: str) -> None:
    """All ranks pass the same wrong arguments, and go on."""
    kinds = (ValueError, TypeError, BufferError, KeyError)
    with pytest.raises(kinds, match=text.replace("(", r"\(")):
        pair.ours.Allreduce(*WRONG[text])
    pair.ours.Barrier()


def test_null_datatypes(pair: Pair) -> None:
    """A count cannot be inferred, here as in mpi4py."""
    x, null = bytearray(8), MPI.DATATYPE_NULL
    for comm in pair:
        for name, args in {
            "Alltoallv": ([x, None, [0], null], bytearray(0)),
            "Allgatherv": ([x, null], bytearray(0)),
            "Allgather": (bytearray(1), [bytearray(comm.size), null]),
            "Bcast": ([x, null],),
            "Ibcast": ([x, null],),
            "Allreduce": ([x, null], [bytearray(8), null]),
        }.items():
            with pytest.raises(ValueError, match="null"):
                getattr(comm, name)(*args)


def test_a_count_may_be_an_array_without_dimensions(pair: Pair) -> None:
    two = np.array(2)
    for comm in pair:
        x, y = np.full(2, float(comm.rank)), np.zeros(3 * comm.size)
        comm.Allgatherv([x, two, MPI.DOUBLE], [y, (two, np.array(3)), MPI.DOUBLE])
        assert y[::3].tolist() == y[1::3].tolist() == list(range(comm.size))
        comm.Allgather([x, two, MPI.DOUBLE], [y, two, MPI.DOUBLE])
        assert y[: 2 * comm.size : 2].tolist() == list(range(comm.size))


def test_other_wrong_arguments(pair: Pair) -> None:
    comm = pair.ours
    text = f"sendbuf has 32 bytes and recvbuf {40 * comm.size}, which does not fit on"
    with pytest.raises(ValueError, match=text):
        comm.Allgather(np.ones(4), np.ones(comm.size * 5))
    if comm.size > 1:
        with pytest.raises(
            ValueError, match=r"recvbuf has \d+ elements, which . ranks cannot share"
        ):
            comm.Allgather(np.ones(4), np.ones(comm.size * 4 + 1))
    with pytest.raises(MPI.Exception):
        comm.Bcast(np.ones(3), root=comm.size)
    with pytest.raises(MPI.Exception):
        comm.Gather(np.ones(3), None, root=-7)
    with pytest.raises(ValueError, match="the counts of recvbuf are"):
        comm.Allgatherv(np.ones(1), [np.ones(9), [1] * (comm.size + 1)])
    with pytest.raises(AttributeError):
        comm.Allreduce(np.ones(1), np.ones(1), 3)
    comm.Barrier()


@pytest.mark.several
def test_an_operation_that_mpi_does_not_define(pair: Pair) -> None:
    """MPI's own error comes on all ranks: MPICH and Open MPI check the operation."""
    for x in (np.ones(2, "F"), np.ones(2, "D")):
        with pytest.raises(MPI.Exception):
            pair.ours.Allreduce(x, np.zeros_like(x), MPI.MAX)
    pair.ours.Barrier()
