"""Which algorithms fold in the same order; `mpi/test_learning.py` compares the bits of sums."""

import pytest

from collectives.algorithms import get, names
from collectives.plans.order import order
from collectives.plans.schedule import compile

REDUCING = ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"]


def able(collective, p):
    rows = [get(collective, name) for name in names(collective)]
    return [row for row in rows if row.refusal(p) is None]


@pytest.mark.parametrize("collective", REDUCING)
def test_two_ranks_fold_in_one_order(collective):
    assert len({order(row, 2) for row in able(collective, 2)}) == 1


def test_known_orders():
    """The linear order of all_to_all is that of the rank with all arrays, not that of a tree."""
    assert order(get("allreduce", "all_to_all"), 4) == order(get("allreduce", "master_worker"), 4)
    assert order(get("allreduce", "all_to_all"), 4) != order(get("allreduce", "tree"), 4)
    assert order(get("allreduce", "ring"), 4) != order(get("allreduce", "all_to_all"), 4)


def test_the_number_of_blocks_counts_where_they_differ():
    """A tree that depends on the block is that of other elements if there are more blocks."""
    for p in (3, 4, 6, 8):
        for row in able("allreduce", p):
            cut, trees = order(row, p)
            assert cut in (1, compile(row, p, 0).cut)
            assert len(trees) == p
