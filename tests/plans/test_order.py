"""The algorithms that fold in the same order; `mpi/test_learning.py` compares the bits of sums."""

from dataclasses import replace

import pytest

from collectives.algorithms import Exchange, algorithm, get, names, unregister
from collectives.errors import ArgumentError
from collectives.plans.order import folds_at_once, has_fixed_order, order
from collectives.plans.program import pack
from collectives.plans.proof import check
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


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 9, 17])
def test_who_folds_in_the_fixed_order(p):
    """One expression for all blocks: that of a butterfly, or of a fold from rank 0 up."""
    known = {
        "allreduce": {"butterfly", "near_halving"},
        "reduce": {"near_tree", "near_halving"},
        "reduce_scatter": {"near_halving"},
        "scan": {"chain", "rank_order", "windows"},
        "exscan": {"chain", "rank_order", "windows"},
    }
    for collective, wanted in known.items():
        rows = able(collective, p)
        found = {row.name for row in rows if has_fixed_order(row, p, root=p - 1)}
        assert found >= wanted
        if p in (9, 17):
            assert found == wanted
        if p <= 2:
            assert found == {row.name for row in rows}
        # The others have all contributions at once, and fold them in pairs if they are asked to.
        pairs = {row.name for row in rows if has_fixed_order(row.folding("pairs"), p, root=p - 1)}
        assert pairs >= found | AT_ONCE[collective] or collective in ("scan", "exscan")


AT_ONCE = {
    "allreduce": {"master_worker", "all_to_all", "direct"},
    "reduce": {"flat", "direct"},
    "reduce_scatter": {"direct"},
    "scan": {"rank_order"},
    "exscan": {"rank_order"},
}


@pytest.mark.parametrize(("collective", "name"), [("allreduce", "all_to_all"), ("reduce", "flat")])
def test_an_order_changes_the_folds_alone(collective, name):
    row = get(collective, name)
    pairs = row.folding("pairs")
    assert pairs is row.folding("pairs") is not row is row.folding("ranks")
    assert order(pairs, 4) != order(row, 4) == order(pairs.folding("ranks"), 4)
    both = [check(each, p=4, root=0) for each in (row, pairs)]
    assert both[0].events == both[1].events
    assert both[0].history == both[1].history
    with pytest.raises(ArgumentError, match="order is 'any', and must be one of: ranks, pairs"):
        row.folding("any")


def hold_steps(row, p):
    """Compare the steps of all programs with the contributions to the blocks that they fold."""
    for rank in range(p):
        plan = compile(row, p, rank, p - 1)
        due = {"scan": rank + 1, "exscan": rank}.get(row.collective.name, p)
        for local in ((), range(p), range(rank // 2 * 2, min(rank // 2 * 2 + 2, p))):
            for whole in (True, False):
                packed = pack(plan, whole=whole, local=tuple(local))
                widths = {step.operands_end - step.operand for step in packed.steps}
                assert widths <= {1, due}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 9, 17])
def test_who_folds_at_once(p):
    """A rank has all contributions to the blocks that it folds, and folds them in one round."""
    for collective, wanted in AT_ONCE.items():
        rows = able(collective, p)
        found = {row.name for row in rows if folds_at_once(row, p, root=p - 1)}
        assert found >= wanted
        if p in (8, 9, 17):  # of which a prime has one factor
            assert found - wanted <= {"multiplying"}
        for row in rows if p in (3, 8) else ():
            if row.name in wanted:
                hold_steps(row, p)
                hold_steps(row.folding("pairs"), p)


def test_one_block_in_another_order_is_enough():
    """Of three blocks, only the last is folded from rank 1 up."""
    seen = []

    @algorithm("allreduce", name="odd", blocks=3, keeps_order=False)
    def odd(r, p):
        for b in range(3):
            first = (1, 2, 0) if b == seen[0] else (0, 1, 2)
            place = first.index(r)
            if place:
                yield Exchange(recv=(first[place - 1], b), fold=True)
            if place < 2:
                yield Exchange(send=(first[place + 1], b))
        for b in range(3):
            last = 0 if b == seen[0] else 2
            others = [q for q in range(p) if q != last]
            yield Exchange(send=[(q, b) for q in others]) if r == last else Exchange(recv=(last, b))

    try:
        for block, wanted in ((-1, True), (0, False), (1, False), (2, False)):
            seen[:] = [block]
            row = replace(get("allreduce", "odd"), source=str(block))  # another row for the cache
            check(row, p=3)
            assert has_fixed_order(row, 3) == wanted
    finally:
        unregister("allreduce", "odd")
