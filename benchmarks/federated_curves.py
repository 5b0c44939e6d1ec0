"""Draw the accuracy over rounds of ``examples/federated.py``, with a line for each strategy.

    mpiexec -n 4 python benchmarks/federated_curves.py docs/howto/federated.svg

The seeds are fixed, so the curves are the same in every run, on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import federated as example
from turns import options

import collectives as cc
from collectives import federated
from collectives.picture import colours, figures

EPOCHS = 2
STRATEGIES = {
    "FedAvg, all clients": federated.FedAvg(1.0, EPOCHS),
    "FedAvg, half of them": federated.FedAvg(0.5, EPOCHS),
    "FedProx, half of them": federated.FedProx(0.5, 0.5, EPOCHS),
    "FedAdam, half of them": federated.FedAdam(0.03, fraction=0.5, epochs=EPOCHS),
}


def draw(curves, path, caption):
    """Write the picture; `curves` has the percentages by name."""
    figure, axes = figures.subplots(figsize=(8, 4.4))
    for k, (name, found) in enumerate(curves.items()):
        tint = "#1b1f24" if name == "in one place" else colours.LIGHT[k]
        axes.plot(range(1, len(found) + 1), found, color=tint, linewidth=1.3, label=name)
    axes.set(xlabel="round", ylabel="new images recognised, %", title=caption)
    axes.set_ylim(20, 100)
    axes.grid(alpha=0.3)
    figures.label_ends(figure, [axes])
    figures.save(figure, path)


def main():
    arguments = options(__doc__, path=Path, rounds=60)
    images, labels, kind = example.load()
    tested = images[-example.TESTED :], labels[-example.TESTED :]
    training = images[: -example.TESTED], labels[: -example.TESTED]
    curves = {"in one place": example.centralised(*training, tested, arguments.rounds * EPOCHS)}
    curves["in one place"] = curves["in one place"][EPOCHS - 1 :: EPOCHS]
    for name, strategy in STRATEGIES.items():
        result = example.train(cc.world(), *training, tested, strategy, rounds=arguments.rounds)
        curves[name] = [each.metric for each in result.rounds]
    if cc.rank() == 0:
        for name, found in curves.items():
            shown = ", ".join(f"{found[n - 1]:.1f}" for n in (1, 5, 20, arguments.rounds))
            print(f"{name:24s} after 1, 5, 20 and {arguments.rounds} rounds: {shown} %")
        draw(curves, arguments.path, f"{kind}, {example.CLIENTS} clients")


if __name__ == "__main__":
    main()
