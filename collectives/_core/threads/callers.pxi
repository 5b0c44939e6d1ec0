# Callers: which threads of which process may communicate.

cdef extern from "Python.h":
    int Py_AtExit(void (*)() noexcept)

cdef extern from "<stdio.h>" nogil:
    ctypedef struct FILE:
        pass
    int fflush(FILE *)

cdef extern from "<unistd.h>" nogil:
    void _exit(int)

# True if calls need checks before they enter MPI: not under MPI_THREAD_MULTIPLE, in a process that
# was not forked.
cdef bint guarded = False
cdef bint forked = False
cdef bint finalised = False  # whether MPI is, by the program or at its end
cdef bint funneled = False  # MPI may be called by one thread only
cdef bint serialized = False  # MPI may be called by one thread at a time
cdef unsigned long main_thread = 0
cdef str world_place = ""  # the rank of this process and the number of ranks, also after a fork
cdef str carrier = "MPI"  # the communication that does not survive a fork
cdef int child_status = 0

# The end of the program, at which daemon threads may still run.
cdef bint ending = False
cdef unsigned long last_thread = 0  # the one that ends the program, and may communicate until then
cdef int inside = 0  # threads that wait in a call without the GIL; counted with the GIL held


cdef inline int check_caller() except -1:
    """Raise unless this thread of this process may communicate.

    This check comes first: after a fork, even an import may wait for a lock of a thread that does
    not exist any more.
    """
    if guarded or in_flight_owner == pthread_self():
        guard()
    return 0


def guard():
    """Raise unless this thread of this process may communicate. Local."""
    if forked:
        raise CommunicatorError(
            f"this process was forked from {world_place}, and {carrier} does not survive a fork: "
            f"communicate in the parent only, or start children anew (multiprocessing's 'spawn')"
        )
    if finalised:
        raise CommunicatorError(
            "MPI is finalised already, and nothing can be communicated after that: call "
            "MPI.Finalize() last, or leave it to mpi4py, which does it when the program ends"
        )
    if funneled and pthread_self() != main_thread:
        raise CommunicatorError(
            "MPI was initialised so that only its main thread may communicate, and this is "
            "another: let mpi4py ask for the thread level 'multiple', which is its default "
            "(mpi4py.rc.thread_level, MPI4PY_RC_THREAD_LEVEL)"
        )
    if is_too_late():
        raise too_late()
    if in_flight_owner == pthread_self():
        raise CommunicatorError(
            "this thread is inside a collective already; a user's fold cannot call the library"
        )


cdef int note_threads(object MPI) except -1:
    """Note MPI's thread level: the threads that may call it, and whether at the same time."""
    global funneled, guarded, main_thread, serialized, world_place
    cdef bint is_serialized = MPI.Query_thread() < MPI.THREAD_MULTIPLE
    cdef bint is_funneled = MPI.Query_thread() < MPI.THREAD_SERIALIZED
    if is_funneled and not MPI.Is_thread_main():
        raise CommunicatorError(
            "MPI was initialised so that only its main thread may communicate, and this is another"
        )
    world = MPI.COMM_WORLD
    world_place = f"rank {world.Get_rank()} of {world.Get_size()}"
    serialized, funneled, guarded = is_serialized, is_funneled, is_funneled
    main_thread = pthread_self()
    # Registered after mpi4py's own, it runs before it.
    if Py_AtExit(before_finalise):
        raise ImportError("Python has no room for another exit function (Py_AtExit)")
    return 0


cdef inline bint is_too_late() noexcept:
    """Return whether the program ends, and this thread is not the one that ends it."""
    return ending and pthread_self() != last_thread


cdef object too_late():
    return CommunicatorError(
        "the program ends, and only its main thread may still communicate; let that one join the "
        "thread"
    )


def end_threads(double seconds):
    """Make the calls of all other threads raise CommunicatorError; wait until they have, for
    `seconds` at most.
    Local.
    """
    global ending, guarded, last_thread
    cdef double limit = now() + seconds
    last_thread = pthread_self()
    ending = guarded = True
    while inside and now() < limit:
        with nogil:
            nanosleep(&NAP_TIME, NULL)


def is_ending():
    """Return whether the program ends, so that other threads may not communicate. Local."""
    return bool(ending)


def fork_noticed():
    """Refuse everything from now on; called in a forked child. Local."""
    global forked, guarded
    forked = guarded = True


def finalise_noticed():
    """Refuse everything from now on; called just before MPI is finalised. Local."""
    global finalised, guarded
    stop_progress()
    finalised = guarded = True


def is_finalised():
    """Return whether MPI, which was in use, is finalised. Local."""
    return bool(finalised)


def is_forked():
    """Return whether this process is a forked child of one that communicates. Local."""
    return bool(forked)


def child_exits(int status):
    """Note the exit status of a forked child, which is about to exit. Local."""
    global child_status
    child_status = status


cdef void before_finalise() noexcept:
    """End a forked child before mpi4py finalises MPI in it, which would disturb the parent.

    In a child, MPICH would send messages of the parent to its process manager, and Open MPI would
    hang. Python has been finalised before, so nothing is lost.
    """
    if forked:
        fflush(NULL)
        _exit(child_status)
