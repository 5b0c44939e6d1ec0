"""Keras 3 on TensorFlow, torch or JAX: Horovod's interface (``import collectives.keras as hvd``).

Programs that were written for ``horovod.keras`` run with this import. `optimizer` is
`DistributedOptimizer`, whose gradients `gradients` reduces, by what `backends` has for each backend
of Keras; `passes` adds up those of several. `callbacks` has those for ``fit``; `variables`,
`values`, `saving`, `compression` and `elastic` are what their names say. `hooks` says where Keras
has to know of distributed optimizers, and `compat` has it accept the idioms of its older versions.
What comes in and goes out are Keras's objects and arrays in host memory. Nothing here imports
another framework than the one that is Keras's backend.
"""

try:
    import keras as _keras
except ImportError as error:
    raise ImportError(
        f"collectives.keras needs Keras 3, which cannot be imported ({error}): pip install keras"
    ) from error
if int(_keras.__version__.partition(".")[0]) < 3:
    raise ImportError(
        f"collectives.keras needs Keras 3, and this is Keras {_keras.__version__}: "
        f"pip install 'keras>=3'"
    )

from collectives.horovod import (
    Adasum,
    Average,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Max,
    Min,
    ProcessSet,
    Product,
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
from collectives.keras import callbacks, compat, elastic, hooks
from collectives.keras.compression import Compression
from collectives.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from collectives.keras.saving import load_model
from collectives.keras.values import allgather, allreduce, broadcast, reducescatter
from collectives.keras.variables import broadcast_global_variables, broadcast_variables

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

hooks.install()
compat.install()
