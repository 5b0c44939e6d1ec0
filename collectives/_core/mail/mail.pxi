# Messages between ranks without MPI's, for Python.

cdef bint mailed = False  # whether this process sends messages without MPI
cdef object mails = WeakSet()  # those that reach other hosts


def bind_mail(str place):
    """Make all communicators of this process send their messages without MPI. Local.

    Parameters
    ----------
    place : str
        The rank of this process and the number of ranks, for texts of errors.
    """
    global transport, mailed, world_place, carrier, main_thread
    if transport != NULL and not mailed:
        raise CommunicatorError(
            "this process communicates through MPI already, and cannot be a rank of a job without "
            "it: make the job before anything communicates"
        )
    if transport == NULL:
        world_place = place
        carrier = "communication"
        main_thread = pthread_self()
        transport = &cc_mail_transport
        mailed = True


def uses_mpi():
    """Return whether this process communicates through MPI. Local."""
    return transport != NULL and not mailed


def move_mails():
    """Move the messages of all mails that reach other hosts: other ranks may wait for the rest of a
    message that this one has sent. Local.
    """
    cdef Mail each
    for each in list(mails) if mails else ():
        with nogil:
            cc_mail_turn(each.c)


def mail_bytes(int p, int64_t room):
    """Return the bytes of shared memory for messages of `p` ranks, with boxes of `room` bytes.
    Local.
    """
    return cc_mail_bytes(p, room)


cdef double watched = 0  # the time of the last call of cc_wire_watch()


cdef void watch_connections() noexcept:
    """Ensure, once a second, that connections to hosts that do not answer will end."""
    global watched
    if now() > watched + 1:
        watched = now()
        cc_wire_watch()


def load_ucx(str path):
    """Load the library UCP of UCX, and return its version, three numbers. Local.

    Parameters
    ----------
    path : str
        The file of the library, or a name that the dynamic linker finds.
    """
    cdef unsigned major, minor, release
    cdef const char *problem = cc_ucp_load(path.encode())
    if problem != NULL:
        raise OSError(problem.decode(errors="replace"))
    cc_ucp.get_version(&major, &minor, &release)
    return major, minor, release


# The garbage collector must not clear its memory, which others use.
@cython.no_gc_clear
@cython.final
cdef class Mail:
    """The messages of a job without MPI: `collectives.process.hosted` makes it.

    Parameters
    ----------
    memory : mmap
        `mail_bytes` for the ranks that share it, the same on all of them, and zero at first.
    rank : int
    room : int
        Bytes of the box of two ranks, a power of two.
    places : sequence of int
        For each rank of the job, its number among those that share the memory, or -1.
    """

    cdef cc_mail *c
    cdef Py_buffer memory
    cdef str versions  # those of UCX that the hosts have, if they differ
    cdef object __weakref__

    def __cinit__(self, memory, int rank, int64_t room, places):
        cdef int *numbers
        cdef int size = len(places)
        local = sum([each >= 0 for each in places])
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        if <size_t>self.memory.len < cc_mail_bytes(local, room):
            raise ValueError("the memory is too small")
        numbers = <int *>copied(array("i", places))
        self.c = cc_mail_open(<char *>self.memory.buf, rank, size, room, numbers)
        PyMem_Free(numbers)
        if self.c == NULL:
            raise MemoryError

    def open_wire(self):
        """Prepare UCX, which is loaded, for messages; return this rank's address. Local."""
        cdef cc_ucs_status status = 0
        cdef const char *call
        cdef void *address
        cdef size_t nbytes
        call = cc_wire_open(self.c, &status)
        if call == NULL:
            call = b"ucp_worker_get_address"
            status = cc_ucp.worker_get_address(self.c.worker, &address, &nbytes)
        if status:
            raise OSError(f"{call.decode()}: {cc_ucp.status_string(status).decode()}")
        try:
            return (<char *>address)[:nbytes]
        finally:
            cc_ucp.worker_release_address(self.c.worker, address)

    def connect(self, list addresses, ports, int32_t token, str versions = ""):
        """Set the addresses of all ranks, the ports at which they listen, a number of this job, and
        the versions of UCX if they differ. Local.
        """
        cdef bytes address
        cdef int rank
        self.versions = versions
        self.c.token = token
        mails.add(self)
        for each in ports:
            cc_wire_ports[each & 0xFFFF] = 1
        for rank, address in enumerate(addresses):
            self.c.peers[rank].address = <char *>calloc(1, len(address) + 1)
            if self.c.peers[rank].address == NULL:
                raise MemoryError
            memcpy(self.c.peers[rank].address, <const char *>address, len(address))

    def give_up(self, bytes words):
        """Tell the ranks of other hosts that this one has given up, on all communicators. Local."""
        cdef const cc_context *context = self.c.contexts
        while context != NULL:
            cc_mail_give_up(context, words, len(words))
            context = context.next

    def lost(self):
        """Return the ranks that are known to have ended, each with whether it left in order. Local.
        """
        cdef int rank
        return [
            (rank, self.c.peers[rank].state == CC_LEFT)
            for rank in range(self.c.p)
            if self.c.peers[rank].state != CC_PRESENT
        ]

    def leave(self, double seconds):
        """Tell the ranks of other hosts that this one ends, and wait, for `seconds` at most, until
        its messages are on their way. Local.
        """
        if self.c.worker != NULL:
            with nogil:
                cc_wire_leave(self.c, seconds)

    def __dealloc__(self):
        if self.c != NULL and not forked:  # UCX would end the connections of the parent
            cc_mail_close(self.c)
            PyBuffer_Release(&self.memory)


cdef class Context:
    """Ranks of a job without MPI, whose messages are separate from those of other contexts.

    Parameters
    ----------
    mail : Mail
    id : int
        A number of 64 bits, equal on all of them, that no other context of the job has.
    ranks : sequence of int
        Their ranks in the job; this process has one of them.
    """

    cdef cc_context *c
    cdef Mail mail
    cdef readonly tuple ranks

    def __cinit__(self, Mail mail, uint64_t id, ranks):
        cdef int *members
        self.mail = mail
        self.ranks = tuple(ranks)
        members = <int *>copied(array("i", self.ranks))
        self.c = cc_context_new(mail.c, id, len(self.ranks), members)
        PyMem_Free(members)
        if self.c == NULL:
            raise MemoryError

    @property
    def id(self):
        return self.c.id

    @property
    def rank(self):
        return self.c.rank

    @property
    def size(self):
        return self.c.size

    def silent(self):
        """Return the ranks of other hosts that this one has called and not heard of yet. Local."""
        cdef int rank
        return [
            rank
            for rank in range(self.c.size)
            if self.mail.c.peers[self.c.ranks[rank]].endpoint != NULL
            and not self.mail.c.peers[self.c.ranks[rank]].come
        ]

    def isend(self, data, int dest, int tag=0):
        """Start to send the bytes `data` to rank `dest`, with a `tag`. Local."""
        return letter_of(self, data, True, dest, tag)

    def irecv(self, data, int source, int tag=0):
        """Start to receive a message of rank `source` with `tag` in `data`. Local."""
        return letter_of(self, data, False, source, tag)

    def sender(self, int tag):
        """Return a rank whose message with `tag` has come without a receive, or -1. Local."""
        return cc_mail_sender(self.c, 0, self.c.size, tag)

    def has_come(self, int source, int tag):
        """Return whether a message of `source` with `tag` has come without a receive. Local."""
        return cc_mail_sender(self.c, source, source + 1, tag) >= 0


def give_up_all(str text):
    """Make the other ranks of all communicators raise PeerAbortedError with a text. Local."""
    if forked:  # they are the parent's
        return
    for each in list(mapped):
        if (<Segment>each).own.file >= 0:
            each.give_up(text)
    for each in list(mails):
        each.give_up(words_of(text, None))


cdef str UNREACHED = (
    "; no message from it has arrived: if it has not ended, UCX_NET_DEVICES and UCX_TLS must name "
    "networks that connect all hosts, and firewalls must allow TCP between them"
)


cdef str unreached(const cc_context *context, int rank):
    """Return advice for a lost rank, if no message from it has arrived."""
    cdef Mail each
    if not cc_mail_is_unreached(context, rank):
        return ""
    advice = UNREACHED
    for each in list(mails):
        if each.c == context.mail and each.versions:
            advice += f". The ranks have different versions of UCX, {each.versions}: "
            advice += "install the same"
    return advice


# The garbage collector must not clear its data, which a message in flight may use.
@cython.no_gc_clear
@cython.final
cdef class Letter:
    """A message that was started."""

    cdef cc_letter *c
    cdef Context context
    cdef int peer
    cdef Py_buffer data

    def test(self):
        """Return whether the message was sent, or has come. Local."""
        cdef cc_mail_status status
        if self.c == NULL:
            return True
        with nogil:
            ended = cc_letter_test(self.c, &status)
        if not ended:
            return False
        self.c = NULL
        PyBuffer_Release(&self.data)
        if status.error == CC_MAIL_LOST:
            advice = unreached(self.context.c, self.peer)
            raise PeerLostError(f"the connection to rank {self.peer} is lost{advice}")
        if status.error:
            raise CommunicatorError("a message is longer than the place for it")
        return True

    def __dealloc__(self):
        # Memory that UCX may still touch stays. In a forked child, nobody may release the lock.
        if self.c != NULL and not forked and not cc_letter_drop(self.c):
            PyBuffer_Release(&self.data)


cdef Letter letter_of(Context context, object data, bint is_send, int peer, int tag):
    cdef Letter letter = Letter.__new__(Letter)
    letter.context = context
    letter.peer = peer
    if not 0 <= peer < context.c.size:
        raise ArgumentError(f"there is no rank {peer} among {context.c.size}")
    PyObject_GetBuffer(data, &letter.data, PyBUF_SIMPLE if is_send else PyBUF_WRITABLE)
    if is_send:
        letter.c = cc_mail_send(context.c, letter.data.buf, letter.data.len, peer, tag, 0)
    else:
        letter.c = cc_mail_recv(context.c, letter.data.buf, letter.data.len, peer, tag, 0)
    if letter.c == NULL:
        PyBuffer_Release(&letter.data)
        raise MemoryError
    return letter
