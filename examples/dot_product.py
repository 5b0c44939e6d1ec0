"""A dot product of two long vectors: divide the data, compute partial results, add them up.

Most parallel programs have this structure. The vectors are divided into nearly equal parts, one
for each rank. Rank r of p has the elements from n * r // p up to n * (r + 1) // p, so the lengths
of the parts differ by at most one element. Each rank computes the dot product of its own part,
which is one number. One `allreduce` adds up these numbers and returns the sum on every rank. The
number has 8 bytes, however long the vectors are. (This program adds a second number, for the bound
that it prints.)

The sum of the parts may differ from the sum in one piece in the last digits. Floating-point numbers
are rounded after each addition, and the additions are made in a different order. This is not an
error. The program prints an upper bound for the difference. All ranks have the same bits, though.

Run it on any number of ranks::

    collectives run -n 4 examples/dot_product.py --elements 10000000
"""

import argparse

import numpy as np

import collectives as cc


def part_of(n, r, p):
    """Return the range of the elements of rank `r` of `p`."""
    return range(n * r // p, n * (r + 1) // p)


def vectors(part):
    """Return the elements in a range of the two vectors. No rank needs the whole vectors."""
    k = np.arange(part.start, part.stop, dtype=np.float64)
    return np.sin(k), np.cos(k) + 1.0 / (k + 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1_000_003)
    n = parser.parse_args().elements

    part = part_of(n, cc.rank(), cc.size())
    x, y = vectors(part)
    partial = np.array([x @ y, np.abs(x) @ np.abs(y)])
    total, magnitude = cc.allreduce(partial)

    if cc.rank() == 0:
        x, y = vectors(range(n))
        whole = x @ y
        bound = n * np.finfo(np.float64).eps * magnitude
        lengths = sorted({len(part_of(n, r, cc.size())) for r in range(cc.size())})
        print(f"the parts have {' or '.join(map(str, lengths))} elements")
        print(f"x . y = {total:.15g}, in one piece {whole:.15g}")
        print(f"they differ by {abs(total - whole):.1e}, and may by {bound:.1e}")
        if not abs(total - whole) <= bound:
            raise SystemExit("the parts do not add up to the whole")


if __name__ == "__main__":
    main()
