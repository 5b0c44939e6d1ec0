# Round trips of a flag between two ranks of a host, which show the distance of their cores.

cdef enum:
    VOLLEY = 32  # round trips between two readings of the clock
    LOOKS = 256  # polls before yielding: some microseconds, if the other rank runs at all


cdef object flag_round_trip(Segment segment, int partner, int count, double timeout):
    """Return the median over `count` times of the seconds of a round trip."""
    cdef int me = segment.c.me
    cdef cc_rank_area *mine = &segment.c.ranks[me]
    cdef cc_rank_area *theirs = &segment.c.ranks[partner]
    cdef bint serves = me < partner
    cdef const uint64_t *heard = &theirs.pong if serves else &theirs.ping
    cdef uint64_t number = mine.ping
    cdef double start = 0
    cdef int i, k
    if partner == me or count < 1:
        raise ValueError("a round trip is between two ranks, and is made once at least")
    if not serves:  # the serving rank has the number
        await_flag(segment, heard, cc_flag(me, 0), CC_TO, False, partner, timeout)
        number = cc_read(heard) - 1
    times = []
    for i in range(count + 1):  # the first time includes the wait for the other rank
        start = now()
        for k in range(VOLLEY):
            number += 1
            if serves:
                cc_write(&mine.ping, cc_flag(partner, number))
            await_flag(segment, heard, cc_flag(me, number), 0, False, partner, timeout)
            if not serves:
                cc_write(&mine.pong, cc_flag(partner, number))
        times.append((now() - start) / VOLLEY)
    # The last ping is withdrawn, or it could pass for the first of other round trips.
    if serves:
        cc_write(&mine.ping, cc_flag(-1, number))
    else:
        await_flag(segment, heard, cc_flag(me, number), 0, True, partner, timeout)
    times = sorted(times[1:])
    return times[count // 2]


cdef int await_flag(
    Segment segment, const uint64_t *flag, uint64_t value, int lowest, bint leaves, int partner,
    double timeout,
) except -1:
    """Wait for a flag of another rank, at first with the GIL; see `cc_flag_comes`."""
    cdef double limit
    cdef bint came
    if cc_flag_comes(flag, value, lowest, leaves, LOOKS):
        return 0
    limit = now() + timeout
    while True:
        with nogil:
            sched_yield()
            came = cc_flag_comes(flag, value, lowest, leaves, LOOKS)
        if came:
            return 0
        PyErr_CheckSignals()
        segment.check_end()
        rank, other = segment.ranks[segment.c.me], segment.ranks[partner]
        if not segment.is_there(partner):
            raise PeerLostError(
                f"rank {other} (process {segment.c.ranks[partner].pid}) has ended while rank "
                f"{rank} waits for its flag"
            )
        if now() > limit:
            raise StallError(f"rank {rank} waited {timeout:g} s for the flag of rank {other}")
