"""Algorithms that are wrong, each in its own way, for the proof to refuse."""

from collectives.algorithms import Algorithm, Exchange
from collectives.algorithms.spec import COLLECTIVES


def row(collective, generate, blocks=1, **promises):
    """Return an algorithm called "bad" that is not in the registry."""
    fields = {"requires": (), "same_bits": True, "keeps_order": False, **promises}
    return Algorithm(
        collective=COLLECTIVES[collective],
        name="bad",
        generate=generate,
        blocks=lambda p: blocks * COLLECTIVES[collective].parts(p),
        cost=None,
        source="",
        included=False,
        **fields,
    )


def everybody_receives_first(r, p):
    yield Exchange(recv=((r + 1) % p, 0), fold=True)
    yield Exchange(send=((r - 1) % p, 0))


def nobody_listens(r, p, root):
    if r == root:
        yield Exchange(send=[(q, 0) for q in range(p) if q != root])
    elif r == 1:
        yield Exchange(recv=(root, 0))


def nobody_speaks(r, p, root):
    return iter(())


def swaps_where_it_should_fold(r, p):
    yield Exchange(send=(1 - r, 0), recv=(1 - r, 0))


def receives_twice_into_one_block(r, p, root):
    if r == root:
        yield Exchange(send=[(1, 0), (1, 0)])
    else:
        yield Exchange(recv=[(0, 0), (0, 0)])


def sends_what_it_has_not(r, p, root):
    if r == root:
        yield Exchange(recv=(1, 0))
    else:
        yield Exchange(send=(0, 0))


def folds_into_what_it_has_not(r, p, root):
    if r == root:
        yield Exchange(send=(1, 0))
    else:
        yield Exchange(recv=(0, 0), fold=True)


def counts_everybody_twice(r, p):
    for _ in range(2):
        yield Exchange(send=(1 - r, 0), recv=(1 - r, 0), fold=True)


def folds_one_block_into_another(r, p):
    yield Exchange(send=(1 - r, 1), recv=(1 - r, 0), fold=True)


def moves_a_block_elsewhere(r, p, root):
    if r == root:
        yield Exchange(send=[(1, 1), (1, 0)])
    else:
        yield Exchange(recv=[(0, 0), (0, 1)])


def hears_of_its_neighbour_only(r, p):
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=True)


def meets_the_opposite_first(r, p):
    for other in (p - 1 - r, r ^ 1):
        yield Exchange(send=(other, 0), recv=(other, 0), fold=True)


def sums_round_the_ring(r, p, root):
    v = (r - root) % p
    if v < p - 1:
        yield Exchange(recv=((r + 1) % p, 0), fold=True)
    if v:
        yield Exchange(send=((r - 1) % p, 0))


def speaks_to_itself(r, p):
    yield Exchange(send=(r, 0), recv=(r, 0), fold=True)


def speaks_to_nobody(r, p):
    yield Exchange(send=(p, 0))


def sends_a_block_too_many(r, p):
    yield Exchange(send=((r + 1) % p, 2))


def receives_no_block(r, p):
    yield Exchange(recv=((r + 1) % p, range(2, 2)))


def receives_a_block_twice(r, p):
    yield Exchange(recv=((r + 1) % p, [0, 1, 0]))


def sends_no_pair(r, p):
    yield Exchange(send=[1, 2, 3])


def yields_a_tuple(r, p):
    yield ((r + 1) % p, 0)


def sends_more_than_expected(r, p, root):
    if r == root:
        yield Exchange(send=(1, range(2)))
    else:
        yield Exchange(recv=(0, 0))


def keeps_what_it_receives_twice(r, p, root):
    if r == root:
        yield Exchange(recv=[((r + 1) % p, 0), ((r + 2) % p, 0)], fold=True, both=True)
    else:
        yield Exchange(send=(root, 0))


def folds_blocks_in_another_order(r, p, root):
    if r == root:
        yield Exchange(recv=(1, [1, 0]), fold=True)
    else:
        yield Exchange(send=(0, [0, 1]))


def says_nothing(r, p):
    return iter(())


def gives_the_blocks_of_others(r, p):
    yield Exchange(send=((r + 1) % p, (r + 1) % p), recv=((r - 1) % p, r))


def speaks_to_the_right_only(r, p):
    yield Exchange(send=((r + 1) % p, r), recv=((r - 1) % p, (r - 1) % p))


def folds_the_block_of_its_neighbour(r, p):
    yield Exchange(send=((r + 1) % p, r), recv=((r - 1) % p, (r - 1) % p), fold=True)


def sends_all_to_the_right(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    yield Exchange(send=(right, r * p + right), recv=(left, left * p + r))


def sends_what_others_send(r, p):
    left, right = (r - 1) % p, (r + 1) % p
    yield Exchange(send=(right, left * p + right), recv=(left, (left - 1) % p * p + r))


def forgets_the_last(r, p, root):
    if r == root:
        yield Exchange(recv=[(q, q) for q in range(1, p - 1)])
    elif r < p - 1:
        yield Exchange(send=(root, r))


def keeps_the_last(r, p, root):
    if r == root:
        yield Exchange(send=[(q, q) for q in range(1, p - 1)])
    elif r < p - 1:
        yield Exchange(recv=(root, r))


def hears_of_those_after_it(r, p):
    yield Exchange(send=(1 - r, 0), recv=(1 - r, 0), fold=True)


def counts_itself(r, p):
    if r + 1 < p:
        yield Exchange(send=(r + 1, 0))
    if r:
        yield Exchange(recv=(r - 1, 0), fold=True)
