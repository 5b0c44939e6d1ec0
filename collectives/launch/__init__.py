"""Starting ranks: the right ``mpiexec``, and a job as a child of this process.

This package finds the launcher of the MPI that mpi4py loads, makes the command that starts n ranks,
and returns the exit status and the output of a job. Nothing here runs inside a rank.
"""
