"""Draw the accuracy over rounds of ``examples/federated.py``, with a line for each strategy.

    mpiexec -n 4 python benchmarks/federated_curves.py docs/howto/federated.svg

The seeds are fixed, so the curves are the same in every run, on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import curves
import federated as example
from turns import options

import collectives as cc
from collectives import federated

EPOCHS = 2
STRATEGIES = {
    "FedAvg, all clients": federated.FedAvg(1.0, EPOCHS),
    "FedAvg, half of them": federated.FedAvg(0.5, EPOCHS),
    "FedProx, half of them": federated.FedProx(0.5, 0.5, EPOCHS),
    "FedAdam, half of them": federated.FedAdam(0.03, fraction=0.5, epochs=EPOCHS),
}


def main():
    arguments = options(__doc__, path=Path, rounds=60)
    images, labels, kind = example.load()
    tested = images[-example.TESTED :], labels[-example.TESTED :]
    training = images[: -example.TESTED], labels[: -example.TESTED]
    found = {"in one place": example.centralised(*training, tested, arguments.rounds * EPOCHS)}
    found["in one place"] = found["in one place"][EPOCHS - 1 :: EPOCHS]
    for name, strategy in STRATEGIES.items():
        result = example.train(cc.world(), *training, tested, strategy, rounds=arguments.rounds)
        found[name] = [each.metric for each in result.rounds]
    if cc.rank() == 0:
        for name, percents in found.items():
            shown = ", ".join(f"{percents[n - 1]:.1f}" for n in (1, 5, 20, arguments.rounds))
            print(f"{name:24s} after 1, 5, 20 and {arguments.rounds} rounds: {shown} %")
        lines = {name: (range(1, len(each) + 1), each) for name, each in found.items()}
        axes = {"xlabel": "round", "ylabel": "new images recognised, %", "ylim": (20, 100)}
        title = f"{kind}, {example.CLIENTS} clients"
        curves.draw(lines, arguments.path, "in one place", title=title, **axes)


if __name__ == "__main__":
    main()
