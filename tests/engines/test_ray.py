"""`collectives.ray` on a real cluster, of one node."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from survivors import go_on

import collectives as cc
from collectives import ray as ours
from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    PeerLostError,
    RankError,
    StallError,
)
from collectives.horovod.engines import RayExecutor

ray = pytest.importorskip("ray", reason="Ray is not installed")

CPUS, GPUS = 3, 4  # nobody looks whether there are GPUs
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex()}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        here = os.path.dirname(__file__)  # where actors find what this module has
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        ray.init(
            num_cpus=CPUS,
            num_gpus=GPUS,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            _temp_dir=folder,
        )
        yield
        ray.shutdown()


def total(scale: int = 1) -> tuple[int, int, list[float], int]:
    x = np.full(1000, float(scale * (cc.rank() + 1)))
    return cc.rank(), cc.world().size, cc.allreduce(x)[:2].tolist(), os.getpid()


def fail() -> None:
    if cc.rank() == 1:
        raise KeyError("weights")
    cc.barrier()


def die() -> None:
    if cc.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    cc.barrier()


class Model:
    def __init__(self, scale: int, offset: int = 0) -> None:
        self.total = int(cc.allreduce(np.array([scale]))[0]) + offset

    def shown(self) -> tuple[int, int, str]:
        return cc.rank(), self.total, os.environ["EXTRA"]


@pytest.fixture
def executor() -> Iterator[ours.Executor]:
    made = ours.Executor(ours.Executor.create_settings(30), num_workers=3)
    made.start(Model, [5], {"offset": 1}, extra_env_vars={"EXTRA": 7})
    yield made
    made.shutdown()


def all_is_free() -> None:
    limit = time.monotonic() + 100
    while ray.available_resources().get("CPU") != CPUS:
        assert time.monotonic() < limit, ray.available_resources()
        time.sleep(0.05)


def test_results_come_in_order_of_ranks_and_no_process_stays() -> None:
    found = ours.run(total, 3, scale=2)
    assert [each[:3] for each in found] == [(r, 3, [12.0, 12.0]) for r in range(3)]
    pids = {each[3] for each in found}
    assert len(pids) == 3
    all_is_free()
    limit = time.monotonic() + 100
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_an_error_says_rank_and_host_and_the_others_do_not_hang() -> None:
    with pytest.raises(KeyError, match="weights") as caught:
        ours.run(fail, 3)
    assert isinstance(caught.value.__cause__, RankError)
    text = str(caught.value.__cause__)
    assert f"on rank 1 of 3 on {socket.gethostname()}" in text
    assert f"rank 0 on {socket.gethostname()} failed, too" in text
    assert "rank 1 gave up: KeyError: 'weights'" in text


def test_an_actor_that_dies_is_named() -> None:
    with pytest.raises(PeerLostError) as caught:
        ours.run(die, 3)
    assert str(caught.value).startswith(
        f"rank 2 of 3 on {socket.gethostname()} has ended: its worker process has died."
    )
    assert "failed, too" in str(caught.value.__cause__)
    all_is_free()


def test_an_elastic_job_goes_on_without_an_actor_that_dies() -> None:
    assert ours.run(go_on, 3, elastic=True) == [(0, 2, 20.0), (1, 2, 20.0)]
    with pytest.raises(KeyError, match="weights"):
        ours.run(fail, 3, elastic=True)
    with pytest.raises(PeerLostError, match=r"rank 2 of 3 .* has ended"):
        ours.run(die, 3, elastic=True)
    all_is_free()


def test_actors_that_cannot_be_placed() -> None:
    with pytest.raises(StallError) as caught:
        ours.run(total, 5, timeout=1)
    assert str(caught.value) == (
        "Ray has not placed 5 ranks in 1 s: 5 CPU are needed, and the cluster has 3, of which 3 "
        "are free. Ask for less, end other actors, or add nodes"
    )
    with pytest.raises(StallError, match="12 GPU are needed, and the cluster has 4"):
        ours.run(total, 2, gpus=6, timeout=1)
    with pytest.raises(StallError, match=r"2 ranks in 1 s: 1 CPU must be free on 2 hosts\. Ask"):
        ours.Executor(
            ours.Settings(placement_group_timeout_s=1), num_hosts=2, num_workers_per_host=1
        ).start()
    all_is_free()


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="n is 0, and must be a positive number of ranks"):
        ours.run(total, 0)
    with pytest.raises(ArgumentError, match="cpus is 'two', and must be a number, 0 or more"):
        ours.run(total, 2, cpus="two")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"argument 0 cannot be pickled: .* sent to the ranks"):
        ours.run(total, 2, threading.Lock())  # type: ignore[arg-type]
    for options in ({}, {"num_workers": 2, "num_hosts": 1}):
        with pytest.raises(ArgumentError, match="pass one of them"):
            ours.Executor(**options)
    for options in ({"use_gpu": False, "gpus_per_worker": 1}, {"gpus_per_worker": 0}):
        with pytest.raises(ArgumentError, match="must be 1 or more, and use_gpu True"):
            ours.Executor(num_workers=2, **options)  # type: ignore[arg-type]
    with pytest.raises(CommunicatorError, match=r"call start\(\) before"):
        ours.Executor(num_workers=2).run(total)


def test_an_executor_calls_functions_in_one_job(executor: ours.Executor) -> None:
    assert executor.execute(Model.shown) == [(r, 16, "7") for r in range(3)]
    assert executor.execute_single(Model.shown) == (0, 16, "7")
    first = executor.run(total, kwargs={"scale": 2})
    assert [each[:3] for each in first] == [(r, 3, [12.0, 12.0]) for r in range(3)]
    asked = executor.run_remote(total, [2]) + executor.run_remote(total, [2])
    assert ray.get(asked) == first * 2
    with pytest.raises(CommunicatorError, match="has been called already"):
        executor.start()


def test_an_executor_goes_on_after_an_error(executor: ours.Executor) -> None:
    with pytest.raises(ZeroDivisionError):
        executor.execute_single(lambda _: 1 // 0)
    first = executor.run(total)  # in the same job
    with pytest.raises(KeyError, match="weights") as caught:
        executor.run(fail)
    assert f"on rank 1 of 3 on {socket.gethostname()}" in str(caught.value.__cause__)
    assert executor.run(total) == first
    with pytest.raises(KeyError, match="weights"):
        ray.get(executor.run_remote(fail)[1])
    assert executor.run(total) == first


def test_an_executor_whose_actor_dies(executor: ours.Executor) -> None:
    for function in (die, total):
        with pytest.raises(PeerLostError, match=r"rank 2 of 3 on \S+ has ended"):
            executor.run(function)
    executor.shutdown()
    executor.start()
    assert [each[:2] for each in executor.run(total)] == [(r, 3) for r in range(3)]


def test_ranks_of_a_host_see_all_of_their_gpus() -> None:
    def seen() -> tuple[int, str]:
        return cc.world().local_rank, os.environ["CUDA_VISIBLE_DEVICES"]

    found = ours.run(seen, 2, gpus=1)
    assert [each[0] for each in found] == [0, 1]
    (devices,) = {each[1] for each in found}
    assert len(set(devices.split(","))) == 2


@pytest.mark.slow
def test_ranks_take_the_placement_group_of_the_program() -> None:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}] * CPUS)
    ray.get(group.ready())
    place = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    program = ray.remote(ours.run).options(num_cpus=1, scheduling_strategy=place)
    found = ray.get(program.remote(total, CPUS - 1), timeout=60)
    assert [each[:2] for each in found] == [(r, CPUS - 1) for r in range(CPUS - 1)]
    remove_placement_group(group)
    all_is_free()


@pytest.mark.slow
def test_a_program_of_horovod() -> None:
    pytest.importorskip("torch")

    def train(value: float) -> tuple[int, int, float]:
        import horovod.torch as hvd  # type: ignore[import-not-found]
        import torch

        hvd.init()
        return hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([value * hvd.rank()])).item()

    def stop() -> None:
        import horovod.torch as hvd
        import torch

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("weights")
        hvd.allreduce(torch.ones(1))

    executor = RayExecutor(
        RayExecutor.create_settings(timeout_s=30), num_hosts=1, num_workers_per_host=2
    )
    executor.start()
    wanted = [(0, 2, 2.0), (1, 2, 2.0)]
    assert executor.run(train, [4.0]) == wanted
    with pytest.raises(KeyError, match="weights"):
        executor.run(stop)
    assert executor.run(train, kwargs={"value": 4.0}) == wanted
    executor.shutdown()
    with pytest.raises(NotImplementedError, match="takes no min_workers: pass num_workers"):
        RayExecutor(ours.Settings(), min_workers=2)
