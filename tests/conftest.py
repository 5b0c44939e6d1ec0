"""Fixtures for tests of all folders, which can import the modules in ``tests/support``."""

from __future__ import annotations

import gc
import signal

import pytest
import usual
from commands import why_not

pytest.register_assert_rewrite(
    "any_size", "forms", "gradients", "horovod_calls", "programs", "promises", "ranks"
)

# A shell ignores it in background processes, and processes that the tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
