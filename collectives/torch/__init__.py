"""PyTorch: Horovod's interface (``import collectives.torch as hvd``), and `torch.distributed`.

Programs that were written for ``horovod.torch`` run with this import, which also registers the
backend ``"collectives"`` (`distributed`, and `hooks` for DDP). `handles` has what
asynchronous calls return; `reducing` and `moving` submit tensors to `collectives.background`, and
`blocking` has the calls that wait; `gradients` records them for autograd. `optimizer` is
`DistributedOptimizer`, and `buckets` its gradients; `functions` sends parameters and objects;
`compression`, `sync_batch_norm` and `elastic` are what their names say. `mpi_ops` is Horovod's name
for the calls. What comes in and goes out are tensors in host memory. Nothing of torch is imported
by other packages of the library.
"""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        f"collectives.torch needs PyTorch, which cannot be imported ({error}): pip install torch"
    ) from error

from collectives.horovod import HostsUpdatedInterrupt
from collectives.torch import elastic, mpi_ops
from collectives.torch.compression import Compression
from collectives.torch.distributed import init_process_group, monitored_barrier, register
from collectives.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from collectives.torch.mpi_ops import (
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
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    reducescatter,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from collectives.torch.optimizer import DistributedOptimizer
from collectives.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
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
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "init_process_group",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "monitored_barrier",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

register()

del _torch, register
