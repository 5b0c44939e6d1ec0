"""Calls for ranks that continue after a loss: agreements, communicators of the remaining ranks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from collectives import _core
from collectives.calls.base import LARGEST, Calls, integer
from collectives.errors import (
    CollectivesError,
    CommunicatorError,
    MPIError,
    PeerAbortedError,
    PeerLostError,
    StallError,
)
from collectives.process import surviving
from collectives.process.meeting import Meeting

if TYPE_CHECKING:
    from typing_extensions import Self

# The outcomes of an attempt to make a communicator; the bitwise AND is the worst of them.
MADE, INTERRUPTED, FAILED = 3, 2, 0


class RecoveringCalls(Calls):
    """Calls of the remaining ranks after a loss."""

    def agree(self, flag: int = 1) -> int:
        """Return the bitwise AND of the flags of all remaining ranks, the same on all of them.
        Collective, among the ranks that have not ended.

        It also works on a broken communicator.

        Parameters
        ----------
        flag : int
            From 0 to 2**31 - 1.

        Returns
        -------
        int

        Raises
        ------
        ArgumentError
            If `flag` is no such number; raised on this rank.
        StallError
            If another rank neither calls it nor ends before the deadline.
        CommunicatorError
            If the communicator is freed, or the MPI library does not survive the loss of a rank:
            see `shrink`.
        """
        number = integer("flag", flag, 0, LARGEST)
        return surviving.agreed(self._gathering("agree"), number)[0]

    def shrink(self) -> Self:
        """Return a communicator of the remaining ranks, in the same order.
        Collective, among the ranks that have not ended.

        It works on a communicator that is broken because a rank was lost. The old communicator
        cannot be used afterwards.

        Returns
        -------
        Communicator

        Raises
        ------
        StallError
            If another rank neither calls it nor ends before the deadline.
        MPIError
            If MPI fails at every attempt; there are as many attempts as ranks.
        CommunicatorError
            If the communicator is freed, another rank cannot make the new one, or the MPI library
            does not survive the loss of a rank. Those that do are Open MPI under
            ``mpiexec --with-ft ulfm``, and ranks without MPI. ``collectives run --elastic`` starts
            both.

        Notes
        -----
        A rank that is lost during the call is left out as well. A rank that is stopped has not
        ended, and the others wait for it until the deadline.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.Communicator()
        >>> try:
        ...     total = comm.allreduce(np.ones(3))
        ... except cc.errors.PeerLostError:
        ...     comm = comm.shrink()
        """
        meeting = self._gathering("shrink")
        for _ in range(meeting.size):
            made, problem, outcome = self._tried(meeting)
            agreed, _ = surviving.agreed(meeting, outcome)
            if agreed == MADE and made is not None:
                with contextlib.suppress(CollectivesError):  # operations may be in flight
                    self._let_go()
                return made
            if agreed == FAILED:
                break
        raise problem or CommunicatorError("shrink(): another rank has failed to make it")

    def _tried(self, meeting: Meeting) -> tuple[Self | None, CollectivesError | None, int]:
        """Return a communicator of the remaining ranks, or an error, and the word for the others.

        Another rank may be lost during it, for which MPI may raise an error of its own.
        """
        try:
            return self._grown(surviving.shrunk(meeting), "shrink()"), None, MADE
        except (PeerLostError, PeerAbortedError, MPIError) as error:
            return None, error, INTERRUPTED
        except StallError:  # others wait, too
            raise
        except CollectivesError as error:
            return None, error, FAILED

    def _gathering(self, call: str) -> Meeting:
        if self._mpi is None:
            raise CommunicatorError(f"{call}(): the communicator was freed")
        _core.guard()
        self._meeting.call, self._meeting.timeout = f"{call}()", self.timeout
        return self._meeting
