"""Algorithms in the language of `Exchange`, as examples of all that it has.

Each takes the place of one that a paper describes. `register` makes them known for a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collectives.algorithms import Exchange, Fold, Store, algorithm, parallel, unregister
from collectives.algorithms.groups import Groups


def in_turns(r: int, p: int) -> Iterator[Exchange]:
    """Each rank in turn adds up a block, and sends the sum while the next one adds up."""
    others = [q for q in range(p) if q != r]
    for t in range(p + 1):
        send, recv = [], []
        if t < p and r == t:
            recv += [Fold(q, t) for q in others]
        elif t < p:
            send.append((t, t))
        if t > 0 and r == t - 1:
            send += [(q, t - 1) for q in others]
        elif t > 0:
            recv.append(Store(t - 1, t - 1))
        yield Exchange(send, recv)


def bidirectional_ring(r: int, p: int) -> Iterator[Exchange]:
    """Half of the blocks go round to the right, and half to the left."""
    return parallel(ring(r, p, 1, range(p)), ring(r, p, -1, range(p, 2 * p)))


def ring(r: int, p: int, step: int, blocks: range) -> Iterator[Exchange]:
    """A reduce-scatter and an allgather round the ring in one direction."""
    to, source = (r + step) % p, (r - step) % p
    for t in range(2 * (p - 1)):
        block, other = blocks[(r - t * step) % p], blocks[(r - (t + 1) * step) % p]
        yield Exchange(send=(to, block), recv=(source, other), fold=t < p - 1)


def two_trees(r: int, p: int, root: int) -> Iterator[Exchange]:
    """Broadcast half of the blocks down each of two trees that have no edge in common.

    Nodes have the numbers of a heap below the root, 0. The inner nodes of one tree are leaves of
    the other (Sanders, Speck, Träff: Two-tree algorithms, 2009, doi:10.1016/j.parco.2009.09.001).
    """
    v = (r - root) % p
    return parallel(
        tree(v, p, lambda w: (root + w) % p, range(4)),
        tree(-v % p, p, lambda w: (root - w) % p, range(4, 8)),
    )


def tree(w: int, p: int, rank: Callable[[int], int], blocks: range) -> Iterator[Exchange]:
    """Blocks go down a tree one after the other; node `w` gets block k in round k + its level."""
    children = [c for c in ((2 * w, 2 * w + 1) if w else (1,)) if c < p]
    level = w.bit_length()
    for t in range(len(blocks) + (p - 1).bit_length()):
        here = {k: blocks[k] for k in (t - level, t - level + 1) if 0 <= k < len(blocks)}
        yield Exchange(
            send=[(rank(c), b) for k, b in here.items() for c in children if k == t - level],
            recv=[(rank(w // 2), b) for k, b in here.items() if w and k > t - level],
        )


def pipelined_chain(r: int, p: int, root: int, blocks: int) -> Iterator[Exchange]:
    """Blocks walk down the chain one after the other: as many as the size of the array asks for."""
    v = (r - root) % p
    for k in range(blocks + 1):
        yield Exchange(
            send=[((r + 1) % p, k - 1)] if k > 0 and v < p - 1 else [],
            recv=[((r - 1) % p, k)] if k < blocks and v > 0 else [],
        )


def hierarchical_alltoall(r: int, p: int, groups: Groups) -> Iterator[Exchange]:
    """Blocks go to a rank of the own host, the one with the number of their destination, and from
    there, with those of the whole host, to the destination.
    """

    def relay(s: int, d: int) -> int:
        mates = mates_of(s)
        return d if d in mates else mates[groups.place(d)[1] % len(mates)]

    def mates_of(s: int) -> tuple[int, ...]:
        return groups.members[groups.of[s]]

    mates = mates_of(r)
    yield Exchange(
        send=[(q, [r * p + d for d in range(p) if relay(r, d) == q]) for q in mates if q != r],
        recv=[(q, [q * p + d for d in range(p) if relay(q, d) == r]) for q in mates if q != r],
    )
    yield Exchange(
        send=[
            (d, [s * p + d for s in mates]) for d in range(p) if d not in mates and relay(r, d) == r
        ],
        recv=[
            (relay(host[0], r), [s * p + r for s in host])
            for host in groups.members
            if host != mates
        ],
    )


def recursive_multiplying(r: int, p: int, k: int) -> Iterator[Exchange]:
    """Groups of up to k ranks exchange all they have, then groups of these groups.

    The factors of p are the largest up to k, or else primes (Ruefenacht, Bull, Booth:
    Generalisation of recursive doubling, 2017, doi:10.1016/j.parco.2017.08.004).
    """
    d = 1
    while d < p:
        rest = p // d
        f = max((f for f in range(2, k + 1) if rest % f == 0), default=0)
        f = f or next(f for f in range(2, rest + 1) if rest % f == 0)
        others = [(r + (j - r // d % f) * d, 0) for j in range(f) if j != r // d % f]
        yield Exchange(others, others, fold=True)
        d *= f


MADE = {
    ("allreduce", in_turns): {"blocks": lambda p: p},
    ("allreduce", bidirectional_ring): {"blocks": lambda p: 2 * p},
    ("broadcast", two_trees): {"blocks": 8},
    ("broadcast", pipelined_chain): {"blocks": lambda p, nbytes: min(max(1, nbytes >> 10), 32)},
    ("alltoall", hierarchical_alltoall): {},
    ("allreduce", recursive_multiplying): {"parameters": {"k": 4}, "keeps_order": True},
}
EXAMPLES = [(collective, generate.__name__) for collective, generate in MADE]


@contextmanager
def registered() -> Iterator[None]:
    """Have the algorithms of this module in the registry."""
    for (collective, generate), declared in MADE.items():
        algorithm(collective, **declared)(generate)
    try:
        yield
    finally:
        for collective, name in EXAMPLES:
            unregister(collective, name)
