# Choices: the plan that a call runs, from the cache of the engine or by asking `choose`.

from zlib import crc32

from collectives.algorithms import bits as modes


@cython.final
cdef class Choice:
    """A plan, the bytes of its segments (0: the whole block at once), and the way to store blocks:
    bits of segment.h, or -1 for the rules of the core.
    """

    cdef readonly Plan plan
    cdef readonly int64_t segment
    cdef readonly str reason
    cdef uint32_t number  # a checksum of the algorithm's name, which ranks compare
    cdef readonly int ways
    cdef readonly str bits  # the mode of the bits of the result, of the call or the engine
    cdef public object lesson  # None, or the settings that calls may try (choice/lessons.py)
    cdef Course course  # None, or the progress of these trials
    cdef int labels[2]  # of its calls, and of calls of its vector form, or -1

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
    """Refuse a user's function if bits must not depend on the length of its arrays."""
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
    cdef bint ragged = is_ragged(call)
    # Devices without common pages have only messages.
    cdef bint by_messages = call.device != NULL and (
        ragged or (<object>call.device).segment is None
    )
    if algorithm is not None and not isinstance(algorithm, str):
        raise ArgumentError(f"algorithm is {shown(algorithm)}, and must be a name or None")
    if call.ordered:
        key += 64
    if call.user != NULL:
        check_users_fold(engine, call, algorithm)
    if ragged:
        key = ~key
    full = key if algorithm is None else (key, algorithm)
    if by_messages:
        full = (full, "by messages")
    choice = engine.choices.get(full)
    if choice is None:
        choice = engine.choose(
            COLLECTIVES[call.kind], algorithm, call.nbytes, call.root, call.ordered,
            call.counts != NULL, ragged, by_messages,
        )
        if choice.lesson is not None:
            choice.course = engine.courses.get(full)
            if choice.course is None:
                choice.course = engine.courses[full] = Course(choice.lesson, choice)
            else:
                choice.course.renew(choice.lesson, choice)
        engine.choices[full] = choice
    return choice
