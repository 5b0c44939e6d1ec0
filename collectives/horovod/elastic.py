"""The state of a program that can be kept, restored, and sent to all ranks."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from collectives import growth
from collectives.errors import CollectivesError, MismatchError, StallError
from collectives.horovod import basics
from collectives.horovod.errors import (
    HorovodArgumentError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    translated,
)
from collectives.horovod.objects import broadcast_object
from collectives.horovod.state import current

ADDED, REMOVED = 1, 2  # kinds of changes of the hosts, which Horovod adds up


class State:
    """The base class of states that a program keeps.

    Parameters
    ----------
    bcast_object : callable
        A function that takes an object, and returns rank 0's.
    get_rank : callable
        A function that returns the number of this rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._changes: list[tuple[Any, Any]] = []  # of hosts, since the last check
        self._last_change: Any = 0  # the time of the last one that a check has found
        self._after_reset: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions to be called, in their order, after a reset. Local.

        Parameters
        ----------
        callbacks : iterable of callable
        """
        self._after_reset += callbacks

    def on_reset(self) -> None:
        """Reset it, and call the functions of `register_reset_callbacks`. Local."""
        self._changes = []
        self.reset()
        for function in self._after_reset:
            function()

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Note that the hosts have changed. Local.

        Parameters
        ----------
        timestamp : comparable
            The time of the change; later ones are larger.
        update_res : object
            The change: 1 if hosts were added, 2 if they were removed.
        """
        self._changes.append((timestamp, update_res))

    def check_host_updates(self) -> None:
        """Raise an error on all ranks if rank 0 knows of changed hosts.
        Collective.

        Raises
        ------
        HostsUpdatedInterrupt
            If the hosts have changed.
        """
        if not self._has_news():
            return
        changes, self._changes = self._changes, []
        new = [(when, kind) for when, kind in changes if when > self._last_change]
        kinds = functools.reduce(operator.or_, (kind for _, kind in new), 0)
        last = max((when for when, _ in new), default=self._last_change)
        # Those that rank 0 has heard of count.
        is_new, self._last_change, kinds = self._bcast_object((bool(new), last, kinds))
        if is_new:
            raise HostsUpdatedInterrupt(kinds == REMOVED)

    def commit(self) -> None:
        """Keep the current state by `save`, and call `check_host_updates`.
        Collective.
        """
        self.save()
        self.check_host_updates()

    def _has_news(self) -> bool:
        """Return whether rank 0 knows of changes. Most commits send only this byte."""
        now = current()
        if now is None:  # the caller's own functions communicate
            return True
        leads = now.comm.rank == 0 and growth.is_possible(now.comm)
        if leads and growth.heard(now.comm.size) == growth.NEWS:
            self.on_hosts_updated(time.time(), ADDED)
        news = np.array([bool(self._changes)], np.uint8)
        with translated():
            now.comm.broadcast(news, news)
        return bool(news[0])

    def save(self) -> None:
        """Keep the state as it is now. Local."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the state that was last kept. Local."""
        raise NotImplementedError

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks.
        Collective.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for a change of the ranks. Local."""


class ObjectState(State):
    """A state of objects that can be pickled: its attributes.

    Parameters
    ----------
    bcast_object, get_rank
        As for `State`.
    **kwargs
        The objects by their names.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._objects = kwargs  # as they were last kept
        ObjectState.restore(self)

    def save(self) -> None:
        """Keep the current values of the attributes. Local."""
        self._objects = {name: getattr(self, name) for name in self._objects}

    def restore(self) -> None:
        """Set the attributes to the objects that were last kept. Local."""
        for name, kept in self._objects.items():
            setattr(self, name, kept)

    def sync(self) -> None:
        """Send the objects that rank 0 has last kept to all ranks.
        Collective.
        """
        if self._objects:  # the same names on all ranks
            self._objects = self._bcast_object(self._objects)
            ObjectState.restore(self)


class VariablesState(ObjectState):
    """The base class of states of a framework's variables, and of objects."""

    _tracked: Any  # a method: the current variables; an optimizer may make more later
    _copied: Any  # a function of a variable: a copy of its value
    _send: Any  # a function of variables and a rank, whose values all ranks get

    def __init__(self, **kwargs: Any) -> None:
        self._keep()
        super().__init__(broadcast_object, basics.rank, **kwargs)

    def save(self) -> None:
        """Keep the state as it is now. Local."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Restore the state that was last kept. Local."""
        for variable, value in self._kept:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks, and keep it.
        Collective.
        """
        self._send(self._tracked(), 0)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        self._kept = [(each, self._copied(each)) for each in self._tracked()]


def _recovered(error: HorovodInternalError) -> bool:
    """Return whether the remaining ranks can continue. Collective among them if one is lost."""
    no_loss = isinstance(error.__cause__, (StallError, MismatchError))
    if no_loss or isinstance(error, HorovodArgumentError):
        return False
    try:
        return basics.recover()
    except CollectivesError:  # the job does not survive a loss
        return False


def _meet(state: State) -> None:
    """Send the state of rank 0, which must not be a new rank, to all ranks. Collective."""
    now = current()
    if now is not None:
        with translated():
            growth.check_state(now.comm)
    state.sync()
    growth.note_state()


def _meet_others(state: State) -> None:
    state.on_reset()
    _meet(state)


def run_fn(
    func: Callable[..., Any], reset: Callable[[], object] | None = None
) -> Callable[..., Any]:
    """Return a function that sends its state to all ranks, and then calls `func`; see `run`.
    Local. `reset` handles changes of the ranks.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skips = is_wished = has_changed = False
        while True:
            try:
                now, is_wished = is_wished, False
                if has_changed and not now:
                    state.on_reset()
                if not (now or skips):
                    _meet(state)
                with translated():
                    is_other = basics.settle(now, functools.partial(_meet_others, state))
                if now and not is_other:
                    state.on_reset()
                has_changed = False
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                skips = False
                if not _recovered(error):
                    raise
                if reset is not None:
                    reset()
            except HostsUpdatedInterrupt as interrupt:
                skips = interrupt.skip_sync
                is_wished = reset is None and basics.grows()
                if not is_wished:
                    (reset or basics.begin_again)()
            has_changed = True

    return wrapper


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it is called with rank 0's state on all ranks.
    Collective.

    After the loss of a rank, the state is restored, and the function is called again on the
    remaining ranks. If the job does not survive the loss, the `HorovodInternalError` is raised.
    After a `HostsUpdatedInterrupt`, the function is called again.

    Parameters
    ----------
    func : callable
        Its first argument is the state, such as a `TorchState`.

    Returns
    -------
    callable
        A function with the same arguments.
    """
    return run_fn(func)
