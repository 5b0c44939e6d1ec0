"""Every algorithm, run by the interpreter of packed plans on real numbers."""

import dataclasses

import numpy as np
import pytest
from interpreter import Deadlock, run

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.schedule import Round, pack
from collectives.spec import COLLECTIVES

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
MOVING = [(c, name) for c, name in EVERY if c != "barrier"]
ORDERED = [
    (c, name) for c, name in EVERY if COLLECTIVES[c].reduces and algorithms.get(c, name).keeps_order
]
WAYS = [
    pytest.param(merged, in_place, segments, id=f"{plan}-{where}-{segments}")
    for merged, plan in ((True, "merged"), (False, "written"))
    for in_place, where in ((False, "apart"), (True, "in_place"))
    for segments in (1, 3)
]
SIZES = [1, 2, 3, 4, 5, 7, 8]


def counts(p):
    return sorted({0, 1, p - 1, p, p + 1, 1009})


def roots(algorithm, p):
    return sorted({0, p // 2, p - 1}) if algorithm.collective.rooted else [0]


def expected(algorithm, inputs, root):
    """Return what each rank must end with, summing where the collective reduces."""
    contract = algorithm.collective
    result = sum(inputs) if contract.reduces else inputs[root]
    return [result if contract.receives(r, root) else None for r in range(len(inputs))]


@pytest.mark.parametrize(("merged", "in_place", "segments"), WAYS)
@pytest.mark.parametrize(("collective", "name"), MOVING)
def test_integers_are_exact(collective, name, merged, in_place, segments):
    algorithm = algorithms.get(collective, name)
    for p in SIZES:
        rng = np.random.default_rng(p)
        for root in roots(algorithm, p):
            for n in counts(p):
                inputs = [rng.integers(-999, 999, n) for _ in range(p)]
                wanted = expected(algorithm, inputs, root)
                got = run(
                    algorithm, inputs, root, np.add, merged, in_place, segments, seed=n + root
                )
                for r in range(p):
                    case = f"p={p} root={root} n={n} rank={r}"
                    if wanted[r] is None:
                        assert got[r] is None, case
                    else:
                        assert got[r].dtype == wanted[r].dtype, case
                        assert np.array_equal(got[r], wanted[r]), case


@pytest.mark.parametrize(("collective", "name"), MOVING)
def test_floats_have_the_same_bits_however_the_plan_runs(collective, name):
    """On all ranks, merged or as written, in place or apart; segments and seeds change nothing."""
    algorithm = algorithms.get(collective, name)
    for p in SIZES:
        rng = np.random.default_rng(p)
        n = 257
        for root in roots(algorithm, p):
            inputs = [rng.standard_normal(n) * 10.0 ** rng.integers(-8, 8, n) for _ in range(p)]
            bits = set()
            for seed, way in enumerate(WAYS):
                merged, in_place, segments = way.values
                got = run(algorithm, inputs, root, np.add, merged, in_place, segments, seed)
                results = [values for values in got if values is not None]
                bits |= {values.tobytes() for values in results}
                assert not np.isnan(results).any()
            assert len(bits) == 1, f"p={p} root={root}: {len(bits)} different results"


@pytest.mark.parametrize(("collective", "name"), ORDERED)
def test_order_is_kept_where_it_is_promised(collective, name):
    """Joining texts is associative and not commutative: it shows the order of folding."""
    algorithm = algorithms.get(collective, name)
    for p in (1, 2, 3, 5, 8, 11, 13):
        inputs = [np.array([f"{r}.{i} " for i in range(5)], dtype=object) for r in range(p)]
        wanted = ["".join(f"{r}.{i} " for r in range(p)) for i in range(5)]
        for root in range(p) if algorithm.collective.rooted else [0]:
            for merged in (True, False):
                for values in run(algorithm, inputs, root, merged=merged, seed=root):
                    assert values is None or list(values) == wanted


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("merged", [True, False])
def test_a_barrier_hears_of_everybody(merged, segments):
    algorithm = algorithms.get("barrier", "dissemination")
    for p in (*SIZES, 13, 16, 17):
        inputs = [np.full(3, 1 << r) for r in range(p)]
        for values in run(algorithm, inputs, 0, np.bitwise_or, merged, False, segments, seed=p):
            assert (values == (1 << p) - 1).all()


def test_the_result_does_not_depend_on_the_seed():
    algorithm = algorithms.get("allreduce", "double_tree")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(31) for _ in range(6)]
    results = {
        values.tobytes() for seed in range(40) for values in run(algorithm, inputs, seed=seed)
    }
    assert len(results) == 1


def test_impatient_plans_go_wrong(monkeypatch):
    """The interpreter is only a reference if it shows what a plan without waits would do."""

    def impatient(plan, *, whole):
        rounds = [
            Round(each.messages, [step._replace(after_sends=False) for step in each.steps])
            for each in plan.rounds
        ]
        return pack(dataclasses.replace(plan, rounds=tuple(rounds)), whole=whole)

    monkeypatch.setattr("interpreter.pack", impatient)
    algorithm = algorithms.get("allreduce", "butterfly")
    inputs = [np.arange(5) + 10**r for r in range(4)]
    right = [
        np.array_equal(values, sum(inputs))
        for seed in range(20)
        for values in run(algorithm, inputs, in_place=True, seed=seed)
    ]
    assert not all(right)


def test_a_deadlock_is_named():
    @algorithms.algorithm("allreduce")
    def crossed(r, p):
        yield Exchange(recv=((r + 1) % p, 0), fold=True)
        yield Exchange(send=((r - 1) % p, 0))

    algorithm = algorithms.get("allreduce", "crossed")
    algorithms.unregister("allreduce", "crossed")
    with pytest.raises(Deadlock, match="rank 0 in round 1; rank 1 in round 1"):
        run(algorithm, [np.zeros(3)] * 2)
