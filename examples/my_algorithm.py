"""An algorithm of your own: write it, prove it, draw it, run it.

An algorithm is a generator that says for rank r of p, round by round, which block it sends to whom
and which it receives from whom; `fold=True` adds what comes to what is there. This one has one
block, the whole array: the sum walks from rank to rank to the last one, growing, and walks back.

Before anything runs, the rounds of all ranks are replayed with symbols in place of numbers. If the
result lacks somebody, has somebody twice, or a rank waits for what nobody sends, it is refused, and
told where. The second version below has such a mistake, as one makes it: on the way back it adds
where it should replace. With numbers one would see no more than a wrong sum.

Run it on any number of ranks::

    collectives run -n 4 examples/my_algorithm.py
"""

import numpy as np

import collectives as cc
from collectives import algorithms, check, draw
from collectives.algorithms import Exchange


@algorithms.algorithm("allreduce")
def there_and_back(r, p):
    """The sum walks up to the last rank, growing, and back down."""
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
        yield Exchange(recv=(r + 1, 0))
    if r > 0:
        yield Exchange(send=(r - 1, 0))


@algorithms.algorithm("allreduce")
def twice_on_the_way_back(r, p):
    """The same with a mistake: can you see it?"""
    if r > 0:
        yield Exchange(recv=(r - 1, 0), fold=True)
    if r < p - 1:
        yield Exchange(send=(r + 1, 0))
        yield Exchange(recv=(r + 1, 0), fold=True)
    if r > 0:
        yield Exchange(send=(r - 1, 0))


def show():
    """Prove and draw, which takes no other rank."""
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
