"""Send variables and Python objects to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from collectives.compiled.phases import Phases, unconverted
from collectives.horovod import objects
from collectives.horovod.objects import same, stop_requested
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.moving import assigned, numbers, sending

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "same",
    "stop_requested",
]


@unconverted
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Set the variables of all ranks to those of one rank.
    Collective.

    The seeds of Keras's layers are left out, because with the same seeds all ranks would drop the
    same units.

    Parameters
    ----------
    variables : iterable of Variable
        Of TensorFlow or Keras, with the same dtypes and shapes on all ranks: ``model.variables``
        or ``optimizer.variables``.
    root_rank : int
        The root, by its number among all ranks.
    process_set : ProcessSet
        The ranks.
    inplace : bool
        Ignored; accepted for compatibility with Horovod.

    Returns
    -------
    Operation or None
        In a graph of TensorFlow 1, the operation that sets the variables.

    Raises
    ------
    HorovodArgumentError
        If a variable has strings or other values than numbers; nothing was sent.
    HorovodInternalError
        As for `broadcast`.
    """
    sent = [each for each in variables if not objects.is_seed(each)]
    values = numbers(sent)
    phases = Phases()
    name = phases.named("variables")
    finish = [
        sending(phases, value, root_rank, f"{name}, {k} of {len(sent)}", process_set)
        for k, value in enumerate(values, start=1)
    ]
    made = assigned(sent, [each() for each in finish])
    return None if tf.executing_eagerly() or tf.inside_function() else tf.group(*made)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the object of one rank to all ranks.
    Collective.

    Parameters
    ----------
    obj : object
        On the root, an object that can be pickled; ignored on other ranks.
    root_rank : int
        The root, by its number among all ranks.
    session : Session, optional
        Ignored; accepted for compatibility with Horovod.
    name : str, optional
        The name of the call, needed if ranks make calls in different orders.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    object
        The root's object: itself on the root, and a copy on the others.

    Raises
    ------
    HorovodInternalError
        If the root's object cannot be pickled; or if the collective fails.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that sends an object as `broadcast_object` does.
    Local; the function is collective.

    Parameters
    ----------
    root_rank, session, name, process_set
        As for `broadcast_object`.
    """
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Send the objects of all ranks to all ranks.
    Collective.

    Parameters
    ----------
    obj : object
        As for `broadcast_object`.
    session, name, process_set
        As for `broadcast_object`.

    Returns
    -------
    list
        The objects in the order of the ranks.

    Raises
    ------
    HorovodInternalError
        If an object cannot be pickled; or if the collective fails.
    """
    return objects.allgather_object(obj, name, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """Set all global variables of a graph of TensorFlow 1 to those of one rank.
    Local; the operation is collective.

    Parameters
    ----------
    root_rank : int
        The root, by its number among all ranks.

    Returns
    -------
    Operation
        To be run in a session.

    Raises
    ------
    RuntimeError
        If operations are executed eagerly.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "there are no global variables without a session: call hvd.broadcast_variables with "
            "the variables of the model and of the optimizer"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A session hook that sends all global variables of one rank to all ranks at the start.

    Parameters
    ----------
    root_rank : int
        The root, by its number among all ranks.
    device : str
        Ignored; accepted for compatibility with Horovod.
    """

    root_rank: int

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank, self._sending = root_rank, None

    def begin(self) -> None:
        """Make the operation in the graph of the session. Local."""
        graph = tf.compat.v1.get_default_graph()
        if getattr(self._sending, "graph", None) is not graph:  # the graph of an earlier session
            self._sending = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the operation in the `session`; ignore `coord`. Collective."""
        session.run(self._sending)
