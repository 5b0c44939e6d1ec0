"""`collectives.dask.run` on a real cluster of worker processes."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ports import free_port
from survivors import go_on

import collectives as cc
from collectives import dask as ours
from collectives.errors import ArgumentError, PeerLostError, RankError

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
dask = pytest.importorskip("dask", reason="Dask is not installed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


def total(scale: int = 1) -> tuple[int, int, list[float], int]:
    x = np.full(1000, float(scale * (cc.rank() + 1)))
    return cc.rank(), cc.world().size, cc.allreduce(x)[:2].tolist(), os.getpid()


def test_results_come_in_order_of_ranks(client: Any) -> None:
    found = ours.run(client, total, 3, scale=2)
    assert [each[:3] for each in found] == [(r, 3, [12.0, 12.0]) for r in range(3)]
    assert len({each[3] for each in found}) == 3


def test_several_jobs_one_after_another_in_the_same_processes(client: Any) -> None:
    pids = {each[3] for each in ours.run(client, total)}
    for n in (2, 3, 1, 3):
        found = ours.run(client, total, n)
        value = float(n * (n + 1) // 2)
        assert [each[:3] for each in found] == [(r, n, [value, value]) for r in range(n)]
        assert {each[3] for each in found} <= pids


def test_jobs_leave_nothing_open(client: Any) -> None:
    def files() -> int:
        cc.barrier()
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    first = ours.run(client, files, 3)
    for _ in range(20):
        last = ours.run(client, files, 3)
    # A job has three files open.
    assert max(b - a for a, b in zip(first, last, strict=True)) < 20


def test_an_error_says_rank_and_host_and_the_others_do_not_hang(client: Any) -> None:
    def fail() -> None:
        if cc.rank() == 1:
            raise KeyError("weights")
        cc.barrier()

    start = time.monotonic()
    with pytest.raises(KeyError, match="weights") as caught:
        ours.run(client, fail, 3)
    assert time.monotonic() - start < 120
    assert isinstance(caught.value.__cause__, RankError)
    assert f"on rank 1 of 3 on {socket.gethostname()}" in str(caught.value.__cause__)
    assert len(ours.run(client, total, 3)) == 3


def test_workers_are_there_whatever_the_client_asks_of_the_scheduler(client: Any) -> None:
    """Each client does so every two seconds, without the list of workers."""

    def wait() -> int:
        time.sleep(2)
        return cc.rank()

    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        distributed.Client(client.scheduler.address) as restless,
    ):
        assert ours.run(restless, wait, 3) == [0, 1, 2]


def test_bad_arguments(client: Any) -> None:
    with pytest.raises(ArgumentError, match="n is 4, and there are 3 workers"):
        ours.run(client, total, 4)
    with pytest.raises(ArgumentError, match="no worker of the cluster"):
        ours.run(client, total, workers=["tcp://127.0.0.1:1"])


def test_a_worker_that_dies_is_named(client: Any) -> None:
    def die() -> None:
        if cc.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        cc.barrier()

    start = time.monotonic()
    with pytest.raises(PeerLostError, match="rank 2 of 3"):
        ours.run(client, die, 3)
    assert time.monotonic() - start < 120
    client.wait_for_workers(3, timeout=100)
    assert len(ours.run(client, total, 3)) == 3


def test_an_elastic_job_goes_on_without_a_worker_that_dies(client: Any) -> None:
    assert ours.run(client, go_on, 3, elastic=True) == [(0, 2, 20.0), (1, 2, 20.0)]
    client.wait_for_workers(3, timeout=100)
    assert len(ours.run(client, total, 3)) == 3


@pytest.mark.slow
def test_a_new_worker_at_the_address_of_a_lost_one_is_no_rank() -> None:
    """Its nanny starts it there, while the others compute."""

    def wait() -> tuple[int, int, float]:
        result = go_on()
        time.sleep(8)
        return result

    workers = {
        number: {
            "cls": distributed.Nanny,
            "options": {"nthreads": 1, "port": 0, "worker_port": free_port(), "dashboard": False},
        }
        for number in range(3)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": ":0"}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler) as cluster,
        distributed.Client(cluster) as made,
    ):
        made.wait_for_workers(3, timeout=100)
        before = set(made.sync(made.scheduler.identity, n_workers=-1)["workers"])
        assert ours.run(made, wait, 3, elastic=True) == [(0, 2, 20.0), (1, 2, 20.0)]
        made.wait_for_workers(3, timeout=100)
        assert set(made.sync(made.scheduler.identity, n_workers=-1)["workers"]) == before
        assert len(ours.run(made, total, 3)) == 3
