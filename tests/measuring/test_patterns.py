"""The operations that are measured, and patterns that tell a right result from a wrong one."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from collectives import reductions
from collectives.measuring import patterns
from collectives.measuring.operations import OPERATIONS


@pytest.mark.parametrize("op", reductions.ALL, ids=lambda op: op.name)
def test_the_pattern_tells_right_from_wrong(op: reductions.Reduction) -> None:
    dtype = np.dtype(op.dtypes()[-1] if "float32" not in op.dtypes() else "float32")
    arrays = [patterns.filled(1000, patterns.period(r, 3, 1, dtype, op.name)) for r in range(3)]
    total = arrays[0]
    for array in arrays[1:]:
        total = patterns.FOLDS[op.name](total, array).astype(dtype)
    if op.average:
        total = total * dtype.type(1 / 3)
    wanted = patterns.folded(0b111, 3, 1, dtype, op)
    tolerance = 0.01 if op.average else 0.0
    assert patterns.different(total, wanted, tolerance=tolerance) == 0
    assert patterns.different(total[40:], wanted, 40, tolerance) == 0
    patterns.poison(total[::2])
    assert patterns.different(total, wanted, tolerance=tolerance) >= 400


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [63, 64, 127, 300])
def test_sums_of_many_ranks_stay_in_range(dtype: str, size: int) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rows = [patterns.period(r, size, 1, kind, "SUM").astype(np.int64) for r in range(size)]
    total = patterns.folded(2**size - 1, size, 1, kind, reductions.SUM)
    np.testing.assert_array_equal(total.astype(np.int64), sum(rows))
    assert all(row.any() for row in rows)


@pytest.mark.parametrize("dtype", ["int8", "float16", "bool"])
def test_what_is_moved_tells_ranks_and_places_apart(dtype: str) -> None:
    rows = [patterns.period(r, 8, 0, dtype, None) for r in range(8)]
    assert len({row.tobytes() for row in rows}) == 8
    assert patterns.different(rows[3], np.roll(rows[3], 1)) > 20


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "barrier"])
@pytest.mark.parametrize(("n", "p"), [(12, 4), (13, 5), (3, 1)])
def test_pieces_fit_together(name: str, n: int, p: int) -> None:
    operation = OPERATIONS[name]
    n = operation.elements(n, p)
    given: dict[int, tuple[int, int]] = {}
    for r in range(p):
        inputs = list(operation.pieces(operation.contract.inputs(r, p, 0), n, p))
        for one, other in itertools.pairwise(inputs):
            assert one[1] + one[2] == other[1], "an input is one window of the imagined array"
        given |= {part: (first, size) for part, first, size in inputs}
    for r in range(p):
        for part, first, size in operation.pieces(operation.contract.outputs(r, p, 0), n, p):
            assert given[part] == (first, size)


def test_bus_bandwidths_are_those_of_nccl_tests() -> None:
    factors = {name: operation.bus_factor(4) for name, operation in OPERATIONS.items()}
    assert factors["allreduce"] == 1.5
    cut = {name for name, factor in factors.items() if factor == 0.75}
    assert cut == {
        *("allgather", "reduce_scatter", "alltoall", "gather", "scatter"),
        *("allgatherv", "reduce_scatterv", "alltoallv", "gatherv", "scatterv"),
    }
    assert all(factors[name] == 1 for name in ("reduce", "broadcast", "scan", "exscan", "sendrecv"))
