"""Find out if this machine has a GPU for the tests that are marked ``gpu``."""

from __future__ import annotations

import pytest


def missing() -> str:
    """Return the missing part, or an empty string."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    return "" if cupy.cuda.is_available() else "CuPy finds no GPU"


MISSING = missing()
MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is a GPU"),
    pytest.mark.ranks(1, 2, 4, 8),
]
