"""Algorithms with one mistake each: the proof must refuse them.

A mutant that `check` accepts must be right after all: the interpreter then runs it on numbers in
every way and under several seeds, and every result must be the right one.
"""

import dataclasses
from itertools import product

import numpy as np
import pytest
from interpreter import expected, make_inputs, run
from rows import marks
from usual import FULL

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.errors import ProofError

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
SIZES = [2, 3, 4, 5, 8] if FULL else [2, 3, 4]  # on more ranks there are thousands of mutants


def listed(messages):
    single = len(messages) == 2 and isinstance(messages[0], int)
    return [tuple(messages)] if single else list(messages)


def moved(blocks, nblocks):
    """Return other blocks than these: the next ones, or one fewer if these are all."""
    if isinstance(blocks, int):
        return (blocks + 1) % nblocks if nblocks > 1 else None
    if isinstance(blocks, list):
        others = [b for b in range(nblocks) if b not in blocks]
        return [*blocks[:-1], others[0]] if others else blocks[1:] or None
    if blocks.stop < nblocks:
        return range(blocks.start + 1, blocks.stop + 1)
    if blocks.start:
        return range(blocks.start - 1, blocks.stop - 1)
    return blocks[1:] if len(blocks) > 1 else None


def swapped_in(rounds, i, **fields):
    return [*rounds[:i], rounds[i]._replace(**fields), *rounds[i + 1 :]]


def per_message(rounds, change):
    """Yield the rounds with one message changed, or dropped where `change` returns ()."""
    for i, each in enumerate(rounds):
        for side in ("send", "recv"):
            messages = listed(getattr(each, side))
            for k, (peer, blocks) in enumerate(messages):
                new = change(peer, blocks)
                if new is not None:
                    new = [*messages[:k], *([new] if new else []), *messages[k + 1 :]]
                    yield swapped_in(rounds, i, **{side: new})


def wrong_peer(rounds, r, p, nblocks):
    for step in (1, p - 1):
        yield from per_message(rounds, lambda peer, blocks, step=step: ((peer + step) % p, blocks))


def wrong_block(rounds, r, p, nblocks):
    def change(peer, blocks):
        other = moved(blocks, nblocks)
        return None if other is None else (peer, other)

    yield from per_message(rounds, change)


def wrong_order(rounds, r, p, nblocks):
    def change(peer, blocks):
        if isinstance(blocks, int) or len(blocks) < 2:
            return None
        return peer, [*blocks[1:], blocks[0]]

    yield from per_message(rounds, change)


def wrong_number(rounds, r, p, nblocks):
    def change(peer, blocks):
        return None if isinstance(blocks, int) or len(blocks) < 2 else (peer, list(blocks)[1:])

    yield from per_message(rounds, change)


def missing_message(rounds, r, p, nblocks):
    yield from per_message(rounds, lambda peer, blocks: ())


def missing_round(rounds, r, p, nblocks):
    for i, each in enumerate(rounds):
        if each.send or each.recv:
            yield rounds[:i] + rounds[i + 1 :]


def copy_for_fold(rounds, r, p, nblocks):
    for i, each in enumerate(rounds):
        if each.fold and each.recv:
            yield swapped_in(rounds, i, fold=False)


def fold_for_copy(rounds, r, p, nblocks):
    for i, each in enumerate(rounds):
        if not each.fold and each.recv:
            yield swapped_in(rounds, i, fold=True)


def kept_once(rounds, r, p, nblocks):
    for i, each in enumerate(rounds):
        if each.both and each.recv:
            yield swapped_in(rounds, i, both=False)


def scratch_for_block(rounds, r, p, nblocks):
    def change(peer, blocks):
        return peer, (blocks + nblocks) % (2 * nblocks)

    if any(each.both for each in rounds):
        yield from per_message(rounds, change)


def swapped_rounds(rounds, r, p, nblocks):
    for i in range(len(rounds) - 1):
        if rounds[i] != rounds[i + 1]:
            yield [*rounds[:i], rounds[i + 1], rounds[i], *rounds[i + 2 :]]


def joined_rounds(rounds, r, p, nblocks):
    for i in range(len(rounds) - 1):
        a, b = rounds[i : i + 2]
        both = Exchange(
            listed(a.send) + listed(b.send),
            listed(a.recv) + listed(b.recv),
            a.fold or b.fold,
            a.both or b.both,
        )
        yield [*rounds[:i], both, *rounds[i + 2 :]]


def one_sided(kind):
    """Make mutants of whole algorithms of a kind of mistake: one rank makes it, or all alike."""

    def mutate(plain, p, nblocks):
        changed = [list(kind(rounds, r, p, nblocks)) for r, rounds in enumerate(plain)]
        for r in range(p) if p < 8 else (0, p - 1):
            for rounds in changed[r]:
                yield {r: rounds}
        if len({len(each) for each in changed}) == 1:
            for k in range(len(changed[0])):
                yield {r: changed[r][k] for r in range(p)}

    return mutate


def two_sided(change):
    """Make mutants where sender and receiver of one message agree on the mistake."""

    def mutate(plain, p, nblocks):
        ends = {}
        for r, rounds in enumerate(plain):
            for i, each in enumerate(rounds):
                for side in ("send", "recv"):
                    for k, (peer, blocks) in enumerate(listed(getattr(each, side))):
                        pair = (r, peer) if side == "send" else (peer, r)
                        ends.setdefault((pair, side), []).append((r, i, side, k, peer, blocks))
        for pair in sorted({pair for pair, _ in ends}):
            for two in zip(ends[pair, "send"], ends[pair, "recv"], strict=True):
                replaced = {}
                for r, i, side, k, peer, blocks in two:
                    new = change(peer, blocks, nblocks)
                    if new is None:
                        break
                    messages = listed(getattr(plain[r][i], side))
                    messages = [*messages[:k], *([new] if new else []), *messages[k + 1 :]]
                    replaced[r] = swapped_in(plain[r], i, **{side: messages})
                else:
                    yield replaced

    return mutate


def other_blocks(peer, blocks, nblocks):
    other = moved(blocks, nblocks)
    return None if other is None else (peer, other)


# None of these leaves an algorithm that is right.
DEADLY = {
    "wrong peer": one_sided(wrong_peer),
    "wrong block": one_sided(wrong_block),
    "wrong order": one_sided(wrong_order),
    "wrong number": one_sided(wrong_number),
    "missing message": one_sided(missing_message),
    "missing round": one_sided(missing_round),
    "copy for fold": one_sided(copy_for_fold),
    "fold for copy": one_sided(fold_for_copy),
}
# These may leave one: where rounds do not depend on each other, and where a message brings what
# its receiver has already (to inner ranks of the scatter's tree, the ring does).
RISKY = {
    "block that both sides mistake": two_sided(other_blocks),
    "swapped rounds": one_sided(swapped_rounds),
    "kept once": one_sided(kept_once),
    "scratch for block": one_sided(scratch_for_block),
    "joined rounds": one_sided(joined_rounds),
    "message that both sides forget": two_sided(lambda peer, blocks, nblocks: ()),
}


# Of these, all rounds may be posted together.
INDEPENDENT = [("alltoall", "pairwise")]


def mutants(algorithm, p, root, mutate):
    plain = [list(algorithm.run(r, p, root)) for r in range(p)]
    for replaced in mutate(plain, p, algorithm.blocks(p)):

        def generate(r, p, root=0, replaced=replaced):
            return iter(replaced.get(r, plain[r]))

        yield dataclasses.replace(algorithm, generate=generate, parameters={})


def applies(algorithm, mutate):
    return any(True for p in (3, 4) for _ in mutants(algorithm, p, 0, mutate))


def cases(kinds):
    return [
        pytest.param(
            algorithm, mutate, id=f"{collective}-{name}-{kind}", marks=marks(collective, name)
        )
        for collective, name in EVERY
        for kind, mutate in kinds.items()
        for algorithm in [algorithms.get(collective, name)]
        if applies(algorithm, mutate)
    ]


def is_right(algorithm, p, root):
    """Say whether the interpreter gets the right result in every way and under several seeds."""
    contract = algorithm.collective
    rng = np.random.default_rng(p)
    op = np.bitwise_or if contract.idempotent else np.add
    sizes = rng.integers(0, 9, contract.parts(p)).tolist() if contract.vector else [3 * p + 1]
    inputs = make_inputs(algorithm, p, root, sizes, lambda r, n: rng.integers(1, 1 << 40, n))
    if contract.idempotent:
        inputs = [np.full(sizes[0], 1 << r) for r in range(p)]
    wanted = expected(algorithm, inputs, root, op, sizes)
    places = (True, False) if contract.name != "alltoall" else (False,)
    for seed, (merged, in_place, segments) in enumerate(product((True, False), places, (1, 1, 3))):
        way = {"merged": merged, "in_place": in_place, "segments": segments}
        got = run(algorithm, inputs, root, op, sizes, **way, seed=seed)
        for have, want in zip(got, wanted, strict=True):
            if any(not np.array_equal(have[part], want[part]) for part in want):
                return False
    return True


def judge(algorithm, mutate):
    """Check all mutants of a kind; return how many are refused, and those that are not."""
    refused, accepted = 0, []
    for p in SIZES:
        for root in sorted({0, p - 1}) if algorithm.collective.rooted else [0]:
            for number, mutant in enumerate(mutants(algorithm, p, root, mutate)):
                try:
                    check(mutant, p=p, root=root, record=False)
                except ProofError:
                    refused += 1
                else:
                    accepted.append((mutant, p, root, number))
    return refused, accepted


@pytest.mark.parametrize(("algorithm", "mutate"), cases(DEADLY))
def test_mistakes_that_matter_are_refused(algorithm, mutate):
    refused, accepted = judge(algorithm, mutate)
    assert refused
    assert [case[1:] for case in accepted] == []


@pytest.mark.parametrize(("algorithm", "mutate"), cases(RISKY))
def test_what_is_accepted_is_right(algorithm, mutate):
    refused, accepted = judge(algorithm, mutate)
    independent = (algorithm.collective.name, algorithm.name) in INDEPENDENT
    assert refused or (independent and mutate is RISKY["joined rounds"])
    for mutant, p, root, number in accepted:
        assert is_right(mutant, p, root), f"p={p} root={root}: mutant {number} is accepted"
