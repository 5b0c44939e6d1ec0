# The progress thread: it advances the operations in flight while no caller does.
#
# A caller advances all of them while it is inside the library. With COLLECTIVES_PROGRESS=thread, a
# native thread of the process does so while the callers are elsewhere. It takes turns at the list
# of operations in flight as callers do: under the lock, for all communicators. A fold written in
# Python takes the GIL there, too. Errors, also of operations that wait too long, are raised in the
# caller that waits for the operation.
#
# Callers call start_progress() before they start their first operation, and wake_progress() when
# operations are in the list. stop_progress() ends the thread.
#
# MPI cannot sleep until messages arrive, and a thread that polls it keeps callers out of it. So the
# thread polls a few times, then naps, longer if there is less to do, and leaves the list alone
# while callers use it. If all other threads of the process rest, as in a program that waits
# elsewhere for operations in flight (torch's DDP waits for futures in C++), it polls on for a
# while. When nothing is in flight any more, it sleeps.
#
# The same thread calls the worker of the background engine (background/engine.py): when the worker
# is summoned, when an operation has ended, and at a time that the worker has set. It does not while
# other threads call the worker themselves. For a second after it had work it naps only, so that
# summons need not wake it.

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_create(unsigned long *, const void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(unsigned long, void **)
    int pthread_setname_np(unsigned long, const char *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "<string.h>" nogil:
    const char *strerror(int)

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int, timespec *)

cdef extern from * nogil:
    void __sync_synchronize()

# MPI moves long messages by pieces, one a poll. An iallreduce of 16 MiB on 2 ranks that sleep until
# its state() is None takes 56 ms with one poll between naps, 27 with 4 and 20 with 20; blocking
# calls take 16 to 19 (MPICH 5.0.2, COLLECTIVES_SHM=0; medians of 7 beside other work; EPYC,
# 2026-11-22).
cdef enum:
    POLLS = 20  # without a change, before it naps
    SPARE = 100000  # further polls, some 20 ms, while the other threads of the process rest
    SHORTEST_NAP = 50000  # nanoseconds
    LONGEST_NAP = 1000000
    QUIET = 1000  # naps without work, before a thread with a worker sleeps

# The processor time of the other threads of the process at the last look.
cdef struct Others:
    double looked
    double used  # seconds
    bint rest  # whether that was little since the look before the last

cdef struct Progress:
    bint wanted
    bint runs
    bint sleeps
    bint ends
    bint employed  # whether there is a worker
    bint summoned
    int attended  # threads that call the worker themselves
    unsigned long thread
    pthread_cond_t something  # is in flight, or the thread must end

cdef bint crowded = False  # whether a communicator has more ranks on this host than cores
cdef double LITTLE = 0.1  # of a processor, below which threads are assumed to rest

cdef Progress progress
cdef object worker = None
pthread_cond_init(&progress.something, NULL)


def want_progress():
    """Let a thread advance operations, as soon as one starts. Local."""
    progress.wanted = True


def employ(function):
    """Set the worker, which the thread calls without arguments. Local.

    Parameters
    ----------
    function : callable
        The worker. It returns the time (``time.monotonic``) of its next call at the latest, or
        infinity.
    """
    global worker
    worker = function
    progress.employed = True
    start_progress()


def dismiss():
    """Remove the worker. Local."""
    global worker
    progress.employed = False
    worker = None


def summon():
    """Make the thread call the worker soon. Local."""
    progress.summoned = True
    __sync_synchronize()  # the thread sets `sleeps` before it checks `summoned`
    if progress.sleeps:
        with nogil:
            lock_in_flight()
            wake_progress()
            unlock_in_flight()


def attend(bint begins):
    """Note that the calling thread now calls the worker itself, or no longer does; return the
    number of such threads. Local.
    """
    if begins:
        progress.attended += 1
        progress.summoned = False
    else:
        progress.attended -= 1
    return progress.attended


def number_ended():
    """Return the number of operations in flight that have ended so far. Local."""
    return cc_load(&ended)


def await_ended(unsigned long seen, double seconds, int polls, bint drowsy):
    """Advance operations in flight until the number of ended ones exceeds `seen`, or `seconds` have
    passed, with `polls` polls before yielding to other processes.
    Local.

    A `drowsy` wait, which has lasted long, naps if ranks share cores: a rank that only yields still
    gets its time slices, for which computing ranks must wait. A rank that naps must wait for its
    own, too, so short waits do not nap.
    """
    global inside
    check_caller()
    inside += 1
    with nogil:
        move_until(seen, now() + seconds, polls, drowsy and polls < BRIEF)
    progress.summoned = False
    inside -= 1


cdef void move_until(
    unsigned long seen, double limit, int polls, bint drowsy
) noexcept nogil:
    cdef int idle = 0
    cdef bint moved, at_flags
    cdef bint lasted = False
    cdef bint shares = polls < BRIEF
    polls = before_yields(polls)
    while True:
        lock_in_flight()
        moved = advance_in_flight()
        at_flags = not awaits_messages()
        unlock_in_flight()
        if cc_load(&ended) != seen or progress.summoned:
            return
        if moved:
            idle = 0
            continue
        idle += 1
        if naps(idle, polls, drowsy and at_flags, at_flags and not shares):
            nanosleep(&NAP_TIME, NULL)
        elif idle <= polls:
            cc_pause()
        else:
            lasted = cc_yield()
            polls = before_yields(polls)
        if (drowsy or lasted or idle & (63 if at_flags else 7) == 0) and now() > limit:
            return
        lasted = False


cdef int start_progress() except -1:
    """Start the thread, if it is needed and does not run yet. It receives no signals, which are for
    threads of Python.
    """
    cdef sigset_t every, before
    cdef int error
    if progress.runs or not (progress.wanted or progress.employed):
        return 0
    progress.ends = False
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, &before)
    error = pthread_create(&progress.thread, NULL, keep_moving, NULL)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    if error:
        raise CommunicatorError(
            f"the thread that moves operations on cannot be started: "
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
    """End the thread; from now on, only callers advance operations. Local."""
    progress.wanted = progress.employed = False
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
    cdef unsigned long told = ended
    cdef double due = INFINITY
    cdef timespec nap
    cdef Others others
    cdef int polls = POLLS
    cdef int spare = SPARE
    cdef int quiet = 0
    cdef bint ends = False
    cdef bint calls
    cdef bint runs = False  # whether something is in flight
    nap.tv_sec = 0
    nap.tv_nsec = SHORTEST_NAP
    others.looked = others.used = 0
    look_at(&others)
    while not ends:
        if polls < POLLS:
            cc_pause()
        elif spare and runs and do_rest(&others):
            spare -= 1
            cc_pause()
        else:
            nanosleep(&nap, NULL)
            nap.tv_nsec = min(2 * nap.tv_nsec, <long>LONGEST_NAP)
            polls = 0
            quiet += 1
        pthread_mutex_lock(&in_flight_lock)
        if visits == seen and nap.tv_nsec == LONGEST_NAP and may_sleep(due, quiet):
            sleep_until_needed(due, quiet)
            quiet = 0
            nap.tv_nsec = SHORTEST_NAP
        in_flight_owner = pthread_self()
        if visits != seen:  # callers use the list, or did just now
            seen = visits
            polls = POLLS
        elif advance_in_flight():
            polls = quiet = 0
            spare = SPARE
            nap.tv_nsec = SHORTEST_NAP
        else:
            polls += 1
            runs = is_in_flight()
        ends = progress.ends
        calls = progress.employed and not progress.attended and not ends and (
            progress.summoned or ended != told or now() >= due
        )
        told = ended
        unlock_in_flight()
        if calls:
            due = call_worker()
            quiet = 0
            if due != INFINITY:
                polls = 0
                nap.tv_nsec = SHORTEST_NAP
    return NULL


cdef void sleep_until_needed(double due, int quiet) noexcept nogil:
    """Sleep while there is nothing to do; the caller holds the lock."""
    progress.sleeps = True
    __sync_synchronize()
    while not progress.ends and may_sleep(due, quiet):
        pthread_cond_wait(&progress.something, &in_flight_lock)
    progress.sleeps = False


cdef inline bint do_rest(Others *others) noexcept nogil:
    """Return whether the other threads of the process rest, and nobody needs this core."""
    if crowded or cc_cores_are_taken():
        return False
    if now() > others.looked + 1e-9 * SHORTEST_NAP:
        look_at(others)
    return others.rest


cdef void look_at(Others *others) noexcept nogil:
    cdef timespec process, thread
    cdef double moment = now()
    cdef double used
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process)
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &thread)
    used = process.tv_sec - thread.tv_sec + 1e-9 * (process.tv_nsec - thread.tv_nsec)
    others.rest = used - others.used < LITTLE * (moment - others.looked)
    others.looked, others.used = moment, used


cdef bint may_sleep(double due, int quiet) noexcept nogil:
    """Return whether there has been no work for long; the caller holds the lock."""
    if progress.employed and (progress.summoned or due != INFINITY or quiet < QUIET):
        return False
    return not is_in_flight()


cdef double call_worker() noexcept with gil:
    """Call the worker, which raises nothing; return the time of its next call."""
    progress.summoned = False
    return worker() if worker is not None else INFINITY
