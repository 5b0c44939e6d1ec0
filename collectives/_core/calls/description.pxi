# Descriptions: calls of ranks in words, which ranks compare and errors show.


cdef str description(Engine engine, Call made, op):
    """Return the part of a call that all ranks must have in common, in words."""
    cdef const Arguments *call = &made.given
    cdef Choice choice = made.choice
    cdef str size = None
    cdef str operation = None
    if call.kind >= NEIGHBORS:
        return neighbors_text(call)
    if call.announced:
        return "" if call.announced > KINDS else f"root={call.root}, its counts"
    if call.counts == NULL:
        size = f"count={call.part * call.contract.array_parts}"
    elif not is_ragged(call):
        counts = [call.counts[r] for r in range(engine.size)]
        if len(counts) > 8:
            counts = f"{sum(counts)} in all, checksum {hash(tuple(counts)) & 0xFFFFFFFF:08x}"
        size = f"counts={counts}"
    if call.contract.reduces and call.kind != BARRIER:
        operation = (op if type(op) is Reduction else reduction_called(op)).said
    parts = in_words(
        call.kind, size, dtype_text(call.x.dtype), operation, call.root, call.whole >= 0,
        choice.called(),
    )
    if choice.segment:
        parts.append(f"segment={choice.segment}")
    if call.prescale != 1.0:
        parts.append(f"prescale={call.prescale:g}")
    if call.postscale != 1.0:
        parts.append(f"postscale={call.postscale:g}")
    return ", ".join(parts)


cdef list in_words(
    int kind, str size, str dtype, str operation, root, bint on_device, str algorithm
):
    """Return the arguments that all ranks must have in common, in words."""
    parts = []
    if kind != BARRIER:
        parts = [each for each in (size, f"dtype={dtype}") if each]
    if operation is not None:
        parts.append(f"op={operation}")
    if spec.COLLECTIVES[COLLECTIVES[kind]].rooted:
        parts.append(f"root={root}")
    if on_device:
        parts.append("on a device")
    parts.append(f"algorithm={algorithm}")
    return parts
