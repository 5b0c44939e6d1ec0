"""A process group for torchft, whose members may change after each step.

torchft keeps a training program running when replicas of it are lost or come back. Before each step
the *managers* agree on the members, and configure their process groups again if the members have
changed. Here each configuration is a job of its own without MPI (`process/hosted.py`), with its own
shared memory. Its ranks meet through the store that torchft names.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torchft.process_group import ProcessGroupWrapper

from collectives.communicator import Communicator
from collectives.process import hosted
from collectives.process.rendezvous import Keyed
from collectives.torch.distributed.group import CollectivesProcessGroup

__all__ = ["ProcessGroupCollectives"]


class ProcessGroupCollectives(ProcessGroupWrapper):
    """A process group of torchft whose collectives run in this library.
    Local; ``configure`` is collective among the members that it names.

    Pass it to ``torchft.Manager(pg=...)`` instead of ``torchft.ProcessGroupGloo``. Ranks of one
    host share memory; ranks of several hosts need UCX (``pip install "collectives-mpi[ucx]"``).

    Parameters
    ----------
    timeout : timedelta, optional
        The time for which ``configure`` and each collective wait for other members; a minute by
        default.

    Raises
    ------
    StallError
        By ``configure``, if a member has not joined in time. The manager then tries the next
        quorum.

    Notes
    -----
    If a member is lost in a collective, all others raise `PeerLostError`, and the manager discards
    the step. Each process is one member: replicas in threads of one process cannot use it.

    Examples
    --------
    >>> from torchft import Manager
    >>> manager = Manager(
    ...     pg=ProcessGroupCollectives(timeout=timedelta(seconds=20)), min_replica_size=2, ...
    ... )  # doctest: +SKIP
    """

    _job: hosted.HostedJob | None = None

    def __init__(self, timeout: timedelta = timedelta(minutes=1)) -> None:
        super().__init__(timeout)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> CollectivesProcessGroup:
        meeting = Keyed(store, rank, world_size)
        if self._job is not None:
            hosted.leave(self._job)
            self._job = None
        self._job = hosted.join(meeting)
        comm = Communicator(self._job.COMM_WORLD, timeout=self._timeout.total_seconds())
        return CollectivesProcessGroup(comm)

    def getBackendName(self) -> str:
        return "torchft-collectives"
