"""Draw how the ranks communicate while a `tf.function` computes, from a timeline recorded for it.

    mpiexec -n 2 python benchmarks/tensorflow_picture.py docs/howto/overlap.svg

The step is that of a network of wide layers, with a tape whose gradients are averaged; each of them
is large, and so is a submission of its own. The uppermost bar is the backward pass, from the first
submission to the last one; the bars below it run at the same time. Of the recorded steps, the
fastest one is drawn, which other programs have disturbed least.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import background_picture as pictures
import tensorflow as tf
from turns import options

import collectives as cc
import collectives.tensorflow as hvd

LAYERS, WIDTH, BATCH = 6, 1024, 128
PASS = "backward pass"
LABELS = {PASS: PASS} | {
    f"allreduce.gradients, {place} of {LAYERS}": f"layer {place}, {WIDTH * WIDTH >> 18} MiB"
    for place in range(LAYERS, 0, -1)
}


def training():
    """Return a step of the training of the network."""
    layers = [tf.keras.layers.Dense(WIDTH, "relu", use_bias=False) for _ in range(LAYERS)]
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *layers])
    x = tf.random.normal((BATCH, WIDTH))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step


def with_pass(found):
    """Add the backward pass to the submissions in it."""
    begins = [phases[0][1] for phases in found.values()]
    return found | {PASS: [("compute", min(begins), max(begins) - min(begins))]}


def main():
    arguments = options(__doc__, path=Path, steps=20)
    hvd.init()
    comm, step = cc.world(), training()
    for _ in range(3):
        step()
    found = pictures.fastest(comm, lambda: step().numpy(), arguments.steps, LABELS)
    if comm.rank == 0:
        pictures.draw(with_pass(found), LABELS, arguments.path, f"Rank 0 of {comm.size}")


if __name__ == "__main__":
    main()
