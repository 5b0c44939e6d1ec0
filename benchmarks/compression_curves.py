"""Draw the loss over epochs of ``examples/compressed_sgd.py``, with a line for each codec.

    mpiexec -n 4 python benchmarks/compression_curves.py docs/howto/compression.svg

The seeds are fixed, so the curves are the same in every run on as many ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import compressed_sgd
from turns import options

import collectives as cc
from collectives.picture import colours, figures


def draw(curves, path, caption):
    """Write the picture; `curves` has the losses and the bytes of a step by codec."""
    figure, axes = figures.subplots(figsize=(8, 4.4))
    for k, (name, (losses, nbytes)) in enumerate(curves.items()):
        tint = "#1b1f24" if name == "none" else colours.LIGHT[k]
        label = f"{name}: {nbytes / 1000:.1f} kB a step"
        axes.plot(range(1, len(losses) + 1), losses, color=tint, linewidth=1.3, label=label)
    axes.set(yscale="log", xlabel="epoch", ylabel="loss", title=caption)
    axes.grid(alpha=0.3)
    figures.label_ends(figure, [axes])
    figures.save(figure, path)


def main():
    arguments = options(__doc__, path=Path, epochs=30)
    images, labels, kind = compressed_sgd.load()
    training = images[: -compressed_sgd.TESTED], labels[: -compressed_sgd.TESTED]
    curves = {}
    for name, make in compressed_sgd.CODECS.items():
        _, losses, nbytes = compressed_sgd.train(*training, make(), arguments.epochs)
        curves[name] = losses, nbytes
    if cc.rank() == 0:
        draw(curves, arguments.path, f"Training on {kind}, {cc.size()} ranks")


if __name__ == "__main__":
    main()
