"""Tests of the front end for JAX: ``mpiexec -n 2 python -m pytest tests/jax``.

All ranks run the same tests. A rank whose test fails prints its report and ends the job, because
the others wait for it. A test that takes longer than DEADLINE seconds prints where it is and exits.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import Any

os.environ.setdefault("COLLECTIVES_TIMEOUT", "60")
os.environ["COLLECTIVES_PROFILE"] = "0"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # to compile takes most of the time

import pytest
from mpi4py import MPI

DEADLINE = float(os.environ.get("COLLECTIVES_TEST_DEADLINE", "120"))  # seconds, for one test
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

_stderr = pytest.StashKey[Any]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Nothing is captured yet here: descriptor 2 is what the launcher gave us.
    config.stash[_stderr] = os.fdopen(os.dup(2), "w")
    if RANK:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter:
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and SIZE > 1:
        where = f"[rank {RANK} of {SIZE}]"
        text = f"\n{where} {item.nodeid}: failed in {call.when}\n{report.longreprtext}\n"
        os.write(item.config.stash[_stderr].fileno(), text.encode())
        time.sleep(0.5)  # launchers do not forward what they have not read when a job is aborted
        MPI.COMM_WORLD.Abort(1)
    return report


def pytest_internalerror(excrepr: Any, excinfo: Any) -> None:
    print(f"[rank {RANK}] {excrepr}", file=sys.__stderr__, flush=True)
    MPI.COMM_WORLD.Abort(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    faulthandler.dump_traceback_later(DEADLINE, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
