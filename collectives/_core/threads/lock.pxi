# The lock of the operations in flight.
#
# It is held for one turn of the executor, never for a wait, and whoever takes it has given the GIL
# away: a fold may ask for the GIL under it.

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
cdef unsigned long visits = 0  # how often callers came for it; they count before they have it
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
    """A turn at MPI for calls through mpi4py: exclusive where MPI's thread level asks for it."""

    def __enter__(self):
        if serialized:
            with nogil:
                lock_in_flight()
        return self

    def __exit__(self, *error):
        if serialized:
            unlock_in_flight()
