"""Waiting for several requests: for all of them, or for any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from collectives import _core
from collectives.calls.grouped import GroupedRequest
from collectives.devices.on_device import OnDevice
from collectives.errors import ArgumentError
from collectives.process.waiting import REQUESTS, Wait
from collectives.text.words import article, shown

if TYPE_CHECKING:
    from collectives.arrays.types import Waits

T = TypeVar("T")
Waitable = _core.Request | GroupedRequest | _core.PlannedCall | OnDevice


@overload
def wait_all(requests: Iterable[Waits[T]], timeout: float | None = None) -> list[T]: ...
@overload
def wait_all(
    requests: Iterable[Waits[T] | None], timeout: float | None = None
) -> list[T | None]: ...
def wait_all(requests: Iterable[Waits[Any] | None], timeout: float | None = None) -> list[Any]:
    """Wait until all requests are complete, and return their results.
    Local, but it waits for the other ranks.

    Parameters
    ----------
    requests : iterable of Request, GroupedRequest, PlannedCall or None
        They may be of several communicators, and in any order. None stands for no request.
    timeout : float, optional
        As for `Request.wait`. It limits each wait by itself.

    Returns
    -------
    list
        The results in the order of the requests, and None for None.

    Raises
    ------
    ArgumentError
        If one of them is no request, or `timeout` is not a positive number. The operations
        continue.
    CollectivesError
        The error of the first request that fails, as for `Request.wait`. The requests after it may
        still be in flight, and can be waited for again.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> first, second = cc.wait_all([cc.iallreduce(np.ones(2)), cc.ibroadcast(np.arange(3))])
    >>> second
    array([0, 1, 2])
    """
    try:
        listed = list(requests)
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"requests is {shown(requests)}, and must be an iterable of requests"
        ) from error
    _checked(listed, timeout)
    return [None if each is None else each.wait(timeout) for each in listed]


@overload
def wait_any(
    requests: list[_core.Request[T]] | list[_core.Request[T] | None], timeout: float | None = None
) -> tuple[int | None, T | Any]: ...
@overload
def wait_any(requests: list[Any], timeout: float | None = None) -> tuple[int | None, Any]: ...
def wait_any(requests: list[Any], timeout: float | None = None) -> tuple[int | None, Any]:
    """Wait until one of several requests is complete, and take it out of the list.
    Local, but it waits for the other ranks.

    Parameters
    ----------
    requests : list of Request, GroupedRequest, PlannedCall or None
        They may be of several communicators. The place of the request that is complete becomes
        None, so that the next call with the same list finds another one; the list keeps its length.
    timeout : float, optional
        As for `Request.wait`, for this call. By default that of the first request's communicator.

    Returns
    -------
    (int, object)
        The place of a complete request in the list, the first of them, and its result; (None, None)
        if all places are None.

    Raises
    ------
    ArgumentError
        If `requests` is no list of requests, or `timeout` is not a positive number. The operations
        continue.
    StallError
        If the deadline passes. The text has the wait of the first request, whose communicator is
        broken then.
    CollectivesError
        If one of the requests fails, as for `Request.wait`.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> requests = [cc.iallreduce(np.full(1, k)) for k in range(3)]
    >>> sorted(cc.wait_any(requests)[0] for _ in range(3))
    [0, 1, 2]
    >>> requests, cc.wait_any(requests)
    ([None, None, None], (None, None))
    """
    if not isinstance(requests, list):
        raise ArgumentError(
            f"requests is {article(type(requests).__name__)}, and must be a list, in which the "
            f"place of the complete request becomes None"
        )
    _checked(requests, timeout)
    waiting: Any = None
    wait = Wait(REQUESTS, lambda waited: waiting._look(waited, timeout))
    while True:
        waiting = None
        for i, each in enumerate(requests):
            if each is None:
                continue
            if each.test():
                requests[i] = None
                return i, each.wait()
            waiting = waiting or each
        if waiting is None:
            return None, None
        wait.turn()


def _checked(requests: Sequence[object], timeout: float | None) -> None:
    """Check the arguments."""
    if timeout is not None:
        _core.seconds(timeout)
    for i, each in enumerate(requests):
        if not isinstance(each, Waitable | None):
            raise ArgumentError(
                f"requests[{i}] is {shown(each)}, and must be the request of a call, or None"
            )
