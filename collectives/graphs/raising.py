"""Errors of the library that are errors of TensorFlow, too, as those of Horovod.

TensorFlow passes on the text of an error that a NumPy function raises, and raises a
``tf.errors.UnknownError`` itself. Behind `install`, that is an error of the kept one's class, too,
with its text and its cause; and a ``FailedPreconditionError``, or an ``InvalidArgumentError``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from collectives.graphs.kept import found, text_of
from collectives.horovod.errors import HorovodArgumentError, HorovodInternalError

UnknownError: Any = tf.errors.UnknownError


def install() -> None:
    """Have errors of TensorFlow that tell of a kept one belong to its class. Local."""
    plain = UnknownError.__init__
    if hasattr(plain, "is_aware_of_kept_errors"):
        return

    def __init__(self: Any, node_def: Any, op: Any, message: str, *args: Any) -> None:
        plain(self, node_def, op, message, *args)
        kept: Any = found(message)
        if kept is not None:
            kind: Any = type(kept)
            self.__class__ = _derived(kind)
            self.kept = kept

    __init__.is_aware_of_kept_errors = True  # type: ignore[attr-defined]
    UnknownError.__init__ = __init__


@cache
def _derived(kind: Any) -> Any:
    """Return a class of errors that are TensorFlow's, and of a `kind` of the library."""
    members = {
        "__module__": kind.__module__,
        "__str__": lambda self: str(self.kept),
        "__repr__": lambda self: repr(self.kept),
        # TensorFlow raises its errors without a cause.
        "__cause__": property(lambda self: self.kept.__cause__),
    }
    is_argument = issubclass(kind, HorovodArgumentError)
    own = tf.errors.InvalidArgumentError if is_argument else tf.errors.FailedPreconditionError
    return type(kind.__name__, (UnknownError, own, kind), members)


def tensorflow_error(error: HorovodInternalError | HorovodArgumentError) -> BaseException:
    """Return an error that is one of TensorFlow and of the class of `error`. Local."""
    made: BaseException = UnknownError(None, None, text_of(error))
    return made
