"""Tests of the front end for TensorFlow.

``mpiexec -n 2 python -m pytest tests/frontends/tensorflow``.

All ranks run the same tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ranks share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "4")  # a test has three threads that wait

import pytest
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import collectives.tensorflow as hvd  # noqa: E402


@pytest.fixture(autouse=True)
def initialised() -> None:
    """Begin, as every program does."""
    hvd.init()


@pytest.fixture(params=["eager", "function"])
def way(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the ways to call a function of tensors."""
    return tf.function if request.param == "function" else lambda function: function
