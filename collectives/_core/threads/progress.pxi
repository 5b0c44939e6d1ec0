# The progress thread: it moves the operations in flight on while no caller does.
#
# A caller moves all of them on while it is inside the library. With COLLECTIVES_PROGRESS=thread, a
# native thread of the process does so while the callers are elsewhere. It takes turns at the list
# of operations in flight as callers do: under the lock, for all communicators. A fold written in
# Python takes the GIL there, too. Whether an operation waits too long, and why it failed, is said
# to the caller that waits for it.
#
# Whoever starts operations calls start_progress() before the first one, and wake_progress() when
# they are in the list. stop_progress() ends the thread.
#
# MPI cannot wait for what others have posted, and a thread that polls it keeps callers out of it.
# So the thread polls a few times, then naps, the longer the less there is to do, and leaves the
# list alone while callers come for it. When nothing is in flight any more, it sleeps.

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_attr_t:
        pass
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_create(
        unsigned long *, const pthread_attr_t *, void *(*)(void *) noexcept nogil, void *
    )
    int pthread_join(unsigned long, void **)
    int pthread_setname_np(unsigned long, const char *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "<string.h>" nogil:
    const char *strerror(int)

# MPI moves long messages by pieces, one a poll. An iallreduce of 16 MiB on 2 ranks that sleep until
# its state() is None takes 56 ms with one poll between naps, 27 with 4 and 20 with 20; blocking
# calls take 16 to 19 (MPICH 5.0.2, COLLECTIVES_SHM=0; medians of 7 beside other work; EPYC,
# 2026-11-22). What the thread costs and gains: benchmarks/measure_progress.py.
cdef enum:
    POLLS = 20  # without a change, before it naps
    SHORTEST_NAP = 50000  # nanoseconds
    LONGEST_NAP = 1000000

cdef struct Progress:
    bint wanted
    bint runs
    bint sleeps
    bint ends
    unsigned long thread
    pthread_cond_t something  # is in flight, or it is to end

cdef Progress progress
pthread_cond_init(&progress.something, NULL)


def want_progress():
    """Have a thread move operations on, as soon as one starts. Local."""
    progress.wanted = True


cdef int start_progress() except -1:
    """Start the thread, if it is wanted and does not run yet."""
    cdef sigset_t every, before
    cdef int error
    if not progress.wanted or progress.runs:
        return 0
    progress.ends = False
    sigfillset(&every)  # signals are for the threads of Python
    pthread_sigmask(SIG_SETMASK, &every, &before)
    error = pthread_create(&progress.thread, NULL, keep_moving, NULL)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    if error:
        raise CommunicatorError(
            f"the thread for COLLECTIVES_PROGRESS=thread cannot be started: "
            f"{strerror(error).decode(errors='replace')}"
        )
    progress.runs = True
    pthread_setname_np(progress.thread, b"collectives")
    return 0


cdef inline void wake_progress() noexcept nogil:
    """Wake the thread if it sleeps; the caller holds the lock."""
    if progress.sleeps:
        pthread_cond_signal(&progress.something)


def stop_progress():
    """End the thread; from now on, only callers move operations on. Local."""
    progress.wanted = False
    # A child of a fork has no such thread.
    if forked or not progress.runs or progress.thread == pthread_self():
        return
    progress.runs = False
    with nogil:
        lock_in_flight()
        progress.ends = True
        wake_progress()
        unlock_in_flight()
        pthread_join(progress.thread, NULL)


cdef void *keep_moving(void *nothing) noexcept nogil:
    """Run the thread."""
    global in_flight_owner
    cdef unsigned long seen = visits
    cdef timespec nap
    cdef int polls = POLLS
    cdef bint ends = False
    nap.tv_sec = 0
    nap.tv_nsec = SHORTEST_NAP
    while not ends:
        if polls < POLLS:
            cc_pause()
        else:
            nanosleep(&nap, NULL)
            nap.tv_nsec = min(2 * nap.tv_nsec, <long>LONGEST_NAP)
            polls = 0
        pthread_mutex_lock(&in_flight_lock)
        if visits == seen and nap.tv_nsec == LONGEST_NAP and not is_in_flight():
            progress.sleeps = True
            while not progress.ends and not is_in_flight():
                pthread_cond_wait(&progress.something, &in_flight_lock)
            progress.sleeps = False
            nap.tv_nsec = SHORTEST_NAP
        in_flight_owner = pthread_self()
        if visits != seen:  # callers are inside, or were just now
            seen = visits
            polls = POLLS
        elif advance_in_flight():
            polls = 0
            nap.tv_nsec = SHORTEST_NAP
        else:
            polls += 1
        ends = progress.ends
        unlock_in_flight()
    return NULL
