"""Fixtures for tests of all folders, which can import the modules in ``tests/support``."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import usual
from commands import why_not

pytest.register_assert_rewrite(
    "any_size", "forms", "gradients", "horovod_calls", "programs", "promises", "ranks"
)

NEEDED = ("collectives", "ml_dtypes", "numpy")
frozen = len(sys.modules)  # the modules that garbage collections do not walk through

os.environ.setdefault("COLLECTIVES_FLIGHT", "0")  # errors would write files

# A shell ignores it in background processes, and processes that the tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """Say what is missing in this environment."""
    lacks = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacks:
        raise pytest.UsageError(f"tests need {', '.join(lacks)}: pip install '.[mpich,test]'")
    package = Path(importlib.util.find_spec("collectives").submodule_search_locations[0])
    if (package / "_core.pyx").exists() and not list(package.glob("_core*.so")):
        text = "has no compiled core: run pytest, which does not find it, or pip install -e ."
        raise pytest.UsageError(f"{package} {text}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Do not look for garbage while thousands of tests are made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run does not have."""
    items[:], others = usual.split(items)
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """Do not walk through thousands of tests in each garbage collection."""
    freeze()


def pytest_runtest_logfinish() -> None:
    """Nor through a package as large as torch, once a test has imported it."""
    if len(sys.modules) > frozen + 300:
        gc.collect()  # what is garbage now is never collected after this
        freeze()


def freeze() -> None:
    global frozen
    gc.freeze()
    frozen = len(sys.modules)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Make clusters and pages on one worker only. Marks do nothing in xdist 3.8 with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return usual.together(nodeid)

    return Scheduling(config, log)


@pytest.fixture
def mpi() -> None:
    """Skip a test where no ranks can be started."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def has_ucx() -> None:
    """Skip a test where no UCX can be loaded."""
    from collectives.errors import BindingError
    from collectives.process import ucx

    try:
        ucx.load()
    except BindingError as error:
        pytest.skip(str(error))
