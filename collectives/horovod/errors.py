"""The errors of Horovod's interface, and the conversion of the library's own into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collectives.errors import ArgumentError, CollectivesError, UnsupportedTypeError
from collectives.text.words import error_text


class HorovodInternalError(RuntimeError):
    """A collective failed. Its cause (``__cause__``) is an error of `collectives.errors`.

    The text lists the submissions of the ranks, or names the ranks that are missing or lost.
    """

    # TensorFlow's AutoGraph only keeps the class of errors with this constructor.
    __init__ = Exception.__init__


class HorovodArgumentError(HorovodInternalError, ValueError):
    """A call is invalid on this rank, and nothing was submitted.

    Possible reasons are a wrong argument, a name that is in flight, a process set without this
    rank, or a missing call of `init`.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed.

    Parameters
    ----------
    skip_sync : bool
        Whether `elastic.run` may continue without sending the state of rank 0 to all ranks.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of the library as those of Horovod. Local."""
    try:
        yield
    except CollectivesError as error:
        raise translation(error) from error


def translation(error: CollectivesError) -> HorovodInternalError:
    """Return Horovod's error for one of the library."""
    kind = HorovodInternalError
    if isinstance(error, ArgumentError | UnsupportedTypeError):
        kind = HorovodArgumentError
    made: HorovodInternalError = kind(error_text(error))
    return made
