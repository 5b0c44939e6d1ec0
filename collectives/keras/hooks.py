"""Changes of Keras itself for distributed optimizers.

`install` changes some of its methods, for distributed optimizers only. A `LossScaleOptimizer` that
is made of one takes its place: whether gradients are finite is asked of those that are reduced, so
that all ranks have the same answer. ``compile`` does not ask XLA to compile what calls Python. On
JAX, ``fit`` and ``train_on_batch`` raise the errors of the library, whose text is all that a
compiled step passes on.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

from collectives.keras.compat import definer
from collectives.keras.distribution import backend, distribute, is_distributed, release


def install() -> None:
    """Change Keras's methods, once. Local."""
    scaler: Any = keras.optimizers.LossScaleOptimizer
    if hasattr(scaler.__init__, "_collectives"):
        return
    scaler.__init__ = _marked(_outermost(scaler.__init__))
    trainer = definer(keras.Model, "compile")
    trainer.compile = _without_xla(trainer.compile)
    if keras.backend.backend() == "jax":
        for name in ("fit", "train_on_batch"):
            trainer = definer(keras.Model, name)
            setattr(trainer, name, raising(getattr(trainer, name)))


def _marked(function: Any) -> Any:
    function._collectives = True
    return function


def _outermost(plain: Any) -> Any:
    """Return the method that makes a `LossScaleOptimizer`, which takes a distribution over."""

    @functools.wraps(plain)
    def __init__(self: Any, inner_optimizer: Any, *arguments: Any, **options: Any) -> None:
        released = release(inner_optimizer) if is_distributed(inner_optimizer) else None
        plain(self, inner_optimizer, *arguments, **options)
        if released is not None:
            distribute(self, released)

    return __init__


def _without_xla(plain: Any) -> Any:
    """Return ``compile``, which leaves XLA out on TensorFlow."""

    @functools.wraps(plain)
    def compile(self: Any, optimizer: Any = "rmsprop", *arguments: Any, **options: Any) -> Any:
        calls_python = is_distributed(optimizer) and not optimizer._distribution.is_alone
        if calls_python and keras.backend.backend() == "tensorflow":
            if options.setdefault("jit_compile", False) is True:
                raise ValueError(
                    "jit_compile=True cannot be used with a distributed optimizer on TensorFlow: "
                    "XLA does not compile calls of Python. Leave it out, or pass jit_compile=False"
                )
            options["jit_compile"] = False
        return plain(self, optimizer, *arguments, **options)

    return compile


def raising(plain: Any) -> Any:
    """Return a function that raises the errors of the library, and not those of the backend that
    tell of them. Local.
    """
    own_errors = backend().own_errors

    @functools.wraps(plain)
    def function(*arguments: Any, **options: Any) -> Any:
        with own_errors():
            return plain(*arguments, **options)

    return function
