"""The process of a rank: its MPI, its environment, its memory, forks, and its end.

This package loads mpi4py, reads the environment variables, creates the memory that the ranks of a
host share, and lets the ranks agree on a call. Nothing here depends on the collective that runs, or
on its algorithm.
"""
