"""What differs between the backends of Keras. Each module has the same names.

``reduced(tensors, terms)`` returns dense tensors as they are reduced over the ranks;
``is_sparse(tensor)``, ``densified(tensor)`` and ``rows_reduced(tensor, terms)`` are for gradients
that list some rows only; ``branch(condition, yes, no)`` runs one of two functions that change
variables; ``unconverted(function)`` keeps a function from what rewrites Python code;
``own_errors()`` is a context in which errors of the library are raised that a compiled step tells
of; ``ARE_SEEN_LATE`` says whether which variables have no gradient is known only when a step runs.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

__all__ = ["chosen"]

NAMES = "tensorflow", "torch", "jax"


def chosen() -> Any:
    """Return the module of the backend that Keras has. Local."""
    name = keras.backend.backend()
    if name not in NAMES:
        raise ImportError(
            f"collectives.keras needs Keras on TensorFlow, torch or JAX, and its backend is "
            f"{name}: set KERAS_BACKEND=tensorflow, torch or jax"
        )
    return importlib.import_module(f"collectives.keras.backends.{name}")
