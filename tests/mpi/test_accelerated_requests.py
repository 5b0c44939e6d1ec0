"""Nonblocking and persistent collectives of accelerated communicators, and waits for them."""

from __future__ import annotations

import time
from threading import Thread
from typing import Any

import numpy as np
import pytest
from accelerated import (
    DERIVED,
    FORMS,
    MOVES,
    WAYS,
    Form,
    Pair,
    Through,
    as_it_is,
    folded,
    moved,
    vector_forms,
)
from mpi4py import MPI

from collectives.mpi4py import accelerate, calls
from collectives.mpi4py.requests import Request


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [as_it_is, FORMS[-1], *DERIVED])
@pytest.mark.parametrize("name", MOVES)
def test_moves(pair: Pair, name: str, form: Form, way: str) -> None:
    through: Any = Through(pair.ours, way)
    for root in {0, pair.ours.size - 1}:
        got = moved(through, name, form, form, root)
        assert got == moved(pair.theirs, name, as_it_is, as_it_is, root)
    values = [1.5 * k for k in range(8)]
    spec, read = form(values if pair.ours.rank == 0 else [-1.0] * 8)
    through.Bcast(spec)
    assert read() == values


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["plain", "displaced", "derived"])
def test_vector_forms(pair: Pair, kind: str, in_place: bool, way: str) -> None:
    through: Any = Through(pair.ours, way)
    assert vector_forms(through, kind, in_place) == vector_forms(pair.theirs, kind, in_place)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("form", [as_it_is, FORMS[1], FORMS[-1]])
def test_folds(pair: Pair, form: Form, in_place: bool, way: str) -> None:
    through: Any = Through(pair.ours, way)
    got = folded(through, MPI.SUM, form, in_place)
    assert got == folded(pair.theirs, MPI.SUM, as_it_is, in_place)
    through.Barrier()


def test_all_of_them_are_served(pair: Pair) -> None:
    comm = accelerate(pair.theirs.Dup())
    through: Any = Through(comm, "nonblocking")
    comm.Barrier()
    for way in WAYS:
        through.way = way
        for name in MOVES:
            moved(through, name, as_it_is, as_it_is, 0)
        vector_forms(through, "plain", False)
        folded(through, MPI.SUM, as_it_is, False)
        through.Bcast(np.zeros(1))
        through.Barrier()
    served = comm.served()
    names = [name.lower() for name in calls.TASKS]
    assert {f"i{name}" for name in names} <= {name.lower() for name in served}
    assert {f"{name}_init" for name in names} <= {name.lower() for name in served}
    assert not any(each.mpi for each in served.values())
    comm.Free()


def mixed(comm: Any, name: str) -> Any:
    """Call a method on requests of two collectives and of two messages until all are complete;
    return the arrived data and the results of the calls, regardless of their order.
    """
    x, y = np.full(3, comm.rank + 1.0), np.zeros(2)
    a, b = np.zeros(3), np.full(2, float(comm.rank))
    peer = comm.rank ^ 1 if comm.rank ^ 1 < comm.size else comm.rank
    objects = name[0].islower()
    receive = comm.irecv(source=peer) if objects else comm.Irecv(y, peer)
    requests: list[Any] = [comm.Iallreduce(x, a), receive, MPI.REQUEST_NULL, comm.Ibarrier()]
    sent = comm.isend({"rank": comm.rank}, peer) if objects else comm.Isend(b, peer)
    method = getattr(MPI.Request, name)
    statuses: Any = MPI.Status() if name.endswith("any") else [MPI.Status()]
    told: list[Any] = []
    while True:
        got = method(requests, statuses)
        if name.endswith("any"):
            index, *others = got if isinstance(got, tuple) else (got,)
            if index == MPI.UNDEFINED and (not others or others[0] is not False):
                break
            if index != MPI.UNDEFINED:
                told.append((index, others[-1] if objects else None))
                if "et_status" in name:
                    requests[index].Wait()
                if index == 1:
                    assert statuses.Get_source() == peer
        elif name.endswith("some"):
            indices, found = got if isinstance(got, tuple) else (got, None)
            if indices is None:
                break
            told += zip(indices, found if objects and found else [None] * 4, strict=False)
            assert len(statuses) >= len(indices)
            if "et_status" in name:
                MPI.Request.Waitall([requests[index] for index in indices])
        else:
            flag, found = got if isinstance(got, tuple) else (got, None)
            if flag is False:
                continue
            told = [flag if objects and name == "waitall" else (flag, found)]
            assert [each.Get_source() for each in statuses][1] == peer
            assert len(statuses) == 4
            if "et_status" in name:
                MPI.Request.Waitall(requests)
            break
    sent.Wait()
    assert not any(requests)
    return a.tolist(), y.tolist(), sorted(told, key=str)


NAMES = ("Waitany", "Testany", "Waitall", "Testall", "Waitsome", "Testsome")
PEEKS = ("Get_status_any", "Get_status_all", "Get_status_some")


@pytest.mark.parametrize("name", [*NAMES, *map(str.lower, NAMES), *PEEKS])
def test_lists_with_requests_of_mpi(pair: Pair, name: str) -> None:
    if not hasattr(MPI.Request, name) or (name in PEEKS and MPI.Get_version() < (4, 1)):
        pytest.skip("this MPI has no such call")
    pair.ours.Ibarrier().Wait()
    assert mixed(pair.ours, name) == mixed(pair.theirs, name)


@pytest.mark.parametrize("own", [True, False])
def test_statuses_by_name(pair: Pair, own: bool) -> None:
    pair.ours.Ibarrier().Wait()
    status, statuses = MPI.Status(), [MPI.Status()]
    request = (pair.ours if own else pair.theirs).Ibarrier()
    assert MPI.Request.Waitany(requests=[MPI.REQUEST_NULL, request], status=status) == 1
    assert MPI.Request.Waitall(requests=[MPI.REQUEST_NULL, request], statuses=statuses)
    assert len(statuses) == 2


def test_lists_without_requests_of_ours(pair: Pair) -> None:
    """They go to MPI as they are."""
    pair.ours.Ibarrier().Wait()
    for comm in pair:
        sent = comm.isend("word", comm.rank)
        assert MPI.Request.waitall([comm.irecv(source=comm.rank), sent]) == ["word", None]
        assert MPI.Request.Waitall([]) is True
        assert MPI.Request.Testany([]) == (MPI.UNDEFINED, True)
    with pytest.raises(TypeError):
        MPI.Request.Waitall([1])


def test_persistent_collectives_read_their_buffers_at_each_start(pair: Pair) -> None:
    comm, p = pair.ours, pair.ours.size
    x, total = np.zeros(8), np.zeros(4)
    column = MPI.DOUBLE.Create_resized(0, 16).Commit()
    sums = comm.Allreduce_init(x[:4], total, info=MPI.INFO_NULL)
    gathered = np.zeros(4 * p)
    joins = comm.Allgather_init([x, 4, column], gathered)
    assert isinstance(sums, MPI.Prequest)
    for k in range(3):
        x[:] = np.arange(8) + k
        MPI.Prequest.Startall([sums, joins])
        MPI.Request.Waitall([sums, joins])
        assert total.tolist() == [p * (k + each) for each in range(4)]
        assert gathered.tolist() == [k + 0.0, k + 2.0, k + 4.0, k + 6.0] * p
    sums.Free()
    joins.Free()


def test_ranks_may_start_persistent_collectives_in_any_order(pair: Pair, environ: Any) -> None:
    comm = accelerate(pair.theirs.Dup())
    inputs, outputs = [np.full(2, float(k)) for k in range(4)], [np.zeros(2) for _ in range(4)]
    with environ(COLLECTIVES_VALIDATE="0"):  # which would have each start wait for the other ranks
        requests = [comm.Allreduce_init(x, y) for x, y in zip(inputs, outputs, strict=True)]
    order = np.roll(range(4), comm.rank)
    for k in order:
        requests[k].Start()
    for k in order[::-1]:
        requests[k].Wait()
    assert [y[0] for y in outputs] == [k * comm.size for k in range(4)]
    for k in order:
        requests[k].Free()
    comm.Barrier_init().Free()
    assert comm.served() == {"Allreduce_init": (4, 0), "Barrier_init": (1, 0)}
    assert len(comm._state.lanes) == 4
    comm.Free()


def test_too_many_persistent_collectives_are_mpis(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LANES", 1)
    comm = accelerate(pair.theirs.Dup())
    requests = [comm.Barrier_init() for _ in range(3)]
    assert comm.served() == {"Barrier_init": (1, 2)}
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    comm.Free()


@pytest.mark.several
def test_requests_move_on_while_ranks_wait_in_mpi(pair: Pair) -> None:
    """Rank 1 waits for a message that rank 0 sends after its collective."""
    comm = pair.ours
    x, y = np.ones(1 << 18), np.zeros(1 << 18)
    request = comm.Iallreduce(x, y)
    if comm.rank == 0:
        request.Wait()
        comm.Send(x[:1], 1)
    elif comm.rank == 1:
        comm.Recv(np.zeros(1), 0)
    request.Wait()
    assert y.tolist() == [comm.size] * (1 << 18)


@pytest.mark.several
def test_the_first_call_does_not_wait_for_other_ranks(pair: Pair) -> None:
    comm = accelerate(pair.theirs.Dup())
    if comm.rank == 0:
        request = comm.Ibarrier()
        comm.send("I have started", 1)
    else:
        if comm.rank == 1:
            assert comm.recv(source=0) == "I have started"
        request = comm.Ibarrier()
    request.Wait()
    assert comm.served() == {"Ibarrier": (0, 1)}
    comm.Free()


def test_a_request_that_is_over(pair: Pair) -> None:
    request = pair.ours.Ibarrier()
    status = MPI.Status()
    assert request
    assert request != MPI.REQUEST_NULL
    assert request == request
    for call in (request.Free, request.Cancel):
        with pytest.raises(MPI.Exception):
            call()
    request.Wait(status)
    assert (status.Get_source(), status.Get_count(MPI.BYTE)) == (MPI.ANY_SOURCE, 0)
    assert not request
    assert request == MPI.REQUEST_NULL
    assert request.Test()
    assert request.test() == (True, None)
    request.free()
    assert hash(request) == hash(request)
    persistent = pair.ours.Barrier_init()
    persistent.Start()
    with pytest.raises(MPI.Exception):
        persistent.Start()
    with pytest.raises(MPI.Exception):
        persistent.Free()
    persistent.Wait()
    persistent.Free()
    with pytest.raises(MPI.Exception):
        persistent.Start()


def test_wrong_arguments_are_refused_at_once(pair: Pair) -> None:
    for call in (pair.ours.Iallreduce, pair.ours.Allreduce_init):
        with pytest.raises(ValueError, match="sendbuf has 3 elements, and 4 are wanted"):
            call(np.ones(3), np.ones(4))
    assert all(pair.ours._state.unused)
    with pytest.raises(MPI.Exception):
        pair.ours.Ibcast(np.ones(1), root=-3)
    for name in ("Allreduce", "Scan", "Exscan", "Reduce_scatter_block"):
        with pytest.raises(TypeError):
            getattr(pair.ours, f"I{name.lower()}")(np.ones(4), np.ones(4), MPI.SUM, 0)
    for name in ("Allgather", "Alltoall"):
        with pytest.raises(TypeError):
            getattr(pair.ours, f"I{name.lower()}")(np.ones(4), np.ones(4), root=0)
    pair.ours.Barrier()


@pytest.mark.several
def test_threads_make_their_first_calls_at_once() -> None:
    """Each rank begins with another communicator, and makes both wait for the other ranks."""
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        pytest.skip("MPI has been started without threads")
    world = accelerate(MPI.COMM_WORLD)
    comms = [world.Dup() for _ in range(2)]
    sums: list[int] = []
    threads = [Thread(target=lambda c=c: sums.append(c.allreduce(1))) for c in comms]
    for thread in threads[:: -1 if world.rank else 1]:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert sums == [world.size] * 2
    for comm in comms:
        comm.Free()


@pytest.mark.parametrize("end", ["Free", "Disconnect"])
@pytest.mark.parametrize("kind", ["folded", "moved", "parts", "barrier"])
@pytest.mark.parametrize("n", [1, 100_000])
def test_a_communicator_is_freed_before_its_requests_are_waited_for(
    kind: str, end: str, n: int
) -> None:
    comm: Any = accelerate(MPI.COMM_WORLD.Dup())
    comm.Barrier()  # before, MPI runs nonblocking calls
    p, rank = comm.size, comm.rank
    x, y = np.full(n, rank + 1.0), np.zeros((3, n))
    sent, got = np.repeat(np.arange(p, dtype=float), n), np.zeros(p * n)
    requests = {
        "folded": lambda: [comm.Iallreduce(x, each) for each in y],
        "moved": lambda: [comm.Ibcast(x, root=p - 1)],
        "parts": lambda: [comm.Ialltoallv([sent, [n] * p], [got, [n] * p])],
        "barrier": lambda: [comm.Ibarrier()],
    }[kind]()
    assert kind != "folded" or all(isinstance(each, Request) for each in requests)
    if rank == 0:
        time.sleep(0.05)
    getattr(comm, end)()
    for each in requests:
        each.Wait()
    if kind == "folded":
        assert (y == p * (p + 1) / 2).all()
    elif kind == "moved":
        assert (x == p).all()
    elif kind == "parts":
        assert (got == rank).all()
    assert comm == MPI.COMM_NULL
