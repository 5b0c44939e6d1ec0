"""A site: it trains on its own data, and answers the server.

It needs flwr (``pip install flwr``).
"""

import numpy as np
from flwr.clientapp import ClientApp

from collectives.federated.flower import answer
from sites import STRATEGY

app = ClientApp()


def samples(site):
    """Return the data of a site: in truth, a file that never leaves it."""
    rng = np.random.default_rng(site)
    x = rng.normal(size=(50 + 100 * site, 3))
    return x, x @ [1.0, -2.0, 0.5] + rng.normal(size=len(x)) / 10


@app.train()
def train(message, context):
    x, y = samples(context.node_config["site"])

    def fit(parameters, task):
        (weights,) = parameters
        for _ in range(task.epochs):
            weights -= 0.1 * x.T @ (x @ weights - y) / len(x)
        return parameters, len(x)

    return answer(message, [np.zeros(3)], fit, STRATEGY)
