"""``examples/flower``: a server and two sites, each a process of Flower's own, on this machine."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from usual import FULL

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 300  # seconds; Flower starts a process for each answer
CONFIG = """
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{}"
insecure = true
"""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed"),
    pytest.mark.skipif(not FULL, reason="takes a minute; COLLECTIVES_TEST_FULL=1 runs it"),
]


def wait_for(port):
    limit = time.monotonic() + DEADLINE / 3
    while time.monotonic() < limit:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no program listens on port {port}")


def test_two_sites_and_a_server(tmp_path):
    link, *ports = (free_port() for _ in range(3))
    (tmp_path / "config.toml").write_text(CONFIG.format(link))
    bin = Path(sys.executable).absolute().parent
    env = {
        **os.environ,
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
    }
    children = []

    def start(name, *words):
        with open(tmp_path / f"{len(children)}.log", "w") as log:
            command = [bin / name, "--insecure", *map(str, words)]
            child = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
            children.append(child)

    try:
        start("flower-superlink", "--port", link, "--disable-runtime-dependency-installation")
        wait_for(link)
        for site, port in enumerate(ports):
            words = "--superlink", f"127.0.0.1:{link}", "--port", port
            start("flower-supernode", *words, "--node-config", f"site={site}")
        done = subprocess.run(
            [bin / "flwr", "run", ROOT / "examples/flower", "here", "--stream"],
            env=env,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in reversed(children):  # with the processes that they have started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, number)
            time.sleep(2)
        for each in children:
            each.wait()
    text = done.stdout + done.stderr
    for number in (1, 2, 3):
        assert f"round {number}: 2 sites, 200 samples" in text, text
    found = text.partition("learned: ")[2].split()[:3]
    for got, want in zip(map(float, found), (1.0, -2.0, 0.5), strict=True):
        assert abs(got - want) < 0.05, text
