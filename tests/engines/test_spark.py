"""`collectives.spark` on a local Spark, whose tasks have worker processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import collectives as cc
from collectives import spark as ours
from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    PeerLostError,
    RankError,
    StallError,
)
from collectives.horovod.engines import run_on_spark

sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")

CORES = 3


@pytest.fixture(scope="module", autouse=True)
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.raises(CommunicatorError, match="there is no active Spark context"):
        ours.run(total)
    folder = tmp_path_factory.mktemp("spark")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        # So short a job is over before the second compiler and parallel collections pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder),
        # The folder in which workers find this module.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
        ),
    }
    builder = sql.SparkSession.builder.master(f"local[{CORES}]")
    for name, value in options.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    yield
    gateway = made.sparkContext._gateway
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which the Java process ends
    gateway.proc.wait(30)


def total(scale: int = 1) -> tuple[int, int, list[float], int]:
    x = np.full(1000, float(scale * (cc.rank() + 1)))
    return cc.rank(), cc.world().size, cc.allreduce(x)[:2].tolist(), os.getpid()


def fail() -> None:
    if cc.rank() == 1:
        raise KeyError("weights")
    cc.barrier()


def test_results_come_in_order_of_ranks() -> None:
    found = ours.run(total, kwargs={"scale": 2})
    assert [each[:3] for each in found] == [(r, 3, [12.0, 12.0]) for r in range(3)]
    assert len({each[3] for each in found}) == 3


@pytest.mark.slow
def test_several_jobs_one_after_another() -> None:
    def variable() -> str | None:
        return os.environ.get("EXTRA")

    for n in (2, 1, 3):
        found = ours.run(total, (3,), num_proc=n)
        value = 3.0 * (n * (n + 1) // 2)
        assert [each[:3] for each in found] == [(r, n, [value, value]) for r in range(n)]
        assert ours.run(variable, num_proc=n, env={"EXTRA": "7"}) == ["7"] * n
    assert ours.run(variable) == [None] * CORES


def test_an_error_says_rank_and_host_and_the_others_do_not_hang() -> None:
    with pytest.raises(KeyError, match="weights") as caught:
        ours.run(fail)
    assert isinstance(caught.value.__cause__, RankError)
    text = str(caught.value.__cause__)
    assert f"on rank 1 of 3 on {socket.gethostname()}" in text
    assert "rank 1 gave up: KeyError: 'weights'" in text


def test_an_error_does_not_wait_for_ranks_that_compute(tmp_path: Path) -> None:
    def compute() -> None:
        if cc.rank() == 1:
            limit = time.monotonic() + 100
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
                time.sleep(0.01)
            raise KeyError("weights")
        (tmp_path / str(os.getpid())).touch()
        time.sleep(300)

    start = time.monotonic()
    with pytest.raises(KeyError, match="weights"):
        ours.run(compute)
    assert time.monotonic() - start < 60
    pids = [each.name for each in tmp_path.iterdir()]
    assert len(pids) == 2
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() - start < 60
        time.sleep(0.05)


def test_a_worker_that_dies_is_named() -> None:
    def die() -> None:
        if cc.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        cc.barrier()

    with pytest.raises(
        PeerLostError, match=r"rank 2 of 3 on \S+ has ended: .*Python worker exited"
    ):
        ours.run(die)
    assert len(ours.run(total)) == 3


def test_more_ranks_than_slots() -> None:
    with pytest.raises(StallError) as caught:
        ours.run(total, num_proc=5, timeout=1)
    assert str(caught.value) == (
        "Spark has not started 5 ranks in 1 s: each is a task, and they run at the same time. The "
        "cluster can run 3 tasks at once. Ask for fewer ranks or more executors, or end other jobs"
    )


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="num_proc is 0, and must be a positive number"):
        ours.run(total, num_proc=0)
    with pytest.raises(ArgumentError, match="argument 0 cannot be pickled"):
        ours.run(total, (threading.Lock(),))


@pytest.mark.slow
def test_a_program_of_horovod() -> None:
    pytest.importorskip("torch")

    def train(value: float) -> tuple[int, int, float]:
        import horovod.torch as hvd  # type: ignore[import-not-found]
        import torch

        hvd.init()
        return hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([value * hvd.rank()])).item()

    for _ in range(2):  # in the same workers
        assert run_on_spark(train, args=(4.0,), num_proc=2, use_gloo=True) == [
            (0, 2, 2.0),
            (1, 2, 2.0),
        ]
    with pytest.raises(NotImplementedError, match="takes no executable"):
        run_on_spark(train, executable="python3")
