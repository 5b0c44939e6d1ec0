"""A network that recognises handwritten digits, trained on all ranks with PyTorch.

It is written like programs for Horovod: the program of one process, changed in five places. Each
rank takes another part of the images, the learning rate grows with the number of ranks, all ranks
start with the parameters of rank 0, the optimizer reduces the gradients of all ranks, and the
results are averaged.

With scikit-learn (``pip install scikit-learn``), the images are its digits. Without it, they are
made up: ten random pictures with noise. Run it on any number of ranks::

    collectives run -n 2 examples/torch_mnist.py --epochs 3

It needs torch (``pip install torch``).
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import collectives.torch as hvd

TESTED = 297  # images


def load():
    """Return the images for training and those for the test."""
    try:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = images / 16
    except ImportError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 1797)
        images = rng.random((10, 64))[labels] + rng.normal(0, 0.3, (1797, 64))
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels)
    return TensorDataset(x[:-TESTED], y[:-TESTED]), TensorDataset(x[-TESTED:], y[-TESTED:])


def network():
    """Return a network of two convolutions and two layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def test(model, images):
    """Return the loss and the fraction that is recognised, averaged over the ranks."""
    model.eval()
    with torch.no_grad():
        x, y = (each[hvd.rank() :: hvd.size()] for each in images.tensors)
        scores = model(x)
        sums = torch.tensor(
            [
                functional.cross_entropy(scores, y, reduction="sum"),
                (scores.argmax(1) == y).sum(),
                len(y),
            ]
        )
    loss, hits, count = hvd.allreduce(sums, name="test", op=hvd.Sum).tolist()
    return loss / count, hits / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="on each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank")
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)  # ranks share the cores of a host
    torch.manual_seed(42)

    training, tested = load()
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(training, arguments.batch_size, sampler=sampler)

    model = network()
    rate = arguments.lr * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(1, arguments.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        loss, accuracy = test(model, tested)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, {accuracy:.1%} recognised", flush=True)


if __name__ == "__main__":
    main()
