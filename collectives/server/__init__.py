"""Parameter servers: ranks that keep the parameters, and workers that pull them and push gradients.

In come the parameters of a program and gradients, out go new parameters, and counts of applied and
dropped gradients. A program sees `parameter_server`. `training` has what all ranks know: the
pieces of the parameters that each server has (`parameters`). A `serving.Server` decides by its
`update_queue` and a policy (`policies`) which gradients an `optimizers` function gets. A
`worker.Worker` waits for it. `shared` and `messages` are the transports between them.

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
