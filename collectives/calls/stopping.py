"""The call by which ranks stop at the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectives.calls.base import check_every
from collectives.calls.folding import FoldingCalls
from collectives.process import stopping
from collectives.reductions import MAX
from collectives.text import logs

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StoppingCalls(FoldingCalls):
    """The method that shares a request to stop."""

    _is_stopping = False  # on all ranks
    _stop_calls = 0
    _stop_flags: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None

    def stop_requested(self, every: int = 1, *, timeout: float | None = None) -> bool:
        """Return whether a rank has been asked to stop, with the same answer on all ranks.
        Collective.

        A rank is asked by SIGTERM, SIGUSR1 or SIGINT (Ctrl-C), or by ``collectives stop``. From the
        first call on, these signals do nothing else. A handler that the program has installed
        before is called, too. A signal that it ignores stays ignored. A second Ctrl-C, a second or
        more after the first, raises KeyboardInterrupt. Once the answer is true, it stays true.

        Parameters
        ----------
        every : int
            The first call asks the other ranks, and then one of so many. In between, the answer is
            that of the last such call. The same on all ranks.
        timeout : float, optional
            As for `allreduce`.

        Returns
        -------
        bool

        Raises
        ------
        ArgumentError
            If `every` is not a positive number.
        CommunicatorError
            If the first call of the process is made outside of its main thread.
        CollectivesError
            Otherwise, as for `allreduce`.

        Notes
        -----
        A call that asks the ranks is an allreduce of one byte. Children that a rank forks ignore
        SIGUSR1 and SIGINT, unless the program handles them. They get the program's handler of
        SIGTERM.

        Examples
        --------
        >>> import collectives as cc
        >>> for step in range(100):
        ...     if cc.world().stop_requested():
        ...         break  # after it has saved its work
        >>> step
        99
        """
        check_every(every)
        stopping.watch()
        if self._is_stopping:
            return True
        self._stop_calls += 1
        if (self._stop_calls - 1) % every:
            return False
        mine = stopping.reason()
        if self._stop_flags is None:
            self._stop_flags = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
        flag, found = self._stop_flags
        flag[0] = bool(mine)
        if self.allreduce(flag, out=found, op=MAX, timeout=timeout)[0]:
            self._is_stopping = True
            if mine:
                logs.note("INFO", f"all ranks stop: this one got {mine}")
            stopping.request("the request of another rank")
        return self._is_stopping
