"""Horovod's interface with tensors that NCCL carries, for which gloo stands on a fake device."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time

import pytest
import torch
from fake_accelerator import Accelerator
from fake_nccl_backend import Backend
from horovod_calls import HorovodCalls
from places import RANK, SIZE
from torch_training import alone, data, distance, loss_of, mine, model, sgd

import collectives as cc
import collectives.torch as hvd
from collectives import background
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    MismatchError,
    PeerAbortedError,
)
from collectives.torch import nccl
from collectives.torch.distributed import nccl as choice

TOTAL = SIZE * (SIZE + 1) // 2
pytestmark = pytest.mark.several


class Carried:
    """The device, and the backends that were made for it."""

    def __init__(self, device):
        self.device, self.backends = device, []

    def make(self, *arguments):
        self.backends.append(Backend(*arguments))
        return self.backends[-1]

    @property
    def calls(self):
        """The calls after the one that connects the ranks."""
        return [call for each in self.backends for call in each.calls[1:]]

    @property
    def ways(self):
        """The ways of copies between host and device."""
        return {each[:2] for each in self.device.copies if each[0] != each[1]}


@pytest.fixture
def possible(monkeypatch):
    """Have NCCL be possible on the fake device, and the environment ask for it."""
    monkeypatch.setattr(choice, "DEVICE", "fake")
    monkeypatch.setattr(choice, "problem", lambda: None)
    monkeypatch.setattr(choice, "version", lambda: 22703)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: SIZE)
    gpu = f"gpu {RANK}"
    monkeypatch.setattr(choice, "facts", lambda device: json.dumps([gpu, 22703, False]))
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    return monkeypatch


@pytest.fixture
def carried(possible):
    hvd.shutdown()
    with Accelerator("random") as device:
        made = Carried(device)
        possible.setattr(nccl, "backend", made.make)
        hvd.init()
        yield made
        world = cc.world()
        if world._background is not None:
            world._background.nccl = None
        hvd.shutdown()


def until(is_so):
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def on_device(*values):
    return torch.tensor(values).to("fake")


@pytest.mark.usefixtures("carried")
class TestCalls(HorovodCalls):
    hvd = hvd

    @pytest.fixture
    def way(self):
        return lambda function: function

    def tensor(self, values, dtype="float32"):
        return torch.tensor(values).to(getattr(torch, dtype)).to("fake")

    def dtype(self, tensor):
        return str(tensor.dtype).removeprefix("torch.")

    def numpy(self, tensor):
        assert tensor.device.type == "fake"
        return tensor.detach().cpu().to(torch.float64).numpy()

    def total(self, tensor):
        return tensor.sum()

    def gradient(self, way, function, x):
        x.requires_grad_()
        function(x).backward()
        return x.grad


def test_nothing_goes_through_host_memory(carried):
    assert hvd.nccl_built() == 22703
    x = on_device(1.0, 2.0) * (RANK + 1)
    carried.device.copies.clear()
    total = hvd.allreduce(x, op=hvd.Sum)
    joined = hvd.allgather(x)
    sent = hvd.broadcast(x, SIZE - 1)
    moved = hvd.alltoall(torch.arange(SIZE).to("fake").view(SIZE, 1) + 10 * RANK)
    part = hvd.reducescatter(torch.ones(2 * SIZE, 3).to("fake"), op=hvd.Sum)
    assert not carried.ways - {("cpu", "fake")}  # what the test has made
    assert carried.calls == ["allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter"]
    assert total.tolist() == [TOTAL, 2 * TOTAL]
    assert joined.tolist() == [k * (rank + 1.0) for rank in range(SIZE) for k in (1, 2)]
    assert sent.tolist() == [SIZE, 2 * SIZE]
    assert moved.flatten().tolist() == [RANK + 10 * rank for rank in range(SIZE)]
    assert part.tolist() == [[SIZE] * 3] * 2


def test_parts_that_differ_in_length(carried):
    x = torch.full((RANK, 2), RANK + 1).to("fake")
    joined = hvd.allgather(x)
    rows = [[rank + 1] * 2 for rank in range(SIZE) for _ in range(rank)]
    assert joined.tolist() == rows
    splits = [rank + 1 for rank in range(SIZE)]
    moved, received = hvd.alltoall(torch.arange(TOTAL).to("fake"), splits)
    assert received.tolist() == [RANK + 1] * SIZE
    mine = list(range(RANK * (RANK + 1) // 2, (RANK + 1) * (RANK + 2) // 2))
    assert moved.tolist() == mine * SIZE
    part = hvd.reducescatter(torch.arange(SIZE + 1).to("fake"), op=hvd.Sum)
    first = 0 if RANK == 0 else RANK + 1
    assert part.tolist() == [SIZE * k for k in range(first, first + 1 + (RANK == 0))]
    assert set(carried.calls) == {"broadcast", "alltoall", "reduce"}
    empty = hvd.allgather(torch.empty(0, 3).to("fake"))
    assert empty.shape == (0, 3)


def test_what_nccl_cannot_do_goes_through_host_memory(carried):
    x = on_device(1.0, 2.0)
    assert hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5).tolist() == [SIZE / 2, SIZE]
    assert hvd.allreduce(x, op=hvd.Sum, compression="int8").shape == x.shape
    assert hvd.allreduce(on_device(True, False), op=hvd.Max).tolist() == [True, False]
    if not SIZE & (SIZE - 1):
        assert hvd.allreduce(x, op=hvd.Adasum).tolist() == [1.0, 2.0]
    background.submit("allreduce", x, op="SUM", bits="size", group=cc.world()).wait()
    assert carried.calls == []
    assert ("fake", "cpu") in carried.ways


def test_calls_run_in_the_order_of_the_ranks_agreement(carried):
    """Each rank submits in an order of its own: made as they come, the calls would not match."""
    sizes = torch.randperm(20, generator=torch.Generator().manual_seed(RANK)).tolist()
    handles = {
        n: hvd.allreduce_async(torch.full((n + 1,), RANK + 1.0).to("fake"), name=f"{n}", op=hvd.Sum)
        for n in sizes
    }
    for n, handle in sorted(handles.items()):
        assert hvd.synchronize(handle).tolist() == [TOTAL] * (n + 1)
    assert len(carried.calls) == 20


def test_submissions_wait_for_no_device(carried):
    hvd.allreduce(on_device(1.0))  # it connects the ranks
    gate = threading.Event()
    x = on_device(1.0, 2.0)
    carried.device.enqueue("a long kernel", lambda: gate.wait(20), [], [x])
    handle = hvd.allreduce_async(x * (RANK + 1), op=hvd.Sum)
    found = hvd.synchronize(handle) + 1  # before the kernel has ended
    assert not gate.is_set()
    gate.set()
    assert found.tolist() == [TOTAL + 1, 2 * TOTAL + 1]


def test_results_are_taken_on_other_streams(carried):
    handle = hvd.allgather_async(on_device(1.0))
    with torch.Stream("fake"):
        found = hvd.synchronize(handle) * 2
        assert found.tolist() == [2.0] * SIZE
    del handle
    assert hvd.allreduce(on_device(3.0)).item() == 3


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 3}, {"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16}],
    ids=str,
)
def test_it_learns_what_one_process_on_the_host_does(carried, options):
    net = model(seed=RANK).to("fake")
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), **options)
    x, y = (mine(each).to("fake") for each in data())
    passes = options.get("backward_passes_per_step", 1)
    carried.device.copies.clear()
    for _ in range(3):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(passes), y.chunk(passes), strict=True):
            (loss_of(net, a, b) / passes).backward()
        optimizer.step()
    assert not carried.ways
    assert "allreduce" in carried.calls
    bound = 1e-3 if "compression" in options else 1e-6
    assert distance(net.cpu(), alone(sgd)) < bound


def test_process_sets_have_groups_of_their_own(carried):
    most = hvd.add_process_set(range(1, SIZE))
    if most.included():
        total = hvd.allreduce(on_device(RANK + 1.0), op=hvd.Sum, process_set=most)
        assert total.item() == TOTAL - 1
        assert [each.size for each in carried.backends] == ([SIZE - 1] if SIZE > 2 else [])
    assert hvd.allreduce(on_device(1.0), op=hvd.Sum).item() == SIZE
    hvd.remove_process_set(most)


def test_a_rank_that_has_joined_takes_part(carried):
    if RANK == 0:
        found = hvd.allreduce(on_device(2.0, 4.0), op=hvd.Sum, name="more")
        assert found.tolist() == [2.0, 4.0]
    hvd.join(RANK - 1 if RANK < 2 else -1)
    assert hvd.allreduce(on_device(1.0), op=hvd.Sum).item() == SIZE
    assert carried.calls == ["allreduce"] * 2


def test_a_tensor_in_host_memory_is_a_difference(carried):
    x = torch.ones(3) if RANK == 0 else torch.ones(3).to("fake")
    text = r"rank 0: allreduce of float32 \(3,\), op SUM; .*op SUM, by NCCL"
    with pytest.raises(hvd.HorovodInternalError, match=text):
        hvd.allreduce(x, op=hvd.Sum, name="mixed")
    assert hvd.allreduce(on_device(1.0), op=hvd.Sum).item() == SIZE


def test_wrong_arguments(carried):
    group = cc.world()
    x = on_device(1.0, 2.0, 3.0, 4.0)
    for arguments, text in (
        (("allreduce", x.view(2, 2).t()), r"x is not contiguous; pass x.contiguous\(\)"),
        (("allreduce", x, on_device(1.0)), r"out is float32 \(1,\), and the result is float32"),
        (("allreduce", x, torch.zeros(4)), r"x is on fake:0 and out on the host"),
        (("broadcast", x, x), f"root is {SIZE}, and must be in 0..{SIZE - 1}"),
    ):
        root = SIZE if arguments[0] == "broadcast" else 0
        with pytest.raises(ArgumentError, match=text):
            background.submit(*arguments, root=root, group=group)
    places = torch.tensor([[0]]).to("fake")
    sparse = torch.sparse_coo_tensor(places, on_device(1.0), (2,), check_invariants=False)
    with pytest.raises(BufferError, match=r"pass x.to_dense\(\)"):
        background.submit("allreduce", sparse, group=group)


# -- refusals --------------------------------------------------------------------------------------


def test_one_variable_is_for_one_operation(carried, monkeypatch):
    hvd.shutdown()
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS")
    monkeypatch.setenv("HOROVOD_GPU_BROADCAST", "NCCL")
    hvd.init()
    x = on_device(1.0)
    hvd.allreduce(x)
    hvd.broadcast(x, 0)
    assert carried.calls == ["broadcast"]
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("HOROVOD_GPU_BROADCAST", "MPI")
    hvd.shutdown()
    hvd.init()
    hvd.broadcast(x, 0)
    assert carried.calls == ["broadcast"]
    hvd.allreduce(x)
    assert carried.calls[-1] == "allreduce"


def test_ranks_must_ask_for_the_same(possible):
    hvd.shutdown()
    if RANK == 0:
        possible.setenv("HOROVOD_GPU_ALLREDUCE", "MPI")
    text = (
        "init: the work of NCCL, by HOROVOD_GPU_OPERATIONS and its kin, is allreduce, allgatherv, "
        "broadcast, alltoallv, reduce_scatterv on rank 1, and allgatherv, "
    )
    with pytest.raises(MismatchError, match=text):
        hvd.init()


@pytest.mark.parametrize("what", ["devices", "NCCL", "bits"])
def test_without_nccl_tensors_go_through_host_memory(possible, caplog, what):
    hvd.shutdown()
    if what == "devices":
        possible.setattr(torch.cuda, "device_count", lambda: SIZE - 1)
    elif what == "NCCL" and RANK == SIZE - 1:
        possible.setattr(choice, "problem", lambda: "torch has no NCCL")
    reason = {
        "devices": f"{SIZE} ranks on .* have {SIZE - 1} GPUs?, and NCCL needs one for each rank",
        "NCCL": f"torch has no NCCL \\(rank {SIZE - 1}\\)",
        "bits": "bits is 'size', which NCCL cannot keep",
    }[what]
    with caplog.at_level("INFO", "collectives"):
        hvd.init(bits="size" if what == "bits" else None)
    assert hvd.nccl_built() == 0
    with Accelerator("fast"):
        assert hvd.allreduce(on_device(1.0), op=hvd.Sum).item() == SIZE
    hvd.shutdown()
    told = (
        "HOROVOD_GPU_OPERATIONS is 'NCCL': tensors on devices travel through host memory, because "
    )
    (text,) = [each for each in caplog.messages if each.startswith(told)]
    assert re.search(reason, text)


@pytest.fixture
def apart(possible):
    """A communicator of its own, which may break, and the calls that NCCL carries for it."""
    comm = cc.world().dup()
    background.start(comm)
    with Accelerator("fast") as device:
        made = Carried(device)
        possible.setattr(nccl, "backend", made.make)
        comm._background.nccl = nccl.Nccl(comm, ("allreduce",), "HOROVOD_GPU_ALLREDUCE is 'NCCL'")
        yield comm, made
        comm._background.nccl = None


def test_ranks_that_turn_out_to_share_a_device(apart, possible):
    comm, _ = apart
    possible.setattr(choice, "facts", lambda device: json.dumps(["gpu 0", 22703, False]))
    handle = background.submit("allreduce", on_device(1.0), group=comm)
    text = rf"'NCCL', which is not possible .* ranks 0-{SIZE - 1} share one GPU .*set_device"
    # Its own error, or that of a rank which found the same first and gave up.
    with pytest.raises((ArgumentError, PeerAbortedError), match=text):
        handle.wait()


def test_tensors_of_two_devices(apart):
    comm, _ = apart
    comm._background.nccl.use(torch.device("fake", 1))
    text = "x is on fake:0, and earlier tensors of this rank were on fake:1: NCCL takes those of"
    with pytest.raises(ArgumentError, match=text):
        background.submit("allreduce", on_device(1.0), group=comm)


def test_an_end_without_a_deadline(apart):
    comm, made = apart
    assert background.submit("allreduce", on_device(1.0), group=comm).wait().item() == SIZE
    comm._background.nccl.stop(math.inf)
    assert made.backends[0].ended == ["shutdown"]


def test_a_call_that_fails_is_told_to_all_ranks(apart):
    comm, made = apart
    x = on_device(1.0, 2.0)
    first = background.submit("allreduce", x, group=comm)
    assert first.wait().tolist() == [SIZE, 2 * SIZE]
    if RANK == 0:
        made.backends[0].failure = RuntimeError("NCCL error: unhandled system error")
    second = background.submit("allreduce", x, name="second", group=comm)
    text = "the device has failed: RuntimeError: NCCL error: unhandled system error"

    def go_on():  # on other ranks, the call is on the stream, and its turn is over
        while True:
            second.wait()
            background.submit("allreduce", torch.ones(1), group=comm).wait()

    with pytest.raises(CollectivesError, match=text):
        go_on()
    problem = text if RANK == 0 else f"the call of NCCL has ended without a result: .*{text}"
    with pytest.raises(CollectivesError, match=problem):
        second.wait()
    until(lambda: made.backends[0].ended == ["abort"])
    assert first.wait().tolist() == [SIZE, 2 * SIZE]


def test_a_rank_that_has_joined_tells_the_others_that_its_call_has_failed(apart):
    comm, made = apart
    x = on_device(1.0)
    background.submit("allreduce", x, x, group=comm).wait()
    if RANK == 0:
        made.backends[0].failure = RuntimeError("NCCL error: unhandled system error")
        with pytest.raises(CommunicatorError, match="the device has failed: RuntimeError: NCCL"):
            background.join(comm, timeout=30)
    else:
        with contextlib.suppress(CommunicatorError):  # it has heard before
            background.submit("allreduce", x, x, group=comm).wait()
        until(lambda: comm._background.error is not None)
    until(lambda: made.backends[0].ended == ["abort"])


def test_ranks_that_wait_for_the_device_hear_that_a_call_has_failed(apart):
    comm, made = apart
    x = on_device(1.0)
    background.submit("allreduce", x, x, group=comm).wait()
    if RANK == 0:
        made.backends[0].failure = RuntimeError("NCCL error: unhandled system error")
    handle = background.submit("allreduce", x, x, group=comm)
    if RANK == 0:
        with pytest.raises(CollectivesError, match="the device has failed"):
            handle.wait()
    else:
        with contextlib.suppress(CommunicatorError):  # it has heard before
            handle.wait().item()  # it ends when NCCL is aborted
        until(lambda: comm._background.error is not None)
        with pytest.raises(CommunicatorError, match=r"rank 0.*the device has failed"):
            background.submit("allreduce", x, x, group=comm)
