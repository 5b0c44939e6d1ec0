"""The transpose of a matrix that is divided by rows: every rank sends a block to every other rank.

After a transpose the rows are the former columns, so each rank needs data from every other rank.
Rank s has the rows s, and rank d needs the columns d. The block where they intersect goes from s to
d. One `alltoall` moves all blocks at once::

              columns 0   columns 1              rank 0       rank 1
    rank 0       A           B         -->         A            B
    rank 1       C           D                     C            D

This transposes the matrix of blocks. Every rank then transposes each of its blocks by itself. With
two more lines the program becomes a two-dimensional Fourier transform: transform the rows,
transpose, and transform the rows again (the former columns). The `alltoall` is demanding for the
network of a large machine, because every byte has to be sent to another rank.

Run it on any number of ranks::

    collectives run -n 4 examples/transpose.py --block 2
"""

import argparse

import numpy as np

import collectives as cc


def transpose(rows):
    """Return this rank's rows of the transposed matrix, from its rows of the matrix."""
    count, n = rows.shape
    blocks = rows.reshape(count, cc.size(), n // cc.size())  # row, rank of the columns, column
    to_send = np.ascontiguousarray(blocks.swapaxes(0, 1))  # receiving rank, row, column
    received = cc.alltoall(to_send)  # sending rank, row, column
    return received.reshape(n, count).T


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--block", type=int, default=2, help="rows of each rank")
    count = parser.parse_args().block

    n = count * cc.size()
    first = cc.rank() * count
    i, j = np.ogrid[first : first + count, :n]
    rows = 100 * i + j  # each number shows its original row and column
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
