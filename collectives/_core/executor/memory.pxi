# The memory of operations: reserved once for each size class, then recycled.

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject


@cython.final
cdef class Arena:
    """The memory of an operation, as soon as a user's arrays are views of it, too."""

    cdef char *memory

    def __dealloc__(self):
        free(self.memory)


cdef Arena share_arena(Operation *op):
    """Return what owns the memory of an operation from now on."""
    cdef Memory *memory = &op.memory
    cdef Arena arena
    if memory.owner == NULL:
        arena = Arena.__new__(Arena)
        arena.memory = memory.arena
        Py_INCREF(arena)
        memory.owner = <void *>arena
        memory.arena_bytes = 0
    return <Arena>memory.owner


cdef void free_arena(Memory *memory) noexcept:
    if memory.owner != NULL:
        Py_DECREF(<Arena>memory.owner)
        memory.owner = NULL
    else:
        free(memory.arena)
    memory.arena = NULL
    memory.arena_bytes = 0


cdef inline int64_t cursor_bytes(const Operation *op, Plan plan) noexcept:
    """Return the bytes of temporary slots and workspace that a cursor needs."""
    cdef const Layout *layout = &op.layout
    cdef int64_t work = 0
    if plan.places[<int>WORK]:
        if layout.whole:
            work = place_start(op, WORK, plan.places[<int>WORK]) * layout.itemsize
        else:
            work = plan.places[<int>WORK] * layout.stride
    return (layout.work_offset + work + 63) & ~63


cdef int reserve(Operation *op, Plan plan) noexcept:
    """See that an operation has its arena and request slots. Returns 0, or -1 without memory."""
    cdef Memory *memory = &op.memory
    cdef int64_t each = cursor_bytes(op, plan)
    cdef size_t wanted = each * op.window
    cdef int k
    if wanted > memory.arena_bytes and op.device == NULL:
        free_arena(memory)
        wanted = <size_t>1 << bit_length(wanted - 1)
        if posix_memalign(<void **>&memory.arena, 64, wanted):
            return -1
        memory.arena_bytes = wanted
    for k in range(op.window):
        op.state.cursors[k].memory = memory.arena + k * each
    if plan.width > memory.width:
        free(memory.sources)
        free(memory.sides)
        memory.sources = <const char **>calloc(plan.width, sizeof(char *))
        memory.sides = <signed char *>calloc(plan.width, 1)
        memory.width = plan.width
        if memory.sources == NULL or memory.sides == NULL:
            memory.width = 0
            return -1
    if plan.reach > memory.reach:
        free(memory.targets)
        memory.targets = <char **>calloc(plan.reach, sizeof(char *))
        memory.reach = plan.reach if memory.targets != NULL else 0
        if memory.targets == NULL:
            return -1
    return reserve_slots(op, op.window * max(plan.whole.slots, plan.split.slots))


cdef int reserve_slots(Operation *op, int wanted) noexcept:
    """See that an operation has so many slots. Returns 0, or -1 without memory."""
    cdef Slots *slots = &op.slots
    if slots.arrived == NULL or wanted > slots.reserved:
        free_slots(slots)
        slots.requests = calloc(wanted + 1, transport.handle_size)
        slots.arrived = <char *>calloc(wanted + 1, 1)
        slots.expected = <int *>calloc(wanted + 1, sizeof(int))
        slots.rest = <int64_t *>calloc(wanted + 1, sizeof(int64_t))
        slots.since = <uint64_t *>calloc(wanted + 1, sizeof(uint64_t))
        slots.done = <int *>calloc(wanted + 1, sizeof(int))
        slots.statuses = <char *>calloc(wanted + 1, cc_mpi.status_size)
        if slots.requests == NULL or slots.arrived == NULL or slots.expected == NULL:
            return -1
        if slots.done == NULL or slots.statuses == NULL or slots.rest == NULL:
            return -1
        if slots.since == NULL:
            return -1
        slots.reserved = wanted
        transport.clear(slots.requests, wanted)
    return 0


cdef void free_slots(Slots *slots) noexcept:
    free(slots.requests)
    free(slots.arrived)
    free(slots.expected)
    free(slots.rest)
    free(slots.since)
    free(slots.done)
    free(slots.statuses)
    slots.requests = NULL
    slots.arrived = NULL
    slots.reserved = 0


cdef int reserve_tables(Operation *op, size_t wanted) noexcept:
    """See that there is room for so many starts of places. Returns 0, or -1 without memory."""
    cdef Memory *memory = &op.memory
    if wanted > memory.tables_reserved:
        free(memory.tables)
        memory.tables = <int64_t *>calloc(wanted, sizeof(int64_t))
        memory.tables_reserved = wanted if memory.tables != NULL else 0
        if memory.tables == NULL:
            return -1
    return 0


cdef void release(Operation *op) noexcept:
    """Free an operation and all its memory."""
    free_arena(&op.memory)
    free(op.memory.tables)
    free(op.memory.sources)
    free(op.memory.sides)
    free(op.memory.targets)
    free_slots(&op.slots)
    free(op)
