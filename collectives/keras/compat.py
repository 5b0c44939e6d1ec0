"""Idioms of older versions of Keras, accepted by Keras 3.

Programs of the years up to 2023 call ``optimizer.variables()``, read and set ``optimizer.lr``, pass
``lr=`` to an optimizer, and pass ``experimental_run_tf_function=`` to ``compile``. `install` has
Keras 3 accept all of these, for every optimizer and model of the process, and changes nothing else.
``COLLECTIVES_KERAS_COMPAT=0`` leaves Keras as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

from collectives.process import environment


class CallableList(list[Any]):
    """A list that returns itself when called, because ``optimizer.variables`` was a method."""

    def __call__(self) -> CallableList:
        """Return the list itself. Local."""
        return self


def definer(cls: Any, name: str) -> Any:
    """Return the class that defines an attribute of a class. Local."""
    return next(each for each in cls.__mro__ if name in vars(each))


def install() -> None:
    """Make Keras accept the older idioms, unless the environment disables this. Local."""
    base = definer(keras.optimizers.Optimizer, "variables")
    if not environment.flag("COLLECTIVES_KERAS_COMPAT", True) or hasattr(base, "lr"):
        return
    for each in (base, keras.optimizers.LossScaleOptimizer):
        each.variables = property(_calling(each.variables.fget), doc=each.variables.__doc__)
    base.lr = property(
        lambda self: self.learning_rate,
        lambda self, value: setattr(self, "learning_rate", value),
        doc="The older name of ``learning_rate``.",
    )
    base.__init__ = _with_rate(base.__init__)
    trainer = definer(keras.Model, "compile")
    trainer.compile = _without_run(trainer.compile)


def _calling(variables: Any) -> Any:
    """Return the getter of `variables` whose list can be called."""
    return functools.wraps(variables)(lambda self: CallableList(variables(self)))


def _with_rate(plain: Any) -> Any:
    """Return a constructor that accepts ``lr`` for the learning rate."""

    @functools.wraps(plain)
    def __init__(self: Any, learning_rate: Any, *arguments: Any, **options: Any) -> None:
        plain(self, options.pop("lr", learning_rate), *arguments, **options)

    return __init__


def _without_run(plain: Any) -> Any:
    """Return a ``compile`` that accepts ``experimental_run_tf_function`` and ignores it."""

    @functools.wraps(plain)
    def compile(self: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("experimental_run_tf_function", None)
        return plain(self, *arguments, **options)

    return compile
