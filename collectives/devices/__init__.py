"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

The engine of a communicator hands calls with such arrays to `calls`, which `entry` loads. `arrays`
reads the arrays, and `transports` says which way a call goes. `staging` runs the collective of the
host on pieces of them (`columns`) in pinned memory (`ring`), `nccl` has NCCL do it. `ipc` is for
ranks of one host that can read each other's device memory: the collective runs in that memory
(`direct`), `peers` has what the ranks share, and `passes` enqueues the folds of `kernels`. An MPI
that accepts device pointers (`aware`, `trial`) sends the messages of the same plans.
`messages` are sends and receives, `group` is an allreduce of many arrays. No file but `cupy_driver`
and `cupy_nccl` imports CuPy; `runtime` loads them when the first array of a device comes.
"""
