"""An algorithm of your own: write it, prove it, draw it, run it.

An algorithm is a generator. For rank r of p, it yields the exchange of each round: the block that
the rank sends and the receiver, the block that it receives and the sender. `fold=True` adds the
incoming block to the local one. This algorithm has one block, the whole array. The sum passes from
rank to rank to the last one, and each rank adds its array. Then the result passes back.

Before an algorithm runs, the library replays the rounds of all ranks with symbols in place of
numbers. It rejects the algorithm if a contribution is missing or is added twice, or if a rank waits
for a message that is never sent. The error names the rank and the round. The second version below
contains a typical mistake: on the way back it adds instead of replacing. With numbers you would
only see a wrong sum.

Run it on any number of ranks::

    collectives run -n 4 examples/my_algorithm.py
"""

import numpy as np

import collectives as cc
from collectives import algorithms, check, draw
from collectives.algorithms import Exchange


@algorithms.algorithm("allreduce")
def there_and_back(r, p):
    """The sum passes up to the last rank, and the result passes back down."""
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
        yield Exchange(recv=(r + 1, 0))
    if r > 0:
        yield Exchange(send=(r - 1, 0))


@algorithms.algorithm("allreduce")
def twice_on_the_way_back(r, p):
    """The same algorithm with a mistake. Can you find it?"""
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
        yield Exchange(recv=(r + 1, 0), fold=True)
    if r > 0:
        yield Exchange(send=(r - 1, 0))


def show():
    """Prove and draw the algorithms. Only one rank is needed for this."""
    for p in range(1, 17):
        check.check("allreduce", "there_and_back", p=p)
    print("there_and_back is proven for 1 to 16 ranks\n")
    print(draw.grid(check.check("allreduce", "there_and_back", p=4)))
    print()
    for name in ("there_and_back", "ring"):
        proof = check.check("allreduce", name, p=8)
        sent = float(max(proof.sent))
        print(f"{name}: on 8 ranks {proof.depth} rounds; a rank sends up to {sent:g} arrays")
    print()
    try:
        check.check("allreduce", "twice_on_the_way_back", p=4)
    except cc.errors.ProofError as error:
        print(f"refused: {error}\n")
    else:
        raise SystemExit("the proof has not seen the mistake")


def main():
    if cc.rank() == 0:
        show()
    x = np.random.default_rng(cc.rank()).integers(0, 100, 6)
    result = cc.allreduce(x, algorithm="there_and_back")

    everything = cc.gather(x)
    if cc.rank() == 0:
        print(f"run on {cc.size()} ranks: {result}")
        print(f"np.sum says:    {'':{len(str(cc.size()))}}{np.sum(everything, axis=0)}")
        if not np.array_equal(result, np.sum(everything, axis=0)):
            raise SystemExit("they differ")


if __name__ == "__main__":
    main()
