"""Neighbourhoods without ranks: their proofs, mistakes that the proofs find, grids, graphs."""

import dataclasses
import random
from itertools import product
from math import prod

import pytest

from collectives.calls.neighborhood import Grid, balanced, of_lists
from collectives.check import check
from collectives.errors import ArgumentError, MismatchError, ProofError
from collectives.simulate import simulate
from collectives.topology import Flat

GRIDS = [
    (dims, periods)
    for dims in [(), (1,), (2,), (3,), (7,), (1, 1), (2, 2), (2, 3), (4, 1), (3, 3), (2, 3, 2)]
    for periods in product((False, True), repeat=len(dims))
]


def random_graph(seed):
    rng = random.Random(seed)
    p = rng.randrange(1, 7)
    arrows = [(rng.randrange(p), rng.randrange(p)) for _ in range(rng.randrange(4 * p))]
    sources, destinations = [[] for _ in range(p)], [[] for _ in range(p)]
    for s, d in arrows:
        destinations[s].append(d)
    for s, d in rng.sample(arrows, len(arrows)):
        sources[d].append(s)
    return of_lists(sources, destinations)


def neighborhoods():
    for dims, periods in GRIDS:
        yield Grid(dims, periods).neighborhood()
    for seed in range(60):
        yield random_graph(seed)


def others(near, r, slots):
    return {q for q in slots[r] if q not in (None, r)}


def test_all_are_proven_and_send_no_more_than_they_must():
    for near in neighborhoods():
        p = near.size
        proof = check(near.allgather, p=p)
        assert proof.messages == [len(others(near, r, near.destinations)) for r in range(p)]
        proof = check(near.alltoall, p=p)
        wanted = [sum(d not in (None, r) for d in near.destinations[r]) for r in range(p)]
        assert proof.messages == wanted
        assert proof.depth == any(wanted)


def test_each_block_arrives_in_the_slot_of_its_direction():
    for dims, periods in GRIDS:
        grid = Grid(dims, periods)
        near = grid.neighborhood()
        contract = near.alltoall.collective
        for r in range(grid.size):
            for k, part in enumerate(contract.inputs(r, grid.size, 0)):
                dim, side = divmod(k, 2)
                q = grid.shifted(r, dim, 1 if side else -1)
                assert q == near.destinations[r][k]
                if q is not None:
                    slot = contract.outputs(q, grid.size, 0).index(part)
                    assert slot == 2 * dim + (1 - side)
                    assert near.sources[q][slot] == r


def mutants(row, p):
    """Yield rows with one mistake in the round of one rank."""
    for r in range(p):
        rounds = list(row.generate(r, p))
        for side in ("send", "recv"):
            messages = getattr(rounds[0], side)
            for k, (peer, part) in enumerate(messages):
                changes = [[*messages[:k], *messages[k + 1 :]]]
                if p > 2:
                    changes.append([*messages[:k], ((peer + 1) % p, part), *messages[k + 1 :]])
                if k and messages[k - 1][1] != part:
                    changes.append([*messages[:k], (peer, messages[k - 1][1]), *messages[k + 1 :]])
                for changed in changes:
                    wrong = rounds[0]._replace(**{side: changed})
                    yield dataclasses.replace(row, generate=instead(row, r, wrong))


def instead(row, rank, wrong):
    def generate(r, p):
        yield from [wrong] if r == rank else row.generate(r, p)

    return generate


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
@pytest.mark.parametrize("dims", [(2,), (5,), (2, 2), (3, 2)])
def test_mistakes_are_found(dims, collective):
    near = Grid(dims, (True,) * len(dims)).neighborhood()
    count = 0
    for mutant in mutants(getattr(near, collective), near.size):
        with pytest.raises(ProofError):
            check(mutant, p=near.size)
        count += 1
    assert count >= 4


@pytest.mark.parametrize("dims", [(3, 3), (16, 16), (5, 4, 3)])
def test_the_time_of_an_exchange_does_not_grow_with_the_grid(dims):
    """Each rank sends one message after the other, to all its neighbours."""
    near = Grid(dims, (True,) * len(dims)).neighborhood()
    machine = Flat(near.size, alpha=1e-6, beta=1e-9, gamma=0)
    blocks = 2 * len(dims)
    for row in (near.alltoall, near.allgather):
        found = simulate(row.collective.name, row, 1000 * blocks, machine)
        assert found.time == pytest.approx(blocks * 2e-6)
        assert found.messages == blocks * near.size


def test_another_number_of_ranks():
    row = Grid((3,), (True,)).neighborhood().alltoall
    with pytest.raises(ProofError, match="the neighbourhood is one of 3 ranks, not 2"):
        check(row, p=2)


def test_who_is_connected():
    assert Grid((3, 2), (False, False)).neighborhood().is_connected
    assert of_lists([[], [0], [0]], [[1, 2], [], []]).is_connected
    assert not of_lists([[1], [0], []], [[1], [0], []]).is_connected


def test_balanced_dimensions():
    for size in range(1, 65):
        for n in range(1, 5):
            found = balanced(size, [0] * n)
            assert prod(found) == size
            assert list(found) == sorted(found, reverse=True)
    assert balanced(24, [0, 0, 0]) == (4, 3, 2)
    assert balanced(24, [0, 2, 0]) == (4, 2, 3)
    assert balanced(1, []) == ()
    with pytest.raises(ArgumentError, match=r"which is a grid of 2 times some ranks, .* has 5"):
        balanced(5, [2, 0])
    with pytest.raises(ArgumentError, match="which is a grid of 4 ranks, and the communicator has"):
        balanced(5, [2, 2])


def test_neighbours_that_do_not_know_each_other():
    with pytest.raises(
        MismatchError, match="rank 0 lists rank 1 as a destination 1 time, but rank"
    ):
        of_lists([[], []], [[1], []])
