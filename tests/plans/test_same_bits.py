"""Every algorithm that folds gives every rank the same bits, of NaNs and zeros as well.

The interpreter runs the plans, and folds with the kernels.
"""

from functools import partial

import numpy as np
import pytest
import specials
from interpreter import equal, expected, make_inputs, run

from collectives import _core, algorithms, reductions
from collectives.algorithms.bits import ORDERS
from collectives.algorithms.spec import COLLECTIVES

FOLDING = [
    (collective, name)
    for collective, contract in COLLECTIVES.items()
    if contract.reduces and collective != "barrier"
    for name in algorithms.names(collective)
]


def contribution(dtype, rank, n):
    return specials.contribution(dtype, n, rank)


def kernel(op, left, right):
    out = np.empty_like(left)
    _core.fold(getattr(reductions, op).code, out, left, right)
    return out


@pytest.mark.parametrize("hosts", [0, 1], ids=["messages", "one_host"])
@pytest.mark.parametrize(("collective", "name"), FOLDING)
@pytest.mark.parametrize("order", ORDERS)
def test_nans_and_zeros_do_not_tell_ranks_apart(collective, name, hosts, order):
    algorithm = algorithms.get(collective, name).folding(order)
    for p in (2, 3, 4):
        if algorithm.refusal(p):
            continue
        sizes = equal(algorithm, p, 41)
        root = p - 1 if algorithm.collective.rooted else 0
        shared = (tuple(range(p)),) * hosts
        for op, dtype in specials.CASES:
            make = partial(contribution, dtype)
            inputs = make_inputs(algorithm, p, root, sizes, make)
            wanted = expected(algorithm, inputs, root, partial(specials.fold, op), sizes)
            got = run(algorithm, inputs, root, partial(kernel, op), sizes, hosts=shared)
            for r, (have, want) in enumerate(zip(got, wanted, strict=True)):
                for part in want:
                    np.testing.assert_array_equal(
                        specials.bits(have[part]),
                        specials.bits(want[part]),
                        err_msg=f"{op} {dtype} p={p} rank={r} part={part}",
                    )


@pytest.mark.parametrize("name", algorithms.names("allreduce"))
def test_complex_products_have_the_same_bits_on_all_ranks(name):
    algorithm = algorithms.get("allreduce", name)
    for p in (2, 3, 4):
        if algorithm.refusal(p):
            continue
        for dtype in specials.COMPLEX:
            inputs = [specials.contribution(dtype, 41, r) for r in range(p)]
            results = [
                parts[0] for parts in run(algorithm, inputs, 0, partial(kernel, "PROD"), [41])
            ]
            assert {result.tobytes() for result in results} == {
                specials.canonical(results[0]).tobytes()
            }
