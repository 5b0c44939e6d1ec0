"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

The engine of a communicator hands calls with such arrays to `calls`. `arrays` reads the arrays,
`staging` runs the collective of the host on pieces of them (`columns`) in pinned memory (`ring`).
Nothing here folds, sends, or knows an algorithm, and only `cupy_driver` imports CuPy, which
`runtime` loads when the first array of a device comes.
"""
