"""What runs on GPUs: `kernels`, the sources of the folds.

What comes in is the name of an operation and of a dtype, or the places and the factors of a pass.
What goes out is CUDA source text, the name of a kernel, its parameters as bytes, and how many
blocks and threads to launch. Nothing is compiled or launched here, no GPU is needed, and no library
of GPUs is imported.
"""
