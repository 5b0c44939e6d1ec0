"""Prove and draw an algorithm of a user, where there is neither a core nor NumPy."""

import sys

import collectives
from collectives.algorithms import Exchange, algorithm
from collectives.check import check
from collectives.draw import drawing
from collectives.errors import CoreError, ProofError


@algorithm("broadcast", name="line")
def broadcast_line(r, p, root):
    """Each rank passes the array on to the next one."""
    v = (r - root) % p
    if v > 0:
        yield Exchange(recv=((r - 1) % p, 0))
    if v < p - 1:
        yield Exchange(send=((r + 1) % p, 0))


@algorithm("broadcast", name="short")
def broadcast_short(r, p, root):
    """Only the next rank gets the array."""
    if r == root:
        yield Exchange(send=((r + 1) % p, 0))
    elif r == (root + 1) % p:
        yield Exchange(recv=(root, 0))


print(check("broadcast", "line", p=5))
print(drawing("broadcast", "line", 3))
try:
    check("broadcast", "short", p=3)
except ProofError as error:
    print(f"ProofError: {error}")
print(check("allreduce", "ring", p=8))
try:
    collectives.allreduce([1.0])
except CoreError as error:
    print(f"CoreError: {error}")
print(bool(sys.modules.get("numpy")))
