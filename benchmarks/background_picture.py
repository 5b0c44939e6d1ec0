"""Draw the phases of the submissions of a step, from a timeline that is recorded for it.

    mpiexec -n 2 python benchmarks/background_picture.py docs/howto/background.svg

The step computes the gradients of some layers, from the last to the first, and submits each; the
gradient of the first layer is the most urgent one. Of the recorded steps, the fastest one
is drawn, which other programs have disturbed least.
"""

import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from turns import options, slowest

import collectives as cc
from collectives import background
from collectives.picture import colours, plots

# Layers from the first to the last: KiB of their gradients, and milliseconds to compute them.
LAYERS = {
    "layer 1": (40, 0.5),
    "layer 2": (240, 0.05),
    "layer 3": (240, 0.05),
    "layer 4": (240, 0.05),
    "layer 5": (600, 0.5),
    "layer 6": (16_000, 0.5),
    "layer 7": (2_000, 0.5),
    "layer 8": (100, 0.5),
}
TINTS = {
    "compute": "#0a7d91",
    "queue": "#c8ccd1",
    "negotiate": colours.LIGHT[1],
    "await turn": "#eceef0",
    "copy in": colours.LIGHT[7],
    "communicate": colours.LIGHT[5],
    "copy out": "#504e16",
}


def step(gradients):
    """Compute and submit; wait for all."""
    for place, (name, gradient) in enumerate(reversed(gradients.items())):
        until = time.perf_counter() + 1e-3 * LAYERS[name][1]
        while time.perf_counter() < until:
            np.sqrt(gradient[:1000])
        background.submit("allreduce", gradient, gradient, op=cc.AVG, name=name, priority=place)
    background.flush()


def phases_of(path, rank, names):
    """Return for each submission of a rank with one of some names its phases: what they are called,
    their beginnings and lengths.
    """
    found = {}
    for event in json.loads(Path(path).read_text())["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == rank:
            name = event["args"].get("algorithm")
            if name in names and event["name"] in TINTS:
                found.setdefault(name, []).append((event["name"], event["ts"], event["dur"]))
    return found


def fastest(comm, step, steps, names):
    """Return the phases of rank 0 in the fastest of some steps, which are recorded. Collective."""
    recorded = []
    with tempfile.TemporaryDirectory() as folder:
        path = comm.broadcast_object(f"{folder}/step.json")
        for _ in range(steps):
            with comm.timeline(path):
                seconds = slowest(step)
            recorded.append((seconds, phases_of(path, 0, names)))
            comm.barrier()
    return min(recorded, key=lambda each: each[0])[1]


def draw(found, labels, path, caption):
    """Draw the phases of each submission; `labels` has the text beside it, by its name."""
    from matplotlib.patches import Patch

    figure, axes = plots.subplots(figsize=(9, 3.6))
    first = min(begin for phases in found.values() for _, begin, _ in phases)
    for row, name in enumerate(labels):
        for phase, begin, length in found[name]:
            tint, left = TINTS[phase], (begin - first) / 1e3
            axes.barh(row, length / 1e3, left=left, height=0.7, color=tint)
    axes.set_yticks(range(len(labels)), labels.values(), fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="ms after the first submission", title=caption)
    handles = [
        Patch(color=tint, label=phase)
        for phase, tint in TINTS.items()
        if any(name == phase and length >= 1 for each in found.values() for name, _, length in each)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    plots.save(figure, path)


def main():
    arguments = options(__doc__, path=Path, steps=30)
    comm = cc.world()
    gradients = {name: np.ones(256 * kib, np.float32) for name, (kib, _) in LAYERS.items()}
    for _ in range(20):
        step(gradients)
    found = fastest(comm, partial(step, gradients), arguments.steps, LAYERS)
    if comm.rank == 0:
        labels = {name: f"{name}, {kib} KiB" for name, (kib, _) in reversed(LAYERS.items())}
        draw(found, labels, arguments.path, f"Rank 0 of {comm.size}")


if __name__ == "__main__":
    main()
