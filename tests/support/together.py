"""Hooks for tests that all ranks run together; a ``conftest.py`` imports it.

All ranks run the same tests in the same order. A rank whose test fails cannot go on: the others are
inside a collective and wait for it. So its report is printed at once, with the rank, and the job is
aborted. The first line has the exception: ``tests/run.py`` shows it in its summary. A test that
takes longer than DEADLINE seconds prints where it is and exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import textwrap
import time
from typing import Any

# Before collectives is imported: all of its communicators read these.
os.environ.setdefault("COLLECTIVES_TIMEOUT", "60")
os.environ["COLLECTIVES_PROFILE"] = "0"  # that of this machine is not under test

import pytest
from places import RANK, SIZE, abort

__all__ = [
    "pytest_configure",
    "pytest_internalerror",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
]

DEADLINE = float(os.environ.get("COLLECTIVES_TEST_DEADLINE", "120"))  # seconds, for one test

_stderr = pytest.StashKey[Any]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Nothing is captured yet here: descriptor 2 is what the launcher gave us.
    config.stash[_stderr] = os.fdopen(os.dup(2), "w")
    if RANK:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter:
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if SIZE == 1 and item.get_closest_marker("several"):
        pytest.skip("it takes several ranks")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and SIZE > 1:
        sections = "".join(f"--- {name} ---\n{text}\n" for name, text in report.sections)
        error = call.excinfo.exconly() if call.excinfo else report.longreprtext
        first = f"{item.nodeid}: failed in {call.when}: {textwrap.shorten(error, 200)}"
        text = f"{first}\n{report.longreprtext}\n{sections}"
        text = "".join(f"\n[rank {RANK} of {SIZE}] {line}" for line in text.splitlines())
        capture = item.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            sys.stdout.flush()
            os.write(item.config.stash[_stderr].fileno(), f"{text}\n".encode())
        time.sleep(0.5)  # launchers do not forward what they have not read when a job is aborted
        abort()
    return report


def pytest_internalerror(excrepr: object) -> None:
    print(f"[rank {RANK}] {excrepr}", file=sys.__stderr__, flush=True)
    abort()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    faulthandler.dump_traceback_later(DEADLINE, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
