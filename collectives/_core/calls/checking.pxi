# Checking: the arguments of a call are held against each other before anything is sent.

from cpython.number cimport PyNumber_Index


cdef tuple check(Engine engine, Call *call, x, out, op, root, prescale, postscale):
    """Check the arguments; return (what the caller gets, what else must stay alive)."""
    cdef int kind = call.kind
    cdef bint moves = not engine.reduces[kind]
    call.counts = NULL
    take_options(engine, call, root, prescale, postscale)
    if kind == BARRIER:
        set_barrier(engine, call)
        return None, None
    if x is None and call.role.inputs == 0 and out is not None:
        kept_x = None
        kept_out = view_of(out, &call.out, "out", True, moves)
        call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
        call.part = call.out.count
    else:
        kept_x = view_of(x, &call.x, "x", False, moves)
        if call.planned and call.role.inputs and is_copy(kept_x, x):
            raise BufferError(
                "x is not C-contiguous and aligned, and a planned call reads it where it lies; "
                "pass a contiguous array"
            )
        call.part = part_of_x(engine, call)
    call.nbytes = call.part * engine.array_parts[kind] * call.x.itemsize
    keep = check_fold(engine, call, op)
    if call.role.outputs == 0:
        call.out = View(NULL, 0, call.x.itemsize, call.x.dtype)
        return None, kept_x, keep
    if kept_x is None:
        result = out
    elif out is None:
        shape = None if engine.keeps_shape[kind] else new_shape(engine, call, kept_x)
        result = kept_out = result_like(x, kept_x, &call.x, shape, &call.out)
        return result, kept_x, kept_out, keep
    else:
        result = out
        kept_out = view_of(out, &call.out, "out", True, moves)
        if out is x and engine.array_parts[kind] == 1:
            return result, kept_x, kept_out, keep
    kept_x = check_output(engine, call, kept_x, call.part * call.role.outputs)
    return result, kept_x, kept_out, keep


cdef tuple check_vector(
    Engine engine, Call *call, x, out, op, root, timeout, prescale, postscale, shape,
):
    """Check the arguments of a vector form, as `check` does; the counts are in the call."""
    cdef int kind = call.kind
    cdef bint moves = not engine.reduces[kind]
    cdef int64_t total = 0
    cdef int64_t wanted
    cdef int r
    call.timeout = deadline_of(timeout)
    take_options(engine, call, root, prescale, postscale)
    call.part = 0
    for r in range(engine.size):
        total += call.counts[r]
        if kind != ALLTOALL:
            call.checksum = cc_mixed(call.checksum, call.counts[r])
    if x is None and call.role.inputs == 0 and out is not None:
        kept_x = None
        kept_out = view_of(out, &call.out, "out", True, moves)
        call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
    else:
        kept_x = view_of(x, &call.x, "x", False, moves)
        wanted = elements_of(call.counts, call.role.inputs, call.role.first_input)
        if call.role.inputs and call.x.count != wanted:
            raise ArgumentError(
                f"x has {call.x.count} elements and its counts say {wanted}; they must be equal"
            )
    # Of an alltoall, no rank knows the whole; all must still choose alike.
    call.nbytes = 0 if kind == ALLTOALL else total * call.x.itemsize
    keep = check_fold(engine, call, op)
    if call.role.outputs == 0:
        call.out = View(NULL, 0, call.x.itemsize, call.x.dtype)
        return None, kept_x, keep
    wanted = elements_of(
        call.receive_counts if kind == ALLTOALL else call.counts, call.role.outputs,
        call.role.first_output,
    )
    if kept_x is None:
        result = out
    elif out is None:
        result = kept_out = result_like(x, kept_x, &call.x, shape, &call.out)
        return result, kept_x, kept_out, keep
    else:
        result = out
        kept_out = view_of(out, &call.out, "out", True, moves)
    kept_x = check_output(engine, call, kept_x, wanted)
    return result, kept_x, kept_out, keep


cdef inline int take_options(Engine engine, Call *call, root, prescale, postscale) except -1:
    """Check what is asked of a call beside its arrays, and find the role of this rank."""
    call.checksum = 0
    call.making = 0
    call.prescale = factor_of(prescale, "prescale")
    call.factor = call.postscale = factor_of(postscale, "postscale")
    call.root = root_of(engine, root) if engine.rooted[call.kind] else 0
    call.role = engine.roles[call.kind][call.root == engine.rank]
    return 0


cdef int root_of(Engine engine, root) except -1:
    """Return the rank that `root` names."""
    try:
        number = PyNumber_Index(root)
    except TypeError:
        raise ArgumentError(
            f"root is {shown(root)}, and must be an integer in 0..{engine.size - 1}"
        ) from None
    if not 0 <= number < engine.size:
        raise ArgumentError(f"root is {number}, and must be in 0..{engine.size - 1}")
    return number


cdef void set_barrier(Engine engine, Call *call) noexcept:
    """Write a barrier down: a reduction of one byte, of which nobody sees the result."""
    call.x = View(&engine.token[0], 1, 1, CC_UINT8)
    call.out = View(&engine.token[1], 1, 1, CC_UINT8)
    call.part = call.nbytes = 1
    call.fold = folds[<int>CC_BOR][<int>CC_UINT8]
    call.user = NULL
    call.scale = NULL
    call.ordered = False
    call.operation = NO_OPERATION


cdef inline int64_t part_of_x(Engine engine, const Call *call) except -1:
    """Return the elements of a part; raise where `x` is not a whole number of them."""
    cdef int divisor = call.role.inputs if call.role.inputs else engine.array_parts[call.kind]
    if divisor == 1:
        return call.x.count
    if call.x.count % divisor:
        raise ArgumentError(
            f"x has {call.x.count} elements, which {engine.size} ranks cannot share equally; "
            f"{COLLECTIVES[call.kind]}v takes a count for each rank"
        )
    return call.x.count // divisor


cdef int64_t elements_of(const int64_t *counts, int parts, int first) noexcept:
    """Return the elements of some parts, which are as many as their ranks say."""
    cdef int64_t total = 0
    cdef int i
    for i in range(parts):
        total += counts[first + i]
    return total


cdef object check_fold(Engine engine, Call *call, op):
    """Find the kernels of a collective that reduces; return what must stay alive."""
    cdef Reduction reduction
    cdef UserFold user
    call.fold = NULL
    call.user = NULL
    call.scale = NULL
    call.ordered = False
    call.operation = NO_OPERATION
    if not engine.reduces[call.kind]:
        return None
    if type(op) is not Reduction:
        raise ArgumentError(
            f"op is {shown(op)}, and must be one of collectives.SUM, PROD, MIN, MAX, AVG, LAND, "
            f"LOR, LXOR, BAND, BOR, BXOR, or made by collectives.reduction"
        )
    reduction = op
    call.operation = reduction.number
    if reduction.function is not None:
        user = UserFold.__new__(UserFold)
        user.function = reduction.function
        user.number = frameworks.numpy_dtype(dtype_text(call.x.dtype), "x").num
        call.user = <void *>user
        call.ordered = not reduction.commutative
    else:
        user = None
        call.fold = folds[reduction.code][call.x.dtype]
        if call.fold == NULL or (reduction.average and scales[call.x.dtype] == NULL):
            raise UnsupportedTypeError(
                f"{reduction.name} is not defined on {dtype_text(call.x.dtype)}; it is on "
                f"{', '.join(reduction.dtypes())}"
            )
    if reduction.average:
        if call.kind == SCAN or call.kind == EXSCAN:
            raise ArgumentError(
                f"op is AVG, and a {COLLECTIVES[call.kind]} has a number of contributions of "
                f"its own on each rank; divide the result of SUM"
            )
        call.factor /= engine.size
    if call.factor != 1.0 or call.prescale != 1.0:
        call.scale = scales[call.x.dtype]
        if call.scale == NULL:
            raise UnsupportedTypeError(
                f"prescale and postscale need a floating dtype, and x is "
                f"{dtype_text(call.x.dtype)}"
            )
    return user


cdef object check_output(Engine engine, Call *call, kept_x, int64_t wanted):
    """Hold `out` against `x`; return the input to use, which is a copy where it must be."""
    cdef int64_t before_x, before_out
    cdef char *x = call.x.data
    cdef char *out = call.out.data
    if call.out.dtype != call.x.dtype:
        raise different_dtypes(call)
    if call.out.count != wanted:
        raise BufferError(
            f"out has {call.out.count} elements, and the result has {wanted}; they must be "
            f"equal"
        )
    if call.role.inputs == 0 or not overlap(&call.x, &call.out):
        return kept_x
    if call.kind == ALLTOALL:
        # No block stays where it is, so the input is read from a copy.
        if call.planned:
            raise BufferError(
                "out overlaps x, and a planned alltoall reads x where it lies; pass arrays "
                "that share no memory"
            )
        source = scratch_like(&call.x)
        memcpy(call.x.data, x, call.x.count * call.x.itemsize)
        return source
    before_x = call.role.first_input * call.part
    before_out = call.role.first_output * call.part
    if call.counts != NULL:
        before_x = elements_of(call.counts, call.role.first_input, 0)
        before_out = elements_of(call.counts, call.role.first_output, 0)
    if x - before_x * call.x.itemsize != out - before_out * call.x.itemsize:
        remedy = "out=x" if engine.array_parts[call.kind] == 1 else (
            "x as the part of out that it becomes" if call.role.outputs > 1
            else "out as this rank's part of x"
        )
        raise BufferError(
            f"out overlaps x in part; pass {remedy}, or arrays that share no memory"
        )
    return kept_x


cdef tuple new_shape(Engine engine, Call *call, kept_x):
    """Return the shape of a new result that has another than `x`."""
    shape = shape_of(kept_x)
    if call.kind == ALLGATHER or call.kind == GATHER:
        return engine.size, *shape
    if shape and shape[0] % engine.size == 0:
        return shape[0] // engine.size, *shape[1:]
    return call.part,
