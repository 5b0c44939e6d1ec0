# The tape for Python: its start and end, and the labels of its calls; and traces.

cdef enum:
    NO_NUMBER = 0xFFFFFFFF  # of messages, which ranks do not count alike

# The tape on which operations that start now are recorded, or NULL; one at a time in a process.
cdef cc_tape *tape = NULL
cdef unsigned int tapes = 0  # the number of tapes so far
cdef int running = 0  # calls on record that block and have not ended well
cdef object tell_label = None

# Labels of calls, by number: communicator, collective, algorithm, segment, transport, and the
# reason of the choice. They are kept until the process ends.
cdef list label_list = []
cdef dict label_numbers = {}


def start_tape(int file, uint64_t limit, bint counts, tell):
    """Record operations that start from now on in an empty file, up to `limit` bytes. Local.

    With `counts`, times are those of the processor's counter. ``tell(number, label)`` is called for
    all existing labels, and for each new one.
    """
    global tape, tapes, tell_label
    cdef cc_tape *new
    if tape != NULL:
        raise CommunicatorError("this process is recorded already")
    new = cc_tape_open(file, limit, counts)
    if new == NULL:
        raise OSError("the file of the timeline cannot be had or mapped")
    for number, label in enumerate(label_list):
        tell(number, label)
    tell_label = tell
    tapes += 1
    tape = new


def stop_tape():
    """Stop recording, also operations in flight. Return whether there was room for all. Local."""
    global tape, tell_label
    cdef cc_tape *old = tape
    cdef bint busy, full
    if old == NULL:
        return True
    tape = NULL
    tell_label = None
    full = old.head.full
    # Operations in flight still write to it.
    busy = running > 0 or in_flight != NULL
    cc_tape_close(old, busy)
    return not full


def set_clock():
    """Record a pair of ticks and nanoseconds on the tape now. Local."""
    if tape != NULL:
        cc_tape_clock(tape)


def monotonic_ticks():
    """Return the current ticks, which time records. Local."""
    return cc_ticks()


def now_seconds():
    """Return the current seconds, which time traces. Local."""
    return now()


cdef int64_t record_bytes(const Arguments *call) noexcept:
    """Return the bytes of a call for its record."""
    if call.kind == BARRIER:
        return 0
    if call.kind >= NEIGHBORS or (call.kind == ALLTOALL and call.counts != NULL):
        return call.x.count * call.x.itemsize
    if call.own_only:
        return max(call.x.count, call.out.count) * call.x.itemsize
    return call.nbytes


cdef int label_of(Engine engine, Operation *op, Choice choice, const Arguments *call) except -1:
    """Return the number of the label of a call."""
    cdef Plan plan = choice.plan
    if call.kind == EXCHANGE:
        name = plan.source.algorithm.collective.name
    else:
        name = KIND_NAMES[call.kind] + "v" * (call.counts != NULL)
    ways = []
    if op.shared.segment != NULL:
        ways.append("shm")
    if op.plan.sends:
        ways.append(engine.messages_by)
    label = (
        engine.label, name, plan.source.algorithm.name, choice.segment, "+".join(ways) or "none",
        choice.reason,
    )
    return number_of_label(label)


cdef int number_of_label(tuple label) except -1:
    number = label_numbers.get(label)
    if number is None:
        number = len(label_list)
        label_list.append(label)
        label_numbers[label] = number
        if tell_label is not None:
            tell_label(number, label)
    return number


cdef int begin_record(Engine engine, Operation *op, Choice choice, const Arguments *call) except -1:
    """Record a call that is about to start."""
    global running
    cdef Recording *record = &op.record
    cdef uint64_t start
    cdef bint vector = call.counts != NULL
    record.label = choice.labels[vector]
    if record.label < 0:
        record.label = choice.labels[vector] = label_of(engine, op, choice, call)
    record.nbytes = record_bytes(call)
    # Announcements are part of other calls.
    record.began = now() if engine.traced is not None and not call.announced else 0
    record.blocks = call.blocking
    if call.blocking:
        running += 1
    if tape == NULL or tape.head.full:
        return 0
    if record.tape_number != tapes:  # the current chunk belongs to an earlier tape
        record.tape_number = tapes
        record.left = 0
    tape.calls += 1
    record.tape = tape
    record.clock = cc_ticks()
    record.watched = call.blocking
    start = call.called_at if call.called_at else record.clock
    record.whole = cc_next_record(tape, &record.next, &record.left)
    cc_fill(
        record.whole, CC_T_CALL, start, start, tape.calls, record.nbytes, record.label + 1,
        NO_NUMBER if call.kind == EXCHANGE else op.number,
    )
    if call.called_at:
        record.clock = start
        if call.blocking:
            note_until_now(op, CC_T_QUEUE, 0, -1, 0)
    return 0


cdef int end_record(Engine engine, Operation *op) except -1:
    """Trace a call that has ended well, if traces are on."""
    global running
    cdef Recording *record = &op.record
    cdef double end
    if record.blocks:
        running -= 1
    if engine.traced is not None and record.began:
        end = now()
        engine.traced(label_list[record.label], record.nbytes, record.began, end - record.began)
    record.label = -1
    return 0
