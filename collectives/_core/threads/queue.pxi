# The queue of a communicator: threads enter the communicator one after the other.
#
# Threads enter and leave with the GIL held, which alone guards the queue: if no thread is inside,
# entering takes one comparison. A thread that must wait releases the GIL, sleeps on a lock of its
# own, and gets the communicator from the thread before it, first come first served.

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PyLockStatus, PyThread_acquire_lock, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
)

cdef extern from * nogil:
    """
    /* 1 if a thread has ever called a collective. */
    static __thread int cc_communicates;
    """
    int cc_communicates

cdef extern from "Python.h":
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil

cdef enum:
    NAP = 50000  # microseconds between two checks of signals, which another thread may receive

# A thread's place in a queue, on the thread's stack.
cdef struct Waiter:
    unsigned long thread
    PyThread_type_lock turn  # released by the thread that hands the communicator over
    Waiter *behind

cdef struct Queue:
    unsigned long owner  # the thread that is inside, or 0
    Waiter *first


cdef inline int enter(Queue *queue) except -1:
    """Become the one thread inside, after a wait without the GIL if necessary."""
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
    cdef Waiter *place = queue.first
    queue.first = place.behind
    queue.owner = place.thread
    PyThread_release_lock(place.turn)


cdef int queue_up(Queue *queue, unsigned long me) except -1:
    cdef Waiter place
    cdef Waiter **last = &queue.first
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
                if guarded:
                    guard()
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


def communicates():
    """Return whether the calling thread has ever called a collective. Local."""
    return bool(cc_communicates)
