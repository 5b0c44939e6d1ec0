"""A network that recognises handwritten digits, trained on all ranks with JAX.

It is the program of one process, changed in four places: each rank takes its part of each batch,
all ranks start with the parameters of rank 0, the optimizer averages the gradients of all ranks,
and the printed loss is the mean of all ranks. The step is compiled by `jax.jit`, and the
collectives are part of it. The parts of a batch have equal lengths, so the mean of the ranks'
gradients is that of the whole batch. At the end, the program trains alone on whole batches, and
compares.

With optax, the optimizer is its Adam; without it, plain gradient descent. With scikit-learn
(``pip install scikit-learn``), the images are its digits; without it, they are made up: ten random
pictures with noise. Run it on any number of ranks that divides the batch::

    collectives run -n 2 examples/jax_mnist.py --epochs 3

It needs jax (``pip install jax``).
"""

import argparse
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import collectives as cc
import collectives.jax as cj

TESTED = 297  # images
LAYERS = (64, 64, 10)


def load():
    """Return the images and their labels."""
    try:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = images / 16
    except ImportError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 1797)
        images = rng.random((10, 64))[labels] + rng.normal(0, 0.3, (1797, 64))
    return jnp.asarray(images, jnp.float32), jnp.asarray(labels, jnp.int32)


def network(seed):
    """Return random parameters: a matrix and a vector for each layer."""
    rng = np.random.default_rng(seed)  # that of JAX would be compiled for each shape
    layers = []
    for rows, columns in pairwise(LAYERS):
        weights = rng.normal(0, (2 / rows) ** 0.5, (rows, columns))
        layers.append({"w": jnp.asarray(weights, jnp.float32), "b": jnp.zeros(columns)})
    return layers


def scores(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss_of(layers, x, y):
    chosen = jax.nn.log_softmax(scores(layers, x))[jnp.arange(len(y)), y]
    return -chosen.mean()


def optimizer(rate, comm):
    """Return the two functions of an optimizer that averages the gradients of all ranks."""
    try:
        import optax
    except ImportError:

        def update(gradients, state, _):
            gradients = cj.allreduce_gradients(gradients, comm=comm)
            return jax.tree.map(lambda each: -10 * rate * each, gradients), state

        return lambda _: (), update
    made = cj.distributed(optax.adam(rate), comm=comm)
    return made.init, made.update


def train(images, labels, arguments, comm, tell=print):
    """Return the parameters after some epochs on the ranks of a communicator."""
    layers = network(comm.rank)  # different on each rank
    layers = cj.broadcast_parameters(layers, comm=comm)
    init, update = optimizer(arguments.lr, comm)
    state = init(layers)

    @jax.jit
    def step(layers, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        updates, state = update(gradients, state, layers)
        layers = jax.tree.map(jnp.add, layers, updates)
        return layers, state, cj.allreduce(loss, op=cc.AVG, comm=comm)

    rng = np.random.default_rng(1)  # the same order of the images on all ranks
    for epoch in range(1, arguments.epochs + 1):
        losses = []
        batches = rng.permutation(len(images))[: len(images) // arguments.batch * arguments.batch]
        for batch in batches.reshape(-1, arguments.batch):
            mine = batch[comm.rank :: comm.size]
            layers, state, loss = step(layers, state, images[mine], labels[mine])
            losses.append(loss)
        if comm.rank == 0:
            tell(f"epoch {epoch}: loss {np.mean(losses):.3f}")
    return layers


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=48, help="images, on all ranks together")
    parser.add_argument("--lr", type=float, default=0.005)
    arguments = parser.parse_args()
    if arguments.batch % cc.size():
        raise SystemExit(f"{cc.size()} ranks cannot share a batch of {arguments.batch} equally")

    images, labels = load()
    x, y = images[:-TESTED], labels[:-TESTED]
    layers = train(x, y, arguments, cc.world())
    hits = scores(layers, images[-TESTED:]).argmax(1) == labels[-TESTED:]

    leaves = [np.asarray(each) for each in jax.tree.leaves(layers)]
    are_equal = all((cc.broadcast(each) == each).all() for each in leaves)
    are_equal = bool(cc.allreduce(are_equal, op=cc.LAND))
    alone = train(x, y, arguments, cc.world().split(cc.rank()), tell=str)
    apart = max(np.abs(a - b).max() for a, b in zip(leaves, jax.tree.leaves(alone), strict=True))
    if cc.rank() == 0:
        print(f"{hits.mean():.1%} of {TESTED} new images are recognised")
        print(f"all ranks have {'equal' if are_equal else 'DIFFERENT'} parameters")
        print(f"they differ from those of one process by {apart:.0e}")


if __name__ == "__main__":
    main()
