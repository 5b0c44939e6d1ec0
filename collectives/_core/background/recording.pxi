# The timeline of a task: the moments of its states, from its submission to its end.

cdef enum Moment:
    SUBMITTED, COMPARED, SCHEDULED, BEGUN, SENT_OFF, BACK
    MOMENTS

# The chunk of the tape for records of tasks; it is used with the GIL held.
cdef struct TaskRecords:
    cc_record *next
    int left
    unsigned int tape_number

cdef TaskRecords task_records


cdef inline void mark(Task task, Moment moment) noexcept:
    """Note the time of a moment of a task, if there is a timeline."""
    if tape != NULL:
        task.moments[<int>moment] = cc_ticks()


cdef inline void mark_all(list tasks, Moment moment) noexcept:
    if tape != NULL:
        for task in tasks:
            mark(<Task>task, moment)


cdef void record(
    int kind, uint64_t start, uint64_t end, int64_t nbytes, int label
) noexcept:
    if task_records.tape_number != tapes:
        task_records.tape_number = tapes
        task_records.left = 0
    cc_fill(
        cc_next_record(tape, &task_records.next, &task_records.left), kind, start, end, tape.calls,
        nbytes, label + 1, NO_NUMBER,
    )


cdef int record_task(Task task) except -1:
    """Record a complete task. Tasks that ran as one have the times of their common phases."""
    cdef uint64_t *moments = task.moments
    cdef uint64_t end = cc_ticks()
    cdef int kinds[5]
    cdef int i
    cdef uint64_t start, stop
    if tape == NULL or tape.head.full or moments[<int>SUBMITTED] == 0:
        return 0
    kinds[0], kinds[1], kinds[2] = CC_T_QUEUE, CC_T_NEGOTIATE, CC_T_TURN
    kinds[3], kinds[4] = CC_T_COPY_IN, CC_T_COMMUNICATE
    number = number_of_label((
        task.engine.label, task.kind, task.key or task.kind, 0, "background", "submitted",
    ))
    tape.calls += 1
    start = moments[<int>SUBMITTED]
    record(CC_T_CALL, start, end, task.nbytes, number)
    for i in range(1, <int>MOMENTS):
        stop = moments[i]
        if stop >= start:
            if stop > start:
                record(kinds[i - 1], start, stop, 0, -1)
            start = stop
    if moments[<int>BACK]:
        record(CC_T_COPY_OUT, start, end, 0, -1)
    elif end > start:
        record(CC_T_COMMUNICATE, start, end, 0, -1)
    return 0
