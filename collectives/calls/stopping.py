"""The call by which ranks stop at the same step."""

from __future__ import annotations

import threading

from collectives import _core
from collectives.calls.base import Calls, check_every
from collectives.process import stopping

_ONE = 1  # the default of `every`, which needs no check
_making = threading.RLock()  # a handler of a signal may ask, too


class StoppingCalls(Calls):
    """The method that shares a request to stop."""

    _stop_flag: _core.StopFlag | None = None

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
        A call that asks the ranks is a planned allreduce of one byte. Children that a rank forks
        ignore SIGUSR1 and SIGINT, unless the program handles them. They get the program's handler
        of SIGTERM.

        Examples
        --------
        >>> import collectives as cc
        >>> for step in range(100):
        ...     if cc.world().stop_requested():
        ...         break  # after it has saved its work
        >>> step
        99
        """
        if every is not _ONE:
            check_every(every)
        flag = self._stop_flag
        if flag is None:
            flag = self._watch_for_stops()
        return flag.ask(every, timeout)

    def _watch_for_stops(self) -> _core.StopFlag:
        """Let signals request a stop, and plan the calls that share the requests. Local."""
        stopping.watch()
        with _making:
            if self._stop_flag is None:
                self._stop_flag = _core.StopFlag(self._engine, stopping.wanted, stopping.all_stop)
            return self._stop_flag
