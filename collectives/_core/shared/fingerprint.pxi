# Fingerprints: the properties of a call in three words, which ranks compare.


cdef int fingerprint(const Arguments *call, Choice choice, int64_t count, uint64_t *what) except -1:
    """Write the fingerprint of a call, which ranks compare.

    The first word has the collective, dtype, operation (8 bits each), whether it is a vector form
    (1), the announced call (6), whether its arrays are on a device (1), and a checksum of the name
    of the algorithm (32); the second has the elements, the third the root and a checksum of all
    other options, and of the dtype if it has no kernels.
    """
    cdef uint64_t options = cc_mixed(cc_mixed(choice.segment, cc_bits(call.prescale)),
                                     cc_mixed(call.checksum, cc_bits(call.postscale)))
    cdef uint64_t dtype = call.x.dtype
    if dtype >= CC_NDTYPES:
        dtype = dtype_sum(call.x.dtype)
        options = cc_mixed(options, dtype)
        dtype = short_dtype(dtype)
    what[0] = call.kind | dtype << 8 | <uint64_t>call.operation << 16
    what[0] |= <uint64_t>(call.counts != NULL) << 24 | <uint64_t>call.announced << 25
    what[0] |= <uint64_t>(call.whole >= 0) << 31
    what[0] |= <uint64_t>choice.number << 32
    what[1] = count
    what[2] = <uint64_t>call.root | options >> 32 << 32
    return 0


cdef inline uint64_t short_dtype(uint64_t sum) noexcept:
    """Return the 8 bits of the checksum of a dtype without kernels that tell it in errors."""
    return 0x80 | sum >> 57


cdef inline uint64_t message_word(const uint64_t *what) noexcept:
    """Return a word for the messages of a call: the low half of the first word of its fingerprint,
    and a checksum of all but the number of elements, which the length of a message shows.
    """
    return <uint32_t>what[0] | cc_mixed(cc_mixed(0, what[0]), what[2]) >> 32 << 32


cdef inline bint is_exchange(uint64_t word) noexcept:
    """Return whether a word is of a message of a program, and not of a collective."""
    return word & 0xFF == EXCHANGE


cdef str call_name(uint64_t word):
    """Return the name of a call by the first word of its fingerprint."""
    cdef int announced = word >> 25 & 0x3F
    if announced:
        return announcement(announced)
    return KIND_NAMES[word & 0xFF] + ("v" if word >> 24 & 1 and not is_exchange(word) else "")


cdef str message_said(uint64_t word):
    """Return the call of a message in words; for one of a program, its dtype."""
    cdef int announced = word >> 25 & 0x3F
    dtype, op = dtype_said(word), operation_said(word)
    if is_exchange(word):
        return dtype
    if announced:
        return f"{call_name(word)}()"
    more = "" if op is None else f", op={op}"
    return f"{call_name(word)}(dtype={dtype}{more})"


cdef str dtype_said(uint64_t word):
    """Return the name of the dtype in the first word of a fingerprint."""
    cdef int dtype = word >> 8 & 0xFF
    if dtype < CC_NDTYPES:
        return DTYPES[dtype]
    known = [each for each in other_dtypes if short_dtype(text_mixed(0, each)) == <uint64_t>dtype]
    return known[0] if known else "another"


cdef str operation_said(uint64_t word):
    """Return the name of the operation in the first word of a fingerprint, or None."""
    cdef int operation = word >> 16 & 0xFF
    if operation == NO_OPERATION:
        return None
    return said_by_number.get(operation, "another function")


cdef str called(const uint64_t *what):
    """Return the call of a fingerprint in words."""
    cdef int kind = what[0] & 0xFF
    cdef int announced = what[0] >> 25 & 0x3F
    cdef bint is_vector = what[0] >> 24 & 1
    cdef uint64_t number = what[0] >> 32
    cdef str size = f"count={what[1]}"
    root = what[2] & 0xFFFFFFFF
    if announced > KINDS:
        return f"{call_name(what[0])}()"
    if announced:
        return f"{call_name(what[0])}(root={root}, its counts)"
    name = KIND_NAMES[kind]
    if is_vector and (what[1] == 0 or kind >= NEIGHBORS):
        size = None  # no rank knows all counts
    if kind >= NEIGHBORS:
        parts = [each for each in (size, f"dtype={dtype_said(what[0])}") if each]
    else:
        from collectives.algorithms import registry  # late, since few programs need it before

        algorithm = registry.numbered(name, number)
        parts = in_words(
            kind, size, dtype_said(what[0]), operation_said(what[0]), root, what[0] >> 31 & 1,
            algorithm,
        )
    return f"{call_name(what[0])}({', '.join(parts)})"
