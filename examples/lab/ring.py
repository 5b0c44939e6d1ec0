"""Sheet 3: the ring, proven.

Each rank yields its rounds: in each, it sends one block to its right and receives one from its
left. The first phase adds (fold=True), the second one stores. Check it with::

    python examples/lab/check.py ring
"""

from collectives.algorithms import Exchange, algorithm


@algorithm("allreduce", blocks=lambda p: p)
def my_ring(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    for t in range(p - 1):  # reduce-scatter: partial sums travel around the ring
        yield Exchange(send=(right, (r - t) % p), recv=(left, r), fold=True)  # TODO: which block?
    # TODO: allgather: complete sums travel around it again
