# Waiting for an operation, and the list of those that are in flight.

cdef extern from "<sched.h>" nogil:
    int sched_getcpu()
    int sched_yield()

cdef extern from "_core/executor/cores.h" nogil:
    enum:
        CC_FEW, CC_YIELDS
    int cc_assumed_taken
    int cc_cores_are_taken()
    int cc_yield()
    int64_t cc_lost_cores()

cdef enum:
    BRIEF = 64  # spins with the GIL held
    AWAY = 32  # if ranks share cores, spins for a rank on another core

# Operations started by i-calls. Each wait advances all of them, because ranks may complete them in
# different orders. The lock protects the list, and operations that are advanced.
cdef Operation *in_flight = NULL
cdef unsigned long ended = 0  # the number of them that have ended


cdef Status wait(
    Operation *op, int listed, int polls, double limit, int drowsy
) noexcept nogil:
    """Advance until the operation ends, or `limit` on the clock has passed.

    A wait is a ladder: `polls` polls, then polls that yield to other processes in between. A
    `drowsy` wait, which has lasted long, sleeps for a moment instead. If other processes take the
    cores, the steps are shorter (cores.h).
    """
    cdef bint at_flags = not has_messages(op) and op.shared.segment != NULL
    cdef bint shares = polls < BRIEF  # whether ranks share cores
    cdef bint lasted = False
    cdef Status status
    cdef int idle = 0
    cdef int moved
    cdef int looks = 0
    polls = before_yields(polls)
    while True:
        moved = take_turn(op, listed)
        status = cc_status(op)
        if status != RUNNING:
            return status
        if moved:
            idle = 0
            continue
        if not listed and in_flight != NULL and try_lock_in_flight():
            advance_in_flight()
            unlock_in_flight()
        idle += 1
        if naps(idle, polls, drowsy, at_flags and not shares):
            nanosleep(&NAP_TIME, NULL)
        elif idle <= polls:
            cc_pause()
        elif at_flags and shares and looks < AWAY and not gives_way(op, listed):
            looks += 1
            cc_pause()
        else:
            looks = 0
            lasted = cc_yield()
            polls = before_yields(polls)
        # MPI's polls may yield, too: 64 of them may take so long that they look like a stop.
        if idle & 63 and not (drowsy or lasted) and (at_flags or idle & 7 or now() <= limit):
            continue
        lasted = False
        if op.record.tape != NULL:
            note_long_wait(op, listed)
        nudge(op)
        if now() > limit:
            return RUNNING


cdef inline bint naps(int idle, int polls, bint drowsy, bint may_nap) noexcept nogil:
    """Return whether a wait sleeps for a moment. One that has not lasted long does if it `may_nap`
    and others need the core.
    """
    if idle <= polls or drowsy:
        return idle > polls
    return may_nap and idle > polls + CC_YIELDS and cc_cores_are_taken()


cdef inline int before_yields(int polls) noexcept nogil:
    """Return the polls of a wait before it yields, given those on a quiet machine."""
    return min(polls, <int>CC_FEW) if cc_cores_are_taken() else polls


def assume_cores(taken=None):
    """Assume that other processes take the cores, or do not; with None, find out. Local."""
    global cc_assumed_taken
    cc_assumed_taken = -1 if taken is None else bool(taken)


cdef inline int take_turn(Operation *op, int listed) noexcept nogil:
    """Advance an operation once; return whether it has moved.

    A `listed` operation may be advanced by any thread, but only under the lock. If MPI accepts only
    one thread at a time, this holds for every operation.
    """
    cdef int moved
    if not listed and not serialized:
        advance(op)
        return op.state.moved
    lock_in_flight()
    op.state.moved = 0
    if not listed:
        advance(op)
    advance_in_flight()
    moved = op.state.moved
    unlock_in_flight()
    return moved


cdef bint gives_way(const Operation *op, int listed) noexcept nogil:
    """Return must_give_way(), under the lock if the operation is `listed`."""
    cdef bint gives
    if listed:
        lock_in_flight()
    gives = must_give_way(op)
    if listed:
        unlock_in_flight()
    return gives


cdef void note_long_wait(Operation *op, int listed) noexcept nogil:
    """Record a continuing wait, under the lock if the operation is `listed`."""
    if listed:
        lock_in_flight()
    keep_waiting(op)
    if listed:
        unlock_in_flight()


cdef void nudge(const Operation *op) noexcept nogil:
    """Move messages that polls of an operation do not move."""
    if serialized:
        lock_in_flight()
    move_others(op)
    if serialized:
        unlock_in_flight()


cdef inline void move_others(const Operation *op) noexcept nogil:
    """Move messages that polls of an operation do not move; if MPI accepts only one thread at a
    time, the caller has the lock.

    The program's own messages with MPI move only inside calls of MPI, and another rank may wait for
    one of them before it joins this operation.
    """
    if not op.state.pending:
        op.transport.nudge(op.comm)
    if op.transport != transport:
        transport.nudge(cc_mpi.world)


cdef bint advance_in_flight() noexcept nogil:
    """Advance all operations in the list; return whether one has moved. The caller has the lock."""
    cdef Operation *op = in_flight
    cdef bint moved = False
    while op != NULL:
        if op.state.status == RUNNING:
            advance(op)
            moved |= op.state.moved
            if op.state.status != RUNNING:
                cc_store(&ended, ended + 1)
        op = op.next
    return moved


cdef bint is_in_flight() noexcept nogil:
    """Return whether an operation in the list is not complete; the caller holds the lock."""
    cdef const Operation *op = in_flight
    while op != NULL:
        if op.state.status == RUNNING:
            return True
        op = op.next
    return False


cdef bint awaits_messages() noexcept nogil:
    """Return whether an operation in the list has messages, which move only inside calls of MPI;
    the caller holds the lock.
    """
    cdef const Operation *op = in_flight
    while op != NULL:
        if op.state.status == RUNNING and has_messages(op):
            return True
        op = op.next
    return False


cdef void enlist(Operation *op) noexcept nogil:
    """Put an operation into the list, after a first advance."""
    global in_flight
    lock_in_flight()
    if op.record.tape != NULL:
        note_until_now(op, CC_T_QUEUE, 0, -1, 0)
    advance(op)
    op.next = in_flight
    in_flight = op
    if op.state.status == RUNNING:
        wake_progress()
    unlock_in_flight()


cdef void unlink(Operation *op) noexcept nogil:
    """Take an operation out of the list, if it is there; the caller holds the lock."""
    cdef Operation **place = &in_flight
    while place[0] != NULL and place[0] != op:
        place = &place[0].next
    if place[0] == op:
        place[0] = op.next


cdef void delist(Operation *op) noexcept nogil:
    """Wait for the lock, and take an operation out of the list."""
    lock_in_flight()
    unlink(op)
    unlock_in_flight()
