# Fingerprints: the properties of a call in three words, which ranks compare.


cdef int fingerprint(const Call *call, Choice choice, int64_t count, uint64_t *what) except -1:
    """Write the fingerprint of a call, which ranks compare.

    The first word has the collective, dtype, operation (8 bits each), whether it is a vector form
    (1), the announced call (6), whether its arrays are on a device (1), and a checksum of the name
    of the algorithm (32); the second has the elements, the third the root and all other options.
    """
    cdef uint64_t options = cc_mixed(cc_mixed(choice.segment, cc_bits(call.prescale)),
                                     cc_mixed(call.checksum, cc_bits(call.postscale)))
    cdef uint64_t dtype = call.x.dtype
    if dtype >= CC_NDTYPES:
        dtype = 0x80 | crc32(dtype_text(call.x.dtype).encode()) & 0x7F
    what[0] = call.kind | dtype << 8 | <uint64_t>call.operation << 16
    what[0] |= <uint64_t>(call.counts != NULL) << 24 | <uint64_t>call.announced << 25
    what[0] |= <uint64_t>(call.whole >= 0) << 31
    what[0] |= <uint64_t>choice.number << 32
    what[1] = count
    what[2] = <uint64_t>call.root | options >> 32 << 32
    return 0


cdef str called(const uint64_t *what):
    """Return the call of a fingerprint in words."""
    cdef int kind = what[0] & 0xFF
    cdef int dtype = what[0] >> 8 & 0xFF
    cdef int operation = what[0] >> 16 & 0xFF
    cdef int announced = what[0] >> 25 & 0x3F
    cdef uint64_t number = what[0] >> 32
    cdef str op = None
    root = what[2] & 0xFFFFFFFF
    if announced > KINDS:
        return f"{announcement(announced)}()"
    if announced:
        return f"{announcement(announced)}(root={root}, its counts)"
    name = name_of_kind(kind)
    if dtype < CC_NDTYPES:
        text = DTYPES[dtype]
    else:
        known = [each for each in other_dtypes if 0x80 | crc32(each.encode()) & 0x7F == dtype]
        text = known[0] if known else "another"
    if operation != NO_OPERATION:
        known = [each.name for each in built_in.values() if each.number == operation]
        op = known[0] if known else "a function"
    if kind >= NEIGHBORS:
        parts = [f"count={what[1]}", f"dtype={text}"]
    else:
        from collectives.algorithms import registry  # late, since few programs need it before

        algorithm = registry.numbered(name, number)
        parts = in_words(kind, f"count={what[1]}", text, op, root, what[0] >> 31 & 1, algorithm)
    return f"{name}{'v' if what[0] >> 24 & 1 else ''}({', '.join(parts)})"
