"""The names of Horovod 0.28.1, and of our own, by front end: what programs find there."""

COMMON = """
    Adasum Average HorovodInternalError HostsUpdatedInterrupt Max Min ProcessSet Product Sum
    add_process_set barrier ccl_built cross_rank cross_size cuda_built ddl_built global_process_set
    gloo_built gloo_enabled init is_homogeneous is_initialized local_rank local_size mpi_built
    mpi_enabled mpi_threads_supported nccl_built rank remove_process_set rocm_built shutdown size
    start_timeline stop_timeline
"""
TORCH_CALLS = """
    allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_ alltoall
    alltoall_async broadcast broadcast_ broadcast_async broadcast_async_ grouped_allgather
    grouped_allgather_async grouped_allreduce grouped_allreduce_ grouped_allreduce_async
    grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async join poll
    reducescatter reducescatter_async sparse_allreduce_async synchronize
"""
TENSORFLOW_CALLS = """
    allgather allreduce alltoall broadcast broadcast_ grouped_allgather grouped_allreduce
    grouped_reducescatter join local_rank_op local_size_op process_set_included_op rank_op
    reducescatter size_op
"""
OBJECTS = "allgather_object broadcast_object Compression DistributedOptimizer elastic same "
OBJECTS += "stop_requested"
KERAS = f"""
    {COMMON} {OBJECTS} PartialDistributedOptimizer allgather allreduce broadcast
    broadcast_global_variables broadcast_variables callbacks load_model reducescatter
"""

NAMES = {
    "torch.mpi_ops": f"{COMMON} {TORCH_CALLS}",
    "torch": f"""
        {COMMON} {TORCH_CALLS} {OBJECTS} DiLoCo SyncBatchNorm broadcast_optimizer_state
        broadcast_parameters init_process_group monitored_barrier mpi_ops
    """,
    "tensorflow.mpi_ops": f"{COMMON} {TENSORFLOW_CALLS}",
    "tensorflow": f"""
        {COMMON} {TENSORFLOW_CALLS} {OBJECTS} BroadcastGlobalVariablesHook CrossDeviceOps
        DistributedGradientTape PartialDistributedGradientTape SyncBatchNormalization
        broadcast_global_variables broadcast_object_fn broadcast_variables gpu_available mpi_ops
    """,
    "tensorflow.keras": KERAS,
    "keras": KERAS,
}


def exported(front_end: str) -> list[str]:
    """Return the names that ``from collectives.... import *`` brings."""
    found: dict[str, object] = {}
    exec(f"from collectives.{front_end} import *", found)
    return sorted(found.keys() - {"__builtins__"})


def wanted(front_end: str) -> list[str]:
    """Return the names that a front end should have."""
    return sorted(NAMES[front_end].split())
