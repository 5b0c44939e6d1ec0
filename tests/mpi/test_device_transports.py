"""The transports of arrays of devices: which are possible, and how ranks learn of it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_devices import MARKS, Tensor, in_use, on_device
from mpi4py import MPI

import collectives as cc
from collectives.devices import runtime, transports
from collectives.errors import ArgumentError, BufferError, MismatchError
from collectives.measuring import doctor

pytestmark = MARKS

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def made(monkeypatch, **variables):
    """Make a communicator with variables of the environment."""
    for name, value in variables.items():
        monkeypatch.setenv(f"COLLECTIVES_{name}", str(value))
    return cc.Communicator(MPI.COMM_WORLD)


def driver(**options):
    yield from in_use("random", **options)


@pytest.fixture
def shared_gpu():
    """A driver whose device 0 is the same GPU on all ranks."""
    for each in driver():
        with each:
            yield each


@pytest.fixture
def own_gpu():
    """A driver whose device 0 is a GPU of this rank alone."""
    for each in driver(identities=[f"gpu {RANK}", "another"]):
        with each:
            yield each


def test_ranks_that_share_a_gpu(shared_gpu, monkeypatch):
    with made(monkeypatch) as comm:
        x = Tensor.of(shared_gpu, np.ones(4, np.float32))
        found = comm.device_transports(x)
        assert (found.device, found.used, found.reasons["staging"]) == (0, "staging", None)
        if SIZE == 1:
            assert found.reasons["nccl"] is None
            return
        told = f"ranks 0-{SIZE - 1} share one GPU"
        assert found.reasons["nccl"].startswith(told)
        assert f"not possible: {told}" in str(found)
        assert str(found).startswith("arrays on cuda:0 go by staging\n")
        with pytest.raises(ArgumentError, match=f"algorithm is 'nccl', .* not possible .*{told}"):
            comm.allreduce(x, algorithm="nccl")
        assert comm.allreduce(x).get()[0] == SIZE


def test_ipc_has_to_be_asked_for(shared_gpu, monkeypatch):
    with made(monkeypatch) as comm:
        found = comm.device_transports(Tensor.of(shared_gpu, np.ones(4, np.float32)))
        assert found.used == "staging"
        assert found.reasons["ipc"] is not None
        assert comm._devices().peers is None
        assert shared_gpu.calls["shared_event"] == 0


def test_ranks_that_may_share_a_gpu(shared_gpu, monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    with made(monkeypatch) as comm:
        x = Tensor.of(shared_gpu, np.ones(4, np.float32))
        assert comm.device_transports(x).reasons["nccl"] is None
        assert comm.allreduce(x, algorithm="nccl").get()[0] == SIZE


def test_one_rank_without_nccl(monkeypatch):
    reason = "it was not built in here" if RANK == SIZE - 1 else None
    for gpu in driver(identities=[f"gpu {RANK}", "another"], nccl=reason):
        with gpu, made(monkeypatch) as comm:
            x = Tensor.of(gpu, np.ones(4, np.float32))
            said = comm.device_transports(x).reasons["nccl"]
            assert said == f"it was not built in here (rank {SIZE - 1})"


def test_versions_that_differ(own_gpu, monkeypatch):
    from fake_nccl import FakeNccl

    monkeypatch.setattr(FakeNccl, "version", 23004 if RANK else 22304)
    with made(monkeypatch) as comm:
        x = Tensor.of(own_gpu, np.ones(4, np.float32))
        said = comm.device_transports(x).reasons["nccl"]
        wanted = "the versions of NCCL differ: 22304 on rank 0, 23004 on rank"
        assert said is None if SIZE == 1 else said.startswith(wanted)


def test_a_transport_that_is_asked_for(own_gpu, monkeypatch):
    with made(monkeypatch, DEVICE_TRANSPORT="nccl") as comm:
        x = Tensor.of(own_gpu, np.ones(4, np.float32))
        assert comm.device_transports(x).used == "nccl"
        assert comm.allreduce(x).get()[0] == SIZE
        assert own_gpu.calls["join"] == 1
        assert own_gpu.calls["pinned"] == 0
        with pytest.raises(ArgumentError, match=r"algorithm is 'ring', and .*=nccl runs"):
            comm.allreduce(x, algorithm="ring")
    with made(monkeypatch, DEVICE_TRANSPORT="staging") as comm:
        assert comm.allreduce(x).get()[0] == SIZE
        with pytest.raises(ArgumentError, match=r"algorithm is 'nccl', and .* is 'staging'"):
            comm.allreduce(x, algorithm="nccl")


def test_what_would_be_refused_is_not_offered(own_gpu, monkeypatch):
    """Under a transport that the environment asks for, no argument selects another one."""
    x = Tensor.of(own_gpu, np.ones(3))
    with made(monkeypatch) as comm:
        assert "possible, with algorithm='nccl'" in str(comm.device_transports(x))
    with made(monkeypatch, DEVICE_TRANSPORT="staging") as comm:
        text = str(comm.device_transports(x))
        assert "with algorithm=" not in text
        assert "possible, and COLLECTIVES_DEVICE_TRANSPORT asks for staging" in text


def test_a_transport_that_is_not_possible(monkeypatch):
    for gpu in driver(nccl="there is none"):
        with gpu, made(monkeypatch, DEVICE_TRANSPORT="nccl") as comm:
            x = Tensor.of(gpu, np.ones(4, np.float32))
            for _ in range(2):
                with pytest.raises(ArgumentError, match=r"TRANSPORT is 'nccl', which .* none"):
                    comm.allreduce(x)
            found = comm.device_transports(x)
            assert found.used is None
            assert str(found).startswith("COLLECTIVES_DEVICE_TRANSPORT asks for a transport")


def test_a_transport_that_takes_some_calls(shared_gpu, monkeypatch):
    """The first that is automatic, possible and takes the call runs it."""
    ran, reason = [], None

    def run(call):
        ran.append(call.job.columns.part)
        return call.job.result

    def probe(engine, driver, device):
        return "not on the last one" if RANK == SIZE - 1 and reason else None

    first = transports.Transport("first", "", True, probe, run, takes=lambda job: job.kind == 0)
    monkeypatch.setattr(transports, "TRANSPORTS", (first, *transports.TRANSPORTS))
    with made(monkeypatch) as comm:
        x = Tensor.of(shared_gpu, np.ones(4, np.float32))
        comm.allreduce(x)
        assert comm.reduce_scatter(Tensor.of(shared_gpu, np.ones(SIZE))).get()[0] == SIZE
        assert ran == [4]
        assert comm.device_transports(x).used == "first"
    reason = True
    with made(monkeypatch) as comm:
        assert comm.allreduce(x).get()[0] == SIZE
        found = comm.device_transports(x)
        assert found.used == "staging"
        assert found.reasons["first"] == f"not on the last one (rank {SIZE - 1})"


@pytest.mark.parametrize(
    ("name", "values"),
    [("DEVICE_TRANSPORT", ("nccl", "staging")), ("DEVICE_CHUNK", (4096, 8192))],
)
def test_ranks_that_ask_for_different_things(monkeypatch, name, values):
    if SIZE == 1:
        return
    others = "rank 1" if SIZE == 2 else f"ranks 1-{SIZE - 1}"
    told = f"COLLECTIVES_{name} is {values[0]} on rank 0 and {values[1]} on {others}; set it"
    with pytest.raises(ArgumentError, match=told):
        made(monkeypatch, **{name: values[RANK > 0]})


@pytest.mark.parametrize(("name", "value"), [("DEVICE_TRANSPORT", "fast"), ("DEVICE_CHUNK", "-1")])
def test_values_that_are_not_valid(monkeypatch, name, value):
    variables = {name: value} if RANK == 0 else {}
    with pytest.raises(ArgumentError, match=f"COLLECTIVES_{name} is '{value}', and must be"):
        made(monkeypatch, **variables)


def test_what_doctor_tells(shared_gpu, monkeypatch):
    with made(monkeypatch) as comm:
        lines = doctor.transports(comm)
        assert lines[0].endswith(" go by staging")
        assert lines[-1].endswith("used")
        assert doctor._gpus().text == "2 devices, by CuPy"
        monkeypatch.setattr(runtime, "found", lambda: "there is none")
        assert doctor.transports(comm) == []
        assert doctor._gpus().text == "none: there is none"


def test_a_method_that_needs_an_array_of_a_device(shared_gpu, monkeypatch):
    with made(monkeypatch, VALIDATE=1) as comm:
        x = on_device(shared_gpu, np.ones(4), 0)
        if RANK == 0:
            with pytest.raises(BufferError, match="x is in host memory"):
                comm.device_transports(np.ones(4))
        else:
            with pytest.raises(MismatchError, match=r"rank 0 refused device_transports"):
                comm.device_transports(x)
        assert comm.device_transports(x).used == "staging"
