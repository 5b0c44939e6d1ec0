"""The strategy, which the server and all sites have in common."""

from collectives.federated import FedAvg

STRATEGY = FedAvg(epochs=20)
