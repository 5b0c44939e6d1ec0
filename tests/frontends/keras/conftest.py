"""Tests of Keras 3 on one backend.

``KERAS_BACKEND=jax mpiexec -n 2 python -m pytest tests/frontends/keras``.

All ranks run the same tests. The backend is that of the environment, or TensorFlow.
"""

from __future__ import annotations

import os

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # small models; compiling takes long
# Ranks share the cores.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

os.environ["COLLECTIVES_KERAS_COMPAT"] = "0"

import keras
import pytest

import collectives.keras as hvd
from collectives.keras import compat

# True if the environment says that Keras stays as it is.
pytest.IS_LEFT = not hasattr(keras.optimizers.SGD, "lr")  # type: ignore[attr-defined]
del os.environ["COLLECTIVES_KERAS_COMPAT"]
compat.install()


@pytest.fixture(autouse=True)
def initialised() -> None:
    """Begin, as every program does."""
    hvd.init()
