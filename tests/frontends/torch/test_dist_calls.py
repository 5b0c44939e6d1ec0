"""The calls of torch.distributed on the backend "collectives"."""

from __future__ import annotations

import os
import re
import threading
from contextlib import nullcontext, suppress
from datetime import timedelta

import numpy as np
import pytest
import torch
from dtypes import BITWISE
from places import RANK, SIZE
from torch import distributed as dist
from torch.distributed import ReduceOp, checkpoint

import collectives.torch
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    MismatchError,
    StallError,
    UnsupportedTypeError,
)
from collectives.process.waiting import Wait, until
from collectives.torch.distributed.work import AnySourceWork

RANKS = torch.arange(SIZE)


@pytest.fixture(scope="module", autouse=True)
def group():
    """The default group, without any address."""
    dist.init_process_group("collectives")
    yield dist.group.WORLD
    dist.destroy_process_group()


def mine(shape=(5,), dtype=torch.float32):
    return torch.full(shape, RANK + 1).to(dtype)


TOTAL = SIZE * (SIZE + 1) // 2


def test_names():
    assert dist.get_backend() == "collectives"
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64],
    ids=str,
)
def test_allreduce_of_each_dtype(dtype):
    x = mine(dtype=dtype)
    dist.all_reduce(x)
    assert x.dtype == dtype
    assert x.tolist() == [TOTAL] * 5


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (ReduceOp.AVG, (SIZE + 1) / 2),
        (ReduceOp.PRODUCT, np.prod(range(1, SIZE + 1))),
        (ReduceOp.MIN, 1),
        (ReduceOp.MAX, SIZE),
        (ReduceOp.PREMUL_SUM(0.5), TOTAL / 2),
    ],
    ids=["avg", "product", "min", "max", "premul"],
)
def test_operations(op, wanted):
    x = mine()
    dist.all_reduce(x, op)
    assert x.tolist() == [wanted] * 5


@pytest.mark.parametrize("op", BITWISE)
def test_bits(op):
    x = torch.tensor([RANK + 5])
    dist.all_reduce(x, getattr(ReduceOp, op))
    assert x.item() == BITWISE[op].reduce(np.arange(5, SIZE + 5))


def test_bool():
    x = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(x, ReduceOp.MAX)
    assert x.tolist() == [True, True, False]


def test_strides_and_gradients_and_nothing():
    base = mine((4, 6))
    dist.all_reduce(base.t()[::2])
    assert base.t()[::2].eq(TOTAL).all()
    assert base.t()[1::2].eq(RANK + 1).all()
    parameter = torch.nn.Parameter(mine())
    dist.all_reduce(parameter)
    assert parameter.tolist() == [TOTAL] * 5
    for shape in ((0,), (3, 0), ()):
        x = mine(shape)
        dist.all_reduce(x)
        assert x.shape == shape
    assert x.item() == TOTAL


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG], ids=["sum", "avg"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_sparse_tensors(op, is_async, dimensions):
    rows = torch.zeros(SIZE + 1, 3)
    rows[RANK] = 1.0  # of this rank alone
    rows[SIZE] = RANK  # rank 0 has no element there
    x = rows.to_sparse(dimensions)
    work = dist.all_reduce(x, op, async_op=is_async)
    if is_async:
        work.wait()
    dist.all_reduce(rows, op)
    assert x.is_sparse
    assert torch.equal(x.to_dense(), rows)
    none = torch.zeros(3).to_sparse()
    dist.all_reduce(none)
    assert none._nnz() == 0


def coalesced(x, part, group, op, async_op):
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp, options.asyncOp = op, async_op
    return group.allreduce_coalesced([x, part], options)


REDUCE = {
    "all_reduce": lambda x, part, **options: dist.all_reduce(x, **options),
    "reduce": lambda x, part, **options: dist.reduce(x, 0, **options),
    "reduce_scatter": lambda x, part, **options: dist.reduce_scatter_tensor(part, x, **options),
    "coalesced": coalesced,
    "sparse": lambda x, part, **options: dist.all_reduce(x.to_sparse(), **options),
}


@pytest.mark.several
@pytest.mark.parametrize("call", REDUCE)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_mean_and_a_sum_of_integers_differ(call, is_async):
    beside = dist.new_group(timeout=timedelta(seconds=20))
    x, part = torch.ones(2 * SIZE, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    op = ReduceOp.SUM if RANK else ReduceOp.AVG
    told = None
    try:
        work = REDUCE[call](x, part, group=beside, op=op, async_op=is_async)
        if work is not None:
            work.wait()
        dist.barrier(group=beside)  # a rank that waited for no other is told there
    except CollectivesError as error:
        told = str(error)
    every = [None] * SIZE
    dist.all_gather_object(every, told)
    assert None not in every
    assert re.search(r"rank 0 .*\bAVG\b.*; ranks? .*\bSUM\b", str(every)), every


@pytest.mark.parametrize("is_async", [False, True])
def test_means_of_integers_are_truncated(group, is_async):
    rows = torch.tensor([[-7 - k, 5 + k, k] for k in range(SIZE)])
    mean = rows.sum(0).div(SIZE, rounding_mode="trunc").tolist()

    def done(call, *arguments, **options):
        work = call(*arguments, op=ReduceOp.AVG, async_op=is_async, **options)
        if is_async:
            work.wait()

    for dtype in (torch.int64, torch.int32, torch.int8):
        x = rows[RANK].to(dtype)
        total, root, strided = x.clone(), x.clone(), torch.stack([x, x], 1)[:, 0]
        done(dist.all_reduce, total)
        done(dist.all_reduce, strided)
        done(dist.reduce, root, SIZE - 1)
        assert total.tolist() == strided.tolist() == mean
        assert root.tolist() == mean or RANK < SIZE - 1
        parts = [x] * SIZE
        one, other, uneven = torch.empty_like(x), torch.empty_like(x), x.new_empty(3 - (RANK > 0))
        done(dist.reduce_scatter_tensor, one, torch.cat(parts))
        done(dist.reduce_scatter, other, parts)
        done(dist.reduce_scatter, uneven, [x, *[x[:2]] * (SIZE - 1)])
        assert one.tolist() == other.tolist() == mean
        assert uneven.tolist() == mean[: len(uneven)]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = ReduceOp.AVG
    several = [rows[RANK].clone(), rows[RANK][:2].clone()]
    group.allreduce_coalesced(several, options).wait()
    assert [each.tolist() for each in several] == [mean, mean[:2]]
    sparse = rows[RANK].to_sparse()
    done(dist.all_reduce, sparse)
    assert sparse.to_dense().tolist() == mean


def test_asynchronous_calls():
    x, y = mine(), mine((3,))
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, ReduceOp.MAX, async_op=True)
    later = second.get_future().then(lambda future: future.value()[0] + 1)
    assert later.wait().tolist() == [SIZE + 1] * 3
    assert first.wait()
    assert first.is_completed()
    assert first.is_success()
    assert first.exception() is None
    assert x.tolist() == [TOTAL] * 5


def test_the_profiler_shows_names_shapes_and_durations():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(torch.ones(2, 3))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.broadcast(torch.ones(6, 4).t(), 0)
        dist.all_reduce(torch.ones(7).to_sparse())
        dist.barrier()
    events = [each for each in profile.events() if each.name.startswith("collectives:")]
    assert [(each.name.partition(":")[2], each.input_shapes) for each in events] == [
        ("all_reduce", [[2, 3]]),
        ("all_reduce", [[5]]),
        ("broadcast", [[4, 6]]),
        ("all_reduce", [[7]]),
        ("barrier", []),
    ]
    assert all(each.cpu_time_total > 0 for each in events)


def test_one_rank_waits_where_another_does_not():
    x = mine()
    work = dist.all_reduce(x, async_op=RANK == 0)
    if RANK == 0:
        work.wait()
    assert x.tolist() == [TOTAL] * 5


def test_many_at_once():
    tensors = [mine((k % 7,)) for k in range(2500)]  # more than the library has in flight
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    futures = [work.get_future() for work in works[-50:]]
    torch.futures.wait_all(futures)
    for work in works:
        work.wait()
    assert all(each.eq(TOTAL).all() for each in tensors)


def test_broadcast_and_reduce():
    root = SIZE - 1
    x = mine((2, 3)).t()
    dist.broadcast(x, root)
    assert x.eq(SIZE).all()
    x = mine()
    dist.reduce(x, root)
    assert x.tolist() == [TOTAL if root == RANK else RANK + 1] * 5


def test_gathers():
    every = [torch.empty(2, 3) for _ in range(SIZE)]
    dist.all_gather(every, mine((2, 3)))
    assert [each[0, 0].item() for each in every] == [k + 1 for k in range(SIZE)]
    uneven = [torch.empty(k) for k in range(SIZE)]
    dist.all_gather(uneven, mine((RANK,)))
    assert [each.tolist() for each in uneven] == [[k + 1.0] * k for k in range(SIZE)]
    row = torch.empty(SIZE, 2)
    row[RANK] = RANK
    dist.all_gather_single(row, row[RANK])  # in place, as FSDP2 does
    assert row[:, 1].tolist() == list(range(SIZE))
    there = [torch.empty(2) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(mine((2,)), there, dst=0)
    if there:
        assert [each[1].item() for each in there] == [k + 1 for k in range(SIZE)]


def test_scatters():
    x = torch.empty(2)
    dist.scatter(x, [torch.full((2,), k) + 0.5 for k in range(SIZE)] if RANK == 0 else None, 0)
    assert x.tolist() == [RANK + 0.5] * 2
    dist.reduce_scatter(x, [torch.full((2,), float(k)) for k in range(SIZE)])
    assert x.tolist() == [RANK * SIZE] * 2
    uneven = torch.empty(RANK)
    dist.reduce_scatter(uneven, [torch.full((k,), float(k)) for k in range(SIZE)])
    assert uneven.tolist() == [RANK * SIZE] * RANK
    dist.reduce_scatter_single(x, torch.arange(2.0 * SIZE), op=ReduceOp.AVG)
    assert x.tolist() == [2.0 * RANK, 2.0 * RANK + 1]


def test_alltoall():
    out = torch.empty(SIZE)
    dist.all_to_all_single(out, torch.arange(SIZE) + 10.0 * RANK)
    assert out.tolist() == [10.0 * k + RANK for k in range(SIZE)]
    # k + 1 rows to rank k; rank 0 says so although all of its own parts may be equal
    x = torch.full((sum(range(1, SIZE + 1)), 2), float(RANK))
    out = torch.empty((RANK + 1) * SIZE, 2)
    splits = [RANK + 1] * SIZE, [k + 1 for k in range(SIZE)]
    for kind in (np.array, torch.tensor, list):
        dist.all_to_all_single(out.zero_(), x, *map(kind, splits))
        assert out[:, 1].tolist() == [float(k) for k in range(SIZE) for _ in range(RANK + 1)]
    assert out[:, 1].tolist() == [float(k) for k in range(SIZE) for _ in range(RANK + 1)]
    outs = [torch.empty(k, dtype=torch.int32) for k in range(SIZE)]
    dist.all_to_all(outs, [torch.full((RANK,), k, dtype=torch.int32) for k in range(SIZE)])
    assert [each.tolist() for each in outs] == [[RANK] * k for k in range(SIZE)]


def test_coalesced():
    a, b = mine((2,)), mine((3,))
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    assert a.tolist() + b.tolist() == [TOTAL] * 5
    outs = [torch.empty(SIZE), torch.empty(2 * SIZE)]
    with dist._coalescing_manager():
        for k, out in enumerate(outs):
            dist.all_gather_single(out, mine((k + 1,)))
    assert outs[1][::2].tolist() == (RANKS + 1).tolist()
    outs = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager():
        for k, out in enumerate(outs):
            dist.reduce_scatter_single(out, mine(((k + 1) * SIZE,)))
    assert [each.tolist() for each in outs] == [[TOTAL], [TOTAL] * 2]


def test_several_arrays_are_gathered_in_one_call(group):
    every = [[torch.empty(1), torch.empty(2)] for _ in range(SIZE)]
    group.allgather_coalesced(every, [mine((1,)), mine((2,))]).wait()
    assert [each[1].tolist() for each in every] == [[k + 1] * 2 for k in range(SIZE)]


@pytest.mark.several
def test_messages():
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    x, y = mine((100_000,)), torch.empty(100_000)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, y, before)]
    )
    for request in requests:
        request.wait()
    assert y[-1].item() == before + 1
    if RANK == 0:
        sources = []
        for _ in range(SIZE - 1):
            z = torch.empty(2)
            sources.append(dist.recv(z, tag=7))
            assert z[0].item() == sources[-1] + 1
        assert sorted(sources) == list(range(1, SIZE))
    else:
        dist.send(mine((2,)), 0, tag=7)


@pytest.mark.several
def test_a_message_of_any_rank(group):
    """The ways to wait for it beside ``wait()``."""
    if RANK == 0:
        x, y = torch.empty(2), torch.empty(2)
        first, second = group.recv_anysource([x], 11), group.recv_anysource([y], 12)
        assert not first.is_completed()
        dist.barrier()
        assert until(first.is_completed, Wait(timeout=50))
        assert (first.source_rank(), x.tolist()) == (1, [2, 2])
        future = second.get_future()
        dist.barrier()
        assert future.wait() == [y]
        assert (second.source_rank(), y.tolist()) == (SIZE - 1, [SIZE, SIZE])
    else:
        dist.barrier()
        if RANK == 1:
            dist.send(mine((2,)), 0, tag=11)
        dist.barrier()
        if RANK == SIZE - 1:
            dist.send(mine((2,)), 0, tag=12)


@pytest.mark.several
@pytest.mark.parametrize("source", [None, 1])
def test_a_message_that_is_too_long(source):
    beside = dist.new_group()
    if RANK == 0:
        work = dist.irecv(torch.empty(2), source, group=beside)
        assert until(work.is_completed, Wait(timeout=50))
        assert isinstance(work.exception(), CollectivesError)
        assert not work.is_success()
        with pytest.raises(CollectivesError) as caught:
            work.wait()
        assert caught.value is work.exception()
    elif RANK == 1:
        with suppress(CollectivesError):
            dist.isend(mine((5,)), 0, group=beside).wait()
    dist.barrier()
    dist.destroy_process_group(beside)


def test_a_look_at_a_message_of_any_rank_does_not_wait_for_its_end():
    gate = threading.Event()

    class LongMessage:
        """A communicator that receives all of a message before a call returns, as MPI may."""

        def _sender(self, tag):
            return 3

        def irecv(self, x, source, tag):
            gate.wait(30)
            x.fill_(7)
            return self

        def test(self):
            return True

        def wait(self, timeout=None):
            return None

    x = torch.zeros(2)
    work = AnySourceWork(LongMessage(), x, 0)
    assert not work.is_completed()
    assert not work.is_completed()
    gate.set()
    assert until(work.is_completed, Wait(timeout=50))
    assert (work.source_rank(), x.tolist()) == (3, [7, 7])


def test_the_work_of_a_call_that_is_complete(group):
    x = torch.eye(2).to_sparse()
    work = group.allreduce([x])
    assert work.wait()
    work.synchronize()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is x
    assert work.get_future().wait()[0] is x
    assert work.source_rank() == -1
    assert torch.equal(x.to_dense(), SIZE * torch.eye(2))


@pytest.mark.several
@pytest.mark.parametrize("how", ["single", "splits", "list"])
def test_dtypes_of_all_to_all_that_differ(how):
    """No rank gets the bits of another dtype."""
    beside = dist.new_group()
    x = torch.ones(2 * SIZE, dtype=torch.int32 if RANK % 2 else torch.float32)
    out, halves = torch.zeros_like(x), [2] * SIZE
    call = {
        "single": lambda: dist.all_to_all_single(out, x, group=beside),
        "splits": lambda: dist.all_to_all_single(out, x, halves, halves, group=beside),
        "list": lambda: dist.all_to_all(
            [torch.zeros_like(x[:2]) for _ in halves], list(x.split(2)), group=beside
        ),
    }[how]
    with pytest.raises(CollectivesError, match=r"float32|int32"):
        call()
    dist.barrier()


def test_a_group_that_one_rank_aborts():
    beside = dist.new_group()
    dist.barrier(beside)
    if RANK == 0:
        beside.abort()
        beside.abort()  # once is enough
    with pytest.raises(CollectivesError, match="process group was aborted"):
        dist.all_reduce(mine(), group=beside)
    if RANK == 0:
        assert repr(beside.communicator).endswith(", its process group was aborted>")
    dist.destroy_process_group(beside)
    dist.barrier()  # other groups are whole


def test_objects():
    every = [None] * SIZE
    dist.all_gather_object(every, {"rank": RANK})
    assert every[-1] == {"rank": SIZE - 1}
    said = [RANK, "a"]
    dist.broadcast_object_list(said, src=SIZE - 1)
    assert said == [SIZE - 1, "a"]
    out = [None]
    dist.scatter_object_list(out, list(range(SIZE)) if RANK == 0 else None, src=0)
    assert out == [RANK]


def test_barrier():
    dist.barrier()
    dist.barrier(async_op=True).wait()


@pytest.mark.several
def test_models_that_must_be_equal(group):
    model = torch.nn.Linear(2, 3)
    for each in model.parameters():
        each.data.fill_(0.5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    collectives.torch.distributed.same([model, optimizer], "job", group)
    optimizer.state[model.bias]["exp_avg"][1] += RANK
    text = r"of job\[1\]\.state\[1\]\.exp_avg, an array of float32 with shape \(3,\)"
    with pytest.raises(MismatchError, match=text):
        collectives.torch.distributed.same([model, optimizer], "job", group)


@pytest.mark.several
def test_monitored_barrier(group):
    long, late = timedelta(seconds=50), SIZE - 1
    beside = dist.new_group()
    for each in (None, beside):
        collectives.torch.monitored_barrier(each, long)
    if late != RANK:
        with pytest.raises(
            StallError, match=rf"timed out after 1 s: rank {late} has not called it"
        ):
            collectives.torch.monitored_barrier(beside, 1.0)
    dist.barrier()
    if RANK != 0:
        with pytest.raises(StallError, match=r"timed out after 0.1 s: rank 0 has not called it"):
            collectives.torch.monitored_barrier(group, 0.1)
    dist.barrier()
    dist.all_reduce(mine(), group=beside)  # the group is whole


def test_groups():
    for first in (0, 1):
        ranks = list(range(first, SIZE, 2))
        if not ranks:
            continue
        group = dist.new_group(ranks, timeout=timedelta(seconds=50))
        if RANK in ranks:
            x = mine()
            dist.all_reduce(x, group=group)
            assert x[0].item() == sum(k + 1 for k in ranks)
            assert group.communicator.timeout == 50
            dist.broadcast(x, ranks[-1], group=group)
    for _ in range(1 + (RANK == 0)):
        local = dist.new_group([RANK], use_local_synchronization=True)
    x = mine()
    dist.all_reduce(x, group=local)
    assert x[0].item() == RANK + 1
    dist.destroy_process_group(local)
    ends = sorted({0, SIZE - 1})  # which are in different numbers of groups
    if RANK in ends:
        both = dist.new_group(ends, use_local_synchronization=True)
        x = mine()
        dist.all_reduce(x, group=both)
        assert x[0].item() == sum(k + 1 for k in ends)


def test_split_group(group):
    part = group.split_group([0], timeout=timedelta(seconds=50))
    assert (part is None) == (RANK > 0)
    if part is not None:
        x = mine()
        part.allreduce([x]).wait()
        assert x.tolist() == mine().tolist()
        assert part.communicator.timeout == 50
        part.shutdown()


def test_an_asynchronous_checkpoint(group, tmp_path):
    assert group._device_types == [torch.device("cpu")]
    place = [str(tmp_path)]
    dist.broadcast_object_list(place)
    checkpoint.async_save({"x": torch.arange(3.0)}, checkpoint_id=place[0]).result()
    read = {"x": torch.zeros(3)}
    checkpoint.load(read, checkpoint_id=place[0])
    assert read["x"].tolist() == [0, 1, 2]


@pytest.mark.several
def test_two_groups_wait_for_each_other_crosswise():
    other = dist.new_group(list(range(SIZE)))
    x, y = mine(), mine()
    groups = (None, other) if RANK == 0 else (other, None)
    works = [
        dist.all_reduce(each, group=group, async_op=True)
        for each, group in zip((x, y), groups, strict=True)
    ]
    for work in works:
        work.get_future().wait()
    assert x[0].item() == y[0].item() == TOTAL


def test_frameworks_see_that_the_rank_is_not_alone():
    """Some only look for these, which MPI does not set."""
    comm = collectives.world()
    assert os.environ["LOCAL_RANK"] == str(comm.local_rank)
    assert os.environ["LOCAL_WORLD_SIZE"] == str(comm.local_size)


def test_gloo_has_the_store_of_the_rendezvous():
    gloo = dist.new_group(backend="gloo")
    x = mine()
    dist.all_reduce(x, group=gloo)
    assert x[0].item() == TOTAL


def test_what_cannot_be_done_says_so():
    with pytest.raises(UnsupportedTypeError, match="AVG"):
        dist.all_reduce(torch.tensor([True]), ReduceOp.AVG)
    with pytest.raises(UnsupportedTypeError, match="to_dense"):
        dist.broadcast(torch.eye(2).to_sparse(), 0)
    with pytest.raises(ArgumentError, match=r"max.*to_dense|MAX.*to_dense"):
        dist.all_reduce(torch.eye(2).to_sparse(), ReduceOp.MAX)
    with pytest.raises(ArgumentError, match="must have one shape") if SIZE > 1 else nullcontext():
        dist.all_reduce(torch.ones(2 + RANK).to_sparse())
    with pytest.raises(UnsupportedTypeError, match="host memory"):
        dist.all_reduce(torch.empty(2, device="meta"))
    with pytest.raises(ArgumentError, match=r"must have .* with the sum 4"):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [5] * SIZE, [5] * SIZE)
    negative, fractions = [3 + SIZE, *[-1] * (SIZE - 1)], np.full(SIZE, 4 / SIZE)
    for splits in (fractions, negative) if SIZE > 1 else (fractions,):
        with pytest.raises(ArgumentError, match=r"_split_sizes .* not negative, with the sum 4"):
            dist.all_to_all_single(torch.empty(4), torch.empty(4), splits, splits)
    x = mine()  # the group is whole
    dist.all_reduce(x)
    assert x[0].item() == TOTAL


def test_it_is_registered_once():
    from collectives.torch.distributed import register

    register()
    assert collectives.torch.init_process_group
    assert "collectives" in dist.Backend.backend_list


def test_a_group_beside_a_default_group_of_another_backend(group):
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="collectives://")
    try:
        beside = dist.new_group(backend="collectives")
        some = dist.new_group(sorted({0, SIZE - 1}), backend="collectives")
        x = mine()
        dist.all_reduce(x, group=beside)
        assert x.tolist() == [TOTAL] * 5
        if RANK in (0, SIZE - 1):
            y = torch.ones(1)
            dist.all_reduce(y, group=some)
            assert y.item() == min(SIZE, 2)
    finally:
        dist.destroy_process_group()
        dist.init_process_group("collectives")
