"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from collectives.compiled.tensorflow import TensorFlow
from collectives.horovod.gradients import GradientOptions, Groups, Reducer, label_of
from collectives.horovod.ops import Adasum, Average, ReduceOp
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.compression import Compression
from collectives.tensorflow.tape import with_reducer

Graphs: Any = tf.compat.v1.train.Optimizer  # the class of TensorFlow 1


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before it applies them.
    Local; its steps are collective.

    Parameters
    ----------
    optimizer : Optimizer
        Of Keras, or of ``tf.compat.v1.train``, whose ``compute_gradients`` then reduces.
    name : str, optional
        The name, as for the optimizer.
    use_locking : bool
        Ignored: the optimizer has its own.
    device_dense, device_sparse, compression, sparse_as_dense, op
        As for `DistributedGradientTape`; Keras's optimizers do not take ``Adasum``.
    backward_passes_per_step : int
        The number of batches whose gradients add up before they are reduced; only for Keras's
        optimizers.
    average_aggregated_gradients : bool
        Whether such a sum is divided by the number of batches.
    gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
        As for `DistributedGradientTape`.

    Returns
    -------
    Optimizer

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    options = GradientOptions.checked(
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        scales_local=scale_local_gradients,
    )
    if isinstance(optimizer, Graphs):
        if backward_passes_per_step != 1:
            raise ValueError(
                f"backward_passes_per_step is {backward_passes_per_step}, and optimizers of "
                f"tf.compat.v1 take 1 only: use one of Keras"
            )
        made = with_reducer(optimizer, _Methods, Reducer(TensorFlow(), options))
        made._distributed_name = name or f"Distributed{type(optimizer).__name__}"
        return made
    if options.op == Adasum:
        raise ValueError(
            "op is Adasum, which Keras's optimizers do not take: pass op=Average or Sum"
        )
    keras = importlib.import_module("collectives.tensorflow.keras")
    return keras.DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=options.op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=options.groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


class _Methods:
    """The methods of an optimizer of TensorFlow 1 whose gradients are reduced."""

    __slots__ = ("_distributed_name", "_reducer")

    _distributed_name: str
    _reducer: Reducer

    def get_name(self) -> str:
        """Return its name. Local."""
        return self._distributed_name

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable, `var`, from the reduction. Local."""
        self._reducer.local.append(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute the gradients, and reduce them; the arguments are those of the optimizer's own
        method, `args` and `kwargs`. Collective.
        """
        own: Any = super()
        pairs = own.compute_gradients(*args, **kwargs)
        gradients, variables = [each for each, _ in pairs], [each for _, each in pairs]
        labels = [label_of(each) for each in variables]
        reduced = self._reducer.reduced(gradients, variables, labels)
        return list(zip(reduced, variables, strict=True))
