"""A function that is run again on the ranks that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from collectives.elastic.state import State
from collectives.errors import CommunicatorError, PeerAbortedError, PeerLostError

T = TypeVar("T")


def run(state: State, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that communicates, and call it again on the ranks that are left after a loss.
    Collective.

    Before each call, all ranks get the values that rank 0 of ``state.comm`` has kept. After a loss,
    ``state.comm`` has the ranks that are left, in the same order. So the function must use this
    communicator, and begin with what the state says.

    Parameters
    ----------
    state : State
        It commits when the function says so.
    function : callable
        It is called with the state and the `arguments`.
    *arguments : object

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    PeerLostError, PeerAbortedError
        If a rank is lost, and the job does not go on without it: see `Communicator.shrink`.

    Examples
    --------
    >>> import numpy as np
    >>> from collectives import elastic
    >>> def train(state):
    ...     while state.step < 10:
    ...         state.total += state.comm.allreduce(np.ones(2)) / state.comm.size
    ...         state.step += 1
    ...         state.commit()
    ...     return state.total
    >>> elastic.run(elastic.State(total=np.zeros(2), step=0), train)
    array([10., 10.])
    """
    while True:
        try:
            state.sync()
            return function(state, *arguments)
        except (PeerLostError, PeerAbortedError) as error:
            before = state.comm
            try:
                state.comm = before.shrink()
            except CommunicatorError:  # the job does not survive a loss
                raise error from None
            state.restore()
            if state.comm.size == before.size:
                raise
