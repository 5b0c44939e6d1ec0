"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

The engine of a communicator hands calls with such arrays to `calls`, which `entry` loads. `arrays`
reads the arrays, `staging` runs the collective of the host on pieces of them (`columns`) in pinned
memory (`ring`). Only `cupy_driver` imports CuPy, which `runtime` loads when the first array of a
device comes. `kernels` has the sources of folds on a device; no transport launches them yet.
"""
