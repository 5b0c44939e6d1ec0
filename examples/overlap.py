"""Overlap: ranks communicate the gradients of late layers while they compute those of early ones.

A backward pass computes the gradients of a network from its last layer to its first. Each gradient
can be averaged over the ranks as soon as it is known. `background.submit` takes it and returns at
once, and the ranks communicate while the program continues with the next layer. The next forward
pass needs the gradient of the first layer first, which is computed last. With a higher priority, it
is sent before the gradients that still wait.

The program times a step four times:

- the computation alone,
- the communication alone, of gradients that are all known at the start,
- both, overlapped, with equal priorities,
- both, overlapped, with the first layer first.

It prints two numbers. The first is the part of the shorter one of computation and communication
that was hidden behind the other. The second is the time from the end of the backward pass to the
arrival of the first layer's gradient. The layers are not real: each only takes time, and has a
gradient.

With a `--computation` below 1, gradients are computed faster than they can be sent. They form a
queue, and the priority matters.

Run it on two ranks or more. Between hosts there is much to hide; on one host, where communication
is fast and needs the same cores, there is little::

    collectives run -n 2 examples/overlap.py --layers 16 --mebibytes 2

With ``--plot steps.svg``, it draws the times of the steps, which needs matplotlib
(``pip install matplotlib``).
"""

import argparse
import os
import statistics
import time

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import plotting  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import background  # noqa: E402


class Network:
    """Layers with a time and a size, and no other content."""

    def __init__(self, layers, nbytes, seconds):
        self.gradients = [np.ones(nbytes // 4, np.float32) for _ in range(layers)]
        self.matrix = np.ones((256, 256), np.float32)
        self.seconds = seconds  # of computation for a layer

    def compute(self):
        """Compute for as long as one layer takes."""
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            self.matrix @ self.matrix

    def backward(self, submit):
        """Compute all gradients from the last layer to the first, and submit each."""
        for layer in reversed(range(len(self.gradients))):
            self.compute()
            submit(layer)


def overlapped(network, priority):
    """Do both; return the seconds from the end of the backward pass to the first gradient."""
    handles = {}

    def submit(layer):
        gradient = network.gradients[layer]
        handles[layer] = background.submit(
            "allreduce", gradient, gradient, op=cc.AVG, name=str(layer), priority=priority(layer)
        )

    network.backward(submit)
    computed = time.perf_counter()
    handles[0].wait()
    first = time.perf_counter() - computed
    for layer in sorted(handles):
        handles[layer].wait()
    return first


def in_order(layer):
    """Give all layers the same priority."""
    return 0


def first_layer_first(layer):
    """Give the layers priorities in the order of the next forward pass."""
    return -layer


def timed(step):
    """Return the seconds that a step takes on the slowest rank, and its result there."""
    cc.barrier()
    start = time.perf_counter()
    result = step()
    seconds = np.array([time.perf_counter() - start, result or 0.0])
    return cc.allreduce(seconds, op=cc.MAX)


def draw(axes, medians):
    """Draw the time of each step, and in it the time until the first layer's gradient."""
    names = list(medians)[::-1]
    axes.barh(names, [1e3 * medians[name][0] for name in names], color="#9bc3e6")
    late = [name for name in names if name.startswith(("overlapped", "the first"))]
    lost = [1e3 * medians[name][1] for name in late]
    axes.barh(late, lost, left=1e3 * medians["computation"][0], color="#b3541e", height=0.3)
    axes.set_xlabel("ms; dark: from the backward pass to the first layer's gradient")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--mebibytes", type=float, default=2.0, help="of the gradient of a layer")
    parser.add_argument(
        "--computation", type=float, default=1.0, help="as long as the communication, times this"
    )
    parser.add_argument("--steps", type=int, default=5)
    plotting.add_option(parser, "the times of the steps")
    options = parser.parse_args()
    network = Network(options.layers, int(options.mebibytes * 2**20), 0.0)
    at_once = Network(options.layers, int(options.mebibytes * 2**20), 0.0)
    alone = statistics.median(timed(lambda: overlapped(at_once, in_order))[0] for _ in range(3))
    network.seconds = options.computation * alone / options.layers
    cases = {
        "computation": lambda: network.backward(lambda layer: None),
        "communication": lambda: overlapped(at_once, in_order),
        "overlapped": lambda: overlapped(network, in_order),
        "the first layer first": lambda: overlapped(network, first_layer_first),
    }
    times = {name: [] for name in cases}
    for _ in range(options.steps):
        for name, step in cases.items():
            times[name].append(timed(step))
    medians = {name: np.median(rows, axis=0) for name, rows in times.items()}
    if cc.rank() != 0:
        return
    whole = options.layers * options.mebibytes
    print(f"{options.layers} layers, {whole:g} MiB, on {cc.size()} ranks")
    compute, communicate = medians["computation"][0], medians["communication"][0]
    print(f"computation {1e3 * compute:8.1f} ms, communication {1e3 * communicate:.1f} ms")
    for name in ("overlapped", "the first layer first"):
        step, first = medians[name]
        # Each was measured alone, so noise could make it less than none or more than all.
        hidden = np.clip((compute + communicate - step) / min(compute, communicate), 0, 1)
        print(
            f"{name}: {1e3 * step:.1f} ms, {100 * hidden:.0f} % hidden; the first layer's gradient "
            f"{1e3 * first:.1f} ms after the backward pass"
        )
    plotting.save(options.plot, lambda axes: draw(axes, medians))


if __name__ == "__main__":
    main()
