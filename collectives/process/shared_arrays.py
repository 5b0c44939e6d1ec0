"""NumPy's arrays in memory that the other ranks of the host can map: a heap for each process.

This module decides whether there may be a heap, and gives the reason if not; the core makes the
heap and allocates its memory (`_core/shared/heap.c`).
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from collectives import _core
from collectives.errors import SharedMemoryWarning
from collectives.process import environment, segment
from collectives.text.origin import levels

OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
STRICT = "2"  # then the memory of a file is not reserved, and may be missing when it is touched


@contextmanager
def shared_arrays() -> Iterator[None]:
    """Make new NumPy arrays in memory that the ranks of the host share.
    Local.

    Arrays of 16 KiB and more that are made in the body of the ``with`` statement are in a heap of
    this rank, which the other ranks of the host map when a collective first uses it. Collectives
    read and write these arrays, their views, and arrays of other libraries that share their memory
    in place, as they do with arrays of `Communicator.empty`. Some ranks may have such arrays while
    others have not.

    If this is not possible, arrays are ordinary ones, after one warning.

    Raises
    ------
    ArgumentError
        If ``COLLECTIVES_SHM`` or ``COLLECTIVES_SHM_LIMIT`` has an invalid value.

    Warns
    -----
    SharedMemoryWarning
        Once in a process, if there can be no such memory, and once if it is full.

    Notes
    -----
    The arrays may be used after the ``with`` statement, and may outlive all communicators. The
    statement applies to the current context (`contextvars`), and not to threads that begin in it;
    ``COLLECTIVES_SHARED_ARRAYS=1`` and ``collectives run --shared-arrays`` apply to all arrays of a
    program.

    A forked child has copies of these arrays. Those that no collective had used before the fork are
    ordinary arrays afterwards, which collectives copy.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> with cc.shared_arrays():
    ...     x = np.ones(100_000, np.float32)
    >>> float(cc.allreduce(x)[0]) == cc.size()
    True
    """
    if problem():
        yield
        return
    earlier = _core.begin_shared_arrays()
    try:
        yield
    finally:
        _core.end_shared_arrays(earlier)


def begin() -> None:
    """Share all arrays of the program, if ``COLLECTIVES_SHARED_ARRAYS`` is set. Local."""
    if environment.flag(environment.SHARED_ARRAYS) and not problem():
        _core.share_all_arrays()


def problem() -> str:
    """Return why there is no heap, after a warning, or "". Local."""
    reason = why_not()
    if reason:
        _warn(reason)
    return reason


def why_not() -> str:
    """Make the heap of this process; return why there is none, or "". Local."""
    settings = segment.settings()
    if settings["kind"] == "0":
        return "COLLECTIVES_SHM=0"
    try:
        with open(OVERCOMMIT, encoding="ascii") as file:
            strict = file.read().strip() == STRICT
    except OSError:
        strict = False
    if strict:
        return f"{OVERCOMMIT} is {STRICT}, and memory of files cannot be set aside"
    try:
        _core.open_heap(settings["limit_bytes"])
    except OSError as error:
        return f"no memory can be reserved for them: {os.strerror(error.errno or 0)}"
    return ""


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"arrays are not in shared memory, and collectives copy them: {reason}",
        SharedMemoryWarning,
        stacklevel=levels(),
    )
