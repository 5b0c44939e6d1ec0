# Locks: threads on one communicator queue up, and the operations in flight have one lock.
#
# Two kinds. The queue of a communicator is entered and left with the GIL held, which is all that
# guards it: where nobody else is inside, entering it is one comparison. A thread that has to queue
# up gives the GIL away, sleeps on a lock of its own, and is handed the communicator, first come
# first served. The lock of the operations in flight is held for one turn of the executor, never for
# a wait, and whoever takes it has given the GIL away: a fold may ask for the GIL under it.

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PyLockStatus, PyThread_acquire_lock, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
)

from collectives.errors import CommunicatorError

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_trylock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    unsigned long pthread_self()

cdef extern from * nogil:
    """
    /* Whether a thread has ever called a collective. */
    static __thread int cc_communicates;
    """
    int cc_communicates

cdef extern from "Python.h":
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil
    int Py_AtExit(void (*)() noexcept)

cdef extern from "<stdio.h>" nogil:
    ctypedef struct FILE:
        pass
    int fflush(FILE *)

cdef extern from "<unistd.h>" nogil:
    void _exit(int)

cdef enum:
    NAP = 50000  # microseconds between two looks at signals, in case another thread got them

# What a call must look at before it enters MPI: 0 where it need not, under MPI_THREAD_MULTIPLE and
# in a process that was not forked.
cdef bint guarded = False
cdef bint forked = False
cdef bint funneled = False  # MPI may be called by one thread only
cdef bint serialized = False  # MPI may be called by one thread at a time
cdef unsigned long main_thread = 0
cdef str world_place = ""  # which rank of how many this process is, or was before the fork
cdef int child_status = 0

cdef pthread_mutex_t in_flight_lock
cdef unsigned long in_flight_owner = 0  # the thread that has it
pthread_mutex_init(&in_flight_lock, NULL)


# -- the queue of a communicator --------------------------------------------------------------

# A thread's place in a queue; it lies on the thread's stack.
cdef struct Place:
    unsigned long thread
    PyThread_type_lock turn  # released by whoever hands the communicator over
    Place *behind

cdef struct Queue:
    unsigned long owner  # the thread that is inside, or 0
    Place *first


cdef inline int check_caller() except -1:
    """Raise unless this thread of this process may communicate. First of all: after a fork, even an
    import may wait for a lock that nobody holds any more."""
    if guarded or in_flight_owner == pthread_self():
        guard()
    return 0


cdef inline int enter(Queue *queue) except -1:
    """Come to be the one thread inside; wait for it without the GIL."""
    global cc_communicates
    cdef unsigned long me = pthread_self()
    cc_communicates = 1
    if queue.owner == 0:
        queue.owner = me
        return 0
    return queue_up(queue, me)


cdef inline void leave(Queue *queue) noexcept:
    if queue.first == NULL:
        queue.owner = 0
    else:
        hand_over(queue)


cdef void hand_over(Queue *queue) noexcept:
    cdef Place *place = queue.first
    queue.first = place.behind
    queue.owner = place.thread
    PyThread_release_lock(place.turn)


cdef int queue_up(Queue *queue, unsigned long me) except -1:
    cdef Place place
    cdef Place **last = &queue.first
    cdef PyLockStatus status
    if queue.owner == me:
        raise CommunicatorError(
            "this thread is inside a call on this communicator already; a signal handler, a "
            "finalizer or a user's fold cannot call it again: give them a communicator of their "
            "own (comm.dup())"
        )
    place.thread = me
    place.behind = NULL
    place.turn = PyThread_allocate_lock()
    if place.turn == NULL:
        raise MemoryError
    PyThread_acquire_lock(place.turn, NOWAIT_LOCK)
    while last[0] != NULL:
        last = &last[0].behind
    last[0] = &place
    try:
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(place.turn, NAP, 1)
            if status == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()
    except BaseException:
        if queue.owner == me:
            leave(queue)
        else:
            last = &queue.first
            while last[0] != &place:
                last = &last[0].behind
            last[0] = place.behind
        raise
    finally:
        PyThread_free_lock(place.turn)


# -- the operations in flight, and MPI --------------------------------------------------------


cdef inline void lock_in_flight() noexcept nogil:
    global in_flight_owner
    pthread_mutex_lock(&in_flight_lock)
    in_flight_owner = pthread_self()


cdef inline bint try_lock_in_flight() noexcept nogil:
    global in_flight_owner
    if pthread_mutex_trylock(&in_flight_lock):
        return False
    in_flight_owner = pthread_self()
    return True


cdef inline void unlock_in_flight() noexcept nogil:
    global in_flight_owner
    in_flight_owner = 0
    pthread_mutex_unlock(&in_flight_lock)


@cython.final
cdef class Turn:
    """A turn at MPI for calls through mpi4py: exclusive where MPI's thread level asks for it."""

    def __enter__(self):
        if serialized:
            with nogil:
                lock_in_flight()
        return self

    def __exit__(self, *error):
        if serialized:
            unlock_in_flight()


def guard():
    """Raise unless this thread of this process may communicate. Local."""
    if forked:
        raise CommunicatorError(
            f"this process was forked from {world_place}, and MPI does not survive a fork: "
            f"communicate in the parent only, or start children anew (multiprocessing's 'spawn')"
        )
    if funneled and pthread_self() != main_thread:
        raise CommunicatorError(
            "MPI was initialised so that only its main thread may communicate, and this is "
            "another: let mpi4py ask for the thread level 'multiple', which is its default "
            "(mpi4py.rc.thread_level, MPI4PY_RC_THREAD_LEVEL)"
        )
    if in_flight_owner == pthread_self():
        raise CommunicatorError(
            "this thread is inside a collective already; a user's fold cannot call the library"
        )


def communicates():
    """Say whether the calling thread has ever called a collective. Local."""
    return bool(cc_communicates)


cdef int note_threads(object MPI) except -1:
    """Take MPI's thread level down: who may call it, and whether at the same time."""
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
    if Py_AtExit(leave_child):
        raise ImportError("Python has no room for another exit function (Py_AtExit)")
    return 0


# -- forked children --------------------------------------------------------------------------


def fork_noticed():
    """Refuse everything from now on; called in a forked child. Local."""
    global forked, guarded
    forked = guarded = True


def is_forked():
    """Say whether this process is a forked child of one that communicates. Local."""
    return bool(forked)


def child_exits(int status):
    """Take down with which status a forked child is about to exit. Local."""
    global child_status
    child_status = status


cdef void leave_child() noexcept:
    """End a forked child before mpi4py finalises MPI in it: that would reach into the parent.

    MPICH then sends its process manager what the parent should send, and Open MPI hangs. Python is
    finalised already here: nothing is lost.
    """
    if forked:
        fflush(NULL)
        _exit(child_status)
