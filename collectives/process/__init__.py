"""The process of a rank: its MPI, its environment, its memory, forks, and its end.

In come mpi4py's module and the variables of the environment; out go the bound library, the memory
that ranks of a host share, and the agreement of ranks on a call. Nothing here knows which
collective runs, or by which algorithm.
"""
