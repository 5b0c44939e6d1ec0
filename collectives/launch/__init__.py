"""Starting ranks: the right ``mpiexec``, and a job as a child of this process.

In comes the MPI that mpi4py loads; out go the launcher of the same family, the command that starts
n ranks, and the exit status and reports of a job. Nothing here runs inside a rank.
"""
