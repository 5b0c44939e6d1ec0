"""A dot product of two long vectors: cut the data, work on the parts, add up what was found.

Most parallel programs have this form. The vectors are cut into nearly equal parts, one for each
rank; rank r of p has the elements from n * r // p up to n * (r + 1) // p, so no part differs from
another by more than one element. Each rank multiplies and adds its own part: one number. One
`allreduce` adds up those numbers, and every rank has the result. However long the vectors are, what
is sent is 8 bytes.

The sum of the parts may differ from the sum in one piece, in the last digits: floating-point
numbers are rounded after each addition, and the additions come in another order. It is no mistake,
and the bound that is printed says how far apart the two can be. All ranks have the same bits,
though.

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
    """Make the elements in a range of two vectors that nobody ever has as a whole."""
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
