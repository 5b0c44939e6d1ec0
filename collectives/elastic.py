"""Programs that continue when ranks are lost or join: a state that is kept, and a function that is
called again.

The launcher starts ranks; this module starts none.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from collectives import default, growth
from collectives.communicator import Communicator
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    PeerAbortedError,
    PeerLostError,
)
from collectives.text import files, logs
from collectives.text.words import shown

__all__ = ["RanksChanged", "State", "run"]

T = TypeVar("T")


class RanksChanged(Exception):
    """Raised by `State.commit` on all ranks when ranks join or leave, so that `run` begins again.

    A function that catches it must raise it again.
    """


class State:
    """Values of a program that `run` restores after a loss, and sends to all ranks.

    Each value is an attribute. Creating a state commits its values.

    Parameters
    ----------
    comm : Communicator, optional
        The ranks; all of the job by default.
    **values
        NumPy arrays, and objects that can be pickled and copied. An array is restored in place, so
        that other references to it stay valid.

    Attributes
    ----------
    comm : Communicator
        After a loss, that of the remaining ranks.

    Raises
    ------
    ArgumentError
        If a value has the name of an attribute or a method.

    Examples
    --------
    >>> import numpy as np
    >>> from collectives import elastic
    >>> state = elastic.State(weights=np.zeros(3), step=0)
    >>> state.weights += 1
    >>> state.restore()
    >>> state.weights
    array([0., 0., 0.])
    """

    def __init__(self, comm: Communicator | None = None, /, **values: Any) -> None:
        for name in values:
            if hasattr(type(self), name) or name == "comm" or name.startswith("_"):
                raise ArgumentError(f"a value of a State cannot be called {name!r}")
        self.comm: Communicator = default.world() if comm is None else comm
        self._may_change = comm is None  # other ranks join those of the job
        self._runs = False  # whether `run` has called the function
        self._callbacks: list[Callable[[], object]] = []
        self._names = tuple(values)
        vars(self).update(values)
        self._keep()

    def commit(self) -> None:
        """Keep a copy of the present values.
        Local; in a job that may grow, Collective.

        Raises
        ------
        RanksChanged
            In `run`, if ranks are to join or to leave.
        CollectivesError
            In a job that may grow, as for `Communicator.broadcast`.
        """
        self._keep()
        self._look()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions that are called, in their order, when the ranks have changed, before
        `run` calls its function again. Local.

        Parameters
        ----------
        callbacks : iterable of callable
            Functions without arguments. When they are called, `comm` has the new ranks, and all
            ranks have the values of rank 0.
        """
        self._callbacks.extend(callbacks)

    def _keep(self) -> None:
        self._kept = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def _grows(self) -> bool:
        return self._may_change and growth.is_possible(self.comm)

    def _look(self) -> None:
        """Have `run` begin again if the launcher says that ranks join or leave."""
        if self._runs and self._grows() and growth.news(self.comm) == growth.NEWS:
            raise RanksChanged

    def _settle(self, is_wished: bool) -> bool:
        """Send the values to all ranks, have ranks join and leave, and wait while there are too
        few; return whether the ranks have changed. Collective.
        """
        if not is_wished:
            self._meet()
        return self._grows() and growth.settle(self.comm, is_wished, self._change)

    def _change(self) -> Communicator:
        self.comm = default.world()
        self._meet()
        return self.comm

    def _shrink(self, error: CollectivesError) -> None:
        """Return to the kept values, on the remaining ranks; raise the error if the job cannot
        continue, or no rank is lost.
        """
        before = self.comm
        try:
            self.comm = before.shrink()
        except CommunicatorError:
            raise error from None
        default.replace_world(before, self.comm)
        size = self.comm.size
        logs.note("WARNING", f"the job continues with {size} of {before.size} ranks: {error}")
        self.restore()
        if size == before.size:
            raise error

    def _meet(self) -> None:
        """Send the values of rank 0, which must not be a new rank, to all ranks."""
        growth.check_state(self.comm)
        self.sync()
        growth.note_state()

    def _reset(self) -> None:
        for callback in self._callbacks:
            callback()

    def restore(self) -> None:
        """Return to the values that were kept last. Local."""
        self._set(copy.deepcopy(self._kept))

    def sync(self) -> None:
        """Set the values of all ranks to those that rank 0 has kept, and keep them.
        Collective.

        Raises
        ------
        CollectivesError
            As for `Communicator.broadcast_object`.
        """
        self._set(self.comm.broadcast_object(self._kept))
        self._keep()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep a copy of the present values, and have rank 0 write its own to a file.
        Collective.

        The file is replaced in one step: a reader gets that of the last call or of this one.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        OSError
            On all ranks, if the file cannot be written.
        ArgumentError
            On all ranks, if a value of rank 0 cannot be pickled.
        RanksChanged
            As for `commit`.
        CollectivesError
            As for `Communicator.broadcast_object`.
        """
        self._keep()
        problem: Exception | None = None
        if self.comm.rank == 0:
            try:
                files.write(path, pickle.dumps(self._kept))
            except OSError as error:
                problem = error
            except Exception as error:  # pickling a value may raise anything
                problem = ArgumentError(f"the values of the State cannot be pickled: {error}")
        problem = self.comm.broadcast_object(problem)
        if problem is not None:
            raise problem
        self._look()

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Set the values of all ranks to those that `save` has written, if there is a file.
        Collective.

        Rank 0 reads it. The file is unpickled, so load only files that you trust.

        Parameters
        ----------
        path : str or path

        Returns
        -------
        bool
            Whether there is a file.

        Raises
        ------
        OSError
            On all ranks, if the file cannot be read.
        ArgumentError
            On all ranks, if the file is of other values.
        CollectivesError
            As for `Communicator.broadcast_object`.
        """
        found: Any = None
        if self.comm.rank == 0:
            try:
                found = self._read(path)
            except (OSError, ArgumentError) as error:
                found = error
        found = self.comm.broadcast_object(found)
        if isinstance(found, Exception):
            raise found
        if found is None:
            return False
        self._set(found)
        self._keep()
        return True

    def _read(self, path: str | os.PathLike[str]) -> dict[str, Any] | None:
        """Return the values in a file; None if there is no file."""
        try:
            with open(path, "rb") as file:
                values = pickle.load(file)
        except FileNotFoundError:
            return None
        except OSError:
            raise
        except Exception as error:  # the content of such a file may raise anything
            raise ArgumentError(f"{os.fspath(path)} is no file of a State: {error}") from None
        if not isinstance(values, dict) or values.keys() != self._kept.keys():
            names = ", ".join(values) if isinstance(values, dict) else type(values).__name__
            raise ArgumentError(
                f"{os.fspath(path)} has {names}, and this State has {', '.join(self._names)}"
            )
        return values

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            now = getattr(self, name)
            if _takes(now, value):
                now[...] = value
            else:
                setattr(self, name, value)


def _takes(now: Any, value: Any) -> bool:
    """Return whether an array can be set in place to another one."""
    both = isinstance(now, np.ndarray) and isinstance(value, np.ndarray)
    return both and (now.dtype, now.shape) == (value.dtype, value.shape) and now.flags.writeable


def run(state: State, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that communicates, and call it again on the remaining ranks after a loss.
    Collective.

    Before each call, all ranks get the last committed values of rank 0 of ``state.comm``. After a
    loss, ``state.comm`` has the remaining ranks, in the same order. So the function must use this
    communicator, and continue from the values of the state.

    Parameters
    ----------
    state : State
        The function commits it.
    function : callable
        It is called with the state and the `arguments`.
    *arguments : object

    Returns
    -------
    object
        The result of the function.

    Raises
    ------
    PeerLostError, PeerAbortedError
        If a rank is lost, and the job cannot continue without it: see `Communicator.shrink`.
    CommunicatorError
        On ranks that have joined later, if all others are lost before they have sent the values.
    ArgumentError
        If `state` is no `State`.

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
    if not isinstance(state, State):
        raise ArgumentError(f"state is {shown(state)}, and must be an elastic.State")
    is_wished = has_changed = False
    while True:
        try:
            now, is_wished = is_wished, False
            has_changed |= state._settle(now)
            if has_changed:
                has_changed = False
                state._reset()
            state._runs = True
            return function(state, *arguments)
        except RanksChanged:
            is_wished = True
        except (PeerLostError, PeerAbortedError) as error:
            state._shrink(error)
            has_changed = True
        finally:
            state._runs = False
