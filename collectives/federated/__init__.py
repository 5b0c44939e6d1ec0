"""Federated averaging: training on data that are not sent.

`run` takes the parameters of a model and a function that trains a client, and returns the final
parameters. `strategies` and `privacy` have the clients of a round, the parts that they send, and
the new parameters, and do not depend on ranks; `training` is the work of a client on its rank,
`parameters` the arrays of any framework. `coordinating` is the work of rank 0, `links` the messages
between it and another rank. `masks` hides single updates. `flower`, the only module that imports
Flower, runs the same strategies under it. Only parameters, updates and the numbers of rounds and
clients are sent; no framework is imported, and no file is written.
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
