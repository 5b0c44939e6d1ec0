"""The transpose of a matrix that no rank has as a whole: everybody has something for everybody.

The matrix is cut by rows. After a transpose the rows are what the columns were, so each rank needs
something from every other: rank s has the rows s, rank d wants the columns d, and what goes from s
to d is the block where they cross. One `alltoall` moves all the blocks at once::

              columns 0   columns 1              rank 0       rank 1
    rank 0       A           B         -->         A            B
    rank 1       C           D                     C            D

That is a transpose of the blocks; within each of them, every rank then transposes by itself. The
Fourier transform in two dimensions is this program with two lines more: transform the rows,
transpose, transform the rows (they were the columns). It is also why `alltoall` is the collective
that large machines are built for: nothing can be saved, every byte has to travel.

Run it on any number of ranks::

    collectives run -n 4 examples/transpose.py --block 2
"""

import argparse

import numpy as np

import collectives as cc


def transpose(rows):
    """Return this rank's rows of the transposed matrix, from its rows of the matrix."""
    count, n = rows.shape
    blocks = rows.reshape(count, cc.size(), n // cc.size())  # row, whose columns, column
    to_send = np.ascontiguousarray(blocks.swapaxes(0, 1))  # the block for rank 0 first
    received = cc.alltoall(to_send)  # the block from rank 0 first: from whom, row, column
    return received.reshape(n, count).T


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--block", type=int, default=2, help="rows of each rank")
    count = parser.parse_args().block

    n = count * cc.size()
    first = cc.rank() * count
    i, j = np.ogrid[first : first + count, :n]
    rows = 100 * i + j  # a number tells in which row and column it was
    result = transpose(rows)

    wrong = cc.allreduce(np.array([np.count_nonzero(result != 100 * j + i)]))
    everything = cc.gather(np.ascontiguousarray(result))
    before = cc.gather(rows)
    if cc.rank() == 0:
        for title, matrix in (("before", before), ("after", everything)):
            print(title)
            for rank, part in enumerate(matrix[:4]):
                for line in part[:4, :16]:
                    print(f"  rank {rank}  " + " ".join(f"{number:4}" for number in line))
        print(f"{n} x {n} numbers in {cc.size()} parts, {wrong[0]} of them in a wrong place")
    if wrong[0]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
