"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

Where a rank is lost, the state that was last kept is restored, and the ranks that are left go on,
if the job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from collectives.horovod import basics
from collectives.horovod.elastic import ObjectState, run_fn
from collectives.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it is called with a state that all ranks have from rank 0.
    Collective.

    After a loss, the state is restored, and the function begins again on the ranks that are left;
    where the job does not survive a loss, the `HorovodInternalError` goes on. After a
    `HostsUpdatedInterrupt`, the function begins again.

    Parameters
    ----------
    func : callable
        Its first argument is the state, such as a `TensorFlowKerasState`.

    Returns
    -------
    callable
        With the same arguments.
    """
    return run_fn(func)


class TensorFlowState(ObjectState):
    """A state of variables, and of objects that can be pickled: its attributes.

    Parameters
    ----------
    variables : iterable of Variable
        The same on all ranks.
    session : Session, optional
        Ignored; it is there for programs that pass it.
    **kwargs
        The names and the objects.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self.variables = list(found)
        self._keep()
        super().__init__(broadcast_object, basics.rank, **kwargs)

    def save(self) -> None:
        """Keep the state as it is now. Local."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to the state that was last kept. Local."""
        for variable, value in self._kept:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks, and keep it.
        Collective.
        """
        broadcast_variables(self._tracked(), root_rank=0)
        self._keep()
        super().sync()

    def _tracked(self) -> list[Any]:
        return self.variables

    def _keep(self) -> None:
        self._kept = [(each, tf.identity(tf.convert_to_tensor(each))) for each in self._tracked()]


class TensorFlowKerasState(TensorFlowState):
    """A state of a model of Keras, its optimizer, and of objects that can be pickled.

    Parameters
    ----------
    model : Model
        It has its variables already.
    optimizer : Optimizer, optional
        That which the model was compiled with by default.
    backend : module, optional
        Ignored; it is there for programs that pass it.
    **kwargs
        The names and the objects.

    Raises
    ------
    ValueError
        If the model has no variables yet.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__((), **kwargs)

    def _tracked(self) -> list[Any]:
        """Return what there is now: an optimizer makes its variables later."""
        found = [] if self.optimizer is None else self.optimizer.variables
        return [*self.model.variables, *(found() if callable(found) else found)]
