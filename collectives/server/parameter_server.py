"""`ParameterServer`, the interface for programs, on servers and on workers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.communicator import Communicator
from collectives.compression import Codec, NoCompression, compressor
from collectives.compression.codec import Range, check_codec, parameter
from collectives.errors import ArgumentError, CollectivesError
from collectives.process import segment
from collectives.process.agreement import agreed_terms
from collectives.server.messages import MessageEndpoint, MessageLink
from collectives.server.optimizers import Update
from collectives.server.parameters import gradients, read
from collectives.server.policies import BackupWorkers, Policy, Synchronous
from collectives.server.serving import Server, ServerEndpoint
from collectives.server.shared import Layout, SharedEndpoint, SharedLink
from collectives.server.training import ServerTraining, Statistics
from collectives.server.worker import Worker
from collectives.text.words import article, count, error_text, shown

if TYPE_CHECKING:  # few programs need them
    from typing_extensions import Self

WEIGHT = Range(float, lambda number: 0 <= number < inf, "a number from 0 on")
EXAMPLES = Range(index, lambda number: number >= 1, "a positive number of examples")


class ParameterServer:
    """Parameters on servers, from which workers pull, and to which they push gradients. Collective.

    Parameters
    ----------
    comm : Communicator
        It is duplicated.
    parameters : dict, sequence, torch.nn.Module or keras.Model
        Arrays of NumPy, tensors of torch, or variables of Keras or TensorFlow; of float16, float32
        or float64, with equal names, shapes and dtypes on all ranks. All ranks begin with those of
        rank 0.
    optimizer : callable
        The update that the servers make with a gradient: `SGD`, `Adam`, or a function of a part of
        a parameter, its gradient, a dict that is kept for this part, and the number of the update.
        It changes the part in place, and may change the gradient. Only servers call it.
    policy : Policy, optional
        The rule by which gradients are applied and workers continue; `Synchronous` by default.
    servers : int or sequence of int
        The number of servers, which are the first ranks, or the ranks of the servers. All others
        are workers.
    compression : str or Codec, optional
        The compression of gradients, as for `allreduce`; not ``powersgd``.
    priorities : sequence of int, optional
        One for each parameter: those with a higher one are sent first. By default they are sent in
        their order.
    timeout : float, optional
        Seconds after which a wait raises `StallError`; that of the communicator by default.

    Attributes
    ----------
    is_server, is_worker : bool
        The role of this rank.
    server, worker : int or None
        The number of this server or worker, from 0 on; None if it is none.
    servers, workers : list of int
        Their ranks.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value on any rank; raised on all of them.
    BufferError, UnsupportedTypeError
        If a parameter cannot be used; the other ranks raise an `ArgumentError`.
    MismatchError
        If the ranks pass different arguments.
    CollectivesError
        Otherwise, as for `allreduce`.

    Notes
    -----
    Servers serve at the end of their ``with`` statement, until all workers have ended theirs. Only
    workers have work inside it. Afterwards, the parameters of a server have the last values of its
    part: with one server, those of the whole model.

    Servers and workers of one host share memory: a pull is a copy, without a message, and all of it
    has one version. Between hosts, and if ranks share no memory, both are messages of 1 MiB, the
    parameters with the highest priority first. Arrays of 64 KiB or more are cut into equal parts
    for the servers; each shorter one is on the server that has the fewest bytes.

    A worker that ends without leaving the ``with`` statement, or leaves it by an exception, is
    lost. The policy decides the effect: the others continue without it, or all ranks raise a
    `PeerLostError` or a `PeerAbortedError` that names it. A server that is lost is an error on all
    ranks. The loss of a rank on another host is detected at once if UCX carries the messages, and
    by the deadline if MPI does.

    One thread at a time may use the object. A server serves one object at a time, at the end of
    its ``with`` statement, and takes part in no collective during that time.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> from collectives import server
    >>> def train():
    ...     w = np.zeros(3)
    ...     with server.ParameterServer(cc.world(), [w], optimizer=server.SGD(0.5)) as ps:
    ...         if ps.is_worker:
    ...             for step in range(20):
    ...                 ps.pull()
    ...                 ps.push([w - 1])
    ...     return w.round(3).tolist() if ps.is_server else ps.statistics.updates
    >>> cc.spawn(train, 3)
    [[1.0, 1.0, 1.0], 19, 19]
    """

    servers: list[int]
    workers: list[int]

    def __init__(
        self,
        comm: Communicator,
        parameters: Any,
        *,
        optimizer: Update,
        policy: Policy | None = None,
        servers: int | Iterable[int] = 1,
        compression: Any = None,
        priorities: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._closed, self._lock = False, threading.Lock()
        policy = Synchronous() if policy is None else policy
        problem: Exception | None = None
        offer: dict[str, Any] = {}
        try:
            self._parameters = read(parameters)
            order = _order(priorities, len(self._parameters))
            ranks, codec = _ranks(servers, comm.size), _codec(compression, comm.bits)
            limit = comm.timeout if timeout is None else _core.seconds(timeout)
            _check(policy, optimizer, comm.size - len(ranks))
            kinds = [(each.name, each.shape, each.dtype.name) for each in self._parameters]
            told = None if codec is None else codec.name
            offer = {
                "parameters": kinds,
                "policy": repr(policy),
                "servers": ranks,
                "compression": told,
                "priorities": order,
            }
        except Exception as error:
            problem = error
        with comm._engine:
            agreed_terms(comm.allgather_object, "ParameterServer()", problem, offer)
            self._comm = comm.dup()
        workers = [rank for rank in range(comm.size) if rank not in ranks]
        self._training = training = ServerTraining(
            policy, ranks, workers, self._parameters, order, codec, limit, comm._engine.warning
        )
        self.servers, self.workers = training.servers, training.workers
        self.server: int | None = ranks.index(comm.rank) if comm.rank in ranks else None
        self.worker: int | None = workers.index(comm.rank) if comm.rank in workers else None
        self._begin(optimizer)

    def _begin(self, optimizer: Update) -> None:
        """Send rank 0's parameters to all ranks, and connect workers and servers. Collective."""
        comm, training = self._comm, self._training
        for each in self._parameters:
            comm.broadcast(each.flat, out=each.flat)
            each.commit()
        found = comm._segment
        local = [comm.rank] if found is None else found.ranks
        near = [number for number, rank in enumerate(training.workers) if rank in local]
        layouts: dict[int, Layout] = {}
        stop = 0
        for number, rank in enumerate(training.servers):
            if rank in local:
                sizes = training.values[number], training.gradients[number]
                layouts[number] = Layout(stop, near, *sizes)
                stop = layouts[number].stop
        memory = segment.shared(comm._meeting, found, max(stop, 4096))
        members = comm._meeting.members
        shares = [rank for rank in local if memory is not None]
        if self.server is not None:
            endpoints: list[ServerEndpoint] = []
            far = {k: rank for k, rank in enumerate(training.workers) if rank not in shares}
            if memory is not None and near:
                endpoints.append(SharedEndpoint(memory, layouts[self.server]))
            if far:
                nbytes = training.gradients[self.server]
                endpoints.append(MessageEndpoint(comm._meeting, self.server, far, nbytes))
            self._server = Server(
                training, self.server, self._parameters, optimizer, endpoints, members
            )
            return
        assert self.worker is not None
        self._worker = Worker(training, self.worker, self._parameters, members)
        links = self._worker.links
        for number, rank in enumerate(training.servers):
            wait = self._worker.wait_for(number)
            if memory is not None and rank in shares:
                links.append(SharedLink(memory, layouts[number], self.worker, wait))
            else:
                sizes = training.values[number], training.gradients[number]
                links.append(MessageLink(comm._meeting, number, rank, self.worker, sizes, wait))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._give_up(error)

    @property
    def is_server(self) -> bool:
        """True if this rank is a server."""
        return self.server is not None

    @property
    def is_worker(self) -> bool:
        """True if this rank is a worker."""
        return self.worker is not None

    @property
    def version(self) -> int:
        """The number of updates in the parameters that this rank has: on a worker, in those that it
        has pulled.
        """
        return self.statistics.updates

    @property
    def statistics(self) -> Statistics:
        """The statistics of this rank up to now."""
        return self._server.statistics if self.is_server else self._worker.statistics

    # -- workers ---------------------------------------------------------------------------------

    def pull(self) -> None:
        """Copy the servers' parameters into those of this worker.
        Local. The call waits as the policy requires; without a `push` since the last pull, it does
        not wait.

        Raises
        ------
        ArgumentError
            If this rank is a server, or the ``with`` statement has ended.
        PeerLostError, PeerAbortedError
            If a server has ended or given up, or a worker that the policy needs.
        StallError
            If the parameters have not arrived before the deadline.
        """
        with self._alone("pull"):
            for _ in self.pull_each():
                pass

    def pull_each(self) -> Iterator[str]:
        """Copy the servers' parameters one by one, the most urgent first.
        Local. A worker that begins with the first layers does not have to wait for the last ones.
        If a loop is left before its end, the others are copied as well.

        Yields
        ------
        str
            The name of a parameter that has arrived.

        Raises
        ------
        CollectivesError
            As for `pull`.
        """
        self._check("pull")
        yield from self._worker.pull_each()

    def push(self, grads: Any = None, *, weight: float = 1.0) -> None:
        """Send gradients to the servers.
        Local. The call does not wait for their update, but it may wait until earlier ones have been
        taken.

        Parameters
        ----------
        grads : dict or sequence, optional
            Arrays or tensors, by the names of the parameters or in their order. By default the
            ``grad`` of each parameter, as torch has it. They may be changed afterwards. If one of
            their numbers is infinite or NaN, the servers leave all of them out of their updates;
            ``statistics.refused`` counts them.
        weight : float
            The weight of this gradient, if an update is a mean of several: the number of
            its examples, if the workers have different numbers.

        Raises
        ------
        ArgumentError
            If a gradient is missing or has another shape, `weight` is negative, this rank is a
            server, or the policy needs a `pull` first.
        UnsupportedTypeError
            If a gradient has other elements than real numbers.
        PeerLostError, PeerAbortedError, StallError
            As for `pull`.
        """
        self._check("push")
        number = parameter(weight, "weight", WEIGHT)
        with self._alone("push"):
            self._worker.push(gradients(grads, self._parameters), number)

    def parts(self, count: int) -> Iterator[slice]:
        """Yield the examples of a batch for which this worker computes the gradient.
        Local. Under `RapidReassignment` the call waits for a server, and all workers must pass the
        same count in the same step.

        Parameters
        ----------
        count : int
            The number of examples in the batch of all workers.

        Yields
        ------
        slice
            A part of ``range(count)``; one, or several under `RapidReassignment`.

        Raises
        ------
        ArgumentError
            If `count` is no positive number, or this rank is a server.
        MismatchError
            Under `RapidReassignment`, on all ranks, if another worker has passed another count.
        PeerLostError, PeerAbortedError, StallError
            As for `pull`.
        """
        self._check("parts")
        yield from self._worker.parts(parameter(count, "count", EXAMPLES))

    @contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        """Raise an error while another thread is in a call: gradients would be lost."""
        if not self._lock.acquire(blocking=False):
            raise ArgumentError(
                f"{call}() was called while another thread was pulling or pushing; one thread at a "
                f"time may use a ParameterServer"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _check(self, call: str) -> None:
        if self._closed:
            raise ArgumentError(f"{call}() was called after the end of the training")
        if self.is_server:
            raise ArgumentError(
                f"{call}() was called on server {self.server}; call it if ps.is_worker"
            )

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the training: a worker tells the servers, and a server serves until all have ended.
        Collective. The end of the ``with`` statement calls it.

        Raises
        ------
        PeerLostError, PeerAbortedError
            If another server has ended, or a worker that the policy needs.
        StallError
            If the workers have sent no message before the deadline.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self.is_server:
                self._server.serve()
            else:
                self._worker.leave("")
        except BaseException as error:
            self._comm._give_up(error_text(error))
            raise
        if not (self.is_server and self._server.queue.lost):
            self._comm.free()

    def _give_up(self, error: BaseException) -> None:
        """Tell the others that this rank cannot continue. Local."""
        self._closed = True
        if self.is_server:
            self._server.fail(error)
        elif not isinstance(error, CollectivesError) or isinstance(error, ArgumentError):
            self._worker.leave(error_text(error))
        else:
            self._worker.leave(f"after {error_text(error)}")
        self._comm._give_up(error_text(error))


def _order(priorities: Any, number: int) -> list[int]:
    """Return the numbers of the parameters, the most urgent first."""
    if priorities is None:
        return list(range(number))
    listed = [index(each) for each in priorities]
    if len(listed) != number:
        raise ArgumentError(f"there are {len(listed)} priorities for {number} parameters")
    return sorted(range(number), key=lambda k: -listed[k])


def _ranks(servers: Any, size: int) -> list[int]:
    """Return the ranks of the servers."""
    try:
        ranks = [index(each) for each in servers] if isinstance(servers, Iterable) else None
        number = index(servers) if ranks is None else len(ranks)
    except TypeError:
        raise ArgumentError(f"servers is {shown(servers)}, and must be a number or ranks") from None
    if not 1 <= number < size:
        raise ArgumentError(
            f"servers is {shown(servers)}, and there must be at least one server and one worker: "
            f"the communicator has {size} ranks"
        )
    ranks = list(range(number)) if ranks is None else ranks
    if len(set(ranks)) < number or not all(0 <= rank < size for rank in ranks):
        raise ArgumentError(f"servers is {shown(servers)}, and must be different ranks of {size}")
    return ranks


def _codec(compression: Any, bits: str) -> Codec | None:
    """Return the codec of gradients, if it keeps the `bits` of the communicator."""
    if compression is None:
        return None
    codec = compressor(compression)
    if not isinstance(codec, Codec):
        raise ArgumentError(f"compression is {shown(compression)}, and must be one of the library")
    check_codec(codec, None, bits)
    return None if isinstance(codec, NoCompression) else codec


def _check(policy: Any, optimizer: Any, workers: int) -> None:
    if not isinstance(policy, Policy):
        raise ArgumentError(f"policy is {shown(policy)}, and must be one, such as Asynchronous()")
    if isinstance(policy, BackupWorkers) and policy.backups >= workers:
        raise ArgumentError(
            f"policy is {policy!r}, and an update must wait for one worker at least: there "
            f"{'is' if workers == 1 else 'are'} {count(workers, 'worker')}"
        )
    if isinstance(optimizer, type):
        raise ArgumentError(
            f"optimizer is the class {optimizer.__name__}, and must be an object of it, such as "
            f"SGD(0.1)"
        )
    if not callable(optimizer):
        kind = type(optimizer)
        what = f"{article(kind.__name__)} of {kind.__module__}"
        raise ArgumentError(
            f"optimizer is {shown(optimizer) if kind.__module__ == 'builtins' else what}, and must "
            f"be a function of a parameter and its gradient, such as SGD(0.1) or Adam()"
        )
