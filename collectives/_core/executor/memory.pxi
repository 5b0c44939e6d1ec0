# The memory of operations: reserved once for each size class, then recycled.

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject


@cython.final
cdef class Arena:
    """The memory of an operation, when a user's arrays are views of it."""

    cdef char *memory

    def __dealloc__(self):
        free(self.memory)


cdef Arena share_arena(Operation *op):
    """Return the object that owns the memory of an operation from now on."""
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


cdef inline int64_t scratch_bytes(const Operation *op, Plan plan) noexcept nogil:
    """Return the bytes of scratch memory for data that is read from other processes."""
    cdef const cc_segment *segment = op.shared.segment
    cdef int64_t most
    if segment == NULL or not segment.reads or op.nbytes * segment.p < READ_LEAST:
        return 0
    most = plan.width * min(<int64_t>PIECE, (op.nbytes + 63) & ~63)
    return max(min(most, <int64_t>MOST_SCRATCH), plan.width * <int64_t>4096)


cdef int reserve(Operation *op, Plan plan) noexcept:
    """Allocate the arena and request slots of an operation. Return 0, or -1 without memory."""
    cdef Memory *memory = &op.memory
    cdef int64_t each = cursor_bytes(op, plan)
    cdef size_t wanted
    cdef int k
    memory.scratch_bytes = scratch_bytes(op, plan)
    wanted = each * op.window + memory.scratch_bytes + 64 * (memory.scratch_bytes > 0)
    if wanted > memory.arena_bytes and op.device == NULL:
        free_arena(memory)
        wanted = <size_t>1 << bit_length(wanted - 1)
        if posix_memalign(<void **>&memory.arena, 64, wanted):
            return -1
        memory.arena_bytes = wanted
    for k in range(op.window):
        op.state.cursors[k].memory = memory.arena + k * each
    memory.scratch = memory.arena + op.window * each
    if plan.width > memory.width:
        free(memory.sources)
        memory.width = plan.width
        memory.sources = <const char **>calloc(plan.width, 3 * sizeof(char *) + 1)
        if memory.sources == NULL:
            memory.width = 0
            return -1
        memory.targets = <char **>(memory.sources + plan.width)
        memory.parts = <const char **>(memory.targets + plan.width)
        memory.folds = <signed char *>(memory.parts + plan.width)
    return reserve_slots(op, op.window * max(plan.whole.slots, plan.split.slots))


cdef int reserve_slots(Operation *op, int wanted) noexcept:
    """Allocate the `wanted` slots of an operation in one block. Return 0, or -1 without memory."""
    cdef Slots *slots = &op.slots
    cdef size_t n = wanted + 1
    cdef size_t each = 2 * sizeof(int64_t) + op.transport.status_size + op.transport.handle_size
    if slots.rest != NULL and wanted <= slots.reserved:
        return 0
    free(slots.rest)
    slots.reserved = 0
    slots.rest = <int64_t *>calloc(n, each + 2 * sizeof(int) + 1)
    if slots.rest == NULL:
        return -1
    # Arrays of words come first, and those of bytes last, so that all are aligned.
    slots.since = <uint64_t *>(slots.rest + n)
    slots.statuses = <char *>(slots.since + n)
    slots.requests = slots.statuses + n * op.transport.status_size
    slots.expected = <int *>(<char *>slots.rest + n * each)
    slots.done = slots.expected + n
    slots.arrived = <char *>(slots.done + n)
    slots.reserved = wanted
    op.transport.clear(slots.requests, wanted)
    return 0


cdef int reserve_tables(Operation *op, size_t wanted) noexcept:
    """Allocate room for the `wanted` starts of places. Return 0, or -1 without memory."""
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
    free(op.slots.rest)
    free(op)
