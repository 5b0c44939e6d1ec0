# The clock, and naps.

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)
    int nanosleep(const timespec *, timespec *)

cdef timespec NAP_TIME
NAP_TIME.tv_sec = 0
NAP_TIME.tv_nsec = 50000


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec
