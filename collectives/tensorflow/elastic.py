"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

After the loss of a rank, the last kept state is restored, and the remaining ranks continue, if the
job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from collectives.horovod.elastic import VariablesState, run
from collectives.keras.elastic import KerasState
from collectives.tensorflow.functions import broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(VariablesState):
    """A state of variables, and of objects that can be pickled: its attributes.

    Parameters
    ----------
    variables : iterable of Variable
        The same on all ranks.
    session : Session, optional
        Ignored; accepted for compatibility with Horovod.
    **kwargs
        The objects by their names.
    """

    _send = staticmethod(broadcast_variables)

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self.variables: list[Any] = list(found)
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        return self.variables

    def _copied(self, variable: Any) -> Any:
        return tf.identity(tf.convert_to_tensor(variable))


class TensorFlowKerasState(KerasState):
    """A `collectives.keras.elastic.KerasState` with one more argument of Horovod.

    Parameters
    ----------
    model, optimizer, **kwargs
        As for `KerasState`.
    backend : module, optional
        Ignored; accepted for compatibility with Horovod.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer, **kwargs)
