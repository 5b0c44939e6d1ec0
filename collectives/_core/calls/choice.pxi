# Choices: the plan that a call runs, from the cache of the engine or by asking `choose`.


@cython.final
cdef class Choice:
    """A plan, the bytes of a segment to run it with (0: the whole block at once), and how blocks
    are stored: bits of segment.h, or -1 for what the rules say.
    """

    cdef readonly Plan plan
    cdef readonly int64_t segment
    cdef readonly str reason
    cdef uint32_t number  # of the algorithm's name, for the ranks to compare
    cdef readonly int ways
    cdef public object lesson  # None, or what else calls of the class may run (choice/lessons.py)
    cdef Course course  # None, or which of it they do run
    cdef int labels[2]  # of its calls, and of those of its vector form, or -1

    def __init__(
        self, Plan plan, int64_t segment, str reason="asked for by the caller", int ways=-1,
    ):
        self.plan = plan
        self.segment = segment
        self.reason = reason
        self.ways = ways
        self.labels[0] = self.labels[1] = -1
        self.number = crc32(plan.source.algorithm.name.encode())


cdef Choice choice_for(Engine engine, Call *call, algorithm):
    """Return the plan and segment size for a call, from the cache or by asking `choose`."""
    cdef Choice choice
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
        if choice.lesson is not None:
            choice.course = engine.courses.get(full)
            if choice.course is None:
                choice.course = engine.courses[full] = Course(choice.lesson, choice)
            else:
                choice.course.renew(choice.lesson, choice)
        engine.choices[full] = choice
    return choice
