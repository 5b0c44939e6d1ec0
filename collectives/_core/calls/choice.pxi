# Choices: the plan that a call runs, from the cache of the engine or by asking `choose`.


@cython.final
cdef class Choice:
    """A plan, and the bytes of a segment to run it with (0: the whole block at once)."""

    cdef readonly Plan plan
    cdef readonly int64_t segment
    cdef readonly str reason
    cdef uint32_t number  # of the algorithm's name, for the ranks to compare
    cdef public object trials  # None, or the trials of alternatives (choice/chooser.py)
    cdef Choice settled  # None, or what they have shown to be the fastest
    cdef int64_t calls  # that trials have counted
    cdef public int64_t due  # the call that they have to be asked about
    cdef int labels[2]  # of its calls, and of those of its vector form, or -1

    def __init__(self, Plan plan, int64_t segment, str reason="asked for by the caller"):
        self.plan = plan
        self.segment = segment
        self.reason = reason
        self.labels[0] = self.labels[1] = -1
        self.number = crc32(plan.source.algorithm.name.encode())


cdef Choice choice_for(Engine engine, Call *call, algorithm):
    """Return the plan and segment size for a call, from the cache or by asking `choose`."""
    cdef int64_t key = (call.root * 16 + call.kind) * 128 + bit_length(call.nbytes)
    # Devices without pages in common have messages only.
    cdef bint by_messages = call.device != NULL and (<object>call.device).segment is None
    if algorithm is not None and not isinstance(algorithm, str):
        raise ArgumentError(f"algorithm is {shown(algorithm)}, and must be a name or None")
    if call.ordered:
        key += 64
    if call.kind == ALLTOALL and call.counts != NULL:
        key = ~key
    full = key if algorithm is None else (key, algorithm)
    if by_messages:
        full = (full, "by messages")
    choice = engine.choices.get(full)
    if choice is None:
        choice = engine.choose(
            COLLECTIVES[call.kind], algorithm, call.nbytes, call.root, call.ordered,
            call.counts != NULL, by_messages,
        )
        engine.choices[full] = choice
    return choice


cdef Choice trial_of(Engine engine, Choice choice, bint blocking, double timeout, int *slot):
    """Return what a call of a class with trials runs; `slot` is whose time it adds to, or -1.
    Collective.

    The class is counted where only one thread is, and after all that can refuse a call.
    """
    cdef bint held = engine.held
    slot[0] = -1
    if choice.settled is not None:
        return choice.settled
    if not blocking:
        return choice
    choice.calls += 1
    if choice.calls < choice.due:
        return choice
    engine.held = True  # the ranks meet in calls inside of this one
    try:
        slot[0], other, choice.due = choice.trials.begin(
            choice.calls, None if timeout == COMMON else timeout
        )
    finally:
        engine.held = held
    other = choice if other is None else other
    if slot[0] < 0:
        choice.settled = other
    return other
