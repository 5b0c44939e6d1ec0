"""Federated averaging: training on data that stay where they are.

`run` takes the parameters of a model and a function that trains a client, and returns the final
parameters. `strategies` and `privacy` say who takes part in a round, what a client sends and what
becomes of it, and know nothing of ranks; `training` is what a client does on its rank, `parameters`
the arrays of any framework. `coordinating` is what rank 0 does, `links` the messages between it and
another rank. `masks` hides single updates, and `flower` has the same strategies work under Flower,
which is the only one that imports it. Nothing here is sent but parameters, updates and the numbers
of rounds and clients; no framework is imported, and no file is written.
"""

from collectives.federated.coordinating import Round
from collectives.federated.masks import SecureAggregation
from collectives.federated.privacy import DifferentialPrivacy
from collectives.federated.running import Result, run
from collectives.federated.strategies import DiLoCo, FedAdam, FedAvg, FedProx, Strategy, Update
from collectives.federated.training import Task

__all__ = [
    "DiLoCo",
    "DifferentialPrivacy",
    "FedAdam",
    "FedAvg",
    "FedProx",
    "Result",
    "Round",
    "SecureAggregation",
    "Strategy",
    "Task",
    "Update",
    "run",
]
