"""Python objects: a broadcast and an allgather."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.errors import ArgumentError, CollectivesError, MismatchError
from collectives.horovod.arrays import allgather_async, broadcast_async
from collectives.horovod.errors import (
    HorovodArgumentError,
    HorovodInternalError,
    translated,
    translation,
)
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.text.words import error_text

FAILED = -1  # the length of an object that cannot be pickled


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the object of one rank to all ranks.
    Collective.

    Parameters
    ----------
    obj : object
        On the root, an object that can be pickled, by the cloudpickle package if it is installed
        and pickle alone cannot; ignored on other ranks.
    root_rank : int
        The root, by its number among all ranks.
    name : str, optional
        The name of the call, needed if ranks make calls in different orders.
    process_set : ProcessSet, optional
        The ranks.

    Returns
    -------
    object
        The root's object: itself on the root, and a copy on the others.

    Raises
    ------
    HorovodArgumentError
        If the object cannot be pickled; raised on the root.
    HorovodInternalError
        On all other ranks, if the root's object cannot be pickled; or if the collective fails.
    """
    comm = process_set.comm()
    root = process_set.place(root_rank)
    data, problem = np.empty(0, np.uint8), None
    if comm.rank == root:
        data, problem = _pickled(obj)
    length = np.array([FAILED if problem else data.size])
    broadcast_async(length, root_rank, _named("size", name), process_set).wait()
    if problem is not None:
        raise problem
    if length[0] == FAILED:
        raise HorovodInternalError(f"the object of rank {root_rank} cannot be pickled")
    if comm.rank != root:
        data = np.empty(int(length[0]), np.uint8)
    broadcast_async(data, root_rank, _named("object", name), process_set).wait()
    return obj if comm.rank == root else pickle.loads(data.data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Send the objects of all ranks to all ranks.
    Collective.

    Parameters
    ----------
    obj : object
        As for `broadcast_object`.
    name, process_set
        As for `broadcast_object`.

    Returns
    -------
    list
        The objects in the order of the ranks.

    Raises
    ------
    HorovodArgumentError
        If the object cannot be pickled; raised on this rank.
    HorovodInternalError
        If the object of another rank cannot be pickled; or if the collective fails.
    """
    data, problem = _pickled(obj)
    length = np.array([FAILED if problem else data.size])
    lengths = allgather_async(length, _named("sizes", name), process_set).wait()
    if problem is not None:
        raise problem
    if lengths.min() == FAILED:
        raise HorovodInternalError(f"the object of rank {lengths.argmin()} cannot be pickled")
    every = allgather_async(data, _named("objects", name), process_set).wait()
    return [pickle.loads(each.data) for each in np.split(every, np.cumsum(lengths)[:-1])]


def stop_requested(every: int = 1, process_set: ProcessSet = global_process_set) -> bool:
    """Return whether a rank has been asked to stop, with the same answer on all ranks. Collective.

    Horovod has no such call.

    Parameters
    ----------
    every : int
        As for `Communicator.stop_requested`.
    process_set : ProcessSet, optional
        The ranks.

    Returns
    -------
    bool

    Raises
    ------
    ArgumentError
        If `every` is not a positive number (as a `HorovodInternalError` that is one, too).
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """
    with translated():
        return process_set.comm().stop_requested(every)


def same(
    value: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> None:
    """Raise an error on all ranks unless they have the same value. Horovod has no such call.
    Collective.

    Parameters
    ----------
    value : object
        A model, an optimizer, an array or another value, as for `Communicator.same`.
    name : str, optional
        The name of the value in the error.
    process_set : ProcessSet, optional
        The ranks.
    **options
        The other arguments of `Communicator.same`.

    Raises
    ------
    MismatchError
        On all ranks, if the values differ; the text has the first part that differs.
    ArgumentError
        On the rank whose value cannot be compared. The others raise a `MismatchError`.
    HorovodInternalError
        If a rank is lost, or a deadline has passed.
    """
    try:
        process_set.comm().same(value, name, **options)
    except (ArgumentError, MismatchError):
        raise
    except CollectivesError as error:
        raise translation(error) from error


def _named(part: str, name: str | None) -> str | None:
    return None if name is None else f"{part} of {name}"


def _pickled(obj: Any) -> tuple[NDArray[np.uint8], HorovodArgumentError | None]:
    """Return an object as bytes, or the error if it cannot be pickled."""
    try:
        return _bytes(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), None
    except Exception as error:  # also of a user's type
        problem = error
    try:
        cloudpickle = importlib.import_module("cloudpickle")
        return _bytes(cloudpickle.dumps(obj)), None
    except Exception:
        text = f"obj cannot be pickled: {error_text(problem)}"
        return np.empty(0, np.uint8), HorovodArgumentError(text)


def _bytes(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as a writable array, which a broadcast needs as its buffer."""
    return np.frombuffer(data, np.uint8).copy()


SEEDS = "seed_generator_state"  # Keras's name for the state of a random number generator


def is_seed(variable: Any) -> bool:
    """Return whether a variable of Keras, or the one behind it, is a seed. With the same seeds, all
    ranks would drop the same units. Local.
    """
    path = getattr(variable, "path", None) or getattr(variable, "name", None)
    return str(path).rpartition("/")[2].partition(":")[0] == SEEDS
