"""Memory of the fake GPU: each allocation is a file in memory that is mapped twice.

The library sees an address where the host may not read or write, unless the memory is pinned or
managed. The threads of the streams use a second mapping, between two pages that nobody may touch.
An allocation ends as near to the end of a page as its alignment of 512 bytes allows; what its
pages hold beside it must not change.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import mmap
import os
import struct
import threading
import uuid
from typing import TYPE_CHECKING, NamedTuple

import fake_log
import numpy as np
from fake_errors import InvalidAddress, InvalidHandle, StillInUse, caller

if TYPE_CHECKING:
    from fake_order import Op

PAGE = mmap.PAGESIZE
ALIGNMENT = 512
POISON, MARGIN = 0xF5, 0xC7  # the bytes of new memory, and those beside it in its pages
NONE, READ, WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
RESERVED = 1 << 40

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def checked(result: int | None, call: str) -> int:
    """Return what a call of libc returned, or raise its error."""
    if result is None or result in (-1, 2**64 - 1):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
    return result


def reserve(nbytes: int, address: int | None = None) -> int:
    """Return addresses that nobody may touch; those at `address`, if it is given."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    flags |= 0 if address is None else MAP_FIXED
    return checked(libc.mmap(address, nbytes, NONE, flags, -1, 0), "mmap")


def map_file(fd: int, nbytes: int, address: int) -> None:
    """Map a file at an address that was reserved."""
    flags = mmap.MAP_SHARED | MAP_FIXED
    checked(libc.mmap(address, nbytes, WRITE, flags, fd, 0), "mmap")


def up(number: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-number // unit) * unit


class Space:
    """Addresses of this process. They are used once, unless reuse is asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.next = self.end = 0
        self.given: dict[int, list[int]] = {}

    def take(self, nbytes: int, reuses: bool) -> int:
        """Return reserved addresses, the last ones given back if they may come again."""
        with self.lock:
            if reuses and self.given.get(nbytes):
                return self.given[nbytes].pop()
            room = nbytes + PAGE  # behind each allocation is a page of nobody
            if self.next + room > self.end:
                length = max(RESERVED, room)
                self.next = reserve(length)
                self.end = self.next + length
            base, self.next = self.next, self.next + room
            return base

    def give(self, base: int, nbytes: int) -> None:
        """Take addresses back."""
        with self.lock:
            self.given.setdefault(nbytes, []).append(base)


SPACE = Space()


class Span(NamedTuple):
    """Bytes in memory: `rows` pieces of `width` bytes, which begin `pitch` bytes after another."""

    address: int
    width: int
    pitch: int = 0
    rows: int = 1

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + (self.rows - 1) * self.pitch + self.width

    def plain(self) -> Span:
        """Return the same bytes as one piece, if they are."""
        if self.rows > 1 and self.pitch == self.width:
            return Span(self.address, self.width * self.rows)
        return self

    def starts(self) -> np.ndarray:
        """Return where the pieces begin."""
        return self.address + np.arange(self.rows, dtype=np.int64) * self.pitch

    def pieces(self) -> list[tuple[int, int]]:
        """Return where the pieces begin and end."""
        return [(int(start), int(start) + self.width) for start in self.starts()]

    def overlaps(self, other: Span) -> bool:
        """Return whether both have a byte in common."""
        if not self.width or not other.width:
            return False
        if self.end <= other.address or other.end <= self.address:
            return False
        if self.rows == other.rows == 1:
            return True
        few, many = sorted((self, other), key=lambda each: each.rows)
        begins, starts = few.starts(), many.starts()
        first = np.searchsorted(starts, begins - many.width, side="right")
        last = np.searchsorted(starts, begins + few.width, side="left")
        return bool((first < last).any())

    def covers(self, other: Span) -> bool:
        """Return whether all bytes of another one are here, as far as that is simple to see."""
        inside = self.address <= other.address and other.end <= self.end
        return self == other or (self.rows == 1 and inside)


class Access(NamedTuple):
    """An operation reads or writes bytes."""

    op: Op
    span: Span
    is_write: bool


class Allocation:
    """Memory of a device or pinned memory, here or of another process.

    Parameters
    ----------
    kind : str
        "device", "managed", "pinned", or "imported" from another process.
    fd : int, optional
        The file of another process.
    offset : int, optional
        Where the memory begins in that file.
    is_host_visible : bool
        Whether this process may touch memory of a device, where no operation in flight does.
    """

    def __init__(
        self,
        kind: str,
        device: int,
        nbytes: int,
        *,
        reuses: bool = False,
        fd: int | None = None,
        offset: int = 0,
        is_host_visible: bool = False,
    ) -> None:
        self.kind, self.device, self.nbytes = kind, device, nbytes
        self.where = caller()
        self.size = up(nbytes, PAGE)
        self.offset = offset
        if fd is None:
            self.offset = (self.size - nbytes) // ALIGNMENT * ALIGNMENT
            fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
            os.ftruncate(fd, self.size + PAGE + fake_log.NBYTES)  # these two are for `export`
        self.fd = fd
        self.base = SPACE.take(self.size, reuses)
        self.address = self.base + self.offset
        self.is_host_visible = is_host_visible or kind in ("pinned", "managed")
        if self.is_host_visible:
            map_file(fd, self.size, self.base)
        self.pages = np.full(self.size // PAGE, WRITE, np.uint8)  # what the host may do
        self.guarded = reserve(self.size + 2 * PAGE)
        map_file(fd, self.size, self.guarded + PAGE)
        self.secret = self.guarded + PAGE + self.offset
        self.accesses: list[Access] = []
        self.cookie = self.handle = b""
        self.is_of_array = False  # of `fake_arrays`, so no leak
        self.opened = 1  # how often, if it is of another process
        self.log: fake_log.Log | None = None  # what processes do to it, if several may
        if kind != "imported":
            ctypes.memset(self.guarded + PAGE, MARGIN, self.size)
            ctypes.memset(self.secret, POISON, nbytes)

    def __str__(self) -> str:
        return f"{self.nbytes} bytes ({self.kind}) that were made at {self.where}"

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + self.nbytes

    @property
    def is_exported(self) -> bool:
        """Return True if another process may use it."""
        return bool(self.cookie)

    def hidden(self, address: int) -> int:
        """Return where the threads of the streams find an address."""
        return self.secret + address - self.address

    def rows(self, span: Span) -> np.ndarray:
        """Return bytes as the threads of the streams see them."""
        length = span.end - span.address
        memory = (ctypes.c_uint8 * length).from_address(self.hidden(span.address))
        return np.ndarray((span.rows, span.width), np.uint8, memory, 0, (span.pitch, 1))

    def check_margins(self) -> None:
        """Raise if something beside the memory was overwritten."""
        whole = (ctypes.c_uint8 * self.size).from_address(self.guarded + PAGE)
        pages = np.frombuffer(whole, np.uint8)
        before, behind = pages[: self.offset], pages[self.offset + self.nbytes :]
        if (before != MARGIN).any() or (behind != MARGIN).any():
            side = "before the beginning" if (before != MARGIN).any() else "past the end"
            raise InvalidAddress(f"something wrote {side} of {self}")

    def protect(self) -> None:
        """Let the host use what no operation in flight uses, in whole pages."""
        if not self.is_host_visible:
            return
        pages = np.full_like(self.pages, WRITE)
        for _, span, is_write in self.accesses:
            few = span.rows if span.width >= PAGE else 0
            for start, end in span.pieces() if few else ():
                first, last = up(start - self.base, PAGE) // PAGE, (end - self.base) // PAGE
                pages[first:last] = np.minimum(pages[first:last], NONE if is_write else READ)
        changed = np.flatnonzero(pages != self.pages)
        if not len(changed):
            return
        ends = np.flatnonzero(np.diff(changed) != 1)
        for run in np.split(changed, ends + 1):
            for part in np.split(run, np.flatnonzero(np.diff(pages[run].astype(int))) + 1):
                address, length = self.base + int(part[0]) * PAGE, len(part) * PAGE
                checked(libc.mprotect(address, length, int(pages[part[0]])), "mprotect")
        self.pages = pages

    def unmap(self) -> None:
        """Give the memory back to the system. Its addresses stay reserved."""
        if self.is_host_visible:
            reserve(self.size, self.base)
        checked(libc.munmap(self.guarded, self.size + 2 * PAGE), "munmap")
        os.close(self.fd)
        SPACE.give(self.base, self.size)

    # -- other processes -----------------------------------------------------------------------

    def export(self) -> bytes:
        """Return 64 bytes from which another process maps this memory."""
        if not self.cookie:
            self.cookie = uuid.uuid4().bytes
            os.pwrite(self.fd, self.cookie, self.size)
            self.log = fake_log.Log(self.fd, self.size + PAGE)
        head = (b"fmem", os.getpid(), self.fd, self.nbytes, self.offset, self.cookie)
        return HANDLE.pack(*head)

    def withdraw(self) -> None:
        """Let nobody open it any more; raise if another process has it open."""
        if not self.is_exported:
            return
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StillInUse(f"another process has not closed {self}") from None
        os.pwrite(self.fd, bytes(16), self.size)
        fcntl.flock(self.fd, fcntl.LOCK_UN)


HANDLE = struct.Struct("<4sIIQQ16s20x")


def open_file(pid: int, fd: int, what: str) -> int:
    """Return a file of another process."""
    if pid == os.getpid():
        raise InvalidHandle(f"a handle of {what} cannot be opened in the process that made it")
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidHandle(f"{what} was freed, or its process has ended ({error})") from None


def open_memory(handle: bytes, device: int, reuses: bool) -> Allocation:
    """Map memory of another process. A lock on the file tells its owner that somebody has it."""
    if len(handle) != HANDLE.size or not handle.startswith(b"fmem"):
        raise InvalidHandle(f"no handle of memory: {handle!r}")
    _, pid, number, nbytes, offset, cookie = HANDLE.unpack(handle)
    fd = open_file(pid, number, "memory of another process")
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.pread(fd, 16, up(nbytes, PAGE)) != cookie:
            raise BlockingIOError
    except BlockingIOError:
        os.close(fd)
        raise InvalidHandle("memory of another process was freed") from None
    found = Allocation("imported", device, nbytes, reuses=reuses, fd=fd, offset=offset)
    found.cookie, found.handle = cookie, handle
    found.log = fake_log.Log(fd, found.size + PAGE)
    return found


class Table:
    """The allocations of a driver by address, and those that were."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.live: dict[int, Allocation] = {}
        self.freed: list[tuple[int, int, str]] = []

    def add(self, allocation: Allocation) -> None:
        """Note an allocation."""
        bisect.insort(self.addresses, allocation.address)
        self.live[allocation.address] = allocation

    def remove(self, allocation: Allocation) -> None:
        """Forget an allocation, but not that it was there."""
        del self.live[allocation.address]
        self.addresses.remove(allocation.address)
        story = f"{allocation}, and freed at {caller()}"
        bisect.insort(self.freed, (allocation.address, allocation.nbytes, story))

    def find(self, address: int) -> Allocation | None:
        """Return what lies at an address."""
        index = bisect.bisect_right(self.addresses, address) - 1
        if index >= 0:
            found = self.live[self.addresses[index]]
            if address < found.end:
                return found
        return None

    def story(self, address: int) -> str | None:
        """Describe the allocation that was at an address and is freed, or return None."""
        index = bisect.bisect_right(self.freed, address, key=lambda each: each[0]) - 1
        if index >= 0 and address < self.freed[index][0] + self.freed[index][1]:
            return self.freed[index][2]
        return None

    def at(self, address: int, verb: str = "use") -> Allocation:
        """Return what lies at an address, or raise."""
        found = self.find(address)
        if found is None:
            story = self.story(address)
            if story is not None:
                raise InvalidAddress(f"{verb} after free: {address:#x} was in {story}")
            raise InvalidAddress(f"{verb} of {address:#x}, which no device knows")
        return found

    def begin(self, address: int, verb: str, kinds: tuple[str, ...]) -> Allocation:
        """Return the allocation of some kinds that begins at an address, or raise."""
        found = self.at(address, verb)
        if found.address != address:
            raise InvalidAddress(f"{verb} of {address:#x}, which is in the middle of {found}")
        if found.kind not in kinds:
            raise InvalidAddress(f"{verb} of {found}, which is for {' or '.join(kinds)} memory")
        return found

    def holding(self, span: Span) -> Allocation:
        """Return the allocation that holds all these bytes, or raise."""
        found = self.at(span.address)
        if span.end > found.end:
            raise InvalidAddress(
                f"bytes {span.address - found.address} to {span.end - found.address} cross the end "
                f"of {found}"
            )
        return found
