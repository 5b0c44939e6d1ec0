"""await: a coroutine of asyncio or trio waits for a request while others run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import collectives as cc
from collectives import background, errors

LIMIT = 60  # seconds


def in_asyncio(function: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(function(), LIMIT)

    return asyncio.run(limited())


def in_trio(function: Callable[[], Awaitable[Any]]) -> Any:
    trio = pytest.importorskip("trio")

    async def limited() -> Any:
        with trio.fail_after(LIMIT):
            return await function()

    return trio.run(limited)


@pytest.fixture(params=[in_asyncio, in_trio], ids=["asyncio", "trio"])
def run(request):
    return request.param


def test_the_result_of_each_kind_of_request(world, run):
    comm = world.comm
    planned = comm.plan("allreduce", np.ones(2))
    exact = comm.plan("allreduce", np.ones(2), op=cc.SUM_REPRODUCIBLE)

    async def program():
        return [
            await comm.iallreduce(np.ones(3)),
            await comm.iallreduce_many([np.ones(1), np.full(2, 2.0)]),
            await planned.start(),
            await background.submit("allreduce", np.ones(4), group=comm),
            await comm.ibarrier(),
            await exact.start(),
        ]

    first, second, third, fourth, nothing, fifth = run(program)
    p = comm.size
    assert first.tolist() == [p] * 3
    assert [each.tolist() for each in second] == [[p], [2 * p] * 2]
    assert third.tolist() == [p] * 2
    assert fourth.tolist() == [p] * 4
    assert nothing is None
    assert fifth.tolist() == [p] * 2


def test_requests_that_are_gathered(world):
    async def program():
        return await asyncio.gather(*[world.comm.iallreduce(np.full(5, k)) for k in range(9)])

    results = in_asyncio(program)
    assert [each[0] for each in results] == [k * world.comm.size for k in range(9)]


def test_others_run_while_a_rank_waits(plain):
    comm, mpi = plain

    async def program():
        beats = 0

        async def beat():
            nonlocal beats
            while beats < 20:
                await asyncio.sleep(0.001)
                beats += 1
            if comm.rank > 0:
                mpi.send(beats, 0)

        beating = asyncio.create_task(beat())
        if comm.rank == 0:
            await beating
            assert all(mpi.recv(source=rank) == 20 for rank in range(1, comm.size))
        await comm.ibarrier()  # rank 0 comes when all have counted
        await beating

    in_asyncio(program)


def cancelled_in_asyncio(request):
    async def program():
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_asyncio(program)


def cancelled_in_trio(request):
    trio = pytest.importorskip("trio")

    async def program():
        with trio.move_on_after(0.05) as scope:
            await request
        assert scope.cancelled_caught

    in_trio(program)


@pytest.mark.parametrize("cancelled", [cancelled_in_asyncio, cancelled_in_trio])
def test_a_cancelled_wait_leaves_the_operation_and_the_communicator(plain, cancelled):
    comm, mpi = plain
    if cancelled is cancelled_in_trio:
        pytest.importorskip("trio")
    if comm.rank == 0 and comm.size > 1:
        request = comm.iallreduce(np.ones(1))
        cancelled(request)
        mpi.bcast(None)
    else:
        mpi.bcast(None)
        request = comm.iallreduce(np.ones(1))
    assert request.wait().tolist() == [comm.size]
    assert comm.allreduce(np.ones(1)).tolist() == [comm.size]


def test_a_communicator_that_is_freed(world, run):
    async def program():
        async with world.comm.dup() as comm:
            await comm.iallreduce(np.ones(1))
        return comm

    assert "freed" in repr(run(program))


def test_a_communicator_that_its_block_frees(world, run):
    async def program():
        async with world.comm.dup() as comm:
            await comm.iallreduce(np.ones(1))
            comm.free()
        return comm

    assert "freed" in repr(run(program))


@pytest.mark.several
def test_a_block_whose_end_is_cancelled_gives_up(world, fresh):
    comm = fresh(validate=False, timeout=20)
    if comm.transport != "shm":
        pytest.skip("ranks tell each other in shared memory that they give up")

    async def program():
        async with comm:
            pass

    async def limited():
        await asyncio.wait_for(program(), 0.1)

    if comm.rank == 0:
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(limited())
    world.mpi.Barrier()
    told = errors.PeerAbortedError if comm.rank else errors.CommunicatorError
    with pytest.raises(told, match="rank 0 gave up: CancelledError"):
        comm.allreduce(np.ones(1))
    assert ", broken: " in repr(comm)
    world.mpi.Barrier()


def test_the_error_of_a_deadline(world, fresh, run):
    comm = fresh(validate=False, timeout=0.3)

    async def program():
        await comm.irecv(np.empty(1), comm.rank)

    with pytest.raises((errors.StallError, errors.PeerAbortedError)):
        run(program)
    world.mpi.Barrier()


def test_no_event_loop(world):
    request = world.comm.ibarrier()
    with pytest.raises(errors.CommunicatorError, match=r"neither asyncio nor trio runs: call its"):
        request.__await__().send(None)
    request.wait()
