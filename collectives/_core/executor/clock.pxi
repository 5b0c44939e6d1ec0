# The clock, and naps.

cdef extern from "_core/shared/clock.h" nogil:
    uint64_t cc_nanoseconds()

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int nanosleep(const timespec *, timespec *)

cdef timespec NAP_TIME
NAP_TIME.tv_sec = 0
NAP_TIME.tv_nsec = 50000


cdef double now() noexcept nogil:
    return 1e-9 * cc_nanoseconds()
