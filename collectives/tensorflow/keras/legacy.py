"""Optimizers of ``tf_keras``, the older Keras that ``TF_USE_LEGACY_KERAS=1`` brings back."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from collectives.keras.distribution import Distribution, swap_class
from collectives.keras.gradients import Plan


def is_legacy(optimizer: Any) -> bool:
    """Return whether an `optimizer` is one of ``tf_keras``. Local."""
    return _is_of_tf_keras(type(optimizer))


def is_used() -> bool:
    """Return whether ``tf.keras`` is ``tf_keras``. Local."""
    return _is_of_tf_keras(tf.keras.Model)


def _is_of_tf_keras(cls: type) -> bool:
    return any(each.__module__.partition(".")[0] == "tf_keras" for each in cls.__mro__)


def loaded(filepath: Any, objects: Mapping[str, Any]) -> Any:
    """Return a model of ``tf_keras`` that was saved. Local."""
    models = importlib.import_module("tf_keras").models
    return models.load_model(filepath, custom_objects=dict(objects))


def distribute(optimizer: Any, plan: Plan) -> Any:
    """Have an optimizer of ``tf_keras`` reduce its gradients; return it. Local."""
    if plan.passes > 1:
        raise NotImplementedError(
            "backward_passes_per_step needs Keras 3: this is an optimizer of tf_keras"
        )
    swap_class(optimizer, _Distributed)
    vars(optimizer)["_distribution"] = Distribution(plan)
    return optimizer


class _Distributed:
    """The methods of an optimizer whose gradients are reduced."""

    _distribution: Distribution

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients, and change variables by them: `grads_and_vars`; `args` and `kwargs` are
        as for the optimizer's own method. Collective.
        """
        own: Any = super()
        pairs = list(grads_and_vars)
        grads, variables = [each for each, _ in pairs], [each for _, each in pairs]
        made = self._distribution.reduced(grads, variables)
        return own.apply_gradients(zip(made, variables, strict=True), *args, **kwargs)

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable, `var`, from being reduced. Local."""
        self._distribution.plan.local.append(var)
