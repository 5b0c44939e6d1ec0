"""A comparison of values on the ranks of a group."""

from __future__ import annotations

from typing import Any

from torch import distributed as dist

from collectives.errors import ArgumentError
from collectives.torch.distributed.group import CollectivesProcessGroup


def same(
    value: Any, name: str | None = None, group: dist.ProcessGroup | None = None, **options: Any
) -> None:
    """Raise an error on all ranks of a group unless they have the same value.
    Collective.

    Parameters
    ----------
    value : object
        A model, an optimizer, a tensor or another value, as for `Communicator.same`.
    name : str, optional
        The name of the value in the error.
    group : ProcessGroup, optional
        The group, of the backend ``"collectives"``; the default group if None.
    **options
        The other arguments of `Communicator.same`.

    Raises
    ------
    ArgumentError
        If the group is of another backend, or the value of this rank cannot be compared.
    MismatchError
        On all ranks, if the values differ; the text has the first part that differs.
    CollectivesError
        Otherwise, as for `Communicator.same`.
    """
    group = group or dist.group.WORLD
    if not isinstance(group, CollectivesProcessGroup):
        backend = dist.get_backend(group)
        raise ArgumentError(f"group is of the backend {backend!r}, and must be of 'collectives'")
    group.communicator.same(value, name, **options)
