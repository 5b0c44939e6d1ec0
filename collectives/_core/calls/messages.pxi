# Messages between two ranks: send, recv and sendrecv, as calls.


cdef list cut_into(int64_t count, int64_t most):
    """Return the numbers of elements of pieces with at most `most` elements."""
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest or not whole else [])
