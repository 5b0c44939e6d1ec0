"""Draw the loss over epochs of ``examples/compressed_sgd.py``, with a line for each codec.

    mpiexec -n 4 python benchmarks/compression_curves.py docs/howto/compression.svg

The seeds are fixed, so the curves are the same in every run on as many ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import compressed_sgd
import curves
from turns import options

import collectives as cc


def main():
    arguments = options(__doc__, path=Path, epochs=30)
    images, labels, kind = compressed_sgd.load()
    training = images[: -compressed_sgd.TESTED], labels[: -compressed_sgd.TESTED]
    lines = {}
    for name, make in compressed_sgd.CODECS.items():
        _, losses, nbytes = compressed_sgd.train(*training, make(), arguments.epochs)
        label = f"{name}: {nbytes / 1000:.1f} kB a step"
        lines[label] = range(1, len(losses) + 1), losses
    if cc.rank() == 0:
        black = next(label for label in lines if label.startswith("none: "))
        title = f"Training on {kind}, {cc.size()} ranks"
        axes = {"xlabel": "epoch", "ylabel": "loss", "yscale": "log"}
        curves.draw(lines, arguments.path, black, title=title, **axes)


if __name__ == "__main__":
    main()
