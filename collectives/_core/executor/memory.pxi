# The memory of operations: reserved once for each size class, then recycled.

cdef int reserve(Operation *op, Plan plan) noexcept:
    """See that an operation has its arena and request slots. Returns 0, or -1 without memory."""
    cdef int64_t work = 0
    cdef int64_t each
    cdef size_t wanted
    cdef int k
    if plan.places[<int>WORK]:
        if op.whole:
            work = place_start(op, WORK, plan.places[<int>WORK]) * op.itemsize
        else:
            work = plan.places[<int>WORK] * op.stride
    each = (op.work_offset + work + 63) & ~63
    wanted = each * op.window
    if wanted > op.arena_bytes:
        free(op.arena)
        op.arena = NULL
        op.arena_bytes = 0
        wanted = <size_t>1 << bit_length(wanted - 1)
        if posix_memalign(<void **>&op.arena, 64, wanted):
            return -1
        op.arena_bytes = wanted
    for k in range(op.window):
        op.cursors[k].memory = op.arena + k * each
    if plan.width > op.width_reserved:
        free(op.sources)
        free(op.sides)
        op.sources = <const char **>calloc(plan.width, sizeof(char *))
        op.sides = <signed char *>calloc(plan.width, 1)
        op.width_reserved = plan.width
        if op.sources == NULL or op.sides == NULL:
            op.width_reserved = 0
            return -1
    return reserve_slots(op, op.window * max(plan.whole.slots, plan.split.slots))


cdef int reserve_slots(Operation *op, int wanted) noexcept:
    if op.arrived == NULL or wanted > op.slots_reserved:
        free_slots(op)
        op.requests = calloc(wanted + 1, transport.handle_size)
        op.arrived = <char *>calloc(wanted + 1, 1)
        op.expected = <int *>calloc(wanted + 1, sizeof(int))
        op.rest = <int64_t *>calloc(wanted + 1, sizeof(int64_t))
        op.since = <uint64_t *>calloc(wanted + 1, sizeof(uint64_t))
        op.done = <int *>calloc(wanted + 1, sizeof(int))
        op.statuses = <char *>calloc(wanted + 1, cc_mpi.status_size)
        if op.requests == NULL or op.arrived == NULL or op.expected == NULL:
            return -1
        if op.done == NULL or op.statuses == NULL or op.rest == NULL:
            return -1
        if op.since == NULL:
            return -1
        op.slots_reserved = wanted
        transport.clear(op.requests, wanted)
    return 0


cdef void free_slots(Operation *op) noexcept:
    free(op.requests)
    free(op.arrived)
    free(op.expected)
    free(op.rest)
    free(op.since)
    free(op.done)
    free(op.statuses)
    op.requests = NULL
    op.arrived = NULL
    op.slots_reserved = 0


cdef int reserve_tables(Operation *op, size_t wanted) noexcept:
    if wanted > op.tables_reserved:
        free(op.tables)
        op.tables = <int64_t *>calloc(wanted, sizeof(int64_t))
        op.tables_reserved = wanted if op.tables != NULL else 0
        if op.tables == NULL:
            return -1
    return 0


cdef void release(Operation *op) noexcept:
    free(op.arena)
    free(op.tables)
    free(op.sources)
    free(op.sides)
    free_slots(op)
    free(op)
