"""The same strategies under Flower (`flwr`), for sites that are no ranks of one job.

The server app makes a `FlowerStrategy` from a strategy, and client apps call `answer`. Flower
carries the messages, and knows the connected clients. Import this module yourself: no other module
imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from collectives import _core
from collectives.compression.codec import POSITIVE, parameter
from collectives.errors import StallError
from collectives.federated.parameters import Parameters
from collectives.federated.strategies import Strategy, Update
from collectives.federated.training import Fit, Task, seed_of, trained
from collectives.process.waiting import Naps, Wait

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp.strategy import Strategy as Base
except ModuleNotFoundError as error:
    raise ImportError(
        f"collectives.federated.flower needs Flower ({error}): pip install flwr", name=error.name
    ) from error

__all__ = ["FlowerStrategy", "answer"]

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # Flower's own names of the records
COUNT = "num-examples"
NAPS = Naps(nap=0.5)  # between two polls for connected clients


class FlowerStrategy(Base):
    """A strategy for Flower's server app.

    Parameters
    ----------
    strategy : Strategy
        `FedAvg` or another one.
    clients : int
        The number of clients. The first round waits until this number is connected.
    seed : int
        Of the draws, as for `run`.
    timeout : float
        Seconds in which this number must be connected.

    Raises
    ------
    ArgumentError
        If `clients` is not a positive integer, or `timeout` not a positive number.

    Notes
    -----
    The clients of a round are drawn from those that are connected, in the order of their numbers in
    Flower, which differ from run to run. The deadline of a round is the ``timeout`` of ``start``;
    later updates are not taken. The models of clients are not evaluated; pass ``evaluate_fn`` to
    ``start`` to evaluate the mean.
    """

    strategy: Strategy
    seed: int

    def __init__(
        self, strategy: Strategy, clients: int, seed: int = 0, timeout: float = 3600.0
    ) -> None:
        self.strategy, self.seed = strategy, seed
        self.clients: int = parameter(clients, "clients", POSITIVE)
        self.timeout: float = _core.seconds(timeout)
        self._state: Any = None
        self._names: list[str] = []
        self._arrays: list[Any] = []

    def configure_train(
        self, server_round: int, arrays: Any, config: Any, grid: Any
    ) -> Iterable[Any]:
        """Return the messages that ask for the updates of a round. Local.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The parameters to begin with.
        config : ConfigRecord
            It is passed on to the clients, with the values of their tasks.
        grid : Grid
            Flower's, which knows the connected clients.

        Raises
        ------
        StallError
            If too few clients are connected in time.
        """
        wait = Wait(NAPS, timeout=self.timeout)
        while len(nodes := sorted(grid.get_node_ids())) < self.clients and self._state is None:
            if not wait.turn():
                raise StallError(
                    f"{len(nodes)} of {self.clients} clients have connected in {self.timeout:g} s "
                    f"(timeout=)"
                )
        self._names = list(arrays.keys())
        self._arrays = [np.asarray(each) for each in arrays.to_numpy_ndarrays()]
        if self._state is None:
            self._state = [self.strategy.start(self._arrays, self.clients)]
        messages = []
        for client in self.strategy.sample(len(nodes), server_round, self.seed):
            told = {
                "server-round": server_round,
                "client": client,
                "epochs": self.strategy.epochs,
                "proximal": float(self.strategy.proximal),
                "seed": seed_of(self.seed, server_round, client),
            }
            content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config, **told})})
            message = Message(
                content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[client]
            )
            messages.append(message)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Return the parameters after a round, and the numbers of clients and samples. Local.

        Parameters
        ----------
        server_round : int
        replies : iterable of Message
            The results of `answer` on the clients; errors and infinite values are left out.
        """
        came = [each.content for each in replies if not each.has_error()]
        came.sort(key=lambda content: content[METRICS]["client"])
        updates = [
            Update(content[ARRAYS].to_numpy_ndarrays(), int(content[METRICS][COUNT]))
            for content in came
        ]
        updates = [each for each in updates if each.is_finite]
        arrays, self._state[0] = self.strategy.aggregate(self._arrays, updates, self._state[0])
        record = ArrayRecord([np.asarray(each) for each in arrays])
        named = {
            name: record[key] for name, key in zip(self._names, list(record.keys()), strict=True)
        }
        samples = sum(each.count for each in updates)
        return ArrayRecord(named), MetricRecord({"clients": len(updates), COUNT: samples})

    def configure_evaluate(
        self, server_round: int, arrays: Any, config: Any, grid: Any
    ) -> Iterable[Any]:
        """Return no messages; `server_round`, `arrays`, `config` and `grid` are ignored. Local."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Return None; `server_round` and `replies` are ignored. Local."""
        return None

    def summary(self) -> None:
        """Do nothing: the program that makes a strategy knows its parameters. Local."""


def answer(message: Any, parameters: Iterable[Any], fit: Fit, strategy: Strategy) -> Any:
    """Train the client that a message asks for, and return the reply. Local.

    Parameters
    ----------
    message : Message
        The message that Flower has passed to the client app's function.
    parameters, fit
        As for `run`. `Task.index` is 0.
    strategy : Strategy
        Equal to that of the server app.

    Returns
    -------
    Message

    Raises
    ------
    ArgumentError
        If `fit` does not return arrays like the parameters and a count.
    """
    config = message.content[CONFIG]
    own = Parameters(parameters)
    task = Task(
        config["server-round"],
        config["client"],
        0,
        config["epochs"],
        config["proximal"],
        config["seed"],
        own.checked(message.content[ARRAYS].to_numpy_ndarrays(), "the message"),
    )
    update = strategy.prepare(task.initial, *trained(own, fit, task))
    content = RecordDict(
        {
            ARRAYS: ArrayRecord([np.asarray(each) for each in update.arrays]),
            METRICS: MetricRecord({COUNT: update.count, "client": task.client}),
        }
    )
    return Message(content=content, reply_to=message)
