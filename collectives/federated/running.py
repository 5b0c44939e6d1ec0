"""`run`: the whole training, on all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.communicator import Communicator
from collectives.compression.codec import integer_from, parameter
from collectives.errors import ArgumentError, MismatchError
from collectives.federated.coordinating import Coordinator, Round
from collectives.federated.links import Inbox, Link, channels
from collectives.federated.masks import KEY_BYTES, Masked, SecureAggregation, public_of
from collectives.federated.parameters import Parameters
from collectives.federated.parts import Parts
from collectives.federated.strategies import Arrays, FedAvg, Strategy
from collectives.federated.training import ClientTraining, Fit, Wire
from collectives.process.agreement import agreed_terms
from collectives.records.trace import Trace
from collectives.text.words import count, error_text, shown

STRATEGY = ("epochs", "proximal", "sample", "prepare", "start", "aggregate")


class Result(NamedTuple):
    """The result of a training.

    Attributes
    ----------
    parameters : list of ndarray
        The final ones, the same on all ranks.
    rounds : list of Round
        On rank 0; empty on the others.
    lost : dict of int to str
        On rank 0, the ranks that were missing at the end, with the reasons. Empty on the others.
    traces : dict of int to Trace
        The messages of this rank to and from each other rank, as the core has recorded them. Rank 0
        exchanges messages with all others, and these with rank 0 only.
    """

    parameters: list[NDArray[Any]]
    rounds: list[Round]
    lost: dict[int, str]
    traces: dict[int, Trace]

    def __str__(self) -> str:
        numbers = sum(each.size for each in self.parameters)
        parts = [f"{count(len(self.parameters), 'array')} of {count(numbers, 'number')}"]
        if self.rounds:
            parts.insert(0, count(len(self.rounds), "round"))
            taken = sum(len(each.taken) for each in self.rounds)
            missed = sum(len(each.missed) for each in self.rounds)
            parts.append(f"{count(taken, 'update')} taken, {missed} missed")
            if self.rounds[-1].metric is not None:
                parts.append(f"last metric {self.rounds[-1].metric}")
        return "; ".join(parts + list(self.lost.values()))


def run(
    comm: Communicator,
    parameters: Iterable[Any],
    fit: Fit,
    *,
    strategy: Strategy | None = None,
    rounds: int = 10,
    deadline: float | None = None,
    clients: int = 1,
    evaluate: Callable[[list[Any], int], Any] | None = None,
    seed: int = 0,
    secure: SecureAggregation | None = None,
    parts: int = 1,
) -> Result:
    """Train a model on data that stay on their ranks.
    Collective.

    In each round, some clients are drawn. They begin with the same parameters, and train on their
    own data. Rank 0 computes the new parameters from the updates that they send.

    Parameters
    ----------
    comm : Communicator
        The ranks. Rank 0 coordinates, and may have clients, too.
    parameters : iterable of array
        The parameters of the model, floating-point numbers: arrays of NumPy, tensors of torch
        (``model.parameters()``), variables of Keras or TensorFlow (``model.trainable_variables``).
        Those of rank 0 are the initial ones. They are written before each call of `fit` and
        `evaluate`, and at the end.
    fit : callable
        ``fit(parameters, task)`` trains a client: `parameters` is the list of the passed arrays,
        with the values to begin with, and `task` a `Task`. It may change them, and returns the new
        values, which are arrays of any kind, and the number of samples: ``return parameters, n``.
    strategy : Strategy, optional
        ``FedAvg()`` by default, with all clients in each round.
    rounds : int
        The number of rounds.
    deadline : float, optional
        Seconds for a round. Later updates are left out, also of later rounds. Without a deadline,
        rank 0 waits for all updates, for up to the timeout of `comm`. The updates of rank 0's own
        clients count, and are always in time.
    clients : int
        The number of clients of this rank. They are numbered rank by rank. With 0, rank 0 only
        coordinates.
    evaluate : callable, optional
        ``evaluate(parameters, round)`` is called on rank 0 after each round. Its result is in
        `Result.rounds`.
    seed : int
        Of the draws, and of `Task.seed`. From 0.
    secure : SecureAggregation, optional
        If given, rank 0 learns only the mean of a round, and no single update.
    parts : int
        Number of parts of the parameters, at most as many as there are arrays. In each round,
        clients send one part, in turn, and receive the changed parts. Each client trains all
        parameters in each round, and keeps its own values of a part until the turn of that part.

    Returns
    -------
    Result

    Raises
    ------
    ArgumentError
        If an argument is wrong on any rank; raised on all of them.
    BufferError, UnsupportedTypeError
        If a parameter cannot be used; the other ranks raise an `ArgumentError`.
    MismatchError
        On all ranks, if they differ in the shapes or dtypes of the parameters, or in another
        argument that must be the same, or if no rank has a client.
    PeerLostError, PeerAbortedError
        On all ranks but 0, if rank 0 has ended or given up; on rank 0, if no client is left. If a
        rank with clients ends or raises an error, the others continue without it.
    StallError
        If rank 0 has to wait for a client, or a rank for rank 0, for longer than the timeout.

    Notes
    -----
    Each rank but 0 exchanges messages with rank 0 alone, on a communicator of these two. They are
    made at the beginning and freed at the end, unless the other rank is lost. A rank of the same
    host that dies is noticed at once, and one of another host if UCX carries the messages. If MPI
    does, it is late in each round, like a stopped one; rank 0 does not ask it again until it has
    answered.

    If a rank has not finished its last round, rank 0 waits for one more deadline and then ends
    without it (`Result.lost`). If that rank continues later, it gets the final parameters, or a
    `PeerAbortedError`.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> from collectives import federated
    >>> comm = cc.world()
    >>> data = np.full(10, 1.0 + comm.rank)
    >>> def fit(parameters, task):
    ...     parameters[0][:] -= 0.5 * (parameters[0] - data.mean())
    ...     return parameters, len(data)
    >>> result = federated.run(comm, [np.zeros(1)], fit, rounds=20)
    >>> bool(abs(result.parameters[0][0] - (1 + comm.size) / 2) < 1e-5)
    True
    """
    strategy = FedAvg() if strategy is None else strategy
    problem: Exception | None = None
    terms: dict[str, Any] = {}
    try:
        own = Parameters(parameters)
        _check(fit, evaluate, secure, strategy, len(own.sizes))
        rounds = parameter(rounds, "rounds", integer_from(1))
        seed = parameter(seed, "seed", integer_from(0))
        clients = parameter(clients, "clients", integer_from(0))
        parts = parameter(parts, "parts", integer_from(1))
        division = Parts(own, parts)
        if deadline is not None:
            deadline = _core.seconds(deadline, "deadline")
        terms = {"strategy": _said(strategy), "rounds": rounds, "deadline": deadline}
        terms |= {"seed": seed, "secure": repr(secure), "parts": parts, **_kinds(own)}
    except Exception as error:
        problem, clients = error, 0
    with comm._engine:
        every = agreed_terms(partial(_gathered, comm), "federated.run()", problem, terms, clients)
        clients_of = _numbered(every)
        wires = _wires(comm, division.layouts, secure, clients_of)
        mine = ClientTraining(own, fit, strategy, wires, clients_of[comm.rank], seed)
        pairs = channels(comm)
    traces = {rank: channel.trace() for rank, channel in pairs.items()}
    lost: dict[int, str] = {}
    try:
        with ExitStack() as stack:
            for each in traces.values():
                stack.enter_context(each)
            if comm.rank == 0:
                links = [Link(pairs[r], r, clients_of[r], mine.update_bytes) for r in pairs]
                total = clients_of[-1].stop
                coordinator = Coordinator(mine, links, total, deadline, comm.timeout, evaluate)
                arrays, records = coordinator.run(rounds)
                lost = {link.rank: link.lost for link in links if link.lost}
            else:
                patience = comm.timeout + (comm.timeout if deadline is None else deadline)
                arrays = _take_part(Inbox(pairs[0], patience, mine.parts.nbytes), mine)
                records = []
    except BaseException as error:
        for channel in pairs.values():
            channel._give_up(error_text(error))
        raise
    own.write(arrays)
    return Result(arrays, records, lost, traces)


def _numbered(every: list[int]) -> list[range]:
    """Return the numbers of the clients of each rank."""
    ends = list(accumulate(every))
    if ends[-1] == 0:
        raise MismatchError("federated.run(): no rank has a client; pass clients=1 on some")
    return [range(end - n, end) for end, n in zip(ends, every, strict=True)]


def _gathered(comm: Communicator, value: Any) -> list[Any]:
    """Return the values of all ranks. Collective. They are texts, and no pickles: the clients need
    not trust rank 0 with their data.
    """
    own = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = comm.allgather(np.array([len(own)])).ravel()
    every = comm.allgatherv(own, counts=lengths.tolist())
    parts = np.split(every, np.cumsum(lengths)[:-1])
    return [json.loads(each.tobytes()) for each in parts]


def _wires(
    comm: Communicator,
    layouts: list[Parameters],
    secure: SecureAggregation | None,
    clients_of: list[range],
) -> list[Wire]:
    """Return the form of the updates of all clients, for each part. Collective."""
    if secure is None:
        return [Wire(each) for each in layouts]
    private = secure.keys(clients_of[comm.rank])
    own = np.frombuffer(b"".join(public_of(private)), np.uint8)
    every = comm.allgatherv(own, counts=[KEY_BYTES * len(each) for each in clients_of])
    public = [each.tobytes() for each in every.reshape(-1, KEY_BYTES)]
    return [Masked(each, secure.bits, private, public) for each in layouts]


def _take_part(inbox: Inbox, training: ClientTraining) -> Arrays:
    """Answer the requests of rank 0 until the end; return the final parameters."""
    shared: Arrays = []
    for round, roster, since, body in inbox.rounds():
        if roster:
            shared = training.parts.merged(shared, body, since, round)
        for client in roster:
            if client not in training.clients:
                continue
            if inbox.is_closed():
                break
            data = training.train(round, client, roster, shared)
            if inbox.is_closed():  # rank 0 does not wait for it
                break
            inbox.send(round, client, data)
    return training.parameters.unpacked(inbox.end())


def _check(fit: Any, evaluate: Any, secure: Any, strategy: Any, arrays: int) -> None:
    """Raise an error if an argument is of the wrong kind."""
    for name, value in (("fit", fit), ("evaluate", evaluate)):
        if not callable(value) and (name == "fit" or value is not None):
            raise ArgumentError(f"{name} is {shown(value)}, and must be a function")
    if secure is not None and not isinstance(secure, SecureAggregation):
        raise ArgumentError(f"secure is {shown(secure)}, and must be a SecureAggregation() or None")
    named = all(hasattr(strategy, each) for each in STRATEGY)
    if isinstance(strategy, type) or not named:
        raise ArgumentError(
            f"strategy is {shown(strategy)}, and must be an object such as FedAvg(), with "
            f"{', '.join(STRATEGY)}"
        )
    averaged = getattr(getattr(strategy, "strategy", strategy), "averaged", ())
    for k in averaged:
        if k >= arrays:
            raise ArgumentError(f"averaged has {k}, and there are {arrays} parameters, from 0")


def _said(strategy: Strategy) -> str:
    """Return the text of a strategy that the ranks compare."""
    kind = type(strategy)
    return kind.__qualname__ if kind.__repr__ is object.__repr__ else repr(strategy)


def _kinds(parameters: Parameters) -> dict[str, Any]:
    """Return the shapes and dtypes of the parameters."""
    return {"shapes": parameters.shapes, "dtypes": [each.str for each in parameters.dtypes]}
