"""Tests of torch under an outer launcher: ``mpiexec -n 2 python -m pytest tests/torch``.

All ranks run the same tests in the same order. A rank whose test fails cannot go on, so its report
is printed at once, and the job is aborted.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import Any

os.environ.setdefault("COLLECTIVES_TIMEOUT", "60")
os.environ["COLLECTIVES_PROFILE"] = "0"  # that of this machine is not under test

import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

DEADLINE = float(os.environ.get("COLLECTIVES_TEST_DEADLINE", "120"))  # seconds, for one test

_stderr = pytest.StashKey[Any]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.fdopen(os.dup(2), "w")
    if MPI.COMM_WORLD.rank:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter:
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and MPI.COMM_WORLD.size > 1:
        text = f"{item.nodeid}: failed in {call.when}\n{report.longreprtext}"
        lines = [f"[rank {MPI.COMM_WORLD.rank}] {line}" for line in text.splitlines()]
        sys.stdout.flush()
        os.write(item.config.stash[_stderr].fileno(), ("\n" + "\n".join(lines) + "\n").encode())
        time.sleep(0.5)  # launchers do not forward what they have not read
        MPI.COMM_WORLD.Abort(1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    faulthandler.dump_traceback_later(DEADLINE, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
