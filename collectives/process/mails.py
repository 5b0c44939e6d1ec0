"""Mails: messages of ranks through shared memory inside of hosts, and by UCX between hosts.

A job without MPI has one mail. Ranks that MPI has started get one if ``COLLECTIVES_MESSAGES`` asks
for it: then the collectives of communicators on several hosts send their messages by UCX, and MPI
makes the communicators. A communicator whose ranks have a mail in common uses that one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

from collectives import _core
from collectives.errors import BindingError
from collectives.process import living, segment

# Bytes of the box of two ranks; and of all boxes of a mail, which are made smaller if necessary.
BOX, SMALLEST_BOX = 64 << 10, 4 << 10
ALL_BOXES = 16 << 20

FAREWELL = 5.0  # seconds in which the last messages of an ending rank may leave


def opened(
    meeting: segment.Gathering, shared: _core.Segment | None, local: Sequence[int]
) -> _core.Mail:
    """Return a new mail, for messages inside of this host, whose ranks `local` have a segment if
    they are several. Collective.
    """
    room = BOX
    while room > SMALLEST_BOX and _core.mail_bytes(len(local), room) > ALL_BOXES:
        room //= 2
    nbytes = _core.mail_bytes(len(local), room)
    memory = segment.shared(meeting, shared, nbytes) or mmap.mmap(-1, nbytes)  # of one rank
    places = [local.index(each) if each in local else -1 for each in range(meeting.size)]
    return _core.Mail(memory, meeting.rank, room, places)


class NoUCX(Exception):
    """The ranks cannot use UCX between hosts; the text says why."""


class Connection(NamedTuple):
    """The connection of a mail to other hosts: UCX's version, and a number of the mail."""

    version: str
    token: int


def connect(
    meeting: segment.Gathering, mail: _core.Mail, members: Sequence[int], hosts: Sequence[str]
) -> Connection:
    """Exchange addresses with the ranks of other hosts; `members` are the ranks in ``COMM_WORLD``.
    Raise NoUCX on all ranks if one has no UCX, or hosts have different settings. Collective.
    """
    from collectives.process import ucx  # few programs need it

    address, problem, version = b"", "", ""
    ports: list[int] = []
    try:
        version = ucx.load()
        address, ports = ucx.open_wire(mail)
    except (BindingError, OSError) as error:
        problem = str(error)
    token = int.from_bytes(os.urandom(4), "little") >> 1
    mine = address, ports, token, os.getpid(), version, ucx.rx_segment(), problem
    everybody = meeting.allgather(mine)
    for rank, (*_, problem) in enumerate(everybody):
        if problem:
            raise NoUCX(f"rank {rank} on {hosts[rank]} has no UCX: {problem}")
    addresses, every_ports, tokens, processes, versions, segments, _ = zip(*everybody, strict=True)
    if told := _different(segments, hosts):
        raise NoUCX(
            f"UCX crashes if hosts have different values of {ucx.RX_SEGMENT}: {told}. Set the same "
            "value on all hosts, or on none"
        )
    ports = [port for some in every_ports for port in some]
    mail.connect(list(addresses), ports, tokens[0], _different(versions, hosts))
    living.note_mail(mail, members, processes, hosts)
    return Connection(version, tokens[0])


def _different(values: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the values of ranks with the first host of each, or nothing if all have the same."""
    firsts = sorted({values.index(each) for each in values})
    told = " and ".join(f"{values[rank]} on {hosts[rank]}" for rank in firsts)
    return told if len(firsts) > 1 else ""


def child_id(parent: int, what: object, number: int) -> int:
    """Return the id of a context that all its ranks derive without communication: from a number of
    its parent, and the `number` of earlier children of this kind. Local.
    """
    from hashlib import blake2b

    text = f"{parent} {what} {number}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1 & -2


# -- beside MPI ------------------------------------------------------------------------------------


class Beside:
    """A mail of ranks that MPI has started; the `library` is named, as in ``UCX 1.22.0``."""

    def __init__(self, members: Sequence[int], mail: _core.Mail, connection: Connection) -> None:
        self.members = tuple(members)
        self.mail = mail
        self.library, self.token = f"UCX {connection.version}", connection.token
        self._numbers: dict[tuple[int, ...], int] = {}

    def context(self, ranks: tuple[int, ...]) -> _core.Context:
        """Return a new context of some of the ranks. Collective, among them."""
        number = self._numbers[ranks] = self._numbers.get(ranks, 0) + 1
        return _core.Context(self.mail, child_id(self.token, ranks, number), ranks)


_beside: list[Beside] = []


def context(
    meeting: segment.Gathering,
    shared: _core.Segment | None,
    local: Sequence[int],
    hosts: Sequence[str],
) -> tuple[_core.Context, Beside]:
    """Return a context for the messages of a communicator of MPI on several hosts, and its mail.
    Raise NoUCX on all ranks if one of them has no usable UCX. Collective.

    The ranks `local` share memory, if there is any; `hosts` are the names of hosts in messages.
    """
    members = meeting.members
    # All ranks have the same mails in common, but may have got them in another order.
    common = [each for each in _beside if set(members) <= set(each.members)]
    if common and min(members) >= 0:  # ranks of another job have no numbers
        chosen = min(common, key=lambda each: each.token)
        return chosen.context(tuple(map(chosen.members.index, members))), chosen
    mail = opened(meeting, shared, [meeting.rank] if shared is None else local)
    made = Beside(members, mail, connect(meeting, mail, members, hosts))
    _beside.append(made)
    return made.context(tuple(range(meeting.size))), made


def leave() -> None:
    """Leave the ranks of other hosts, if MPI has started them. Local."""
    for each in _beside:
        each.mail.leave(FAREWELL)
    _beside.clear()
