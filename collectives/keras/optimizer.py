"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras

from collectives.horovod.gradients import GradientOptions
from collectives.horovod.ops import Average, ReduceOp, Sum
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.keras.compression import Compression
from collectives.keras.distribution import (
    Distribution,
    backend,
    distribute,
    holder_of,
    is_distributed,
)
from collectives.text.words import shown

_numbers: Counter[str] = Counter()  # number of optimizers of each name


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before each step.
    Collective.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        It is changed in place, and returned. Its variables and its configuration stay the same, and
        a model that is saved with it can be loaded without this library. If a `LossScaleOptimizer`
        wraps it later, the wrapper reduces the gradients.
    name : str, optional
        The prefix of the names of its submissions. By default, ``Distributed`` and the name of its
        class.
    device_dense, device_sparse : str
        Ignored; accepted for compatibility with Horovod.
    compression : Compressor, or codec of `collectives.compression`
        The compression of gradients: ``Compression.none``, ``Compression.fp16``, a class of your
        own, or such as ``"int8"``.
    sparse_as_dense : bool
        Whether sparse gradients, such as those of embeddings on TensorFlow, are reduced as dense
        ones.
    gradient_predivide_factor : float
        With ``Average``: gradients are divided by it before they are added, and the sum is
        multiplied by it and divided by the number of ranks.
    op : ReduceOp
        ``Average`` or ``Sum``.
    num_groups : int
        Deprecated: pass `groups`.
    groups : int or list of list of variable, optional
        The groups of gradients that are reduced together, or their number. By default, as many
        small ones as fit into a bucket of ``COLLECTIVES_FUSION_THRESHOLD``.
    backward_passes_per_step : int
        The number of steps of the program whose gradients add up before they are reduced and
        applied. The model does not change between them. Sparse gradients are added up as dense
        ones.
    average_aggregated_gradients : bool
        Whether the sum of the gradients is divided by the number of passes.
    process_set : ProcessSet
        The ranks. Other ranks use their own gradients.
    scale_local_gradients : bool
        Whether gradients of variables that are registered by ``register_local_var`` are divided by
        the number of ranks.

    Returns
    -------
    Optimizer
        `optimizer`, with one more method: ``register_local_var(variable)`` excludes the gradient of
        a variable from the reduction.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    _check(optimizer, backward_passes_per_step)
    options = GradientOptions.checked(
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        num_groups=num_groups,
        groups=groups,
        passes=backward_passes_per_step,
        ops=(Average, Sum),
        averages_passes=average_aggregated_gradients,
        sparse_as_dense=sparse_as_dense,
        scales_local=scale_local_gradients,
        name=named(optimizer, name),
    )
    return distribute(optimizer, Distribution(backend(), options))


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks, except those of some layers.
    Collective.

    Parameters
    ----------
    optimizer, name, device_dense, device_sparse, compression, sparse_as_dense
        As for `DistributedOptimizer`.
    gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients
        As for `DistributedOptimizer`.
    groups, process_set, scale_local_gradients
        As for `DistributedOptimizer`.
    local_layers : keras.Layer, or sequence of keras.Layer, optional
        The layers that each rank trains alone. They may be built later.

    Returns
    -------
    Optimizer
        `optimizer`, as for `DistributedOptimizer`.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or ())
    for each in layers:
        if not isinstance(each, keras.Layer):
            raise ValueError(f"local_layers has {shown(each)}, and must have layers of Keras")
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    made._distribution.local.extend(layers)
    return made


def _check(optimizer: Any, passes: int) -> None:
    """Raise an error if an optimizer cannot be distributed."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer is {shown(optimizer)}, and must be an optimizer of Keras 3")
    if is_distributed(optimizer):
        raise ValueError("the optimizer is distributed already")
    if passes != 1 and holder_of(optimizer).gradient_accumulation_steps:
        raise ValueError(
            "backward_passes_per_step and the optimizer's own gradient_accumulation_steps are both "
            "given: pass one of them"
        )


def named(optimizer: Any, name: str | None) -> str:
    """Return a name that no other optimizer of this process has. Local."""
    name = name or f"Distributed{type(optimizer).__name__}"
    _numbers[name] += 1
    return name if _numbers[name] == 1 else f"{name} (optimizer {_numbers[name]})"
