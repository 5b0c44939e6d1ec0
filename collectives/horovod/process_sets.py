"""Process sets: groups of ranks that run collectives together."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from collectives.communicator import Communicator
from collectives.horovod import errors, state
from collectives.process import binding
from collectives.process.advice import alone
from collectives.text.words import shown


class ProcessSet:
    """A group of ranks. Pass it to `init` or `add_process_set` before you use it.

    Parameters
    ----------
    ranks_or_comm : iterable of int, or mpi4py.MPI.Intracomm
        The ranks, in any order, such as a list or an array; they are sorted.

    Attributes
    ----------
    ranks : list of int or None
        Its ranks among all ranks.
    process_set_id : int or None
        Its number; None if it cannot be used.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self.communicator: Communicator | None = None
        if not isinstance(ranks_or_comm, Iterable):
            if not isinstance(ranks_or_comm, binding.load().Intracomm):
                raise _no_ranks(ranks_or_comm)
            self.mpi_comm = ranks_or_comm
            return
        given = list(ranks_or_comm)
        try:
            self.ranks = sorted(index(each) for each in given)
        except TypeError:
            raise _no_ranks(ranks_or_comm) from None
        if any(isinstance(each, bool) for each in given):  # a mask
            raise _no_ranks(ranks_or_comm)

    def included(self) -> bool | None:
        """Return whether it has this rank; None if it cannot be used. Local."""
        if self.ranks is None or state.current() is None:
            return None
        return state.initialised().comm.rank in self.ranks

    def rank(self) -> int | None:
        """Return the number of this rank in it; None if it cannot be used. Local.

        Raises
        ------
        HorovodArgumentError
            If it does not have this rank.
        """
        return None if self.process_set_id is None else self.comm().rank

    def size(self) -> int | None:
        """Return the number of its ranks; None if it cannot be used. Local."""
        if self.process_set_id is None or self.ranks is None or state.current() is None:
            return None
        return len(self.ranks)

    def comm(self) -> Communicator:
        """Return the communicator that its collectives run on. Local.

        Raises
        ------
        HorovodArgumentError
            If it cannot be used, or does not have this rank.
        """
        found = self.communicator
        if found is None:
            state.initialised()
            if self.process_set_id is None:
                raise errors.HorovodArgumentError(
                    f"{self!r} cannot be used: pass it to init(process_sets=[...]) or to "
                    f"add_process_set()"
                )
            raise errors.HorovodArgumentError(
                f"this is rank {state.initialised().comm.rank}, which is not in {self!r}"
            )
        return found

    def place(self, root_rank: int) -> int:
        """Return the number of a rank in it. Local.

        Parameters
        ----------
        root_rank : int
            The rank among all ranks.

        Raises
        ------
        HorovodArgumentError
            If it does not have that rank.
        """
        ranks = self.ranks or []
        if root_rank not in ranks:
            raise errors.HorovodArgumentError(
                f"root_rank is {shown(root_rank)}, which is not in {self!r}"
            )
        return ranks.index(root_rank)

    def __str__(self) -> str:
        number, ranks, comm = self.process_set_id, self.ranks, self.mpi_comm
        return f"ProcessSet(process_set_id={number}, ranks={ranks}, mpi_comm={comm})"

    def __repr__(self) -> str:
        if self.mpi_comm is not None and self.ranks is None:
            return f"ProcessSet({self.mpi_comm!r})"
        number = "" if self.process_set_id is None else f", number {self.process_set_id}"
        return f"ProcessSet({self.ranks}{number})"


def _no_ranks(value: Any) -> ValueError:
    return ValueError(
        f"a process set is made of a list of ranks, or of an mpi4py communicator, and not of "
        f"{shown(value)}"
    )


global_process_set: ProcessSet = ProcessSet([])
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Add a process set after `init`.
    Collective: all ranks add the same, including those outside of it.

    Parameters
    ----------
    process_set : ProcessSet, or iterable of int
        Horovod's variable ``HOROVOD_DYNAMIC_PROCESS_SETS`` is not needed.

    Returns
    -------
    ProcessSet
        The process set, ready for use.

    Raises
    ------
    HorovodArgumentError
        If there is a set with these ranks, or one of them does not exist.
    NotImplementedError
        If it was made from a communicator of MPI.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    now = state.initialised()
    if process_set.ranks is None:
        raise NotImplementedError(
            "a process set that is added later has to be made of a list of ranks"
        )
    _attach(now, process_set)
    return process_set


def _attach(now: state.State, process_set: ProcessSet) -> None:
    """Give a process set its communicator. Collective."""
    made: Communicator | None = None
    ranks = process_set.ranks
    if ranks is None:
        made = Communicator(process_set.mpi_comm)
        ranks = process_set.ranks = made.allgather_object(now.comm.rank)
        every: list[list[int]] = now.comm.allgather_object(ranks)
        each_new = [each for k, each in enumerate(every) if each not in every[:k]]
    else:
        each_new = [ranks]
    wrong = [each for each in ranks if not 0 <= each < now.comm.size]
    if wrong or len(set(ranks)) < len(ranks) or not ranks:
        raise errors.HorovodArgumentError(
            f"the ranks of {process_set!r} must be different, and from 0 to {now.comm.size - 1}"
            f"{alone(max(ranks, default=0))}"
        )
    every_rank = list(range(now.comm.size))
    for each in each_new:
        if tuple(each) in now.sets or each == every_rank:
            name = ": global_process_set" if each == every_rank else ""
            raise errors.HorovodArgumentError(
                f"there is a process set with the ranks {each} already{name}"
            )
    key = tuple(ranks)
    with errors.translated():
        process_set.communicator = now.group(key) if made is None else made
        if process_set.communicator is not None and now.choice.kinds:
            now.choice.attach(process_set.communicator)
    for each in each_new:
        member = process_set if each == ranks else ProcessSet(each)
        used = {known.process_set_id for known in now.sets.values()}
        member.process_set_id = min(set(range(1, len(used) + 2)) - used)
        now.sets[tuple(each)] = member


def attach_all(process_sets: Iterable[ProcessSet]) -> None:
    """Make process sets usable, in their order; if one is wrong, none. Collective."""
    now = state.initialised()
    global_process_set.ranks = list(range(now.comm.size))
    global_process_set.communicator = now.comm
    try:
        for each in process_sets:
            _attach(now, each)
    except BaseException:
        _detach(now)
        raise


def detach_all(now: state.State) -> None:
    """Make all process sets unusable, at `shutdown`. Local."""
    global_process_set.communicator = None
    _detach(now)


def _detach(now: state.State) -> None:
    for each in now.sets.values():
        each.process_set_id = each.communicator = None
    now.sets.clear()


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set.
    Collective: all ranks remove the same, including those outside of it.

    Parameters
    ----------
    process_set : ProcessSet

    Returns
    -------
    bool
        Whether it was removed: False for a set that could not be used, or the set of all ranks.
    """
    now = state.initialised()
    if not process_set.process_set_id:
        return False
    ranks = tuple(process_set.ranks or ())
    now.sets.pop(ranks, None)
    process_set.process_set_id = process_set.communicator = None
    with errors.translated():
        now.drop(ranks)
    return True
