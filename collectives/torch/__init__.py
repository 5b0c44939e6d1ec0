"""PyTorch: Horovod's interface (``import collectives.torch as hvd``), and `torch.distributed`.

Programs that were written for ``horovod.torch`` run with this import, which also registers the
backend ``"collectives"`` (`distributed`, and `hooks` for DDP). `asynchronous` has the calls that
submit tensors to `collectives.background`, and `blocking` has the calls that wait, which autograd
records. `optimizer` has `DistributedOptimizer`, and `buckets` its gradients; `diloco` is for ranks
that seldom communicate. `functions` sends parameters and objects. `compression`,
`sync_batch_norm`, `elastic` and `mpi_ops` are Horovod's modules of these names. Inputs and outputs
are tensors in host memory, or on an accelerator, from which the background copies them
(`devices.accelerators`). No other package of the library imports torch.
"""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        f"collectives.torch needs PyTorch, which cannot be imported ({error}): pip install torch"
    ) from error

from typing import TYPE_CHECKING as _TYPE_CHECKING

from collectives.horovod.names import exported as _exported
from collectives.torch import elastic as elastic
from collectives.torch import mpi_ops as mpi_ops
from collectives.torch.compression import Compression as Compression
from collectives.torch.diloco import DiLoCo as DiLoCo
from collectives.torch.distributed import init_process_group as init_process_group
from collectives.torch.distributed import monitored_barrier as monitored_barrier
from collectives.torch.distributed import register as _register
from collectives.torch.functions import *
from collectives.torch.mpi_ops import *
from collectives.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm

if not _TYPE_CHECKING:  # type checkers follow the imports
    __all__ = _exported(globals(), "elastic", "mpi_ops")

_register()

del _torch
