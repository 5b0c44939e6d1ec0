# Shared memory for Python: a mapped segment, the recorded calls of ranks, and their presence.

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from weakref import WeakSet

from collectives.text.words import differing
from collectives.text.words import ranks as rank_names

cdef extern from "<fcntl.h>" nogil:
    ctypedef long off_t
    struct flock:
        short l_type
        short l_whence
        off_t l_start
        off_t l_len
        int l_pid
    int F_GETLK
    int F_OFD_SETLK
    int F_SETLK
    short F_WRLCK
    short F_UNLCK
    int fcntl(int, int, ...)

# Reasons why a rank gives up; values of cc_shared.why.
cdef enum:
    GAVE_UP = 1
    GAVE_UP_WAITING = 2
    DISAGREED = 3
    LOST = 4
    LEFT = 5

# Calls that wait for a message, by their numbers in cc_rank_area.waits.
EXCHANGES = "recv", "send", "sendrecv"

# Ways to be gone in good order; values of cc_rank_area.gone.
cdef enum:
    FREED = 1
    ENDED = 2


# Segments that are mapped by this process.
cdef object mapped = WeakSet()


def mapped_bytes():
    """Return the size of all segments of this process. Local."""
    return sum([each.nbytes for each in mapped])


def take_leave_all():
    """Tell the other ranks of all communicators that this process will end in good order. Local.

    Return the calls that only some ranks have made, on the last rank of a communicator to leave.
    """
    unmatched = []
    if not forked:
        cc_write(&flight.has_left, True)
    for each in list(mapped):
        (<Segment>each).take_leave(ENDED)
        unmatched += (<Segment>each).unmatched()
    return unmatched


def is_stopped(int64_t process):
    """Return whether a process of this host is stopped by a signal. Local.

    Parameters
    ----------
    process : int
        The ID of the process.
    """
    cdef bytes path = f"/proc/{process}/stat".encode()
    cdef int64_t number
    cdef uint64_t began
    cdef char state
    return cc_process_stat(path, &number, &state, &began) == 0 and state == b"T"


cdef tuple mappings(segment):
    """Return the objects that keep shared memory mapped, if there is any."""
    return () if segment is None else (<Segment>segment).mappings()


def ring_places(int64_t nbytes, int64_t width, operations):
    """Return the places of the pages of operations in a ring, for tests and pictures. Local.

    Parameters
    ----------
    nbytes, width : int
        Bytes of the ring, and those after which it is used again if pages are not long.
    operations : sequence of (int, int)
        The number of pages of each operation, and the bytes of each of its pages.

    Returns
    -------
    list of (int, int, int)
        For each page: its first byte, the byte behind it, and the number of pages that all ranks
        must have finished before it is written.
    """
    cdef cc_ring ring
    cdef cc_run run
    cdef int64_t pages, room, i, start, needs
    cdef int64_t page = 0
    places = []
    cc_ring_open(&ring, nbytes, width)
    for pages, room in operations:
        cc_ring_take(&ring, page, pages, room, &run)
        for i in range(pages):
            start = run.first + i % run.slots * room if room else 0
            needs = max(<int64_t>cc_run_needs(&run, page, i), page + i + 1 - CC_LANES, 0)
            places.append((start, start + room, needs))
        page += pages
    return places


def process_space():
    """Return the namespace of this process's number; 0 if others cannot use it. Local."""
    cdef uint64_t began
    return cc_process_space(&began)


def allow_reads():
    """Let other processes of this user read the memory of this one, even under Yama. Local."""
    cc_allow_reads()


def segment_bytes(int p, int nlines, int64_t lane_bytes):
    """Return the size of a segment of `p` ranks. Local."""
    return cc_segment_bytes(p, nlines, lane_bytes)


# The garbage collector must not clear its memory, to which it writes at its end.
@cython.no_gc_clear
@cython.final
cdef class Segment:
    """Memory that the ranks of one host share; `collectives.process.segment` makes it.

    Each rank holds a lock on the byte of the file with its number. The kernel releases the lock at
    any end of the process, in any namespace, so others see which ranks are there. The lock belongs
    to an open file that nothing else uses, so that it stays if the process opens and closes the
    file in other ways. Ranks that see each other's processes also look for the process before they
    consider it dead.
    """

    cdef cc_segment c
    cdef object __weakref__
    cdef Py_buffer memory
    cdef readonly object ranks  # their numbers in the communicator
    cdef cc_own_file own  # the file with the lock
    cdef list kept  # the memory of the windows, by their numbers
    cdef readonly set released  # numbers of windows whose arrays are gone on this rank
    cdef public object map_heap  # a function that maps the heap of another rank
    cdef dict heaps  # the results of that function

    def __cinit__(self, memory, int file, ranks, int me, int nlines, int64_t lane_bytes):
        cdef flock lock
        self.own.file = -1
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        if <size_t>self.memory.len < cc_segment_bytes(len(ranks), nlines, lane_bytes):
            raise ValueError("the segment is too small")
        cdef cc_rank_area *mine
        if cc_segment_open(&self.c, self.memory.buf, len(ranks), me, nlines, lane_bytes):
            raise MemoryError
        self.kept = [None]
        self.heaps = {}
        self.released = set()
        self.ranks = list(ranks)
        mine = &self.c.ranks[me]
        mine.pid = os.getpid()
        mine.space = cc_process_space(&mine.began)
        if cc_own(&self.own, file):
            raise MemoryError
        lock.l_type = F_WRLCK
        lock.l_whence = 0
        lock.l_start = me
        lock.l_len = 1
        lock.l_pid = 0
        # Kernels without locks of open files have locks of processes.
        if fcntl(file, F_OFD_SETLK, &lock) and fcntl(file, F_SETLK, &lock):
            raise OSError("the file of the segment cannot be locked")
        mapped.add(self)

    def __dealloc__(self):
        self.let_go()
        cc_segment_close(&self.c)
        PyBuffer_Release(&self.memory)

    cdef void let_go(self) noexcept:
        if self.own.file >= 0:
            self.take_leave(FREED)
        cc_disown(&self.own)

    cdef void take_leave(self, int how) noexcept:
        """Tell the other ranks that this one will not come back. Local."""
        if not forked and self.c.ranks[self.c.me].gone != ENDED:
            cc_write(<uint64_t *>&self.c.ranks[self.c.me].gone, how)
            cc_fence()  # so the last of the ranks that check each other next sees all of them

    cdef int64_t gone(self, int number) noexcept:
        """Return how a rank is gone, or 0; then its earlier writes may be read."""
        return <int64_t>cc_read(<uint64_t *>&self.c.ranks[number].gone)

    cdef list unmatched(self):
        """Return the first call that only some ranks made before all of them left, if there is one.

        Only the first rank that finds all of them gone returns it. Calls that ended with an error
        do not count, because the error has been raised.
        """
        cdef uint64_t what[3]
        cdef int i
        if forked or any([self.gone(i) != ENDED for i in range(self.c.p)]):
            return []
        calls = [cc_read(&self.c.ranks[i].started) for i in range(self.c.p)]
        first, most = min(calls), max(calls)
        if first == most or cc_call_of(&self.c, <int>calls.index(most), first, what) != 1:
            return []
        if any([calls[i] > cc_read(&self.c.ranks[i].ended) for i in range(self.c.p)]):
            return []
        cc_give_up(&self.c, LEFT, first, b"")
        if self.c.shared.given_up != <uint64_t>(self.c.me + 1):
            return []
        made = rank_names(sum([1 << self.ranks[i] for i in range(self.c.p) if calls[i] > first]))
        lack = rank_names(sum([1 << self.ranks[i] for i in range(self.c.p) if calls[i] <= first]))
        return [
            f"{made} called {called(what)}, and {lack} ended without that call: is it under an if?"
        ]

    def leave(self):
        """Leave the segment for good. Local."""
        self.let_go()

    @property
    def nbytes(self):
        return self.c.nbytes

    @property
    def kind(self):
        """``"memfd"`` for a file that never had a name, ``"file"`` for one that had."""
        path = os.readlink(f"/proc/self/fd/{self.own.file}")
        return "memfd" if path.startswith("/memfd:") else "file"

    @property
    def lanes(self):
        return CC_LANES

    @property
    def lane_bytes(self):
        return self.c.lane_bytes

    @property
    def windows(self):
        """One less than the numbers of windows in use: 0 if there was no `add_window`."""
        return self.c.nwindows - 1

    @property
    def lines(self):
        return self.c.nlines

    def add_window(self, memory, size_t start, size_t nbytes):
        """Let others read this rank's part of other shared memory: `nbytes` from `start` on.
        Local, but all ranks must add and drop the same windows in the same order.

        Return the number of the window.
        """
        cdef Py_buffer view
        cdef cc_window *window
        cdef int number = self.c.nwindows
        if None in self.kept[1:]:
            number = self.kept.index(None, 1)
        elif number == CC_WINDOWS:
            raise CommunicatorError(
                f"the communicator has {CC_WINDOWS - 1} arrays in shared memory, and no room for "
                f"another"
            )
        else:
            self.kept.append(None)
            self.c.nwindows += 1
        window = &self.c.windows[number]
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        window.base = <char *>view.buf
        PyBuffer_Release(&view)  # as long as it is kept, it stays where it is
        window.mine = window.base + start
        window.nbytes = nbytes
        self.kept[number] = memory
        return number

    def move_rings(self, addresses, int64_t lane_bytes):
        """Move the rings of all ranks to other addresses of this process, in the memory of devices.
        Local, but all ranks must do it before anything is published.

        Parameters
        ----------
        addresses : sequence of int
            The ring of each rank, with room for `lanes` lanes.
        lane_bytes : int
        """
        cdef char **rings = <char **>PyMem_Malloc(self.c.p * sizeof(char *))
        cdef int i
        if rings == NULL:
            raise MemoryError
        for i in range(self.c.p):
            rings[i] = <char *><uintptr_t>addresses[i]
        cc_segment_move_rings(&self.c, rings, lane_bytes)
        self.kept += [None] * self.c.p
        PyMem_Free(rings)

    cdef int map_heaps(self) except -1:
        """Map the heaps that other ranks have offered since the last call."""
        cdef cc_rank_area *area
        cdef Py_buffer view
        cdef int i
        self.c.heaps_seen = cc_read(&self.c.shared.heaps)
        for i in range(self.c.p):
            area = &self.c.ranks[i]
            if i == self.c.me or i in self.heaps or not cc_read(&area.heap_bytes):
                continue
            process = area.pid if area.space == self.c.ranks[self.c.me].space else None
            self.heaps[i] = self.map_heap(
                self.ranks[i], process, area.heap_file, area.heap_inode, area.heap_bytes
            )
            if self.heaps[i] is None:
                continue
            PyObject_GetBuffer(self.heaps[i], &view, PyBUF_WRITABLE)
            self.c.heaps[i] = <char *>view.buf
            PyBuffer_Release(&view)  # as long as it is kept, it stays where it is
            cc_write(&self.c.ranks[self.c.me].maps, self.c.ranks[self.c.me].maps | <uint64_t>1 << i)
        return 0

    @property
    def maps(self):
        """The number of other ranks whose arrays this one can read in place."""
        return sum([each is not None for each in self.heaps.values()])

    @property
    def lends(self):
        """True if the other ranks can read shared arrays of this one in place."""
        return bool(self.c.heap_is_mapped)

    def probe(self, passports):
        """Read and write back a token of each other rank; note whether the kernel allows it. Local.

        Parameters
        ----------
        passports : sequence of (int, int, int, bytes) or None
            For each rank, its process and the namespace of that number, and a token of 16 bytes:
            its address and its value. None for a rank that is not read.
        """
        cdef unsigned char[16] got
        cdef cc_rank_area *mine = &self.c.ranks[self.c.me]
        cdef int error = 0
        for passport in passports if None not in passports else ():
            pid, space, address, token = passport
            error = ESRCH
            if space and space == mine.space:
                error = cc_read_process(pid, got, address, 16)
                if error == 0 and <bytes>got[:16] != token:
                    error = ESRCH
                error = error or cc_write_process(pid, address, got, 16)
            if error:
                break
        mine.reads = -error if error else None not in passports

    def settle_reads(self, bint always):
        """Let ranks read each other's memory, if all could in probe(); and lend the arrays of this
        one in every call, if `always`. Local, when all have probed.
        """
        self.c.reads = all([each == 1 for each in self.may_read()]) * (1 + always)

    def may_read(self):
        """Return for each rank 1 if it may read the memory of the others, 0 if that was not tried,
        or the negative number of an error. Local.
        """
        return [self.c.ranks[i].reads for i in range(self.c.p)]

    @property
    def reads(self):
        """True if all ranks may read each other's memory."""
        return bool(self.c.reads)

    def all_finished(self, uint64_t page):
        """Return whether all ranks have finished the pages below one. Local."""
        return bool(cc_all_finished(&self.c, page))

    def drop_windows(self, numbers):
        """Forget windows whose arrays are gone on all ranks, which must do the same. Local."""
        for number in numbers:
            self.c.windows[<int>number] = cc_window(NULL, NULL, 0)
            self.kept[number] = None
        self.released.difference_update(numbers)

    cdef bint is_there(self, int number) noexcept:
        """Return whether the process of a rank still runs."""
        cdef flock lock
        if number == self.c.me:
            return True
        lock.l_type = F_WRLCK
        lock.l_whence = 0
        cdef const cc_rank_area *area = &self.c.ranks[number]
        lock.l_start = number
        cdef bint unknown
        cdef int runs
        lock.l_len = 1
        lock.l_pid = 0
        unknown = fcntl(self.own.file, F_GETLK, &lock) != 0
        if not unknown and lock.l_type != F_UNLCK:
            return True
        if self.gone(number):
            return unknown
        # The program may have closed the file of either rank.
        runs = cc_process_runs(area.pid, area.space, area.began, self.c.ranks[self.c.me].space)
        return unknown if runs < 0 else runs

    def lost(self):
        """Return (rank, process, whether it left in good order) of the ranks that are gone. Local.
        """
        return [
            (self.ranks[i], self.c.ranks[i].pid, bool(self.gone(i)))
            for i in range(self.c.p)
            if i != self.c.me and (self.gone(i) or not self.is_there(i))
        ]

    def ended(self):
        """Return (rank, process, whether in good order) of the ranks whose processes have ended, or
        are about to; none once this rank has left. Local.
        """
        if self.own.file < 0:
            return []
        return [
            each for each in self.lost()
            if not each[2] or self.gone(self.ranks.index(each[0])) == ENDED
        ]

    def running(self):
        """Return (rank, process) of the other ranks that have neither left nor ended; none once
        this rank has freed the segment. Local.
        """
        if self.own.file < 0:
            return []
        return [
            (self.ranks[i], self.c.ranks[i].pid)
            for i in range(self.c.p)
            if i != self.c.me and not self.gone(i) and self.is_there(i)
        ]

    def stopped(self):
        """Return (rank, process) of the ranks whose processes are stopped, as far as this one can
        see. Local.
        """
        return [
            (self.ranks[i], self.c.ranks[i].pid)
            for i in range(self.c.p)
            if self.c.ranks[i].space == self.c.ranks[self.c.me].space
            and not self.gone(i) and is_stopped(self.c.ranks[i].pid)
        ]

    cdef tuple mappings(self):
        """Return the objects that keep the memory of the segment and its windows mapped."""
        return <object>self.memory.obj, *self.kept, *self.heaps.values()

    def give_up(self, str text, error=None):
        """Make the other ranks raise PeerAbortedError, or the like, with a text. Local."""
        cdef bytes encoded = text.encode(errors="backslashreplace")[: CC_TEXT - 1]
        cc_give_up(&self.c, reason(error), self.c.calls, encoded)

    cdef uint64_t why(self) noexcept:
        """Return the code of the reason why a rank of the host has given up, or 0."""
        return cc_read(&self.c.shared.why)

    cdef int check_end(self) except -1:
        """Raise if a rank of the host has given up, and its text is there or never comes."""
        cdef cc_shared *shared = self.c.shared
        cdef uint64_t why = cc_read(&shared.why)
        if cc_read(&shared.given_up) == 0:
            return 0
        if why == 0 and self.is_there(<int>(shared.given_up - 1)):
            return 0  # the writer may be stopped: a later check finds the text
        rank = self.ranks[shared.given_up - 1]
        if why == DISAGREED:
            raise MismatchError(self.disagreement(shared.call))
        text = (<const char *>shared.text).decode(errors="replace") if why else "its process died"
        if why == LOST:
            raise PeerLostError(f"rank {rank} says: {text}")
        raise PeerAbortedError(f"rank {rank} gave up: {text}")

    cdef int check_calls(self, uint64_t call, const uint64_t *what) except -1:
        """Raise if another rank has made another call with this number; if its record is gone, if
        the rank has made other calls before the last one that both have begun.
        """
        cdef uint64_t theirs[3]
        cdef uint64_t last
        cdef int i, known
        for i in range(self.c.p):
            known = cc_call_of(&self.c, i, call, theirs)
            if known == 1 and not cc_same(theirs, what):
                self.disagree(call)
            last = min(self.c.calls, cc_read(&self.c.ranks[i].started)) - 1
            if known < 0 and cc_history_differs(&self.c, i, last):
                self.disagree(last)
        return 0

    cdef int disagree(self, uint64_t call) except -1:
        """Tell all ranks of the host that their calls differ, and raise MismatchError."""
        call = self.first_difference(call)
        cc_give_up(&self.c, DISAGREED, call, b"")
        raise MismatchError(self.disagreement(call))

    cdef uint64_t first_difference(self, uint64_t call) noexcept:
        """Return the first recorded call in which ranks differ, up to the given one.

        Ranks that had to wait for no other went on after it.
        """
        cdef uint64_t mine[3]
        cdef uint64_t theirs[3]
        cdef uint64_t number
        cdef int i
        for number in range(max(call + 1, <uint64_t>CC_CALLS) - CC_CALLS, call):
            if cc_call_of(&self.c, self.c.me, number, mine) != 1:
                continue
            for i in range(self.c.p):
                if cc_call_of(&self.c, i, number, theirs) == 1 and not cc_same(mine, theirs):
                    return number
        return call

    cdef str disagreement(self, uint64_t call):
        """Return the calls of all ranks of the host in words, after up to two seconds for them."""
        cdef uint64_t what[3]
        cdef int i, known
        cdef object key
        limit = now() + 2
        groups = {}
        names = set()
        for i in range(self.c.p):
            while True:
                known = cc_call_of(&self.c, i, call, what)
                if known or now() > limit or not self.is_there(i):
                    break
                with nogil:
                    nanosleep(&NAP_TIME, NULL)
            key = known
            if known == 1:
                key = what[0], what[1], what[2]
                names.add(call_name(what[0]))
            groups.setdefault(key, []).append(self.ranks[i])
        if len(groups) == 1 and isinstance(key, tuple):
            return f"the ranks did not agree on one of the calls before call {call + 1}"
        said = []
        for key, members in groups.items():
            if key == 0:
                text = "has not reached it"
            elif key == -1:
                text = "is further on"
            else:
                what[0], what[1], what[2] = key
                text = f"called {called(what)}"
                alike = [k for k in groups if isinstance(k, tuple) and k[:2] == key[:2]]
                if sum((k[2] ^ key[2]) & 0xFFFFFFFF == 0 for k in alike) > 1:
                    text += f" with options {what[2] >> 32:08x}"
            said.append(f"{rank_names(sum(1 << rank for rank in members))} {text}")
        told = f"the ranks do not agree on call {call + 1} of the communicator: {'; '.join(said)}"
        return told + differing(names)

    cdef set yet_to_begin(self, int64_t call):
        """Return the ranks of the host that have not begun their call of this number."""
        cdef int i
        return {
            self.ranks[i] for i in range(self.c.p)
            if cc_read(&self.c.ranks[i].started) <= <uint64_t>call
        }

    cdef set starters(self):
        """Return the ranks of the host whose programs have made nonblocking calls."""
        cdef int i
        return {self.ranks[i] for i in range(self.c.p) if cc_read(&self.c.ranks[i].starts)}

    cdef str wait_for_message(self, int i):
        """Return the wait that a rank of the host shows, in words, or None."""
        cdef uint64_t word = cc_read(&self.c.ranks[i].waits)
        if word == 0:
            return None
        peer = self.ranks[<int>(word & 0xFFFFFFFF) - 1]
        return f"waits in {EXCHANGES[word >> 32]} for rank {peer}"

    cdef list way_from(self, int rank):
        """Return the waits for messages that lead from a rank to this one, in words, or None."""
        cdef int i = self.ranks.index(rank) if rank in self.ranks else -1
        waits = []
        while i >= 0 and len(waits) < self.c.p and self.is_there(i):
            said = self.wait_for_message(i)
            if said is None:
                return None
            waits.append(f"rank {self.ranks[i]} {said}")
            i = <int>(cc_read(&self.c.ranks[i].waits) & 0xFFFFFFFF) - 1
            if i == self.c.me:
                return waits
        return None

    def doing(self, ranks=None):
        """Return a line for each rank of the host, or for some of them, with its current call.
        Local.
        """
        cdef uint64_t what[3]
        cdef uint64_t started, ended
        cdef int i
        lines = []
        stopped = dict(self.stopped())
        for i in range(self.c.p):
            if ranks is not None and self.ranks[i] not in ranks:
                continue
            started = cc_read(&self.c.ranks[i].started)
            ended = cc_read(&self.c.ranks[i].ended)
            halted = ", stopped" if self.ranks[i] in stopped else ""
            where = f"rank {self.ranks[i]} (process {self.c.ranks[i].pid}{halted})"
            if not self.is_there(i):
                lines.append(f"{where} has ended")
            elif (said := self.wait_for_message(i)) is not None:
                lines.append(f"{where} {said}")
            elif started == 0:
                lines.append(f"{where} has called nothing")
            else:
                cc_call_of(&self.c, i, started - 1, what)
                state = "is in" if ended < started else "has left"
                lines.append(f"{where} {state} call {started}, {called(what)}")
        return lines

    def round_trip(self, int rank, int count, double timeout=60):
        """Return the seconds of a round trip of a flag to another rank of the host.
        Collective between the two.

        It is the median of `count` times, each the mean of `VOLLEY` round trips.

        Raises
        ------
        PeerLostError
            If the other one has died.
        StallError
            If it does not join, or does not answer, for `timeout` seconds.
        """
        return flag_round_trip(self, self.ranks.index(rank), count, timeout)
