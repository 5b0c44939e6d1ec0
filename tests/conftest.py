"""What tests of all folders share. As it lies here, they can import the modules beside it."""

from __future__ import annotations

import pytest
from commands import why_not


@pytest.fixture
def mpi() -> None:
    """Skip a test where no ranks can be started."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
