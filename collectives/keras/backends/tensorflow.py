"""Keras on TensorFlow: gradients of embeddings list some rows only, and steps are graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from collectives.graphs.tensorflow import Phases, reduced, unconverted
from collectives.graphs.terms import Terms
from collectives.horovod.arrays import allgather_async
from collectives.horovod.ops import Average

__all__ = [
    "ARE_SEEN_LATE",
    "branch",
    "densified",
    "is_sparse",
    "own_errors",
    "reduced",
    "rows_reduced",
    "unconverted",
]

own_errors = nullcontext  # errors of the library come out as they are
ARE_SEEN_LATE = False


def is_sparse(tensor: Any) -> bool:
    """Return whether a `tensor` lists some rows only. Local."""
    return isinstance(tensor, tf.IndexedSlices)


def densified(tensor: Any) -> Any:
    """Return a `tensor` with all rows. Local."""
    return tf.convert_to_tensor(tensor)


def rows_reduced(tensor: Any, terms: Terms) -> Any:
    """Return the rows that the `tensor` of any rank lists, scaled by `terms`. Collective."""
    size = terms.process_set.comm().size
    factor = terms.prescale * terms.postscale / (size if terms.op == Average else 1)
    compressor: Any = terms.compression if isinstance(terms.compression, type) else None
    values, ctx = tensor.values, None
    if compressor is not None:
        values, ctx = compressor.compress(values)
    values = _joined(values, f"{terms.name}, values", terms)
    if compressor is not None:
        values = compressor.decompress(values, ctx)
    values = values if factor == 1.0 else values * tf.cast(factor, values.dtype)
    indices = _joined(tensor.indices, f"{terms.name}, indices", terms)
    return tf.IndexedSlices(values, indices, tensor.dense_shape)


def _joined(tensor: Any, name: str, terms: Terms) -> Any:
    """Return the rows of a tensor of all ranks."""

    phases = Phases()
    key = phases.named(name)

    def join(arrays: Any) -> Any:
        return allgather_async(np.asarray(arrays[0], order="C"), key, terms.process_set)

    part = phases.submit(join, [tensor])
    return phases.wait(part, [(tensor.dtype, [None, *tensor.shape[1:]])])[0]


def branch(condition: Any, yes: Callable[[], object], no: Callable[[], object]) -> None:
    """Run `yes` or `no`, as the `condition` says. Local."""

    def with_result(function: Callable[[], object]) -> Callable[[], Any]:
        def run() -> Any:
            function()
            return tf.constant(0)

        return run

    tf.cond(condition, with_result(yes), with_result(no))
