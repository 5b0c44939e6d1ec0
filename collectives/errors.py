"""The errors of the library, one tree.

::

    CollectivesError
    ├── ArgumentError (ValueError)         a count, root, op, algorithm or option is wrong
    │   └── BufferError (BufferError)      an array cannot be used: layout, overlap, read-only
    ├── UnsupportedTypeError (TypeError)   a dtype, or an op on a dtype, that no kernel has
    ├── ProofError (ValueError)            the proof of an algorithm failed
    ├── MismatchError (RuntimeError)       ranks made different calls
    ├── StallError (TimeoutError)          a wait reached its deadline
    ├── PeerLostError (ConnectionError)    the process of another rank has ended
    ├── PeerAbortedError (RuntimeError)    another rank gave up
    ├── RankError (RuntimeError)           a result or an exception of `spawn` cannot be pickled
    ├── MPIError (RuntimeError)            MPI reported a failure
    ├── CommunicatorError (RuntimeError)   the communicator is freed, broken or exhausted
    ├── BindingError (ImportError)         no usable MPI in this process
    └── CoreError (ImportError)            this machine, or this installation, has no core

    CollectivesWarning
    ├── ProfileWarning (UserWarning)       the profile of the machine cannot be used
    ├── StallWarning (UserWarning)         a wait is long
    ├── SharedMemoryWarning (RuntimeWarning)  the ranks of a host communicate by messages
    └── TimelineWarning (RuntimeWarning)   a timeline or a trace lacks records

Each also inherits from the builtin class in parentheses, so that code which does not know this
library can catch it. All of them can be pickled: their only state is the text.
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
    "CoreError",
    "MPIError",
    "MismatchError",
    "PeerAbortedError",
    "PeerLostError",
    "ProfileWarning",
    "ProofError",
    "RankError",
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

    Raised before any data is sent; the communicator is usable afterwards. The other ranks wait
    for this rank's call. If this rank makes another call next, those on the same host raise a
    `MismatchError`. Under ``COLLECTIVES_VALIDATE=1`` all of them raise it, at once.
    """


class BufferError(ArgumentError, builtins.BufferError):
    """An array cannot be read or written: strided, read-only, overlapping, wrong size or dtype.

    Raised before any data is sent. Pass a C-contiguous, writable array as ``out``.
    """


class UnsupportedTypeError(CollectivesError, TypeError):
    """No kernel exists for this dtype, or for this operation on it; the text lists the kernels."""


class ProofError(CollectivesError, ValueError):
    """The proof of an algorithm found that it breaks a promise, or its generator raised an error.

    The text names the rank, the round, and the block or the line. Nothing was sent.
    """


class MismatchError(CollectivesError, RuntimeError):
    """The ranks of one communicator made different calls.

    Ranks that share memory compare all calls. Each of them raises this error, the text gives the
    call of each rank, and the communicator is broken. If no rank had to wait for another in that
    call, a later call raises it; so does the root of a broadcast or a scatter, which does
    not wait for others. Between hosts, a rank that receives a message of an unexpected length
    raises it. With ``COLLECTIVES_VALIDATE=1`` every rank on every host raises it before any
    data moves, and the communicator is usable afterwards.
    """


class StallError(CollectivesError, TimeoutError):
    """A call waited longer than its deadline; the text names the ranks that wait for each other.

    The deadline is that of the call (``timeout=``), else that of the communicator, which
    ``COLLECTIVES_TIMEOUT`` sets. Time during which the process was stopped does not count. The
    communicator is broken afterwards, because messages may still be in flight.
    """


class PeerLostError(CollectivesError, ConnectionError):
    """The process of another rank of this host has ended; the text has its rank and process ID.

    A waiting rank notices it within a second. The communicator is broken afterwards.
    """


class PeerAbortedError(CollectivesError, RuntimeError):
    """Another rank of this host gave up in a collective; the text has the reason that it gave.

    The communicator is broken afterwards, on all ranks.
    """


class RankError(CollectivesError, RuntimeError):
    """A rank of `spawn` has a result or an exception that cannot be pickled; the text says why.

    It is also the cause (``__cause__``) of an exception that a rank raised and that `spawn` raises
    again. Then the text has the rank, its traceback and the other ranks that failed.
    """


class MPIError(CollectivesError, RuntimeError):
    """MPI reported a failure; the text has MPI's message, the collective, the round and the peer.

    The communicator is broken afterwards.
    """


class CommunicatorError(CollectivesError, RuntimeError):
    """The communicator was freed, is broken, or has too many operations in flight."""


class BindingError(CollectivesError, ImportError):
    """MPI is missing, cannot be used, or is not the launcher's; the text has the remedy."""


class CoreError(CollectivesError, ImportError):
    """Collectives run in the core of the library, and this machine or this installation has none.

    Raised by every name that needs it. The text names the machine, and the machines with a core.
    """


class CollectivesWarning(Warning):
    """Base of every warning of the library."""


class ProfileWarning(CollectivesWarning, UserWarning):
    """The profile of this machine cannot be read, or is of another version; the text says why.

    Rank 0 issues it, once. Algorithms are chosen as if there were no profile.
    """


class StallWarning(CollectivesWarning, UserWarning):
    """A collective has waited for a long time; the text names the ranks that wait for each other.

    The call continues to wait. ``COLLECTIVES_STALL_WARNING`` sets the seconds until the warning, by
    default 60.
    """


class SharedMemoryWarning(CollectivesWarning, RuntimeWarning):
    """The ranks of a host cannot share memory and communicate by messages; the text says why.

    The first rank of the host issues it, once in a process. Results are the same, but take longer.
    """


class TimelineWarning(CollectivesWarning, RuntimeWarning):
    """The file of a timeline, or of the trace of a run, lacks some records of a rank; the text says
    why."""
