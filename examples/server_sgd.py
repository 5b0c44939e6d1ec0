"""A parameter server: rank 0 has the weights, the others compute gradients, and one is slow.

The program trains a small network that recognises handwritten digits, once under each policy of
`collectives.server`. A worker pulls the weights, computes the gradient of its part of a batch, and
pushes it. For each image it sleeps for a while, which stands for the time that a larger network
would take; the last worker sleeps four times as long. All policies compute the same number of
gradients. The table has the time of the training, the time after which the weights of the first
worker reach an accuracy on new images, the age of the weights of a gradient in updates, and the
number of dropped gradients.

Gradients of single workers are applied with a smaller rate than means over all of them.

With scikit-learn (``pip install scikit-learn``), the images are its digits. Without it, they are
made up. Run it on 5 ranks, one server and four workers, or on any other number from 2 on::

    collectives run -n 5 examples/server_sgd.py

With ``--plot accuracy.svg``, it draws the accuracy over time, which needs matplotlib
(``pip install matplotlib``).
"""

import argparse
import os
import time

# One thread per rank. NumPy reads these variables when it is imported.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import plotting  # noqa: E402
from compressed_sgd import TESTED, gradients, load, loss_and_accuracy, start  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import server  # noqa: E402

BATCH, RATE, SLOWER = 100, 0.8, 4


def policies(workers):
    """Return the policies by name; a backup needs two workers."""
    found = {
        "synchronous": server.Synchronous(),
        "asynchronous": server.Asynchronous(),
        "bounded": server.BoundedStaleness(3),
        "reassignment": server.RapidReassignment(8),
    }
    if workers > 1:
        found["backup"] = server.BackupWorkers(1)
    return found


def train(training, policy, steps, seconds):
    """Train; return the pulled weights with their times, the time in all, and the statistics."""
    images, labels = training
    weights, pulled = start(), []
    workers = cc.size() - 1
    averages = policy.waits_for_update
    rate, updates = (RATE, steps) if averages else (RATE / workers, steps * workers)
    cc.barrier()
    began = time.perf_counter()
    with server.ParameterServer(
        cc.world(), weights, optimizer=server.SGD(rate), policy=policy
    ) as ps:
        pace = seconds * (SLOWER if ps.worker == workers - 1 else 1)
        while ps.is_worker:
            ps.pull()
            copies = {name: each.copy() for name, each in weights.items()}
            pulled.append((time.perf_counter() - began, ps.version, copies))
            if ps.version >= updates:
                break
            # The version selects the batch, so all workers agree on it.
            batch = np.random.default_rng(ps.version).permutation(len(images))[:BATCH]
            total, count = {name: np.zeros_like(each) for name, each in weights.items()}, 0
            for part in ps.parts(BATCH):
                mine = batch[part]
                time.sleep(pace * len(mine))
                for name, each in gradients(weights, images[mine], labels[mine], 1).items():
                    total[name] += each
                count += len(mine)
            means = {name: each / max(count, 1) for name, each in total.items()}
            ps.push(means, weight=count)
    return pulled, time.perf_counter() - began, ps.statistics


def accuracies(pulled, tested):
    """Return the seconds of each pull, and the accuracy of the weights."""
    return [(seconds, loss_and_accuracy(each, *tested)[1]) for seconds, _, each in pulled]


def draw(axes, curves):
    """Draw the accuracy over time under each policy."""
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name)
    axes.set(xlabel="seconds", ylabel="new images that are recognised")
    axes.legend()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = list(policies(2))
    parser.add_argument("--policy", choices=names, action="append", help="default: all")
    parser.add_argument("--steps", type=int, default=50, help="batches")
    parser.add_argument("--milliseconds", type=float, default=0.25, help="of sleep for an image")
    parser.add_argument("--accuracy", type=float, default=0.88)
    plotting.add_option(parser, "the accuracy over time")
    arguments = parser.parse_args()

    images, labels, kind = load()
    training, tested = (images[:-TESTED], labels[:-TESTED]), (images[-TESTED:], labels[-TESTED:])
    workers, percent = cc.size() - 1, f"to {100 * arguments.accuracy:.0f} %"
    if cc.rank() == 0:
        print(f"{len(training[1])} {kind}, {arguments.steps} batches of {BATCH}, {workers} workers")
        print(f"policy         seconds {percent:>9s}   mean staleness   dropped")
    curves = {}
    for name, policy in policies(workers).items():
        if arguments.policy and name not in arguments.policy:
            continue
        pace = arguments.milliseconds / 1e3
        pulled, seconds, found = train(training, policy, arguments.steps, pace)
        mine = accuracies(pulled, tested) if cc.rank() == 1 else None
        curve = curves[name] = cc.broadcast_object(mine, root=1)
        first = next((when for when, part in curve if part >= arguments.accuracy), None)
        if cc.rank() == 0:
            when = "-" if first is None else f"{first:.2f}"
            mean, dropped = found.mean_staleness, sum(found.dropped.values())
            print(f"{name:13s} {seconds:8.2f} {when:>9s} {mean:16.2f} {dropped:9d}")
    if cc.rank() == 0:
        plotting.save(arguments.plot, lambda axes: draw(axes, curves))


if __name__ == "__main__":
    main()
