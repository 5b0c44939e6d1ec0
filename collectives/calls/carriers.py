"""The carrier of the messages of a communicator: MPI, or UCX between hosts."""

from __future__ import annotations

from typing import Any

from collectives.algorithms.groups import Groups
from collectives.choice import messages, profile, sections
from collectives.errors import CollectivesError, CommunicatorError
from collectives.process import binding, hosted, mails
from collectives.text import logs
from collectives.text.words import error_text

REACH = 20.0  # seconds for the ranks to reach each other by UCX when it is measured


def of(comm: Any, word: str, known: profile.Profile | None) -> tuple[Any, str, str]:
    """Return the carrier of messages, the family of its library, and the library's name: MPI, or
    between hosts UCX if the `word` of the environment or earlier measurements say so. Collective.
    """
    MPI = binding.load()
    family, library = binding.family(MPI), binding.library_name(MPI)
    by_mpi = comm.mpi, family, library
    if comm.nodes == 1 or word == messages.MPI or isinstance(MPI, hosted.HostedJob):
        return by_mpi
    hosts = sections.hosts_of(Groups.read(comm._hosts.hosts))
    section = None if known is None else known.section(family, library, hosts)
    times = None if section is None else section.comparison(comm.size)
    if word == messages.KNOWN and times is None:
        return by_mpi
    if word != messages.UCX and times is not None and messages.choice(times) == messages.MPI:
        return by_mpi
    try:
        local, names = comm._hosts.local, comm._hosts.names
        context, mail = mails.context(comm._meeting, comm._segment, local, names)
    except mails.NoUCX as error:
        if word == messages.UCX:
            comm.mpi.Free()
            raise CommunicatorError(f"COLLECTIVES_MESSAGES is ucx, and {error}") from None
        logs.note("INFO", f"messages between hosts go by {library}: {error}")
        return by_mpi
    if word == messages.AUTO and times is None:
        times, problem = _measured(comm)
        if times is None:
            mails.drop(mail)
            logs.note("WARNING", f"messages between hosts go by {library}: {problem}")
            return by_mpi
        messages.tell(times, library, mail.library)
        found = sections.Section(family, library, hosts, compared={comm.size: times})
        profile.keep(found, writes=comm.rank == 0)
        if messages.choice(times) == messages.MPI:
            return by_mpi
    return context, "ucx", mail.library


def _measured(comm: Any) -> tuple[sections.Compared | None, str]:
    """Measure the messages of MPI and of UCX between the ranks of a communicator; return the times,
    or None and the problem, if UCX does not reach all ranks. Collective.
    """
    times, problem = None, ""
    comms = {word: comm._again(word, REACH) for word in (messages.MPI, messages.UCX)}
    try:
        times = messages.measured(comms)
    except CollectivesError as error:
        problem = error_text(error)
    problem = next(filter(None, comm._meeting.allgather(problem)), "")
    if problem:  # the communicators cannot be freed together any more
        return None, problem
    for each in comms.values():
        each.free()
    return times, ""
