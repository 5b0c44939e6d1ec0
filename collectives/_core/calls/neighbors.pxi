# Collectives between neighbours, as calls: their arrays have a block for each neighbour.

@cython.final
cdef class Neighbors:
    """One collective between neighbours, with the role of this rank.

    `inputs` and `outputs` are the blocks of its arrays; `choose` returns the plan for the bytes of
    a block, or for -1, if each block has a count of its own.
    """

    cdef int kind
    cdef Contract contract
    cdef object choose
    cdef dict choices

    def __init__(
        self, str collective, int inputs, int outputs, uint64_t checksum, choose, *,
        bint has_gaps, bint has_repeats, bint is_connected,
    ):
        cdef Contract *contract = &self.contract
        self.kind = KIND_NAMES.index(collective)
        contract.roles[0] = contract.roles[1] = Role(inputs, 0, outputs, 0, True, True)
        # Ranks compare the length of a block, if they are connected and must have the same.
        contract.array_parts = is_connected
        contract.form = STACKED if self.kind == NEIGHBORS else ROWS
        contract.overlap = COPIED
        contract.checksum = checksum
        contract.near = <void *>self
        contract.has_gaps, contract.has_repeats = has_gaps, has_repeats
        self.choose = choose
        self.choices = {}

    cdef Choice choice(self, const Arguments *call):
        """Return the plan for a checked call."""
        cdef int64_t nbytes = -1 if call.counts != NULL else call.part * call.x.itemsize
        cdef int key = -1 if nbytes < 0 else bit_length(nbytes)
        choice = self.choices.get(key)
        if choice is None:
            choice = self.choices[key] = self.choose(nbytes)
        return choice


cdef Call near_call(Engine engine, Neighbors at, bint blocking):
    """Return a call between neighbours; raise if this thread may not make it."""
    cdef Call call = open_call(engine, at.kind, blocking, None, None)
    call.given.contract = &at.contract
    return call


cdef int check_lengths(const Arguments *call) except -1:
    """Refuse blocks that need several messages, which those of other blocks could separate."""
    cdef int64_t longest = 0
    cdef int i
    for i in range(call.role.inputs):
        longest = max(longest, call.counts[i])
    for i in range(call.role.outputs):
        longest = max(longest, call.receive_counts[i])
    if longest > MAX_PIECE // call.x.itemsize:
        raise ArgumentError(
            f"a block has {longest} elements of {call.x.itemsize} bytes, and where a rank is a "
            f"neighbour several times, blocks may have {MAX_PIECE} bytes; pass shorter ones"
        )
    return 0


cdef str neighbors_text(const Arguments *call):
    """Return the part of a call that all ranks must have in common, in words."""
    size = f"count={call.part}, " if call.nbytes else ""
    neighbourhood = f"neighbourhood {call.checksum:08x}"
    return f"{size}dtype={dtype_text(call.x.dtype)}, {neighbourhood}"


cdef object not_on_devices(const Arguments *call):
    """Return the error of a call whose arrays are on a device."""
    return BufferError(
        f"{name_of(call)} takes arrays in host memory, and x or out is on a device; copy it first"
    )
