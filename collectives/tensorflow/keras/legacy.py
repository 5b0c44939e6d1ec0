"""Optimizers and models of Keras 3, and of ``tf_keras``, the older Keras of TensorFlow.

``TF_USE_LEGACY_KERAS=1`` selects the latter.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from collectives.compiled.tensorflow import TensorFlow
from collectives.horovod.gradients import GradientOptions
from collectives.horovod.ops import Average, ReduceOp, Sum
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.keras import optimizer as optimizers
from collectives.keras import saving
from collectives.keras.distribution import Distribution, swap_class
from collectives.tensorflow.compression import Compression

__all__ = ["DistributedOptimizer", "load_model"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before each step.
    Collective.

    Parameters
    ----------
    optimizer : Optimizer
        Of Keras 3, or of ``tf_keras``.
    name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op
        As for `collectives.keras.DistributedOptimizer`.
    backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set
        As for `collectives.keras.DistributedOptimizer`.
    scale_local_gradients
        As for `collectives.keras.DistributedOptimizer`.

    Returns
    -------
    Optimizer
        `optimizer`.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    if not is_legacy(optimizer):
        return optimizers.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            num_groups,
            groups,
            backward_passes_per_step,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )
    options = GradientOptions.checked(
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        num_groups=num_groups,
        groups=groups,
        passes=backward_passes_per_step,
        ops=(Average, Sum),
        averages_passes=average_aggregated_gradients,
        sparse_as_dense=sparse_as_dense,
        scales_local=scale_local_gradients,
        name=optimizers.named(optimizer, name),
    )
    return distribute(optimizer, Distribution(TensorFlow(), options))


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model with the state of its optimizer, which becomes distributed.
    Collective.

    Parameters
    ----------
    filepath : str
        The file that ``model.save`` has written, with or without this library. It is a model of
        ``tf_keras`` if ``tf.keras`` is ``tf_keras``.
    custom_optimizers, custom_objects, compression
        As for `collectives.keras.load_model`.
    legacy_opts : bool
        Ignored; accepted for compatibility with Horovod.

    Returns
    -------
    Model
        The model as it was saved, with an optimizer only if it was saved with one.
    """
    if not is_used():
        return saving.load_model(filepath, custom_optimizers, custom_objects, compression)
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = loaded(filepath, {**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


def is_legacy(optimizer: Any) -> bool:
    """Return whether an `optimizer` is one of ``tf_keras``. Local."""
    return _is_of_tf_keras(type(optimizer))


def is_used() -> bool:
    """Return whether ``tf.keras`` is ``tf_keras``. Local."""
    return _is_of_tf_keras(tf.keras.Model)


def _is_of_tf_keras(cls: type) -> bool:
    return any(each.__module__.partition(".")[0] == "tf_keras" for each in cls.__mro__)


def loaded(filepath: Any, objects: Mapping[str, Any]) -> Any:
    """Load a saved model of ``tf_keras``. Local."""
    models = importlib.import_module("tf_keras").models
    return models.load_model(filepath, custom_objects=dict(objects))


def distribute(optimizer: Any, distribution: Distribution) -> Any:
    """Have an optimizer of ``tf_keras`` reduce its gradients; return it. Local."""
    if distribution.options.passes > 1:
        raise NotImplementedError(
            "backward_passes_per_step needs Keras 3: this is an optimizer of tf_keras"
        )
    swap_class(optimizer, _Distributed)
    vars(optimizer)["_distribution"] = distribution
    return optimizer


class _Distributed:
    """The methods of an optimizer whose gradients are reduced."""

    _distribution: Distribution

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients, and update variables with them: `grads_and_vars`; `args` and `kwargs`
        are as for the optimizer's own method. Collective.
        """
        own: Any = super()
        pairs = list(grads_and_vars)
        grads, variables = [each for each, _ in pairs], [each for _, each in pairs]
        made = self._distribution.reduced(grads, variables)
        return own.apply_gradients(zip(made, variables, strict=True), *args, **kwargs)

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable, `var`, from the reduction. Local."""
        self._distribution.local.append(var)
