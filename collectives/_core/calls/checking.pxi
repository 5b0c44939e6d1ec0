# Checking: the arguments of a call are compared with each other before anything is sent.

from cpython.number cimport PyNumber_Index
from numpy cimport NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_FARRAY

from functools import partial

cdef tuple NOTHING_KEPT = (None, None)
cdef int64_t ADDRESSES = <int64_t>1 << 47  # bytes that a process can address


cdef tuple take(Engine engine, Arguments *call, x, out, op, root, prescale, postscale):
    """Check the arguments of a call, which has the counts of a vector form. Give it memory for a
    new result, and for an input that cannot be used where it lies. Return (the caller's result,
    *objects that must stay alive).
    """
    cdef const Contract *contract = call.contract
    cdef int others = NUMBERS
    cdef bint copies = False
    cdef Reduction reduction
    if call.kind == BARRIER:
        return token_arrays(engine, call)
    if contract.reduces:
        reduction = op if type(op) is Reduction else reduction_called(op)
        others = STRUCTURES if reduction.function is not None else 0
        if reduction.code >= CC_NOPS:
            others = PAIRS
    else:
        reduction = None
    take_options(engine, call, x, out, root, prescale, postscale)
    if x is not None:
        kept_x = view_of_x(call, x, others)
    elif call.role.has_x or out is None:
        raise nothing_given(engine, call)
    else:
        kept_x = None
    if out is not None and call.role.has_out:
        kept_out = view_of_out(call, out, others)
    else:
        kept_out = None
        call.out = View(NULL, 0, call.x.itemsize, call.x.dtype)
    if kept_x is None:
        call.x = View(NULL, 0, call.out.itemsize, call.out.dtype)
    fold = check(engine, call, reduction, kept_x, kept_out, &copies)
    if not call.role.has_out:
        out = None
    elif kept_out is None:
        out = kept_out = allocate(engine, call, x, kept_x)
    elif call.receive_displs != NULL:
        out = kept_out = scattered_result(call, out, kept_out)
    elif type(kept_out) is Pending:
        out = kept_out
    if copies:
        return out, kept_x, kept_out, fold, pack_input(call)
    return out, kept_x, kept_out, fold


cdef inline object check(
    Engine engine, Arguments *call, Reduction reduction, kept_x, kept_out, bint *copies
):
    """Compare the arrays of a call with its counts and with each other; set whether `x` has to be
    copied. Return the object that folds, and must stay alive, or None.
    """
    cdef int64_t wanted
    fold = None
    if call.kind == EXCHANGE:  # ranks do not know each other's lengths
        wanted = call.out.count
    else:
        if call.counts == NULL:
            call.part = part_of(call, kept_x, kept_out)
            call.nbytes = call.part * call.contract.array_parts * call.x.itemsize
        else:
            check_counts(engine, call)
        wanted = result_count(call)
    if reduction is not None:
        fold = check_fold(engine, call, reduction)
    copies[0] = call.displs != NULL and call.role.inputs > 0
    if kept_out is None:
        return fold
    if call.out.dtype != call.x.dtype:
        raise different_dtypes(call)
    if call.receive_displs != NULL:
        return fold
    if call.out.count != wanted:
        raise BufferError(
            f"out has {call.out.count} elements, and the result has {wanted}; they must be equal"
        )
    if call.contract.has_gaps and type(kept_out) is Pending:
        raise BufferError(
            "out is in Fortran's order, and has blocks that are not written; pass an array in C's "
            "order"
        )
    if call.role.inputs and not copies[0] and overlap(&call.x, &call.out):
        copies[0] = overwrites(call, kept_x)
    return fold


cdef object allocate(Engine engine, Arguments *call, x, kept_x):
    """Make memory for the result of a checked call; return it as result_like() does."""
    shape = None
    if call.contract.form != SAME or call.counts != NULL:
        shape = new_shape(engine, call, shape_of(kept_x))
    result = result_like(x, kept_x, &call.x, shape, &call.out)
    if call.contract.has_gaps:
        memset(call.out.data, 0, call.out.count * call.out.itemsize)
    return result


cdef ndarray pack_input(Arguments *call):
    """Copy the parts of `x` into a new array, which becomes the input."""
    cdef const char *data = call.x.data
    cdef char *place
    cdef int64_t nbytes
    cdef int i
    if call.displs == NULL:
        scratch = scratch_like(&call.x)
        memcpy(call.x.data, data, call.x.count * call.x.itemsize)
        return scratch
    call.x.count = elements_of(call.counts, call.role.inputs, call.role.first_input)
    scratch = scratch_like(&call.x)
    place = call.x.data
    for i in range(call.role.first_input, call.role.first_input + call.role.inputs):
        nbytes = call.counts[i] * call.x.itemsize
        memcpy(place, data + call.displs[i] * call.x.itemsize, nbytes)
        place += nbytes
    return scratch


cdef tuple token_arrays(Engine engine, Arguments *call):
    """Make a barrier a reduction of one byte, whose result is not used."""
    call.role = call.contract.roles[0]
    call.x = View(&engine.token[0], 1, 1, CC_UINT8)
    call.out = View(&engine.token[1], 1, 1, CC_UINT8)
    call.part = call.nbytes = 1
    call.fold = folds[<int>CC_BOR][<int>CC_UINT8]
    return NOTHING_KEPT


cdef bint is_for_devices(error) except -1:
    """Return whether an error is the one for an array on a device."""
    return hasattr(error, "device_shape")


cdef int check_counts(Engine engine, Arguments *call) except -1:
    """Compare the counts of a vector form with `x`, and the elements of its longest array with the
    memory of a process; find the size that ranks agree on.
    """
    cdef bint is_near = call.kind >= NEIGHBORS  # then counts are those of this rank's blocks
    cdef int64_t itemsize = call.x.itemsize
    cdef int64_t sent = elements_of(call.counts, call.role.inputs if is_near else engine.size, 0)
    cdef int64_t most = max(sent, elements_of(
        call.receive_counts, call.role.outputs if is_near else engine.size, 0
    ))
    cdef int64_t wanted = elements_of(call.counts, call.role.inputs, call.role.first_input)
    cdef uint64_t sum = call.checksum
    cdef int r
    if call.role.has_x and call.displs == NULL and call.x.count != wanted:
        raise ArgumentError(
            f"x has {call.x.count} elements and its counts say {wanted}; they must be equal"
        )
    if most > ADDRESSES // itemsize:
        raise ArgumentError(
            f"the counts are {most} elements of {itemsize} bytes in all, and a process can "
            f"address {ADDRESSES} bytes"
        )
    if call.contract.has_repeats:
        check_lengths(call)
    if is_ragged(call) and not call.knows_all:
        return 0
    for r in range(engine.size):
        sum = cc_mixed(sum, call.counts[r])
    if call.knows_all:
        call.mark = sum >> CC_OFFSET_BITS | 1
    else:
        call.nbytes = sent * itemsize
        call.checksum = sum
    return 0


cdef int64_t elements_of(const int64_t *counts, int parts, int first) noexcept:
    """Return the elements of `parts` parts from the `first` on."""
    cdef int64_t total = 0
    cdef int i
    for i in range(parts):
        total += counts[first + i]
    return total


cdef inline int64_t result_count(const Arguments *call) noexcept:
    """Return the elements that this rank gets."""
    if call.counts == NULL:
        return call.part * call.role.outputs
    return elements_of(call.receive_counts, call.role.outputs, call.role.first_output)


cdef inline int take_options(
    Engine engine, Arguments *call, x, out, root, prescale, postscale
) except -1:
    """Check the arguments of a call beside its arrays, and find the role of this rank."""
    call.prescale = factor_of(prescale, "prescale")
    call.factor = call.postscale = factor_of(postscale, "postscale")
    call.checksum = call.contract.checksum
    if call.contract.rooted:
        call.root = root_of(engine, root)
    call.role = call.contract.roles[call.root == engine.rank]
    if call.kind == EXCHANGE:
        call.role.inputs = call.role.has_x = x is not None
        call.role.outputs = call.role.has_out = out is not None
    return 0


cdef int root_of(Engine engine, root) except -1:
    """Return the rank that `root` names."""
    cdef int64_t rank = integer_of(root)
    if 0 <= rank < engine.size:
        return <int>rank
    try:
        number = PyNumber_Index(root)
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"root is {shown(root)}, and must be an integer in 0..{engine.size - 1}"
        ) from error
    if not 0 <= number < engine.size:
        advice = "" if engine.alone is None else engine.alone(number)
        raise ArgumentError(f"root is {number}, and must be in 0..{engine.size - 1}{advice}")
    return number


cdef object nothing_given(Engine engine, const Arguments *call):
    """Return the error of a call that got None as `x`, and needs an array."""
    if not call.contract.rooted or call.contract.roles[0].inputs:
        return BufferError("x is None, and must be an array: every rank contributes one")
    if call.role.inputs:
        return BufferError(
            f"x is None on rank {engine.rank}, which is the root, and must be the array to send"
        )
    name = COLLECTIVES[call.kind]
    result = "this rank's part" if call.kind == SCATTER else "the result"
    return BufferError(
        f"x and out are None on rank {engine.rank}, which has to know what rank {call.root}, the "
        f"root, sends; pass out, an array for {result}, or as x an array with the shape "
        f"and dtype of the root's, whose contents are not read. {name}_object needs neither"
    )


cdef object view_of_x(Arguments *call, x, int others):
    """Fill the view of the input; return the object that keeps it alive."""
    kept = view_of(x, &call.x, "x", False, others)
    if call.in_bytes:
        count_bytes(&call.x)
    if call.planned and call.role.inputs and is_copy(kept, x):
        raise BufferError(
            "x is not C-contiguous and aligned, and a planned call reads it where it lies; "
            "pass a contiguous array"
        )
    return kept


cdef object view_of_out(Arguments *call, out, int others):
    """Fill the view of the output; return the object that keeps it alive.

    For an array in Fortran's order, this is a Pending: elements correspond by index, so the result
    is written in C's order, and copied when it is complete.
    """
    cdef ndarray scratch
    if (
        not PyArray_CheckExact(out) or PyArray_CHKFLAGS(out, NPY_ARRAY_C_CONTIGUOUS)
        or not PyArray_CHKFLAGS(out, NPY_ARRAY_FARRAY) or call.planned
    ):
        kept = view_of(out, &call.out, "out", True, others)
        if call.in_bytes:
            count_bytes(&call.out)
        return kept
    scratch = owned(PyArray_NewLikeArray(out, NPY_CORDER, NULL, 0))
    view_of(scratch, &call.out, "out", True, others)
    return pending_place(scratch, buffers.DelayedOutput(out, partial(numpy.copyto, out, scratch)))


cdef Pending scattered_result(Arguments *call, out, kept_out):
    """Return a result whose parts are copied to their places in `out` when it is complete."""
    cdef const int64_t *counts = call.receive_counts
    cdef const int64_t *displs = call.receive_displs
    cdef int64_t itemsize = call.out.itemsize
    cdef int64_t start = 0
    cdef npy_intp nbytes = call.out.count * itemsize
    cdef ndarray target, scratch
    cdef int i
    target = PyArray_SimpleNewFromData(1, &nbytes, NPY_UBYTE, call.out.data)
    call.out.count = result_count(call)
    scratch = scratch_like(&call.out)
    pairs = []
    for i in range(call.role.first_output, call.role.first_output + call.role.outputs):
        pairs.append((
            target[displs[i] * itemsize:(displs[i] + counts[i]) * itemsize],
            scratch[start:start + counts[i] * itemsize],
        ))
        start += counts[i] * itemsize
    write = partial(buffers.copy_all, pairs)
    return pending_place(scratch, buffers.DelayedOutput(out, write, kept_out))


cdef inline int64_t part_of(const Arguments *call, kept_x, kept_out) except -1:
    """Return the elements of a part; raise if an array has no whole number of parts."""
    cdef int divisor = call.role.inputs if call.role.inputs else call.contract.array_parts
    if kept_x is None or (call.kind >= NEIGHBORS and call.role.inputs == 0):
        return part_of_out(call, kept_out)
    if divisor == 1:
        return call.x.count
    if call.x.count % divisor:
        each = "rank" if call.kind < KINDS else "destination"
        raise ArgumentError(
            f"x has {call.x.count} elements, which {divisor} {each}s cannot share equally; "
            f"{name_of(call)}v takes a count for each {each}"
        )
    return call.x.count // divisor


cdef int64_t part_of_out(const Arguments *call, kept_out) except -1:
    """Return the elements of a part of `out`, on a rank that sends nothing."""
    if call.x.count:
        raise ArgumentError(
            f"x has {call.x.count} elements, and this rank has no destination: pass an empty array"
        )
    if call.role.outputs == 0:
        return 0
    if kept_out is None:
        raise ArgumentError(
            "out is None, and this rank has no destination, so that x does not say how many "
            "elements come from each source: pass out"
        )
    if call.out.count % call.role.outputs:
        raise BufferError(
            f"out has {call.out.count} elements, which {call.role.outputs} sources cannot share "
            f"equally"
        )
    return call.out.count // call.role.outputs


cdef object check_fold(Engine engine, Arguments *call, Reduction reduction):
    """Find the kernels of a collective that reduces; return the object that must stay alive."""
    cdef UserFold user
    call.operation = reduction.number
    if reduction.function is not None:
        user = UserFold.__new__(UserFold)
        user.function = reduction.function
        user.dtype = structured_dtypes.get(call.x.dtype)
        if user.dtype is None:
            user.dtype = frameworks.numpy_dtype(dtype_text(call.x.dtype), "x")
        call.user = <void *>user
        call.ordered = not reduction.commutative
        call.checksum = cc_mixed(call.checksum, reduction.checksum)
    else:
        user = None
        call.fold = kernel_of(reduction.code, call.x.dtype)
        if (
            call.fold == NULL or reduction.average and scales[call.x.dtype] == NULL
            or reduction.exact and call.x.dtype == CC_FLOAT128
        ):
            raise undefined(reduction, call.x.dtype)
    if reduction.exact and not call.exact:
        raise ArgumentError(
            f"op is {reduction.name}, which arrays on a device do not have; pass arrays in host "
            f"memory"
        )
    if reduction.average:
        if call.kind == SCAN or call.kind == EXSCAN:
            raise ArgumentError(
                f"op is AVG, and a {COLLECTIVES[call.kind]} has a number of contributions of "
                f"its own on each rank; divide the result of SUM"
            )
        call.factor /= engine.size
    if call.factor != 1.0 or call.prescale != 1.0:
        call.scale = scales[call.x.dtype] if call.x.dtype < CC_NDTYPES else NULL
        if call.scale == NULL:
            raise UnsupportedTypeError(
                f"prescale and postscale need a floating dtype, and x is "
                f"{dtype_text(call.x.dtype)}"
            )
    return user


cdef object undefined(Reduction reduction, int dtype):
    """Return the error of an operation on a dtype that it does not fold."""
    known = ", ".join(reduction.dtypes())
    if reduction.code >= CC_NOPS:
        known = (
            "pairs of a value, which is an integer or a float, and an index, which is int32 or "
            "int64, such as numpy.dtype('float64,int64')"
        )
    return UnsupportedTypeError(
        f"{reduction.name} is not defined on {dtype_text(dtype)}; it is on {known}"
    )


cdef bint overwrites(const Arguments *call, kept_x) except -1:
    """Return whether the result would overwrite input that is still needed, so that `x` has to be
    copied; raise if overlapping arrays may not be passed.
    """
    cdef int64_t before_x, before_out
    cdef const char *x = call.x.data
    cdef const char *out = call.out.data
    if call.contract.overlap == APART:
        raise BufferError("out overlaps x; pass arrays that share no memory")
    if is_remote(kept_x) and (call.kind == ALLTOALL or call.kind == REDUCE_SCATTER and x == out):
        return False  # the mover of the pieces ensures that none is written before it is read
    if call.contract.overlap == COPIED:
        if call.planned:
            raise BufferError(
                f"out overlaps x, and a planned {'alltoall' if call.kind == ALLTOALL else 'call'} "
                f"reads x where it lies; pass arrays that share no memory"
            )
        return True
    before_x = call.role.first_input * call.part
    before_out = call.role.first_output * call.part
    if call.counts != NULL:
        before_x = elements_of(call.counts, call.role.first_input, 0)
        before_out = elements_of(call.counts, call.role.first_output, 0)
    # MPI's reduce_scatter in place: the result is at the start of the array.
    if call.kind == REDUCE_SCATTER and x == out and before_out and not call.planned:
        return True
    if x - before_x * call.x.itemsize != out - before_out * call.x.itemsize:
        remedy = "out=x" if call.contract.array_parts == 1 else (
            "x as the part of out that it becomes" if call.role.outputs > 1
            else "out as this rank's part of x"
        )
        raise BufferError(
            f"out overlaps x in part; pass {remedy}, or arrays that share no memory"
        )
    return False


cdef tuple new_shape(Engine engine, const Arguments *call, tuple shape):
    """Return the shape of a new result: parts joined along the first axis, or stacked along one of
    their own.
    """
    cdef int64_t count = result_count(call)
    cdef int64_t row = 1
    if call.contract.form == STACKED and call.counts == NULL:
        return call.role.outputs, *shape
    for n in shape[1:]:
        row *= n
    if row and count % row == 0:
        return count // row, *shape[1:]
    if row == 0 and call.counts == NULL and call.kind < KINDS and shape[0] % engine.size == 0:
        return shape[0] // engine.size, *shape[1:]
    return count,
