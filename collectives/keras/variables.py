"""Variables: those of one rank sent to all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, NoReturn

import keras
import numpy as np

from collectives.horovod.arrays import broadcast_async
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.objects import allgather_object, is_seed
from collectives.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["broadcast_global_variables", "broadcast_variables"]


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Set the variables of all ranks to those of one.
    Collective.

    Parameters
    ----------
    variables : iterable of variable
        Such as ``model.variables`` and ``optimizer.variables``; as many on all ranks, in the same
        order. The state of Keras's random numbers is left out, so that ranks that drop units out
        do not all drop the same.
    root_rank : int
        Whose values are sent, among all ranks.
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    HorovodArgumentError
        On all ranks, if their variables differ in number, shape or dtype.
    HorovodInternalError
        If the collective fails.
    """
    comm = process_set.comm()
    if comm.size == 1:
        return
    sent = [each for each in variables if not is_seed(each)]
    check_alike(sent, "variables", process_set)
    handles = []
    for k, each in enumerate(sent, start=1):
        # A copy: what a framework returns may be its own memory, and may not be written.
        x = np.array(keras.ops.convert_to_numpy(each), order="C")
        name = f"variable {k} of {len(sent)}"
        handles.append(broadcast_async(x, root_rank, name, process_set))
    values = [each.wait() for each in handles]
    if comm.rank != process_set.place(root_rank):
        for each, value in zip(sent, values, strict=True):
            each.assign(value)


def check_alike(variables: Iterable[Any], name: str, process_set: ProcessSet) -> None:
    """Raise an error on all ranks if their variables have different dtypes or shapes.
    Collective.
    """
    mine = [
        f"{keras.backend.standardize_dtype(each.dtype)} {tuple(each.shape)}" for each in variables
    ]
    every = allgather_object(mine, name, process_set)
    for number, each in enumerate(zip_longest(*every, fillvalue="missing"), start=1):
        if len(set(each)) > 1:
            ranks = process_set.ranks or range(len(every))
            said = "; ".join(f"rank {k}: {what}" for k, what in zip(ranks, each, strict=True))
            raise HorovodArgumentError(
                f"{name} differ between ranks, the first of them in variable {number}: {said}"
            )


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Refuse to send all variables of the program to all ranks from `root_rank`. Local.

    Raises
    ------
    RuntimeError
        Always: Keras 3 has no list of all variables.
    """
    raise RuntimeError(
        "broadcast_global_variables() needs a list of all variables, which Keras 3 does not have: "
        "pass callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or call "
        "broadcast_variables(model.variables, root_rank)"
    )
