"""Tests of the front end for JAX: ``mpiexec -n 2 python -m pytest tests/frontends/jax``.

All ranks run the same tests.
"""

from __future__ import annotations

import os

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # to compile takes most of the time
