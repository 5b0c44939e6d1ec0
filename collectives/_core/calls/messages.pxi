# Messages between two ranks: send, recv and sendrecv, as calls.


cdef tuple check_messages(Arguments *call, x, out):
    """Check the arrays of messages; return the objects that must stay alive."""
    kept_x = kept_out = None
    call.x = View(NULL, 0, 1, 0)
    call.out = View(NULL, 0, 1, 0)
    if x is not None:
        kept_x = view_of_x(call, x, True)
    if out is not None:
        kept_out = view_of_out(call, out, True)
    if x is None:
        call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
    elif out is not None:
        if call.x.dtype != call.out.dtype:
            raise different_dtypes(call)
        if overlap(&call.x, &call.out):
            raise BufferError("out overlaps x; pass arrays that share no memory")
    return kept_out if type(kept_out) is Pending else out, kept_x, kept_out


cdef list cut_into(int64_t count, int64_t most):
    """Return the numbers of elements of pieces with at most `most` elements."""
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest or not whole else [])
