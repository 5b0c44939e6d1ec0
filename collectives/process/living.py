"""The ranks that still run, according to shared memory and messages between hosts."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import NamedTuple

from collectives import _core

# The segments of this process, and the ranks of each in COMM_WORLD.
_worlds: weakref.WeakKeyDictionary[_core.Segment, dict[int, int]] = weakref.WeakKeyDictionary()

# The mails of this process: for each rank its number in COMM_WORLD, its process, and its host.
_mails: weakref.WeakKeyDictionary[
    _core.Mail, tuple[Sequence[int], Sequence[int], Sequence[str]]
] = weakref.WeakKeyDictionary()


def note(segment: _core.Segment, members: Sequence[int]) -> None:
    """Remember the ranks that share a segment. Local."""
    _worlds[segment] = {rank: members[rank] for rank in segment.ranks if members[rank] >= 0}


def note_mail(
    mail: _core.Mail, members: Sequence[int], processes: Sequence[int], hosts: Sequence[str]
) -> None:
    """Remember the ranks of a mail on several hosts. Local."""
    _mails[mail] = members, processes, hosts


class Ended(NamedTuple):
    """A rank, by its number in COMM_WORLD, that has ended or is about to."""

    rank: int
    process: int
    in_order: bool
    host: str = ""  # if it is another one

    @property
    def how(self) -> str:
        """The end of a sentence about the rank."""
        where = f" on {self.host}" if self.host else ""
        return f"(process {self.process}{where}) has {'left' if self.in_order else 'died'}"


def ended(members: Collection[int]) -> list[Ended]:
    """Return those of some ranks that have ended, or are about to. Local."""
    found = {
        world[rank]: Ended(world[rank], process, in_order)
        for segment, world in list(_worlds.items())
        for rank, process, in_order in segment.ended()
        if world.get(rank) in members
    }
    for mail, (numbers, processes, hosts) in list(_mails.items()):
        for rank, in_order in mail.lost():
            number = numbers[rank]
            if number in members and number not in found and number >= 0:
                found[number] = Ended(number, processes[rank], in_order, hosts[rank])
    return list(found.values())


def running() -> dict[int, int]:
    """Return the process IDs of the other ranks that have neither left nor ended, by their ranks in
    ``COMM_WORLD``. Local.
    """
    return {
        world[rank]: process
        for segment, world in list(_worlds.items())
        for rank, process in segment.running()
        if rank in world
    }


def stopped() -> dict[int, int]:
    """Return the process IDs of the ranks whose processes are stopped, by their ranks in
    ``COMM_WORLD``. Local.
    """
    return {
        world[rank]: process
        for segment, world in list(_worlds.items())
        for rank, process in segment.stopped()
        if rank in world
    }
