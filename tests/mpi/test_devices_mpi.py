"""Arrays of devices that a CUDA-aware MPI takes, and how the ranks find out that theirs does."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_devices import (
    MARKS,
    Tensor,
    bits_of_every_algorithm,
    group,
    in_use,
    on_device,
)
from mpi4py import MPI

from collectives.devices import cuda_aware_mpi as aware
from collectives.devices import peers, runtime
from collectives.devices.direct import DirectRequest
from collectives.errors import ArgumentError, CommunicatorError, PeerAbortedError
from collectives.process import binding

pytest_plugins = ["fake_devices"]  # the fixtures
pytestmark = MARKS

TRANSPORTS = ("mpi",)
SIZE = MPI.COMM_WORLD.Get_size()


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "broadcast"])
def test_every_algorithm_has_the_bits_of_the_host(gpu, plain_comm, stream, collective):
    p = plain_comm.size
    bits_of_every_algorithm(gpu, plain_comm, stream, collective, (p * 700,))


def test_nothing_goes_through_the_host(gpu, plain_comm, stream):
    """Long ones, several at a time, and an alltoallv; a plan is run many times."""
    p = plain_comm.size
    x = on_device(gpu, np.ones(30_000 * p, np.float32), stream)
    requests = [plain_comm.iallreduce(x, op=op) for op in ("SUM", "MAX", "AVG")]
    requests.append(plain_comm.ialltoallv(x, [30_000] * p, receive_counts=[30_000] * p))
    assert all(isinstance(each, DirectRequest) for each in requests)
    wanted = [p, 1, 1, 1]
    for _ in requests[:]:
        assert (requests.pop().wait().get() == wanted.pop()).all()
    out = on_device(gpu, np.zeros(30_000 * p, np.float32), stream)
    plan = plain_comm.plan("allreduce", x, out)
    for _ in range(3):
        plan()
        assert (out.get() == p).all()
    assert gpu.calls["pinned"] == 0


def test_what_a_call_waits_for(gpu, plain_comm, stream, monkeypatch):
    x = on_device(gpu, np.ones(600, np.float32), stream)
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "done", lambda event: False)  # a device that is slow
        request = plain_comm.iallreduce(x, algorithm="ring")
        state = request.state()
    assert "waits for the device to come to the end of the work before" in state
    assert (request.wait().get() == plain_comm.size).all()


def test_other_devices(gpu, plain_comm):
    """Each device has a stream of its own."""
    for turn in range(2):
        device = (plain_comm.rank + turn) % 2
        x = Tensor.of(gpu, np.full(3000, device, np.int64), device=device)
        total = sum((rank + turn) % 2 for rank in range(plain_comm.size))
        assert (plain_comm.allreduce(x).get() == total).all()
    assert sorted(plain_comm._devices().apart) == [0, 1]


def test_a_communicator_that_is_dropped_gives_its_memory_back(gpu, stream):
    """With a call by mpi on another one; leftovers at the end fail the test, too."""
    x = on_device(gpu, np.ones(5000, np.float32), stream)
    dropped = group(False)
    request = dropped.iallreduce(x, prescale=1.0)
    del dropped
    gc.collect()
    assert request.wait(host=True).get()[0] == SIZE
    del request
    gc.collect()
    assert len(peers._leaving) == 1
    limit = time.monotonic() + 60
    with group(False) as comm:
        comm.allreduce(x)  # the device may not have come to the end of the work before
        while peers._leaving and time.monotonic() < limit:
            peers.sweep()
            time.sleep(0.001)
        assert peers._leaving == []


@pytest.mark.parametrize("method", ["done", "free"])
def test_memory_of_a_device_that_fails_is_given_up(method):
    """The next call, which has nothing to do with it, does not fail."""
    for driver in in_use("random", "mpi"):
        mine = peers.Peers(driver, 0, 0, True)
        mine.take(100)
        mine._drop()
        driver.fail_next(method, RuntimeError("the device is gone"))
        limit = time.monotonic() + 60
        while mine in peers._leaving and time.monotonic() < limit:
            peers.sweep()
        assert mine not in peers._leaving
        assert mine.is_lost
        driver.close()


def test_a_device_without_room_for_a_call(doomed, fresh):
    """The ranks hear of it, those of other hosts at the deadline."""
    comm = fresh(validate=False, timeout=20)
    if comm.nodes > 1 or comm._segment is None:
        return
    x, out = (on_device(doomed, np.ones(5000, np.float32), 0) for _ in range(2))
    comm.allreduce(x, out)
    error, told = PeerAbortedError, "no memory for allreduce"
    if comm.rank == 0:
        doomed.fail_next("allocate", MemoryError("none left"))
        error, told = CommunicatorError, "cuda:0 has no memory for allreduce"
    with pytest.raises(error, match=told):
        comm.allreduce(x, out, prescale=2.0)


def test_messages_of_a_trial(gpu):
    if SIZE == 2:
        assert aware.exchange(MPI, gpu, 1) is None


@pytest.fixture
def shared():
    """A driver, and transports as they are."""
    for driver in in_use("random"):
        with driver:
            yield driver


def refused(monkeypatch):
    """Return why the ranks cannot use the transport."""
    monkeypatch.setenv("COLLECTIVES_DEVICE_TRANSPORT", "mpi")
    with group(False) as comm:
        x = Tensor.of(runtime.found(), np.ones(4, np.float32))
        found = comm.device_transports(x)
        if found.reasons["mpi"] is None:
            return None
        with pytest.raises(ArgumentError, match="TRANSPORT is 'mpi', which is not possible here"):
            comm.allreduce(x)
        return found.reasons["mpi"]


def test_an_mpi_that_does_not_take_them(shared, monkeypatch):
    reason = refused(monkeypatch)
    assert reason is None if SIZE == 1 else f"accept device pointers ({aware.QUERY}" in reason


@pytest.mark.parametrize("says", [0, 1])
def test_what_the_library_says(monkeypatch, says):
    library = SimpleNamespace(MPIX_Query_cuda_support=lambda: says)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    reason = aware.refusal()
    assert reason is None if says else reason.endswith("(MPIX_Query_cuda_support says 0)")


def test_a_library_that_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace())
    assert "does not say whether it accepts device pointers" in aware.refusal()
    monkeypatch.undo()
    monkeypatch.setattr(binding, "library_name", lambda MPI: "MPICH 3.4.3")
    assert aware.refusal().startswith("MPICH 3.4.3 does not say")


def test_a_trial_that_fails_on_one_host(shared, monkeypatch):
    """The first rank of each host runs it, and all ranks hear what came of it."""
    if SIZE == 1:
        return
    monkeypatch.setattr(aware, "refusal", lambda: None)
    monkeypatch.setattr(aware, "failure", lambda device, limit: "the trial failed")
    told = refused(monkeypatch)
    assert told.startswith("the trial failed (rank")
    assert "0" in told


ENDS = {
    "failed (exit status 3): a word": "print('a word'); print('----'); raise SystemExit(3)",
    "failed (exit status 1): why": f"print('{aware.SAYS}why'); print('so'); raise SystemExit(1)",
    "failed (exit status -11)": "import os; os.kill(os.getpid(), 11)",
    "did not end in 0.5 s": "import time; time.sleep(60)",
}


@pytest.mark.parametrize("wanted", ENDS)
def test_how_trials_end(wanted):
    if MPI.COMM_WORLD.Get_rank() == 0:
        said = aware.ended([sys.executable, "-c", ENDS[wanted]], 0.5 if "end" in wanted else 20)
        assert said == f"a trial with two processes on this host {wanted}"
        assert aware.ended([sys.executable, "-c", "print(1)"], 20) is None
        assert "could not be started" in aware.ended(["/no/such/program"], 1)


def test_the_environment_of_a_trial(monkeypatch):
    """Nothing of the job around, except for the user's settings of MPI."""
    others = {"PMI_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID", "COLLECTIVES_VALIDATE"}
    for name in others:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    found = aware.environment()
    assert found["OMPI_MCA_pml"] == "ucx"
    assert not others & set(found)
