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


cdef int check_users_fold(const Arguments *call, bits) except -1:
    """Refuse a user's function if bits must not depend on the length of its arrays."""
    if bits == modes.ANY:
        return 0
    raise ArgumentError(
        f"bits is {modes.SIZE!r}, and op is a function, whose results may depend on the length of "
        f"the pieces that it is called with, in {name_of(call)} by every algorithm; pass an "
        f"operation of the library, or bits={modes.ANY!r}"
    )


cdef object mode_of(Engine engine, Call made):
    """Return the mode of the bits of a call's result."""
    if made.given.rows != NULL:
        return modes.ONCE
    return engine.bits if made.bits is None else modes.checked(made.bits)


cdef inline int choose_for(Engine engine, Call made) except -1:
    """Set the plan of a call: that of the last call of its class, or the one for its class."""
    cdef const Arguments *call = &made.given
    cdef Call last = engine.last[class_of(call)]
    made.era = engine.era
    if last is not None and (
        last.era != made.era or last.algorithm is not made.algorithm or last.bits is not made.bits
    ):
        last = None
    made.counted = 0 if call.counts == NULL else state_of_counts(engine, call)
    if last is not None and is_alike(call, &last.given) and (
        call.counts == NULL or made.counted and made.counted == last.counted
    ):
        made.key, made.choice, made.twin = last.key, last.choice, last.stamp
        return 0
    if call.contract.near != NULL:
        made.choice = (<Neighbors>call.contract.near).choice(call)
        return 0
    made.key = Key(
        call.kind, call.root, bit_length(call.nbytes), call.ordered, is_ragged(call), False,
        call.rows != NULL,
    )
    if call.device != NULL:  # devices without common pages have only messages
        made.key.by_messages = made.key.is_ragged or (<object>call.device).segment is None
    if last is not None and call.user == NULL and memcmp(&last.key, &made.key, sizeof(Key)) == 0:
        made.choice = last.choice
    else:
        made.choice = choice_for(engine, made)
    return 0


cdef Choice choice_for(Engine engine, Call made):
    """Return the plan of a call's class, from the cache or by asking `choose`."""
    cdef const Arguments *call = &made.given
    cdef const Key *key = &made.key
    cdef Choice choice
    cdef object algorithm = made.algorithm
    cdef tuple full
    if algorithm is not None and not isinstance(algorithm, str):
        raise ArgumentError(f"algorithm is {shown(algorithm)}, and must be a name or None")
    bits = mode_of(engine, made)
    if call.user != NULL:
        check_users_fold(call, bits)
    full = (
        key.kind, key.root, key.bits, key.ordered, key.is_ragged, key.by_messages, algorithm, bits,
    )
    choice = engine.choices.get(full)
    if choice is None:
        choice = engine.choose(
            COLLECTIVES[call.kind], algorithm, bits, call.nbytes, call.root, call.ordered,
            call.counts != NULL, key.is_ragged, key.by_messages,
        )
        if choice.lesson is not None:
            choice.course = engine.courses.get(full)
            if choice.course is None:
                choice.course = engine.courses[full] = Course(choice.lesson, choice)
            else:
                choice.course.renew(choice.lesson, choice)
        engine.choices[full] = choice
    return choice
