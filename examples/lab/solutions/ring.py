"""Sheet 3, solved."""

from collectives.algorithms import Exchange, algorithm


@algorithm("allreduce", blocks=lambda p: p)
def my_ring(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    for t in range(p - 1):  # reduce-scatter: partial sums travel around the ring
        yield Exchange(send=(right, (r - t) % p), recv=(left, (r - t - 1) % p), fold=True)
    for t in range(p - 1):  # allgather: complete sums travel around it again
        yield Exchange(send=(right, (r + 1 - t) % p), recv=(left, (r - t) % p))
