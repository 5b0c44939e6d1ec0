"""The proof from one rank: as that from all where ranks do alike, and none where they do not."""

import broken
import pytest

from collectives import algorithms
from collectives.algorithms import Exchange, Fold, Store
from collectives.check import check
from collectives.errors import ProofError
from collectives.plans import proof, rotation

CYCLIC = [
    row
    for collective in algorithms.COLLECTIVES
    for row in (algorithms.get(collective, name) for name in algorithms.names(collective))
    if row.cyclic
]
# Those whose messages have one block, and whose folds need not be in rank order.
PROVEN = {
    "allreduce": {"ring", "round_robin"},
    "barrier": {"dissemination"},
    "allgather": {"direct", "ring"},
    "reduce_scatter": {"ring"},
    "alltoall": {"direct", "pairwise"},
}


@pytest.mark.parametrize("row", CYCLIC, ids=lambda row: f"{row.collective.name}-{row.name}")
@pytest.mark.parametrize("p", [2, 3, 5, 8, 12])
def test_one_rank_proves_what_all_prove(row, p):
    found = rotation.replayed(row, p, 0)
    if found is None:
        assert p < 4 or row.name not in PROVEN.get(row.collective.name, ())
    else:
        assert proof._counted(found, record=False) == check(row, p=p, record=False)
        assert p < 4 or row.name in PROVEN[row.collective.name]


def test_one_rank_stands_for_all_on_many(monkeypatch):
    monkeypatch.setattr(proof, "Schedule", None)
    few = check("allreduce", "ring", p=proof.MOST_REPLAYED + 1, record=False)
    assert (few.depth, len(few.sent), set(few.messages)) == (128, 65, {128})
    with pytest.raises(TypeError):
        check("allreduce", "ring", p=proof.MOST_REPLAYED, record=False)


def ring(r, p, rounds=2, late=0, kind=Fold, odd=-1, of=lambda b: b):
    """A ring, whose parameters spoil it: for all ranks, or for the rank `odd` in its third round.

    With `late`, a rank sends a block and receives the next one in different rounds.
    """
    left, right = (r - 1) % p, (r + 1) % p
    for t in range(rounds * (p - 1)):
        done = t >= p - 1
        sent, taken = (r - t + done) % p, (r - t - 1 + done) % p
        message = (Store if done else kind)(left, taken)
        if r == odd and t == 2:
            message = Store(left, taken)
        if late:
            yield Exchange(send=(right, of(sent)))
            yield Exchange(recv=message)
        else:
            yield Exchange(send=(right, of(sent)), recv=message)


def every_array_goes_round(r, p):
    """Each rank folds the arrays in the order of their arrival."""
    for d in range(1, p):
        yield Exchange(send=((r + d) % p, 0), recv=((r - d) % p, 0), fold=True)


def hops(r, p):
    """All ranks do alike, but a prefix is another one on each rank."""
    yield Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=True)


def spoilt(**how):
    return lambda r, p: ring(r, p, **how)


WRONG = {
    "one rank stores where it folds": (spoilt(odd=2), "rank 2|ends with|twice"),
    "all ranks store where they fold": (spoilt(kind=Store), "ends with|overwrites"),
    "all ranks end too early": (spoilt(rounds=1), "ends with"),
    "all ranks send before they receive": (spoilt(late=1), "deadlock"),
    "all ranks send the next block": (spoilt(of=lambda b: b ^ 1), "expects|block"),
    "each rank folds in another order": (every_array_goes_round, "twice|different"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("p", [5, 8, 66])
def test_a_wrong_algorithm_is_refused(name, p):
    """Nothing is proven from rank 0, and the proof from all ranks finds the fault."""
    generate, text = WRONG[name]
    row = broken.row("allreduce", generate, blocks=p, cyclic=True)
    assert rotation.replayed(row, p, 0) is None
    with pytest.raises(ProofError, match=text):
        check(row, p=p, record=False)


def test_the_contract_of_each_rank_is_compared():
    row = broken.row("exscan", hops, cyclic=True)
    assert rotation.replayed(row, 5, 0) is None
    with pytest.raises(ProofError):
        check(row, p=5, record=False)
