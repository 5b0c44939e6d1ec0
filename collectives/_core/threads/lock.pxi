# The lock of the operations in flight.
#
# A thread holds it for one turn of the executor, never for a wait, and releases the GIL before it
# takes the lock, because a fold may take the GIL under the lock.

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_trylock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    unsigned long pthread_self()

cdef pthread_mutex_t in_flight_lock
cdef unsigned long in_flight_owner = 0  # the thread that has it
cdef unsigned long visits = 0  # attempts of callers to take it, counted before they have it
pthread_mutex_init(&in_flight_lock, NULL)


cdef inline void lock_in_flight() noexcept nogil:
    global in_flight_owner, visits
    visits += 1
    pthread_mutex_lock(&in_flight_lock)
    in_flight_owner = pthread_self()


cdef inline bint try_lock_in_flight() noexcept nogil:
    global in_flight_owner, visits
    visits += 1
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
    """A turn at MPI for calls through mpi4py: exclusive if MPI's thread level requires it."""

    def __enter__(self):
        if serialized:
            with nogil:
                lock_in_flight()
        return self

    def __exit__(self, *error):
        if serialized:
            unlock_in_flight()
