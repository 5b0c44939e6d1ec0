"""Whether all tests are asked for, which take hours, and not those of a usual run."""

import os

__all__ = ["FULL"]

FULL = os.environ.get("COLLECTIVES_TEST_FULL", "0") not in ("", "0")
