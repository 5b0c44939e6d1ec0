"""Keras of TensorFlow: Horovod's interface (``import collectives.tensorflow.keras as hvd``).

Programs that were written for ``horovod.tensorflow.keras`` run with this import. Everything is that
of `collectives.keras`, but `DistributedOptimizer` also takes an optimizer of ``tf_keras``, the
older Keras that TensorFlow has under ``TF_USE_LEGACY_KERAS=1`` (`legacy`), and `load_model` loads
the models of that.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from collectives.horovod import (
    Adasum,
    Average,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Max,
    Min,
    ProcessSet,
    Product,
    ReduceOp,
    Sum,
    add_process_set,
    allgather_object,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from collectives.horovod.handles import barrier
from collectives.keras import (
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    reducescatter,
)
from collectives.keras import load_model as _load_model
from collectives.keras import optimizer as _optimizer
from collectives.keras.backends import tensorflow as _tensorflow
from collectives.tensorflow.compression import Compression
from collectives.tensorflow.functions import broadcast_global_variables, broadcast_variables
from collectives.tensorflow.keras import callbacks, elastic
from collectives.tensorflow.keras import legacy as _legacy

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before each step.
    Collective.

    Parameters
    ----------
    optimizer : Optimizer
        Of Keras 3, or of ``tf_keras``.
    name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op
        As for `collectives.keras.DistributedOptimizer`.
    backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set
        As for `collectives.keras.DistributedOptimizer`.
    scale_local_gradients
        As for `collectives.keras.DistributedOptimizer`.

    Returns
    -------
    Optimizer
        `optimizer`.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    if not _legacy.is_legacy(optimizer):
        return _optimizer.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            num_groups,
            groups,
            backward_passes_per_step,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )
    plan = _optimizer.planned(
        _tensorflow,
        name or f"Distributed{type(optimizer).__name__}",
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        sparse_as_dense=sparse_as_dense,
        passes=backward_passes_per_step,
        averages=average_aggregated_gradients,
        groups=groups if num_groups == 0 else num_groups,
        scales_local=scale_local_gradients,
    )
    return _legacy.distribute(optimizer, plan)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model; its optimizer goes on where it was, and is distributed.
    Collective.

    Parameters
    ----------
    filepath : str
        What ``model.save`` has written, with or without this library. It is a model of ``tf_keras``
        if ``tf.keras`` is that.
    custom_optimizers, custom_objects, compression
        As for `collectives.keras.load_model`.
    legacy_opts : bool
        Ignored; it is there for programs that pass it.

    Returns
    -------
    Model
        As it was saved; if that was without an optimizer, it has none.
    """
    if not _legacy.is_used():
        return _load_model(filepath, custom_optimizers, custom_objects, compression)
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = _legacy.loaded(filepath, {**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
