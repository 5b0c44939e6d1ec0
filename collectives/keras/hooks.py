"""Changes of Keras itself for distributed optimizers.

`install` changes some of its methods, for distributed optimizers only. A `LossScaleOptimizer` that
wraps one reduces the gradients itself, before it checks that they are finite, so that all ranks
have the same result. ``compile`` does not use XLA, which cannot compile calls of Python. On JAX, a
compiled step passes on only the text of an error; ``fit`` and ``train_on_batch`` raise the
library's own error.
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
    """Return a constructor of `LossScaleOptimizer` that takes over a distribution."""

    @functools.wraps(plain)
    def __init__(self: Any, inner_optimizer: Any, *arguments: Any, **options: Any) -> None:
        released = release(inner_optimizer) if is_distributed(inner_optimizer) else None
        plain(self, inner_optimizer, *arguments, **options)
        if released is not None:
            distribute(self, released)

    return __init__


def _without_xla(plain: Any) -> Any:
    """Return a ``compile`` that does not use XLA on TensorFlow."""

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
    """Return a function that raises the library's errors instead of the backend's errors with their
    texts. Local.
    """
    own_errors = backend().own_errors

    @functools.wraps(plain)
    def function(*arguments: Any, **options: Any) -> Any:
        with own_errors():
            return plain(*arguments, **options)

    return function
