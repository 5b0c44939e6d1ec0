"""The server: Flower's loop over rounds, with a strategy of `collectives.federated`.

It needs flwr (``pip install flwr``).
"""

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from collectives.federated.flower import FlowerStrategy
from sites import STRATEGY

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = FlowerStrategy(STRATEGY, clients=config["sites"])
    begin = ArrayRecord([np.zeros(3)])
    result = strategy.start(grid, begin, num_rounds=config["rounds"], timeout=60)
    for number, metrics in sorted(result.train_metrics_clientapp.items()):
        print(f"round {number}: {metrics['clients']} sites, {metrics['num-examples']} samples")
    print("learned:", *result.arrays.to_numpy_ndarrays()[0].round(2), flush=True)
