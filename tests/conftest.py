"""Fixtures for tests of all folders, which can import the modules in ``tests/support``."""

from __future__ import annotations

import gc
import importlib.util
import signal
from pathlib import Path

import pytest
import usual
from commands import why_not

pytest.register_assert_rewrite(
    "any_size", "forms", "gradients", "horovod_calls", "programs", "promises", "ranks"
)

NEEDED = ("collectives", "ml_dtypes", "numpy")

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run does not have."""
    items[:], others = usual.split(items)
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """Do not walk through thousands of tests in each garbage collection."""
    gc.freeze()


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
