"""Horovod's elastic interface: a model's state that is kept, restored and sent to all ranks.

After the loss of a rank, the last kept state is restored, and the remaining ranks continue, if the
job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from collectives.horovod.elastic import State, VariablesState, run_fn
from collectives.keras.callbacks import Callback
from collectives.keras.distribution import state_of
from collectives.keras.hooks import raising
from collectives.keras.values import broadcast_variables

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, as `collectives.torch.elastic.run` does."""
    return run_fn(raising(func))


class KerasState(VariablesState):
    """A state of a model, its optimizer, and other objects, which are attributes.

    Parameters
    ----------
    model : keras.Model
        It has to be built.
    optimizer : Optimizer, optional
        By default, the optimizer of the compiled model.
    **kwargs
        Other objects by their names; they have to be picklable.

    Raises
    ------
    ValueError
        If the model is not built.
    """

    optimizer: Any | None

    _send = staticmethod(broadcast_variables)

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("the model is not built: call model.build(input_shape) before")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and not getattr(self.optimizer, "built", False):
            # The legacy optimizers of `tf_keras` have another name for this attribute.
            make = getattr(self.optimizer, "build", None) or self.optimizer._create_all_weights
            make(model.trainable_variables)
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        state = [] if self.optimizer is None else state_of(self.optimizer)
        return [*self.model.weights, *state]

    def _copied(self, variable: Any) -> Any:
        return np.array(keras.ops.convert_to_numpy(variable))


class CommitStateCallback(Callback):
    """Commit a state after every few batches, and after each epoch.

    Parameters
    ----------
    state : State
    batches_per_commit : int
    """

    state: State
    batches_per_commit: int

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._done = 0  # batches since training began

    def on_train_begin(self, logs: Any = None) -> None:
        """Start counting batches; ignore `logs`. Local."""
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit the state after a `batch`, if it is due; ignore `logs`. Collective."""
        self._done += 1
        if self._done % self.batches_per_commit == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the state after an `epoch`; ignore `logs`. Collective."""
        self._commit()

    def _commit(self) -> None:
        _ = self.model  # on JAX, this brings the variables up to date
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Keep the number of the batch in a state, as its attribute ``batch``.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state
        self._whole: int | None = None  # the steps of an epoch, if Keras knows them

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the number of steps of an epoch; ignore `logs`. Local."""
        self._whole = self.params.get("steps")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the remaining batches of an `epoch`; ignore `logs`. Local."""
        if self._whole:
            self.params["steps"] = self._whole - self.state.batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reset the number of the batch after an `epoch`; ignore `logs`. Local."""
        self.state.batch = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the number of the `batch`; ignore `logs`. Local."""
        self.state.batch = batch


class UpdateEpochStateCallback(Callback):
    """Keep the number of epochs in a state, as its attribute ``epoch``, over several ``fit``.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before: int = state.epoch  # the epochs of earlier calls of fit

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the number of epochs before this `fit`; ignore `logs`. Local."""
        self._before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the `epoch`; ignore `logs`. Local."""
        self.state.epoch = self._before + 1 + epoch
