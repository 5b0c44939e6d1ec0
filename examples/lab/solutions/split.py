"""Sheet 4, solved."""

import numpy as np


def sums(comm, columns, number):
    """Return the sums of `number` over the row and over the column of this rank, in this order."""
    row = comm.split(comm.rank // columns)
    column = comm.split(comm.rank % columns)
    of_row = row.allreduce(np.array([number]))
    of_column = column.allreduce(np.array([number]))
    return of_row[0], of_column[0]
