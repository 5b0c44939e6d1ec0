"""Algorithms in the language of `Exchange`, as examples of all that it has.

Each takes the place of one that a paper describes. `register` makes them known for a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collectives.algorithms import Exchange, Fold, Store, algorithm, unregister


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


MADE = {
    ("allreduce", in_turns): {"blocks": lambda p: p},
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
