"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

The engine of a communicator hands calls with such arrays to `calls`, which `entry` loads. `arrays`
reads the arrays, `job` is a call that was checked. There are two transports:

- `staging`: the collective of the host runs on pieces (`columns`) in pinned memory (`ring`).
- `ipc`, if all ranks of one host can read each other's device memory: the collective runs in that
  memory (`ipc_request`). `peers` has what the ranks share, and `passes` enqueues the folds of
  `kernels`.

No file but `cupy_driver` imports CuPy, and `runtime` loads that when the first array of a device
comes.
"""
