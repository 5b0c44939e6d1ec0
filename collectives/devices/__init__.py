"""Arrays in the memory of GPUs: what they are, the driver under them, and how they travel.

`driver` has the narrow interface to a GPU's runtime, `cupy_driver` implements it, `arrays` describes
a caller's array, and `staging` runs a collective by way of pinned host memory.
"""
