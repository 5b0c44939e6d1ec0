"""Callbacks for ``fit``: a common start, metrics and learning rates of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import Any

import keras

from collectives.horovod import basics
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.objects import allgather_object, stop_requested
from collectives.horovod.ops import Min
from collectives.keras.distribution import state_of
from collectives.keras.values import allreduce, broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "StopTogetherCallback",
]


class Callback(keras.callbacks.Callback):
    """A callback with the methods that the older ``tf_keras`` requires, too."""

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastGlobalVariablesCallback(Callback):
    """Have all ranks start with the variables of one rank: those of the model and of its optimizer.

    It sends them at the beginning of training, if they are built on all ranks. Otherwise, it sends
    them after the first batch, which builds them.

    Parameters
    ----------
    root_rank : int
        The rank whose variables are sent.
    device : str
        Ignored; accepted for compatibility with Horovod.
    local_variables : variable, or sequence of variable, optional
        The variables that are not sent.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done: bool = False
        given = [] if local_variables is None else local_variables
        self._local = list(given) if isinstance(given, list | tuple | set) else [given]

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable, `var`, from the broadcast. Local."""
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Send the variables, if they are built on all ranks; ignore `logs`. Collective."""
        if self.broadcast_done:
            return
        model = self.model
        if allreduce(int(model.built), "whether models are built", op=Min):
            if not getattr(model.optimizer, "built", True):
                model.optimizer.build(model.trainable_variables)
            self._send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Send the variables after the first batch, unless they were sent before; ignore `batch`
        and `logs`. Collective.
        """
        if not self.broadcast_done:
            self._send()

    def _send(self) -> None:
        model = self.model
        variables = [*model.weights, *state_of(model.optimizer)]
        local = {id(each) for each in self._local}
        broadcast_variables([each for each in variables if id(each) not in local], self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(Callback):
    """Average the metrics of an epoch over the ranks, for the later callbacks in the list.

    A metric that only some ranks have, such as a validation loss, is averaged over these, and all
    ranks get the mean.

    Parameters
    ----------
    device : str
        Ignored; accepted for compatibility with Horovod.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics of the `epoch` in `logs`. Collective."""
        mine = {name: float(value) for name, value in (logs or {}).items()}
        every = allgather_object(mine)
        for name in sorted({name for each in every for name in each}):
            values = [each[name] for each in every if name in each]
            if logs is not None:
                logs[name] = sum(values) / len(values)


class StopTogetherCallback(Callback):
    """End training on all ranks after the same batch when one of them has been asked to stop.

    A rank is asked by SIGTERM, SIGUSR1, SIGINT or ``collectives stop``, as for
    `collectives.Communicator.stop_requested`. The later callbacks of the epoch and ``fit`` end as
    usual. Horovod has no such callback.

    Parameters
    ----------
    every : int
        The ranks look after one of so many batches.
    """

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End training after the `batch` if a rank was asked to stop; ignore `logs`. Collective."""
        if stop_requested(self.every):
            self.model.stop_training = True


class LearningRateScheduleCallback(Callback):
    """Set the learning rate to ``initial_lr * multiplier(epoch)``.

    Parameters
    ----------
    initial_lr : float
    multiplier : float or callable
        A function of the epoch; a number is raised to the power of the epochs since `start_epoch`.
    start_epoch : int
        The first epoch of the schedule.
    end_epoch : int, optional
        The epoch after the last one of the schedule.
    staircase : bool
        Whether the learning rate changes at the beginning of each epoch. Otherwise, it changes
        before each batch, and the epoch is a fraction.
    momentum_correction : bool
        Whether the accumulated momentum of an optimizer is scaled with the learning rate, because
        its gradients were added at the earlier rate.
    steps_per_epoch : int, optional
        Needed if Keras does not know it: with ``staircase=False``, and data of unknown length.

    References
    ----------
    P. Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017,
    arXiv:1706.02677.
    """

    start_epoch: int
    end_epoch: int | None
    staircase: bool
    momentum_correction: bool

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is None, and must be a learning rate")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of steps of an epoch; ignore `logs`. Local."""
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise HorovodArgumentError(
                f"Keras does not know how many steps an epoch has: pass steps_per_epoch to "
                f"{type(self).__name__}"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the `epoch`; ignore `logs`. Local."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate for the `batch`, if it changes; ignore `logs`. Local."""
        end = inf if self.end_epoch is None else self.end_epoch
        if not self.start_epoch <= self._epoch < end:
            return
        if not self.staircase:
            self._set(self._epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the learning rate into `logs`, at the end of the `epoch`. Local."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        before, now = self._rate(), self.initial_lr * self.multiplier(epoch)
        if before == now:
            return
        self.model.optimizer.learning_rate = now
        if self.momentum_correction and before:
            _scale_momentum(self.model, now / before)


def _scale_momentum(model: Any, factor: float) -> None:
    """Scale the accumulated momentum of an optimizer, which contains the learning rate. Optimizers
    without a momentum are left unchanged.
    """
    optimizer = model.optimizer
    holder = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(holder, "momentum", None) or not getattr(holder, "built", True):
        return
    found = getattr(holder, "momentums", None) or getattr(holder, "_momentums", [])
    if "momentum" in getattr(holder, "get_slot_names", list)():  # before Keras 2.11
        found = [holder.get_slot(each, "momentum") for each in model.trainable_variables]
    for each in found:
        each.assign(each * factor)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from that of one rank to `initial_lr`, by a step before each batch.

    It is ``initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1)``, where the epoch is a
    fraction, at the end of the batch.

    Parameters
    ----------
    initial_lr : float
        The learning rate for all ranks, such as that of one rank times their number.
    warmup_epochs : float
        The number of epochs of the warmup.
    momentum_correction, steps_per_epoch
        As for `LearningRateScheduleCallback`.
    verbose : int
        Whether rank 0 prints a line at the end of the warmup.

    References
    ----------
    P. Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017,
    arXiv:1706.02677.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = basics.size()
            epoch = min(epoch + 1.0 / (self.steps_per_epoch or 1), warmup_epochs)
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        last = ceil(warmup_epochs)
        super().__init__(
            initial_lr, multiplier, 0, last, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the learning rate of the `epoch` into `logs`; report the end of the warmup. Local."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and basics.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: the learning rate is warmed up, and is {self._rate():g}",
                flush=True,
            )


class BestModelCheckpoint(Callback, keras.callbacks.ModelCheckpoint):
    """Keep the best model so far in a file, which rank 0 writes.

    Parameters
    ----------
    monitor : str
        The metric. Put a `MetricAverageCallback` before this callback, to average it over the
        ranks.
    verbose, mode, save_freq
        As for Keras's ``ModelCheckpoint``.
    filepath : str
        The file. It may also be set later, as the attribute ``filepath``. By default,
        ``best_model.keras``, or ``best_model.weights.h5`` for weights only.
    save_weights_only : bool
        Whether the file has the weights only.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
        save_weights_only: bool = False,
    ) -> None:
        default = "best_model.weights.h5" if save_weights_only else "best_model.keras"
        options = {"mode": mode, "save_freq": save_freq, "save_weights_only": save_weights_only}
        super().__init__(filepath or default, monitor, verbose, save_best_only=True, **options)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save the model after the `batch`, according to `save_freq` and `logs`. Local."""
        if basics.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the model after the `epoch`, according to `save_freq` and `logs`. Local."""
        if basics.rank() == 0:
            super().on_epoch_end(epoch, logs)
