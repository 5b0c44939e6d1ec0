"""TensorFlow: Horovod's interface (``import collectives.tensorflow as hvd``), and `tf.distribute`.

Programs that were written for ``horovod.tensorflow`` run with this import, eagerly and in a
`tf.function`. `reducing` and `moving` have the calls on tensors, and `places` those that ask for
ranks; `tape` has the gradient tapes, and `optimizer` the optimizers; `functions` sends variables
and objects; `distribute` is for strategies of `tf.distribute`; `compression`, `sync_batch_norm` and
`elastic` are what their names say. `mpi_ops` is Horovod's name for the calls. What comes in and
goes out are tensors in host memory. Nothing of TensorFlow is imported by packages that a program
without it needs.
"""

try:
    import tensorflow as _tensorflow
except ImportError as error:
    raise ImportError(
        f"collectives.tensorflow needs TensorFlow, which cannot be imported ({error}): "
        f"pip install tensorflow"
    ) from error

from tensorflow import executing_eagerly as _executing_eagerly  # noqa: F401 - programs call it

from collectives.horovod import HostsUpdatedInterrupt
from collectives.horovod.util import gpu_available as gpu_available
from collectives.keras import compat as _compat
from collectives.tensorflow import elastic, mpi_ops
from collectives.tensorflow.compression import Compression
from collectives.tensorflow.distribute import CrossDeviceOps
from collectives.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from collectives.tensorflow.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    reducescatter,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from collectives.tensorflow.optimizer import DistributedOptimizer
from collectives.tensorflow.sync_batch_norm import SyncBatchNormalization
from collectives.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "CrossDeviceOps",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_compat.install()

del _compat, _tensorflow
