"""Measure what collectives cost in programs that JAX compiles, and what the callback is of it.

    mpiexec -n 2 python benchmarks/measure_jax.py

Each row is the median of calls that are made in turns with those of the other columns, in
microseconds on rank 0. *jit* is a compiled program that only adds, *callback* one that only calls a
function of Python back in order and returns the array: what a collective in a compiled program
costs beside the collective itself. A call by XLA's foreign function interface would need neither
that nor its copies.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import collectives as cc
import collectives.jax as cj

GRADIENTS = 161  # of ResNet-50


def in_turns(calls, repetitions):
    """Return the median time of each call in microseconds."""
    taken = {name: [] for name in calls}
    for number in range(repetitions + 3):
        for name, call in calls.items():
            cc.barrier()
            start = time.perf_counter()
            jax.block_until_ready(call())
            if number >= 3:  # the first ones compile
                taken[name].append(1e6 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in taken.items()}


def called_back(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return io_callback(np.asarray, like, x, ordered=True)


def show(name, medians):
    if cc.rank() == 0:
        if not show.told:
            print(f"{'':12}" + "".join(f"{each:>16}" for each in medians))
        print(f"{name:12}" + "".join(f"{each:16.1f}" for each in medians.values()), flush=True)
        show.told = True


show.told = False


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=51)
    repetitions = parser.parse_args().repetitions
    programs = [jax.jit(each) for each in (lambda x: x + 1, called_back, cj.allreduce)]
    add, back, compiled = programs
    for name, count in (("8 B", 2), ("64 KiB", 1 << 14), ("1 MiB", 1 << 18), ("16 MiB", 1 << 22)):
        x = jnp.ones(count)
        array = np.ones(count, np.float32)
        calls = {
            "NumPy": lambda array=array: cc.allreduce(array),
            "JAX, eager": lambda x=x: cj.allreduce(x),
            "jit": lambda x=x: add(x),
            "callback": lambda x=x: back(x),
            "allreduce in jit": lambda x=x: compiled(x),
        }
        show(name, in_turns(calls, repetitions))

    arrays = [np.ones(1000, np.float32) for _ in range(GRADIENTS)]
    xs = [jnp.asarray(each) for each in arrays]
    add, compiled = jax.jit(lambda xs: [x + 1 for x in xs]), jax.jit(cj.allreduce_gradients)
    calls = {
        "allreduce_many": lambda: cc.allreduce_many(arrays, op=cc.AVG),
        "eager": lambda: cj.allreduce_gradients(xs),
        "jit": lambda: add(xs),
        "gradients in jit": lambda: compiled(xs),
    }
    show.told = False
    if cc.rank() == 0:
        print()
    show(f"{GRADIENTS} of 4 kB", in_turns(calls, repetitions))


if __name__ == "__main__":
    main()
