# Messages between the ranks of one host that no MPI launcher started, as Python sees them.

cdef bint mailed = False  # whether messages go this way


def bind_mail(str place):
    """Have all communicators of this process send their messages through shared memory. Local.

    Parameters
    ----------
    place : str
        Which rank of how many this process is, for messages.
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
        transport = cc_mail_bind()
        mailed = True


def uses_mpi():
    """Return whether this process communicates through MPI. Local."""
    return transport != NULL and not mailed


def mail_bytes(int p, int64_t room):
    """Return the bytes of memory through which `p` ranks send messages, with boxes of `room` bytes.
    Local.
    """
    return cc_mail_bytes(p, room)


@cython.final
cdef class Mail:
    """The messages of a job without MPI: `collectives.process.hosted` makes it.

    Parameters
    ----------
    memory : mmap
        `mail_bytes`, the same on all ranks, and zero at first.
    rank, size : int
    room : int
        Bytes of the box of two ranks, a power of two.
    """

    cdef cc_mail *c
    cdef Py_buffer memory

    def __cinit__(self, memory, int rank, int size, int64_t room):
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        if <size_t>self.memory.len < cc_mail_bytes(size, room):
            raise ValueError("the memory is too small")
        self.c = cc_mail_open(<char *>self.memory.buf, rank, size, room)
        if self.c == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.c != NULL:
            cc_mail_close(self.c)
            PyBuffer_Release(&self.memory)


cdef class Context:
    """Ranks of a job without MPI, whose messages are separate from those of other contexts.

    Parameters
    ----------
    mail : Mail
    id : int
        A number of 64 bits that all of them give, and no other context of the job has.
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

    def isend(self, data, int dest, int tag=0):
        """Start to send the bytes `data` to rank `dest`, with a `tag`. Local."""
        return letter_of(self, data, True, dest, tag)

    def irecv(self, data, int source, int tag=0):
        """Start to receive what rank `source` sends with `tag` in `data`. Local."""
        return letter_of(self, data, False, source, tag)

    def sender(self, int tag):
        """Return a rank of which a message with `tag` has come, unasked for, or -1. Local."""
        return cc_mail_sender(self.c, tag)


@cython.final
cdef class Letter:
    """A message that was started."""

    cdef cc_letter *c
    cdef Context context
    cdef Py_buffer data

    def test(self):
        """Return whether the message is sent, or has come. Local."""
        cdef cc_mail_status status
        if self.c == NULL:
            return True
        with nogil:
            ended = cc_letter_test(self.c, &status)
        if not ended:
            return False
        self.c = NULL
        PyBuffer_Release(&self.data)
        if status.error:
            raise CommunicatorError("a message is longer than the place for it")
        return True

    def __dealloc__(self):
        if self.c != NULL:
            cc_letter_drop(self.c)
            PyBuffer_Release(&self.data)


cdef Letter letter_of(Context context, object data, bint is_send, int peer, int tag):
    cdef Letter letter = Letter.__new__(Letter)
    letter.context = context
    if not 0 <= peer < context.c.size:
        raise ArgumentError(f"there is no rank {peer} among {context.c.size}")
    PyObject_GetBuffer(data, &letter.data, PyBUF_SIMPLE if is_send else PyBUF_WRITABLE)
    if is_send:
        letter.c = cc_mail_send(context.c, letter.data.buf, letter.data.len, peer, tag)
    else:
        letter.c = cc_mail_recv(context.c, letter.data.buf, letter.data.len, peer, tag)
    if letter.c == NULL:
        PyBuffer_Release(&letter.data)
        raise MemoryError
    return letter
