"""Measure the cost of collectives in programs that JAX compiles, and the callback's part of it.

    mpiexec -n 2 python benchmarks/measure_jax.py

Each row is the median of calls that are made in turns with those of the other columns, in
microseconds on the slowest rank. *jit* is a compiled program that only adds, *callback* one that
only calls a function of Python back in order and returns the array, which is the overhead of a
collective in a compiled program. A call by XLA's foreign function interface would need
neither that nor its copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from turns import in_turns, medians, options, row, say, slowest

import collectives as cc
import collectives.jax as cj

GRADIENTS = 161  # of ResNet-50
SIZES = {"8 B": 2, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "16 MiB": 1 << 22}


def clock(call: Callable[[], Any], calls: int) -> float:
    return slowest(lambda: jax.block_until_ready(call()), calls)


def called_back(x: Any) -> Any:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return io_callback(np.asarray, like, x, ordered=True)


def show(name: str, ways: dict[str, Callable[[], Any]], turns: int, heads: bool) -> None:
    """Print the times of all ways, below a title where `heads` is true."""
    if heads:
        say(row("", list(ways), width=17))
    found = medians(in_turns(ways, turns, clock, warm=3), 1e-6)  # the first ones compile
    say(row(name, list(found.values()), width=17))


def main() -> None:
    turns = options(__doc__, turns=51).turns
    programs = [jax.jit(each) for each in (lambda x: x + 1, called_back, cj.allreduce)]
    add, back, compiled = programs
    for name, count in SIZES.items():
        x = jnp.ones(count)
        array = np.ones(count, np.float32)
        ways = {
            "NumPy": lambda array=array: cc.allreduce(array),
            "JAX, eager": lambda x=x: cj.allreduce(x),
            "jit": lambda x=x: add(x),
            "callback": lambda x=x: back(x),
            "allreduce in jit": lambda x=x: compiled(x),
        }
        show(name, ways, turns, count == 2)

    arrays = [np.ones(1000, np.float32) for _ in range(GRADIENTS)]
    xs = [jnp.asarray(each) for each in arrays]
    add, compiled = jax.jit(lambda xs: [x + 1 for x in xs]), jax.jit(cj.allreduce_gradients)
    ways = {
        "allreduce_many": lambda: cc.allreduce_many(arrays, op=cc.AVG),
        "eager": lambda: cj.allreduce_gradients(xs),
        "jit": lambda: add(xs),
        "gradients in jit": lambda: compiled(xs),
    }
    say()
    show(f"{GRADIENTS} of 4 kB", ways, turns, True)


if __name__ == "__main__":
    main()
