"""Ranks in Python have the results of the core, bit by bit, and its errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pure
import pytest

from collectives import _core
from collectives.errors import UnsupportedTypeError
from collectives.slow import kernels

PROGRAM = Path(__file__).with_name("many_calls.py")
DTYPES = [each for each in _core.DTYPES if each != "bfloat16"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pure.installed(tmp_path_factory.mktemp("pure"))


def logged(result: jobs.Result) -> dict[str, Any]:
    """Return what each rank has logged, without numbers of processes."""
    assert result.status == 0, result
    lines: dict[str, Any] = json.loads(re.sub(r" \(process \d+\)", "", result.out))
    return lines


@pytest.mark.parametrize(
    "ranks", ["2 3", pytest.param("1 4", marks=pytest.mark.slow)], ids=["few", "others"]
)
def test_results_and_errors_are_those_of_the_core(site: Path, ranks: str, tmp_path: Path):
    words = [PROGRAM, *ranks.split()]
    env = {"COLLECTIVES_PROFILE": "0"}
    core = logged(jobs.run([sys.executable, *words], cwd=tmp_path, env=env))
    ours = logged(pure.python(site, *words, cwd=tmp_path))
    assert ours.keys() == core.keys()
    for n, of_ranks in core.items():
        assert len(of_ranks[0]) > 250, "the program has made its calls"
        for rank, lines in enumerate(of_ranks):
            for mine, theirs in zip(ours[n][rank], lines, strict=True):
                assert mine == theirs, f"rank {rank} of {n}"


@pytest.mark.slow
def test_processes_have_the_results_of_threads(site: Path, tmp_path: Path):
    words = "-m", "collectives", "run", "-n", "3", PROGRAM
    assert logged(pure.python(site, *words, cwd=tmp_path)) == logged(
        pure.python(site, PROGRAM, "3", cwd=tmp_path)
    )


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays with all pairs of special values, and others."""
    special = [0.0, -0.0, 1.0, -1.0, 3.0, 0.1, 65504.0, 1e-7, -7.5]
    if np.dtype(dtype).kind in "fc":
        special += [np.nan, -np.nan, np.inf, -np.inf]
    values = np.array([*special, *np.random.default_rng(1).normal(0, 100, 20)])
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind in "iu":
            values = np.nan_to_num(values).astype("int64")
        of = np.array(values + 1j * values[::-1] if dtype[0] == "c" else values).astype(dtype)
    return np.repeat(of, len(of)), np.tile(of, len(of))


@pytest.mark.parametrize("code", range(kernels.NOPS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_folds_have_the_bits_of_the_kernels(code: int, dtype: str):
    a, b = operands(dtype)
    fold = kernels.kernel_of(code, dtype, a.dtype)
    if fold is None:
        with pytest.raises(UnsupportedTypeError):
            _core.fold(code, a.copy(), a, b)
        return
    wanted = _core.fold(code, np.zeros_like(a), a, b)
    found = fold(a, b)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [each for each in kernels.SCALED if each != "bfloat16"])
def test_scaled_arrays_have_the_bits_of_the_kernels(dtype: str):
    a, _ = operands(dtype)
    wanted = _core.scale(np.zeros_like(a), a, 0.3)
    assert kernels.scaled(a, dtype, 0.3).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("code", range(4))
def test_folds_of_bfloat16_have_the_bits_of_the_kernels(code: int):
    dtypes = pytest.importorskip("ml_dtypes")
    a, b = (each.astype(dtypes.bfloat16) for each in operands("float32"))
    fold = kernels.kernel_of(code, "bfloat16", a.dtype)
    assert fold is not None
    assert fold(a, b).tobytes() == _core.fold(code, np.zeros_like(a), a, b).tobytes()
    wanted = _core.scale(np.zeros_like(a), a, 0.3)
    assert kernels.scaled(a, "bfloat16", 0.3).tobytes() == wanted.tobytes()
