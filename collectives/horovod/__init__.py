"""The part of Horovod's interface that does not depend on a framework.

Front ends such as `collectives.torch` import the common names of Horovod's front ends from here.
`basics` has the initialisation, the end, and the numbers of ranks; `process_sets` has groups of
ranks; `ops` and `adasum` have the operations; `objects` sends Python objects; `elastic` keeps the
state of a program; `errors` has Horovod's errors. The inputs are arguments in Horovod's terms, and
the outputs are submissions to `collectives.background`. Nothing here imports a framework.
"""

from collectives.horovod.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
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
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from collectives.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from collectives.horovod.ops import Adasum, Average, Max, Min, Product, Sum
from collectives.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
