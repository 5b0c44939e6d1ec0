# Choices: the plan that a call runs, from the cache of the engine or by asking `choose`.

from collectives.algorithms import bits as modes


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
    cdef readonly str bits  # what those of the result may depend on, as the call or its engine says
    cdef public object lesson  # None, or what else calls of the class may run (choice/lessons.py)
    cdef Course course  # None, or which of it they do run
    cdef int labels[2]  # of its calls, and of those of its vector form, or -1

    def __init__(
        self, Plan plan, int64_t segment, str reason="asked for by the caller", int ways=-1,
        str bits=modes.ANY,
    ):
        self.plan = plan
        self.segment = segment
        self.reason = reason
        self.ways = ways
        self.bits = bits
        self.labels[0] = self.labels[1] = -1
        self.number = crc32(self.called().encode())

    cdef str called(self):
        return modes.called(self.plan.source.algorithm.name, self.bits)


cdef int check_users_fold(Engine engine, const Call *call, algorithm) except -1:
    """Refuse a function of the user's where bits must not depend on the length of its arrays."""
    if modes.asked(algorithm, engine.bits)[1] == modes.ANY:
        return 0
    raise ArgumentError(
        f"bits is {modes.SIZE!r}, and op is a function, whose results may depend on the length of "
        f"the pieces that it is called with, in {name_of(call)} by every algorithm; pass an "
        f"operation of the library, or bits={modes.ANY!r}"
    )


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
    if call.user != NULL:
        check_users_fold(engine, call, algorithm)
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
