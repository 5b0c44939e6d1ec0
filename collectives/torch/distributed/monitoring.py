"""A barrier that names the missing ranks.

Each rank sends a number to rank 0. When all have arrived, or at its timeout, rank 0 answers those
that have arrived with that number and the list of these ranks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import monitored_barrier as theirs

from collectives.calls.messages import TAGS
from collectives.communicator import Communicator
from collectives.errors import StallError
from collectives.process.waiting import Wait
from collectives.text.words import named
from collectives.torch.distributed.group import CollectivesProcessGroup
from collectives.torch.distributed.work import LEAST, AnySourceWork

TAG = TAGS - 1


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait until all ranks of a group have called this; name the missing ranks.
    Collective.

    This is ``torch.distributed.monitored_barrier``, which torch has only for gloo. For groups of
    other backends, torch's own function is called.

    Parameters
    ----------
    group : ProcessGroup, optional
        The group; the default group if None.
    timeout : timedelta or float, optional
        The time for which rank 0 of the group waits for the others, a float in seconds; as long as
        a call of the group may take by default. The others wait for rank 0 for twice as long.
    wait_all_ranks : bool
        For groups of other backends only. Here the error always names all missing ranks.

    Raises
    ------
    StallError
        On all ranks that have called this, if others have not. The group remains usable.
    """
    group = group or dist.group.WORLD
    if not isinstance(group, CollectivesProcessGroup):
        theirs(group, timeout, wait_all_ranks)
        return
    comm, number = group.communicator, next(group.barriers)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    seconds = comm.timeout if seconds is None else seconds
    came = (_lead if comm.rank == 0 else _follow)(comm, number, seconds)
    missing = [each for each in range(comm.size) if not came[each]]
    if missing:
        names = named(sorted(dist.get_global_rank(group, each) for each in missing))
        raise StallError(
            f"monitored_barrier timed out after {seconds:g} s: {names} "
            f"{'has' if len(missing) == 1 else 'have'} not called it"
        )


def _receive(comm: Communicator, tensor: Any, until: Wait) -> int | None:
    """Receive a message of any rank; return that rank, or None at the time `until`."""
    work = AnySourceWork(comm, tensor, TAG)
    try:
        work.wait(timedelta(seconds=max(until.left(), LEAST)))
    except StallError:
        return None
    return work.source_rank()


def _lead(comm: Communicator, number: int, seconds: float) -> Any:
    """Return the ranks that have arrived, and send them the list."""
    until = Wait(timeout=seconds)
    numbers, message = torch.full((comm.size,), -1), torch.empty(1, dtype=torch.int64)
    numbers[0] = number
    while (numbers < 0).any():
        source = _receive(comm, message, until)
        if source is None:
            break
        numbers[source] = message[0]
    came = numbers >= 0
    for rank in range(1, comm.size):
        if came[rank]:
            comm.isend(torch.cat([numbers[rank : rank + 1], came]), rank, tag=TAG).wait()
    return came


def _follow(comm: Communicator, number: int, seconds: float) -> Any:
    """Tell rank 0 that this rank has arrived; return the ranks that have."""
    until = Wait(timeout=2 * seconds)
    comm.isend(torch.tensor([number]), 0, tag=TAG)
    answer = torch.empty(comm.size + 1, dtype=torch.int64)
    while _receive(comm, answer, until) is not None:
        if answer[0] == number:  # not the answer to an earlier call that timed out
            return answer[1:]
    return torch.arange(comm.size) > 0
