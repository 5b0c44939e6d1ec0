"""Federated averaging: eight clients learn together, and each keeps its data.

Each client has handwritten digits of only two to four kinds. Alone it learns to recognise these. In
each round, half of the clients begin with the common weights, go through their own images a few
times, and send their new weights. Rank 0 takes the mean, weighted by the numbers of images
(`collectives.federated`). The program compares the result with training on all images in one place,
with as many passes over the data, and with training each client alone.

The draws and the orders of images depend on the round and the client, so the result is the same on
any number of ranks, to the last bit. The weights are the same on all ranks, which is checked.

With ``--slow``, the last client sleeps whenever it is drawn; with a ``--deadline``, the others do
not wait for it. ``--secure`` hides the weights of single clients behind masks that cancel in the
sum, and ``--noise`` clips the updates of clients and adds noise; they need the packages
cryptography and dp-accounting.

With scikit-learn (``pip install scikit-learn``), the images are its digits. Without it, they are
made up: ten random pictures with noise. Run it on any number of ranks::

    collectives run -n 4 examples/federated.py --rounds 40
"""

import argparse
import os
import time

# One thread per rank. NumPy reads these variables when it is imported.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

import collectives as cc  # noqa: E402
from collectives import federated  # noqa: E402

CLIENTS, CLASSES, HIDDEN, BATCH, RATE, TESTED = 8, 10, 64, 20, 0.1, 297
STRATEGIES = {
    "fedavg": federated.FedAvg,
    "fedprox": federated.FedProx,
    "fedadam": lambda **options: federated.FedAdam(rate=0.03, **options),
}


def load():
    """Return the images, their labels, and a description. Each rank loads its own."""
    try:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return images / 16, labels, "digits"
    except ImportError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, CLASSES, 1797)
        pictures = rng.random((CLASSES, 64))
        return pictures[labels] + rng.normal(0, 0.3, (1797, 64)), labels, "made-up pictures"


def divided(labels):
    """Return the indices of each client's images: two of sixteen parts of the sorted labels."""
    parts = np.array_split(np.argsort(labels, kind="stable"), 2 * CLIENTS)
    order = np.random.default_rng(0).permutation(2 * CLIENTS)
    return [np.concatenate([parts[i], parts[j]]) for i, j in order.reshape(CLIENTS, 2)]


def start():
    """Return the weights and biases of two layers."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(0, 0.2, (64, HIDDEN)), rng.normal(0, 0.1, (HIDDEN, CLASSES))
    return [first, np.zeros(HIDDEN), second, np.zeros(CLASSES)]


def forward(weights, images):
    """Return the output of the hidden layer, and the probability of each class."""
    first, first_bias, second, second_bias = weights
    hidden = np.maximum(images @ first + first_bias, 0)
    scores = hidden @ second + second_bias
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def accuracy(weights, images, labels):
    """Return the percentage of images that are recognised."""
    return 100 * float((forward(weights, images)[1].argmax(axis=1) == labels).mean())


def descend(weights, images, labels, rng, pull=lambda weights: [0.0] * 4):
    """Go through the images once, in small batches; change the weights."""
    order = rng.permutation(len(images))
    for begin in range(0, len(images), BATCH):
        batch = order[begin : begin + BATCH]
        hidden, errors = forward(weights, images[batch])
        errors[np.arange(len(batch)), labels[batch]] -= 1
        errors /= len(batch)
        back = (errors @ weights[2].T) * (hidden > 0)
        gradients = [
            images[batch].T @ back,
            back.sum(axis=0),
            hidden.T @ errors,
            errors.sum(axis=0),
        ]
        for each, gradient, more in zip(weights, gradients, pull(weights), strict=True):
            each -= RATE * (gradient + more)


def centralised(images, labels, tested, epochs):
    """Return the accuracy after each epoch of training on all images in one place."""
    weights, rng, accuracies = start(), np.random.default_rng(2), []
    for _ in range(epochs):
        descend(weights, images, labels, rng)
        accuracies.append(accuracy(weights, *tested))
    return accuracies


def alone(images, labels, tested, epochs):
    """Return the mean accuracy of the clients if each trains alone."""
    accuracies = []
    for client, mine in enumerate(divided(labels)):
        weights, rng = start(), np.random.default_rng(client)
        for _ in range(epochs):
            descend(weights, images[mine], labels[mine], rng)
        accuracies.append(accuracy(weights, *tested))
    return float(np.mean(accuracies))


def train(comm, images, labels, tested, strategy, slow=0.0, **options):
    """Train on the clients of all ranks; return the result of `federated.run`."""
    clients = CLIENTS * (comm.rank + 1) // comm.size - CLIENTS * comm.rank // comm.size
    first = CLIENTS * comm.rank // comm.size
    here = divided(labels)[first : first + clients]
    data = [(images[mine], labels[mine]) for mine in here]  # this rank uses no other images

    def fit(weights, task):
        if task.client == CLIENTS - 1:
            time.sleep(slow)
        rng = np.random.default_rng(task.seed)
        for _ in range(task.epochs):
            descend(weights, *data[task.index], rng, task.pull)
        return weights, len(data[task.index][0])

    return federated.run(
        comm,
        start(),
        fit,
        strategy=strategy,
        clients=clients,
        evaluate=lambda weights, round: accuracy(weights, *tested),
        **options,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2, help="of a client in a round")
    parser.add_argument("--fraction", type=float, default=0.5, help="of the clients in a round")
    parser.add_argument("--strategy", choices=STRATEGIES, default="fedavg")
    parser.add_argument(
        "--slow", type=float, default=0.0, help="seconds that the last client sleeps"
    )
    parser.add_argument("--deadline", type=float, help="seconds for a round")
    parser.add_argument("--secure", action="store_true", help="hide the weights of single clients")
    parser.add_argument("--noise", type=float, help="in units of the largest change of a client")
    arguments = parser.parse_args()

    comm = cc.world()
    images, labels, kind = load()
    tested = images[-TESTED:], labels[-TESTED:]
    images, labels = images[:-TESTED], labels[:-TESTED]
    strategy = STRATEGIES[arguments.strategy](fraction=arguments.fraction, epochs=arguments.epochs)
    if arguments.noise is not None:
        strategy = federated.DifferentialPrivacy(strategy, arguments.noise, clipping_norm=1.0)
    options = {"rounds": arguments.rounds, "deadline": arguments.deadline}
    if arguments.secure:
        options["secure"] = federated.SecureAggregation()
    began = time.perf_counter()
    result = train(comm, images, labels, tested, strategy, arguments.slow, **options)
    seconds = time.perf_counter() - began
    for each in result.parameters:
        low, high = comm.allreduce(each, op=cc.MIN), comm.allreduce(each, op=cc.MAX)
        if not np.array_equal(low, high):
            raise SystemExit("the weights differ between ranks")
    if comm.rank == 0:
        report(result, arguments, images, labels, tested, kind)
        if arguments.noise is not None:
            print(
                f"epsilon is {strategy.epsilon(arguments.rounds, delta=0.01):.3g}, for delta 0.01"
            )
        print(f"{len(result.rounds)} rounds took {seconds:.2f} s")


def report(result, arguments, images, labels, tested, kind):
    """Print the accuracy, and that of training in one place and of each client alone."""
    kinds = [len(set(labels[mine].tolist())) for mine in divided(labels)]
    print(f"{len(labels)} {kind}; the clients have {min(kinds)} to {max(kinds)} of 10 kinds each")
    print("round   clients whose updates came   new images recognised")
    for each in result.rounds:
        if each.number in (1, 2, 5) or each.number % 10 == 0:
            clients = " ".join(map(str, each.taken)) or "none"
            print(f"{each.number:5d}   {clients:26s} {each.metric:19.1f} %")
    passes = max(1, round(arguments.rounds * arguments.epochs * arguments.fraction))
    print(f"in one place: {centralised(images, labels, tested, passes)[-1]:.1f} %, ", end="")
    print(f"each client alone: {alone(images, labels, tested, passes):.1f} %")
    missed = sum(len(each.missed) for each in result.rounds)
    print(f"{missed} updates were missing")


if __name__ == "__main__":
    main()
