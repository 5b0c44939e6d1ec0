"""Shared memory of the ranks of one host: created by one rank, mapped by all, and freed at the end.

The memory is a file without a name (`memfd_create`). It always vanishes with the last process that
uses it, and does not depend on the size of ``/dev/shm``. The first rank of the host creates it; the
others open it through ``/proc``. If that is not possible, it is a file in ``/dev/shm``, whose
blocks are reserved at once. If this file needs a name, as between namespaces, the name is removed
as soon as all ranks have opened it. If that is not possible either, the ranks communicate through
MPI, after a warning with the reason.

A page takes memory only when its owner first writes to it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
import warnings
import weakref
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from collectives import _core
from collectives.errors import ArgumentError, CommunicatorError, SharedMemoryWarning
from collectives.process import environment, living
from collectives.text import logs
from collectives.text.origin import levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bytes of a lane, the memory where a rank publishes one segment of an operation.
LANE_BYTES = 1 << 20
SMALLEST_LANE = 64 << 10

# All segments of a process together take at most this part (one fourth) of the memory of the host,
# or of the limit of control groups. Its shared arrays may take as much.
PART_OF_MEMORY = 4

_PAGE = mmap.PAGESIZE

T = TypeVar("T")

# The ways for each value of COLLECTIVES_SHM, in order: memory without a file, a file without a
# name, and a file with a name, for ranks that do not see each other's processes.
WAYS: dict[str, tuple[str, ...]] = {
    "auto": ("memfd", "file", "named"),
    "memfd": ("memfd",),
    "file": ("file", "named"),
    "0": (),
}
_way: weakref.WeakKeyDictionary[_core.Segment, str] = weakref.WeakKeyDictionary()

# Settings for reads of private arrays by the kernel: if it allows them; also by opening this
# process to others of the user; never.
READS = ("auto", "1", "0")

_has_warned = False


class Gathering(Protocol):
    """The parts of a meeting that segments and mails use."""

    rank: int
    size: int
    members: list[int]

    def allgather(self, obj: Any) -> list[Any]: ...


class _Failure(Exception):
    """The reason why a segment cannot be created or opened."""


def bootstrap(meeting: Gathering, local: list[int], wishes: set[str]) -> _core.Segment | None:
    """Return the segment that this rank shares with the others of its host, or None. Collective."""
    segment, told = tried(meeting, local, wishes)
    if segment is None and told and meeting.rank == local[0]:
        is_hosted = isinstance(getattr(meeting, "mpi", None), _core.Context)
        _warn(told, "messages" if is_hosted else "MPI")
    return segment


def tried(
    meeting: Gathering, local: list[int], wishes: set[str], lane_bytes: int | None = None
) -> tuple[_core.Segment | None, dict[int, str]]:
    """Return the segment of `bootstrap`, and the problems of each rank of the host. Collective."""
    wish = "0" if "0" in wishes else wishes.pop() if len(wishes) == 1 else "auto"
    segment = None
    told: dict[int, list[str]] = {}
    for way in WAYS[wish]:
        had = segment
        segment, problems = _attempt(meeting, local, way, had, lane_bytes)
        if segment is not None and had is None:
            _way[segment] = way
            living.note(segment, meeting.members)
        for rank in local:
            if problems[rank] and problems[rank] not in told.get(rank, ()):
                told.setdefault(rank, []).append(problems[rank])
        if not any(problems):
            break
    return segment, {rank: "; ".join(reasons) for rank, reasons in told.items()}


def beside(meeting: Gathering, segment: _core.Segment, lane_bytes: int) -> tuple[Any, list[str]]:
    """Return another segment of the ranks of one, in the same kind of memory. Collective."""
    return _attempt(meeting, segment.ranks, _way[segment], None, lane_bytes)


def _attempt(
    meeting: Gathering,
    local: list[int],
    way: str,
    segment: _core.Segment | None,
    lane_bytes: int | None = None,
) -> tuple[_core.Segment | None, list[str]]:
    """Try one way to get a segment. Collective; ranks that need none take part for the others.

    Return the segment or None, and the problem of each rank.
    """
    nlines = 2 * len(local) + 16

    def create() -> tuple[int, str | None, int]:
        return _create(way, len(local), nlines, lane_bytes or _lane())

    def nbytes(lane: int) -> int:
        return _core.segment_bytes(len(local), nlines, lane)

    def use(file: int, memory: mmap.mmap, lane: int, passports: list[Any]) -> _core.Segment:
        # The file is opened again, because a mapped one stays open until its memory is released.
        own = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        made = _core.Segment(memory, own, local, local.index(meeting.rank), nlines, lane)
        made.map_heap = _heap_of
        made.probe([passports[each] for each in local])
        return made

    # The other ranks read the token in this process's memory, to test if the kernel allows it.
    token = np.frombuffer(bytearray(os.urandom(16)), np.uint8)
    passport = None
    if lane_bytes is None and _reads() != "0":
        if _reads() == "1":
            _core.allow_reads()
        passport = os.getpid(), _core.process_space(), token.ctypes.data, token.tobytes()
    if len(local) < 2 or segment is not None:
        return segment, _common(meeting, [], create, nbytes, use)[1]
    made, problems = _common(meeting, local, create, nbytes, use, os.urandom(16), passport)
    if made is not None and any(problems[each] for each in local):
        made.leave()
        made = None
    if made is not None:
        made.settle_reads(_reads() == "1")
    return made, problems


def _common(
    meeting: Gathering,
    local: list[int],
    create: Callable[[], tuple[int, str | None, int]],
    nbytes: Callable[[int], int],
    use: Callable[[int, mmap.mmap, int, list[Any]], T],
    token: bytes = b"",
    passport: Any = None,
) -> tuple[T | None, list[str]]:
    """Create a file on the first rank, with its path and its lane, and map it on all ranks of the
    host; return the result of `use`, and the problem of each rank. The memory begins with a token;
    `use` gets the passports of all ranks. Collective; ranks that share nothing take part for the
    others, with no ranks.
    """
    leads = local[:1] == [meeting.rank]
    file, path, offer, made, problem = -1, None, None, None, ""
    try:
        if leads:
            file, path, lane = create()
            memory = _map(file, nbytes(lane))
            memory[: len(token)] = token
            offer = path or f"/proc/{os.getpid()}/fd/{file}", lane, token
    except (_Failure, OSError) as error:
        problem = str(error)
    offers, passports = zip(*meeting.allgather((offer, passport)), strict=True)
    # Ranks use the memory before any of them leaves here, and may check the locks of others.
    try:
        if local and not leads:
            if offers[local[0]] is None:
                raise _Failure(f"rank {local[0]} has none")
            where, lane, token = offers[local[0]]
            file, memory = _open(where, nbytes(lane), token)
        if local and not problem:
            made = use(file, memory, lane, list(passports))
    except MemoryError:
        problem = "no memory"
    except (_Failure, OSError) as error:
        problem = str(error)
    problems = meeting.allgather(problem)
    if path:
        os.unlink(path)
    if file >= 0:
        os.close(file)
    return made, problems


def window(
    meeting: Gathering, segment: _core.Segment | None, sizes: list[int]
) -> NDArray[np.uint8] | None:
    """Return an array of bytes in new shared memory, a window of the segment. Collective.

    Windows whose arrays are gone on all ranks of the host are reused.
    """
    if segment is None:  # other hosts may have segments
        meeting.allgather(None)
        shared(meeting, None, 0)
        return None
    local = segment.ranks
    rank = meeting.rank
    ends = list(accumulate(sizes[each] + _PAGE - 1 & -_PAGE for each in local))
    starts = [0, *ends]
    released = meeting.allgather(segment.released.copy())
    segment.drop_windows(set.intersection(*(released[each] for each in local)))
    memory = shared(meeting, segment, max(ends[-1], _PAGE))
    assert memory is not None
    mine = starts[local.index(rank)]
    nbytes = sizes[rank]
    number = segment.add_window(memory, mine, nbytes)
    array = np.frombuffer(memory, np.uint8, nbytes, mine)
    if nbytes:
        end = ends[local.index(rank)]
        finalizer = weakref.finalize(array, _give_back, memory, mine, end, segment.released, number)
        finalizer.atexit = False
    else:
        segment.released.add(number)
    return array


def shared(meeting: Gathering, segment: _core.Segment | None, nbytes: int) -> mmap.mmap | None:
    """Return new memory of zeros that the ranks of a segment share. Collective; a rank without a
    segment takes part for the others, and gets None.
    """
    memory, problems = _common(
        meeting,
        [] if segment is None else segment.ranks,
        lambda: (*_file("" if segment is None else _way[segment], nbytes), 0),
        lambda _: nbytes,
        lambda file, memory, lane, passports: memory,
    )
    for each in problems:
        if each:
            raise CommunicatorError(f"no shared memory for an array: {each}")
    return memory


def _give_back(memory: mmap.mmap, start: int, end: int, released: set[int], number: int) -> None:
    """Release the memory of an array without references. The addresses stay reserved until the
    other ranks have released theirs, too.
    """
    released.add(number)
    if not _core.is_forked():
        with contextlib.suppress(OSError, ValueError):
            memory.madvise(mmap.MADV_REMOVE, start, end - start)


def _wish() -> str:
    wish = environment.text("COLLECTIVES_SHM") or "auto"
    if wish not in WAYS:
        raise ArgumentError(f"COLLECTIVES_SHM is {wish!r}, and must be auto, memfd, file or 0")
    return wish


def settings() -> dict[str, Any]:
    """Return the settings of segments, from the environment or by default. Local."""
    return {"kind": _wish(), "lane_bytes": _lane(), "limit_bytes": _limit(), "reads": _reads()}


def _reads() -> str:
    wish = environment.text("COLLECTIVES_SHM_READS") or "auto"
    if wish not in READS:
        raise ArgumentError(f"COLLECTIVES_SHM_READS is {wish!r}, and must be auto, 1 or 0")
    return wish


def unread(segment: _core.Segment) -> str:
    """Return why ranks may not read each other's memory, or an empty string. Local."""
    for rank, number in zip(segment.ranks, segment.may_read(), strict=True):
        if number == 0:
            return "COLLECTIVES_SHM_READS is 0"
        if number == -errno.ESRCH:
            return f"rank {rank} does not see the other processes, as in a container of its own"
        if number < 0:
            return f"the kernel does not let rank {rank}: {os.strerror(-number)}{_yama()}"
    return ""


def _yama() -> str:
    """Return the setting of Yama in words, if the kernel has it."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            scope = file.read().strip()
    except OSError:
        return ""
    helps = "; COLLECTIVES_SHM_READS=1 lets all processes of this user" if scope == "1" else ""
    return f" (kernel.yama.ptrace_scope is {scope}{helps})" if scope != "0" else ""


def _limit() -> int:
    from collectives.process import control_groups  # few programs need it before a communicator

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = min(memory, control_groups.memory() or memory)
    return environment.size("COLLECTIVES_SHM_LIMIT", max(1, memory // PART_OF_MEMORY))


def _lane() -> int:
    return environment.size("COLLECTIVES_SHM_LANE", LANE_BYTES) + 63 & ~63


def _create(way: str, p: int, nlines: int, lane: int) -> tuple[int, str | None, int]:
    """Return a file with room for a segment, its path if it has one, and the bytes of a lane."""
    lane = max(lane, 64 * nlines)  # room for a cache line of every publication
    while _core.mapped_bytes() + _core.segment_bytes(p, nlines, lane) > _limit():
        if lane // 2 < SMALLEST_LANE:
            raise _Failure(
                f"the segments of this process would have more than {_limit()} bytes "
                f"(COLLECTIVES_SHM_LIMIT)"
            )
        lane //= 2
    while True:
        try:
            return *_file(way, _core.segment_bytes(p, nlines, lane)), lane
        except (AttributeError, OSError) as error:
            raise _Failure(f"{way}: {error}") from None
        except _Failure:
            if lane // 2 < SMALLEST_LANE:
                raise
            lane //= 2


def _file(way: str, nbytes: int) -> tuple[int, str | None]:
    """Return a file of some bytes, and its path if it has one."""
    path = None
    if way == "memfd":
        file = os.memfd_create("collectives", os.MFD_CLOEXEC)
        os.ftruncate(file, nbytes)
        return file, None
    flags = os.O_RDWR | os.O_CLOEXEC
    if way == "file":
        file = os.open("/dev/shm", flags | os.O_TMPFILE, 0o600)
    else:
        path = f"/dev/shm/collectives-{os.getpid()}-{os.urandom(8).hex()}"
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        os.close(file)
        if path:
            os.unlink(path)
        raise _Failure(f"/dev/shm has no room for {nbytes} bytes: {error}") from None
    return file, path


def _map(file: int, nbytes: int) -> mmap.mmap:
    return mmap.mmap(file, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _opened(path: str) -> int:
    """Return the file of another rank's memory, if only this user can write to it.

    Any writer of a store can offer a path, and objects are unpickled from this memory.
    """
    if not re.fullmatch(r"/proc/\d+/fd/\d+|/dev/shm/collectives-\d+-[0-9a-f]{16}", path):
        raise _Failure(f"{path} is not the memory of a rank")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    about = os.fstat(file)
    is_memory = stat.S_ISREG(about.st_mode) and about.st_nlink == path.startswith("/dev/")
    if about.st_uid != os.geteuid() or not is_memory:
        os.close(file)
        raise _Failure(f"{path} belongs to another user, or is not the memory of a rank")
    return file


def _open(path: str, nbytes: int, token: bytes) -> tuple[int, mmap.mmap]:
    """Return the file and the memory of another rank, which begins with a token."""
    file = _opened(path)
    try:
        if os.fstat(file).st_size < nbytes:
            raise _Failure(f"{path} is another file here")
        memory = _map(file, nbytes)
        if memory[: len(token)] != token:
            raise _Failure(f"{path} is another file here")
        return file, memory
    except BaseException:
        os.close(file)
        raise


# The heaps of other processes, as long as a segment uses them, by process and file.
_heaps: weakref.WeakValueDictionary[tuple[int, int], mmap.mmap] = weakref.WeakValueDictionary()


def _heap_of(
    rank: int, process: int | None, file: int, inode: int, nbytes: int
) -> mmap.mmap | None:
    """Return the heap of another rank's shared arrays; None after a warning. Local.

    `process` is None if it is in another namespace.
    """
    try:
        if process is None:
            raise _Failure("its process is in another PID namespace")
        memory = _heaps.get((process, inode))
        if memory is not None:
            return memory
        path = f"/proc/{process}/fd/{file}"
        opened = _opened(path)
        try:
            about = os.fstat(opened)
            if about.st_ino != inode or about.st_size < nbytes:
                raise _Failure(f"{path} is another file here")
            memory = _heaps[process, inode] = _map(opened, nbytes)
        finally:
            os.close(opened)
    except (_Failure, OSError) as error:
        text = f"the shared arrays of rank {rank} cannot be mapped, and are copied: {error}"
        logs.note("WARNING", text)
        warnings.warn(text, SharedMemoryWarning, stacklevel=levels())
        return None
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_DONTDUMP)
    return memory


def _warn(problems: dict[int, str], way: str) -> None:
    """Warn once that the ranks do not share memory, with the reason and their transport."""
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    rank, why = next(iter(problems.items()))
    text = (
        f"the ranks of this host cannot share memory and communicate through {way}, "
        f"which is slower: rank {rank}: {why}"
    )
    logs.note("WARNING", text)
    warnings.warn(text, SharedMemoryWarning, stacklevel=levels())
