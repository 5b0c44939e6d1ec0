"""Ray and Dask with workers on two hosts, which are network namespaces: messages by UCX."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import PATIENCE
from namespaces import ADDRESSES, Hosts, Unavailable, two_hosts

# A function that describes each rank, and two functions that fail on rank 1.
COMMON = """
import re, sys, time
import numpy as np
import collectives as cc

def total(scale=1):
    x = cc.allreduce(np.full(1000, float(scale * (cc.rank() + 1))))
    comm = cc.world()
    return cc.rank(), comm.size, comm.nodes, comm.transport, x[:2].tolist()

def fail():
    if cc.rank() == 1:
        raise KeyError("weights")
    cc.barrier()

def wanted(n, scale=1):
    value = float(scale * n * (n + 1) // 2)
    return [(r, n, 2, "ucx", [value, value]) for r in range(n)]

def check_error(call):
    try:
        call()
    except KeyError as error:
        text = str(error.__cause__)
        assert "on rank 1 of 2 on host" in text, text
        assert re.search("rank 1 on host[12] gave up: KeyError: 'weights'", text), text
    else:
        raise AssertionError("no error")
"""

DASK = """
import distributed
from collectives import dask as ours

if __name__ == "__main__":
    with distributed.Client(sys.argv[1]) as client:
        client.wait_for_workers(2, timeout=60)
        assert ours.run(client, total, 2, scale=2) == wanted(2, 2)
        check_error(lambda: ours.run(client, fail, 2))
        assert ours.run(client, total) == wanted(2)
    print("well")
"""

RAY = """
import ray
from collectives import ray as ours

limit = time.monotonic() + 80
while not ray.is_initialized():
    try:
        ray.init(address=sys.argv[1], log_to_driver=False)
    except ConnectionError:  # the head is not up yet
        assert time.monotonic() < limit
while ray.cluster_resources().get("CPU", 0) < 2:
    assert time.monotonic() < limit, ray.cluster_resources()
    time.sleep(0.1)
executor = ours.Executor(ours.Settings(60), num_hosts=2, num_workers_per_host=1)
executor.start()
assert executor.run(total, kwargs={"scale": 2}) == wanted(2, 2)
check_error(lambda: executor.run(fail))
assert executor.run(total) == wanted(2)
check_error(lambda: executor.run(fail))
assert executor.run(total) == wanted(2)
executor.shutdown()
print("well")
"""


@pytest.fixture
def hosts(tmp_path: Path, has_ucx: None) -> Iterator[Hosts]:
    try:
        with two_hosts(tmp_path) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(str(reason))


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[None]:
    """Have a daemon run during the test, with all that it starts."""
    daemon = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGTERM)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


def drive(hosts: Hosts, env: dict[str, str], folder: Path, text: str, address: str) -> None:
    """Run a program on the first host, which uses a cluster."""
    program = folder / "program.py"
    program.write_text(COMMON + text)
    done = subprocess.run(
        hosts.inside(0, sys.executable, str(program), address),
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done


@pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed")
def test_dask(hosts: Hosts, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"
    address = f"tcp://{ADDRESSES[0]}:8786"
    scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", ADDRESSES[0], "--no-dashboard"]
    worker = ["-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    worker += ["--no-nanny", "--local-directory", str(tmp_path), "--host"]
    with (
        running(hosts.inside(0, sys.executable, *scheduler), env),
        running(hosts.inside(0, sys.executable, *worker, ADDRESSES[0]), env),
        running(hosts.inside(1, sys.executable, *worker, ADDRESSES[1]), env),
    ):
        drive(hosts, env, tmp_path, DASK, address)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray(hosts: Hosts, tmp_path: Path) -> None:
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    env["RAY_AUTH_TOKEN"] = secrets.token_hex()
    address = f"{ADDRESSES[0]}:6379"
    common = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    common += ["--object-store-memory", str(80 << 20), "--node-ip-address"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # paths of its sockets must be short
        head = [ADDRESSES[0], "--head", "--port", "6379", "--include-dashboard", "false"]
        head += ["--temp-dir", folder]
        with running(hosts.inside(0, sys.executable, *common, *head), env):
            join = hosts.inside(1, sys.executable, *common, ADDRESSES[1], "--address", address)
            with running(wait_for(join), env):
                drive(hosts, env, tmp_path, RAY, address)


def wait_for(command: list[str]) -> list[str]:
    """Return a command that tries another one until it works."""
    return ["sh", "-c", 'until "$@"; do sleep 0.2; done', "sh", *command]
