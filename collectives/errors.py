"""The errors of the library, one tree.

::

    CollectivesError
    ├── ArgumentError (ValueError)         a count, root, op, algorithm or option is wrong
    │   └── BufferError (BufferError)      an array cannot be used: layout, overlap, read-only
    ├── UnsupportedTypeError (TypeError)   a dtype, or an op on a dtype, that no kernel has
    ├── ProofError (ValueError)            an algorithm was refused by its proof
    ├── MismatchError (RuntimeError)       ranks called different things
    ├── StallError (TimeoutError)          a wait reached its deadline
    ├── PeerLostError (ConnectionError)    the process of another rank has ended
    ├── PeerAbortedError (RuntimeError)    another rank gave up
    ├── MPIError (RuntimeError)            MPI reported a failure
    ├── CommunicatorError (RuntimeError)   the communicator is freed, broken or exhausted
    └── BindingError (ImportError)         no usable MPI in this process

    CollectivesWarning
    ├── ProfileWarning (UserWarning)       the profile of the machine cannot be used
    ├── StallWarning (UserWarning)         a wait is long
    ├── SharedMemoryWarning (RuntimeWarning)  the ranks of a host talk through MPI
    └── TimelineWarning (RuntimeWarning)   a timeline lacks something

Each also inherits the builtin in brackets, so that a caller who has never heard of this
library can catch it. All pickle: they carry their text and nothing else.
"""

from __future__ import annotations

import builtins

__all__ = [
    "ArgumentError",
    "BindingError",
    "BufferError",
    "CollectivesError",
    "CollectivesWarning",
    "CommunicatorError",
    "MPIError",
    "MismatchError",
    "PeerAbortedError",
    "PeerLostError",
    "ProfileWarning",
    "ProofError",
    "SharedMemoryWarning",
    "StallError",
    "StallWarning",
    "TimelineWarning",
    "UnsupportedTypeError",
]


class CollectivesError(Exception):
    """Base of every error that the library raises on purpose."""


class ArgumentError(CollectivesError, ValueError):
    """An argument has a value that the call cannot accept.

    Raised before anything is sent; the communicator is usable afterwards. The other ranks wait
    for the call that was not made. Those of the same host raise a `MismatchError` if this rank
    calls something else next; under ``COLLECTIVES_VALIDATE=1`` all of them do, at once.
    """


class BufferError(ArgumentError, builtins.BufferError):
    """An array cannot be read or written: strided, read-only, overlapping, wrong size or dtype.

    Raised before anything is sent. Pass a C-contiguous, writable array as ``out``.
    """


class UnsupportedTypeError(CollectivesError, TypeError):
    """No kernel exists for this dtype, or for this operation on it; the text lists what exists."""


class ProofError(CollectivesError, ValueError):
    """The replay of an algorithm on all ranks broke one of its promises, or its generator raises.

    The text names the rank, the round, and the block or the line. Nothing was sent.
    """


class MismatchError(CollectivesError, RuntimeError):
    """The ranks of one communicator called different things.

    Ranks that share memory compare all calls: each of them raises it, the text says what each rank
    called, and the communicator is broken. If nobody had to wait for anybody in that call, a later
    one raises it. Between hosts, it is raised by a rank that received a message of an unexpected
    length. With ``COLLECTIVES_VALIDATE=1`` it is raised on every rank, of whatever host, before any
    data moves, and the communicator is usable afterwards.
    """


class StallError(CollectivesError, TimeoutError):
    """A collective waited longer than its deadline; the text says who waits for whom.

    The deadline is that of the call (``timeout=``), else that of the communicator, which
    ``COLLECTIVES_TIMEOUT`` sets. Time for which the process was stopped does not count. The
    communicator is broken afterwards: data may be under way.
    """


class PeerLostError(CollectivesError, ConnectionError):
    """The process of another rank of this host has ended; the text has its rank and number.

    Whoever waits learns of it within a second. The communicator is broken afterwards.
    """


class PeerAbortedError(CollectivesError, RuntimeError):
    """Another rank of this host gave up in a collective, and said why; the text has its words.

    The communicator is broken afterwards, on all ranks.
    """


class MPIError(CollectivesError, RuntimeError):
    """MPI reported a failure; the text has MPI's own, the collective, the round and the peer.

    The communicator is broken afterwards.
    """


class CommunicatorError(CollectivesError, RuntimeError):
    """The communicator was freed, is broken, or has too many operations in flight."""


class BindingError(CollectivesError, ImportError):
    """MPI is missing, or is not the one that it seems to be; the text says what to do."""


class CollectivesWarning(Warning):
    """Base of every warning of the library."""


class ProfileWarning(CollectivesWarning, UserWarning):
    """The profile of this machine cannot be read, or is of another version; the text says why.

    It comes from rank 0, once. Algorithms are chosen as if there were no profile.
    """


class StallWarning(CollectivesWarning, UserWarning):
    """A collective has waited for long, and goes on waiting; the text says who waits for whom.

    ``COLLECTIVES_STALL_WARNING`` sets the seconds, 60 by default.
    """


class SharedMemoryWarning(CollectivesWarning, RuntimeWarning):
    """The ranks of a host cannot share memory and talk through MPI; the text says why.

    It comes once in a process, from the first rank of the host. Results are the same, later.
    """


class TimelineWarning(CollectivesWarning, RuntimeWarning):
    """Not all that a rank did is in the file of the timeline; the text says why."""
