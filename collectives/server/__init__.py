"""Parameter servers: ranks that keep the parameters, and workers that pull them and push gradients.

The inputs are the parameters of a program and gradients, the outputs new parameters, and counts of
applied and dropped gradients. Programs use `parameter_server`. `training` has the common state of
all ranks: the pieces of the parameters that each server has (`parameters`). A `serving.Server`
selects by its `update_queue` and a policy (`policies`) the gradients that an `optimizers` function
gets. A `worker.Worker` waits for it. `shared` and `messages` are the transports between them.

Nothing here imports a framework, starts a thread or waits without a deadline.
"""

from collectives.server.optimizers import SGD, Adam
from collectives.server.parameter_server import ParameterServer
from collectives.server.policies import (
    Asynchronous,
    BackupWorkers,
    BoundedStaleness,
    Policy,
    RapidReassignment,
    Synchronous,
)
from collectives.server.training import Statistics

__all__ = [
    "SGD",
    "Adam",
    "Asynchronous",
    "BackupWorkers",
    "BoundedStaleness",
    "ParameterServer",
    "Policy",
    "RapidReassignment",
    "Statistics",
    "Synchronous",
]
