# Vector forms: the counts of their parts, and the starts of these, as arrays of C.
#
# A list, a tuple or an array of integers is read here. If it has the numbers of the last call, the
# array of that call is used again.

from numpy cimport NPY_ARRAY_ALIGNED

cdef extern from "Python.h":
    PyObject **PySequence_Fast_ITEMS(object)
    int PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) noexcept


cdef object NOT_HERE = object()  # see with_blocks()
cdef object UNTOLD = object()
cdef str SAME_COUNTS = "pass the same on all ranks, or pass them on the root only, or on no rank"


cdef inline int64_t integer_of(object item) noexcept:
    """Return an integer of Python, or -1 if it is none, or too large."""
    cdef int overflow = 0
    cdef int64_t value
    if not PyLong_CheckExact(item):
        return -1
    value = PyLong_AsLongLongAndOverflow(item, &overflow)
    return -1 if overflow else value


cdef inline bint is_row(ndarray array, int n) noexcept:
    """Return whether an array has `n` signed integers of 4 or 8 bytes in one dimension."""
    cdef int number = PyArray_TYPE(array)
    return (
        (number == NPY_INT or number == NPY_LONG or number == NPY_LONGLONG)
        and PyArray_NDIM(array) == 1 and PyArray_DIMS(array)[0] == n
        and PyArray_CHKFLAGS(array, NPY_ARRAY_ALIGNED) and PyArray_ISNOTSWAPPED(array)
    )


cdef ndarray numbers_of(object given, int n, int64_t scale, ndarray kept):
    """Return `n` numbers of elements, times `scale`; the array `kept` if it has the same. Return
    None if `given` is no list, tuple or array of integers, if one of these is negative, or if they
    are too many in all.
    """
    cdef PyObject **items = NULL
    cdef const char *data = NULL
    cdef npy_intp stride = 0
    cdef npy_intp length = n
    cdef int64_t most = INT64_MAX // scale
    cdef int64_t *numbers = NULL
    cdef int64_t total = 0
    cdef int64_t value
    cdef ndarray made = None
    cdef int i
    if type(given) is list or type(given) is tuple:
        if len(given) != n:
            return None
        items = PySequence_Fast_ITEMS(given)
    elif PyArray_CheckExact(given) and is_row(<ndarray>given, n):
        data = <const char *>PyArray_DATA(<ndarray>given)
        stride = PyArray_STRIDES(<ndarray>given)[0]
    else:
        return None
    if kept is not None:
        numbers = <int64_t *>PyArray_DATA(kept)
    for i in range(n):
        if items != NULL:
            value = integer_of(<object>items[i])
        elif PyArray_ITEMSIZE(<ndarray>given) == 8:
            value = (<const int64_t *>(data + i * stride))[0]
        else:
            value = (<const int32_t *>(data + i * stride))[0]
        if value < 0 or value > most or value * scale > INT64_MAX - total:
            return None
        value *= scale
        total += value
        if made is None:
            if numbers != NULL and numbers[i] == value:
                continue
            made = PyArray_EMPTY(1, &length, NPY_INT64, 0)
            if i:
                memcpy(PyArray_DATA(made), numbers, i * sizeof(int64_t))
            numbers = <int64_t *>PyArray_DATA(made)
        numbers[i] = value
    return kept if made is None else made


cdef ndarray counts_in(object given, int n, str name, str each, object alone, ndarray kept=None):
    """Return the numbers of elements that a caller gave; the array `kept` if it has the same. The
    function `alone` is that of an engine.
    """
    cdef ndarray found = numbers_of(given, n, 1, kept)
    if found is not None:
        return found
    try:
        listed = [PyNumber_Index(item) for item in given]
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be a sequence of {n} integers"
        ) from error
    if len(listed) != n or min(listed, default=0) < 0:
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be {n} numbers of elements, one for each {each}, "
            f"none of them negative{'' if alone is None else alone(len(listed) - 1)}"
        )
    if sum(listed) > INT64_MAX:
        raise ArgumentError(
            f"{name} is {shown(given)}, and must be {n} numbers of elements, no more than "
            f"{INT64_MAX} in all"
        )
    return numpy.array(listed, numpy.int64)


def counts_of(given, int n, alone, str name="counts", str each="rank"):
    """Return the numbers of elements that a caller gave as a new array. Local."""
    return counts_in(given, n, name, each, alone)


cdef ndarray places_in(
    object displs, ndarray counts, object array, str name, str whole, bint written, object alone
):
    """Return the starts of the parts of an array, or None if they are adjacent."""
    cdef const int64_t *lengths = <const int64_t *>PyArray_DATA(counts)
    cdef int64_t *starts
    cdef int64_t n
    cdef int64_t end = 0
    cdef bint adjacent = True
    cdef ndarray found
    cdef int r
    if displs is None:
        return None
    if array is None:
        raise ArgumentError(f"{name} says where parts begin in {whole}, and {whole} is None")
    found = counts_in(displs, PyArray_SIZE(counts), name, "rank", alone)
    n = elements_in(array, whole)
    starts = <int64_t *>PyArray_DATA(found)
    for r in range(PyArray_SIZE(counts)):
        if lengths[r] == 0:
            starts[r] = 0
            continue
        adjacent = adjacent and starts[r] == end
        end = starts[r] + lengths[r]
        adjacent = adjacent and end <= n
    if adjacent and end == n:
        return None
    if not adjacent:
        check_places(displs, found, counts, n, name, whole, written)
    return found


cdef int check_places(
    object displs, ndarray starts, ndarray counts, int64_t n, str name, str whole, bint written
) except -1:
    """Raise an error if a part ends outside of an array, or parts overlap that are written."""
    cdef int64_t start, length
    cdef int64_t end = 0
    before = -1
    for r in numpy.argsort(starts, kind="stable").tolist():
        start, length = starts[r], counts[r]
        if length == 0:
            continue
        if start + length > n:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with {length} elements from {start} on, part {r} "
                f"ends outside of {whole}, which has {n}"
            )
        if written and start < end:
            raise ArgumentError(
                f"{name} is {shown(displs)}, and with counts of {counts.tolist()} the parts "
                f"{before} and {r} of {whole} overlap"
            )
        end, before = start + length, r
    return 0


def places(displs, counts, array, names, bint written, alone):
    """Return the starts of the parts of an array, or None if they are adjacent. Local."""
    return places_in(displs, counts, array, names[0], names[1], written, alone)


def equal_parts(int64_t n, int p):
    """Return the sizes of `p` nearly equal parts of `n` elements. Local."""
    edges = [n * r // p for r in range(p + 1)]
    return numpy.diff(numpy.array(edges, numpy.int64))


cdef ndarray wanted_counts(ndarray sizes, n):
    """Return the counts of a scatterv from the sizes of the outputs of all ranks, or -1."""
    absent = numpy.flatnonzero(sizes < 0)
    if len(absent) == len(sizes):
        return equal_parts(n, len(sizes))
    if len(absent):
        raise ArgumentError(
            f"out is given on some ranks and not on others ({', '.join(map(str, absent))}); give "
            f"it on all, or counts"
        )
    return numpy.ascontiguousarray(sizes)


def compare_counts(given, sent, str name="receive_counts", sources=None):
    """Raise an error unless the counts that a caller gave are those that all ranks, or the
    `sources`, send. Local.
    """
    wrong = numpy.flatnonzero(given != sent)
    if len(wrong):
        k = wrong[0]
        raise ArgumentError(
            f"{name} is {given.tolist()}, and rank {sources[k] if sources else k} sends {sent[k]} "
            f"elements here, not {given[k]}"
        )


cdef int64_t elements_in(object array, str name, bint structures=False) except -1:
    """Return the elements of an array of any kind, also of one on a device."""
    cdef int64_t count = 1
    if PyArray_CheckExact(array) and plain_code(<ndarray>array) >= 0:
        return PyArray_SIZE(<ndarray>array)
    for n in shape(array, name, structures):
        count *= n
    return count


cdef inline int keep_counts(Engine engine, int at, ndarray counts) except -1:
    """Keep counts, which nobody changes, for the next call."""
    if engine.counts[at] is not counts:
        engine.counts[at] = counts
        engine.counted += 1
    return 0


cdef inline uint64_t state_of_counts(Engine engine, const Arguments *call) noexcept:
    """Return the state of the kept counts, or 0 if those of a call are not among them or its parts
    have displacements. Calls of one state whose counts are at one address have the same counts.
    """
    cdef const int64_t *first
    cdef const int64_t *second
    if call.kind >= KINDS:
        return 0
    first = numbers_in(<ndarray>engine.counts[2 * call.kind])
    second = numbers_in(<ndarray>engine.counts[2 * call.kind + 1])
    if call.counts != first and call.counts != second:
        return 0
    if call.receive_counts != first and call.receive_counts != second:
        return 0
    return engine.counted if call.displs == NULL and call.receive_displs == NULL else 0


cdef ndarray kept_counts(Engine engine, int kind, bint received, object given, str name):
    """Return the counts of a vector form, and keep them for the next call."""
    cdef int at = 2 * kind + received
    found = counts_in(given, engine.size, name, "rank", engine.alone, engine.counts[at])
    keep_counts(engine, at, found)
    return found


cdef ndarray own_count(Engine engine, int kind, int64_t n):
    """Return counts of which only this rank's own is known, and keep them for the next call."""
    cdef ndarray kept = engine.counts[2 * kind + 1]
    if kept is None or numbers_in(kept)[engine.rank] != n:
        kept = numpy.zeros(engine.size, numpy.int64)
        kept[engine.rank] = n
        keep_counts(engine, 2 * kind + 1, kept)
    return kept


cdef Parts parts_of(
    Engine engine, int kind, x, out, root, counts, receive_counts, displs, receive_displs,
    timeout, bint blocking, bint untold,
):
    """Return the parts of a vector form; all ranks know whether its counts are `untold`.
    Collective, if the ranks do not all know the counts.
    """
    cdef Parts parts = Parts.__new__(Parts)
    cdef ndarray said = None
    cdef bint is_root = True
    try:
        deadline_of(timeout)
        if engine.contracts[kind].rooted:
            root = root_of(engine, root)
            is_root = root == engine.rank
        lengths = take_given(engine, parts, kind, x, out, is_root, counts, receive_counts, displs)
    except Exception as error:
        tell_refusal(engine, kind, error)
        raise
    if engine.contracts[kind].rooted and not untold:
        take_told(engine, parts, kind, root, timeout, blocking)
    if parts.counts is None:
        mine = numpy.array(lengths, numpy.int64)
        said = engine.call(ALLGATHER, mine, None, None, 0, None, timeout)
    elif kind == ALLTOALL and (parts.receive_counts is None or engine.agree is not None):
        said = engine.call(ALLTOALL, parts.counts, None, None, 0, None, timeout)
    try:
        if parts.counts is None and kind == SCATTER:
            parts.counts = wanted_counts(said[:, 1], said[root, 0])
        elif parts.counts is None:
            parts.counts = said.ravel()
        if kind != ALLTOALL:
            parts.receive_counts = parts.counts
        elif parts.receive_counts is None:
            parts.receive_counts = said
        elif said is not None:
            compare_counts(parts.receive_counts, said)
        if kind == SCATTER and is_root:
            parts.displs = places_in(displs, parts.counts, x, "displs", "x", False, engine.alone)
        elif is_root:
            name = "receive_displs" if kind == ALLTOALL else "displs"
            parts.receive_displs = places_in(
                receive_displs, parts.receive_counts, out, name, "out", True, engine.alone
            )
    except Exception as error:
        tell_refusal(engine, kind, error)
        raise
    return parts


cdef object take_given(
    Engine engine, Parts parts, int kind, x, out, bint is_root, counts, receive_counts, displs
):
    """Set the counts that a rank was given, sent and received, and in an alltoall, the starts of
    the parts of `x`. Without counts, return the lengths of arrays that others may have to know.
    """
    cdef int64_t n = 0
    cdef int64_t room = -1
    if x is not None or kind != SCATTER:
        n = elements_in(x, "x", kind == REDUCE_SCATTER)
    elif out is None or is_root:
        raise no_x()
    if kind == SCATTER and out is not None:
        room = elements_in(out, "out")
    if counts is not None or kind == ALLTOALL:
        parts.counts = kept_counts(engine, kind, False, counts, "counts")
    elif kind == REDUCE_SCATTER:
        parts.counts = equal_parts(n, engine.size)
    if kind == ALLTOALL:
        parts.displs = places_in(displs, parts.counts, x, "displs", "x", False, engine.alone)
        if receive_counts is not None:
            parts.receive_counts = kept_counts(engine, kind, True, receive_counts, "receive_counts")
            compare_own(engine, parts.counts, parts.receive_counts)
    if parts.counts is not None:
        return None
    return [n, room] if kind == SCATTER else [n]


cdef object no_x():
    return ArgumentError("x is None, and must be an array on the root and where out is None")


cdef inline bint have_pages(Engine engine) noexcept:
    """Return whether several ranks share memory, all of them, and need not agree on calls."""
    return (
        engine.size > 1 and engine.agree is None and engine.segment is not None
        and engine.hosts is None
    )


cdef object with_blocks(
    Engine engine, int kind, x, out, int root, counts, displs, timeout, bint blocking
):
    """Run a gatherv or a scatterv in which each rank only knows the lengths of its own blocks, as
    publications have their lengths. Return UNTOLD if the root of a scatterv has no counts, or
    NOT_HERE if the call cannot run so on any rank. The thread is inside the communicator.

    A rank that knows no length looks at the publications first, and then makes the call with these
    lengths.
    """
    cdef bint is_root = root == engine.rank
    cdef bint gathers = kind == GATHER
    cdef bint knows = counts is not None
    cdef bint looks = not knows and is_root == gathers and (gathers or out is None or not blocking)
    cdef bint tells_none = not knows and is_root and not gathers
    cdef Parts parts
    cdef Call call
    cdef tuple keep
    if not gathers and x is None and (is_root or out is None):
        raise no_x()
    call = open_call(engine, kind, blocking or looks or tells_none, None, None)
    call.given.timeout = deadline_of(timeout)
    call.given.looks = looks
    place = None if tells_none or looks and gathers else out
    parts = block_parts(engine, &call.given, x, place, is_root, counts, displs)
    keep = take_blocks(engine, call, parts, x, place, root)
    if keep is None:
        return NOT_HERE
    if looks and tape != NULL:
        call.given.called_at = cc_ticks()
    made = launch_inside(engine, call, keep, None)
    if looks:
        return with_seen_blocks(engine, call, x, out, root, displs, blocking)
    return UNTOLD if call.untold or tells_none else made


cdef Parts block_parts(
    Engine engine, Arguments *call, x, out, bint is_root, counts, displs
):
    """Return the counts of a rank that need not know those of others, and the starts of the blocks
    on the root. A root without counts sends no block.
    """
    cdef Parts parts = Parts.__new__(Parts)
    cdef bint gathers = call.kind == GATHER
    call.own_only = True
    call.knows_all = counts is not None
    if counts is not None:
        parts.counts = kept_counts(engine, call.kind, False, counts, "counts")
    elif gathers or out is not None:
        n = elements_in(x, "x") if gathers else elements_in(out, "out")
        parts.counts = own_count(engine, call.kind, n)
    else:
        parts.counts = own_count(engine, call.kind, 0)
        parts.displs = parts.counts if is_root else None
    if is_root and displs is not None and counts is not None:
        place_blocks(engine, parts, gathers, x, out, displs)
    return parts


cdef int place_blocks(Engine engine, Parts parts, bint gathers, x, out, displs) except -1:
    """Set the starts of the blocks on the root."""
    if gathers:
        parts.receive_displs = places_in(
            displs, parts.counts, out, "displs", "out", True, engine.alone
        )
    else:
        parts.displs = places_in(displs, parts.counts, x, "displs", "x", False, engine.alone)
    return 0


cdef tuple take_blocks(Engine engine, Call made, Parts parts, x, out, root):
    """Check the arguments of a call of with_blocks(); return None if they are on devices, or no
    shared memory has room for its blocks.
    """
    parts.receive_counts = parts.counts
    take_parts(&made.given, parts)
    try:
        keep = take(engine, &made.given, x, out, None, root, 1.0, 1.0)
    except Exception as error:
        if is_for_devices(error):
            return None
        raise
    choose_for(engine, made)
    return keep if made.choice.plan.lines else None


cdef object with_seen_blocks(Engine engine, Call looked, x, out, root, displs, bint blocking):
    """Go on with a call of with_blocks() that has looked at the publications."""
    cdef Operation *op = looked.op
    cdef int kind = looked.given.kind
    cdef Parts parts = Parts.__new__(Parts)
    cdef Call call = None
    cdef tuple keep
    try:
        parts.counts = published_counts(engine, op, looked.given.counts)
        if op.shared.untold:
            return UNTOLD
        if kind == GATHER:
            place_blocks(engine, parts, True, x, out, displs)
        call = open_call(engine, kind, blocking, None, None)
        call.given.own_only = True
        call.given.timeout = looked.given.timeout
        call.given.called_at = looked.given.called_at
        keep = take_blocks(engine, call, parts, x, out, root)
        if keep is None:
            raise BufferError("out is on a device and x is not; pass both in one memory")
        call.resumes = op.shared.call
    finally:
        if call is None or call.resumes == NO_CALL:
            cc_finish(op.shared.segment, op.shared.page)
            end_call(engine, op)
    call.op, looked.op = op, NULL
    return launch_inside(engine, call, keep, None)


cdef ndarray published_counts(Engine engine, Operation *op, const int64_t *known):
    """Return the counts of blocks that an operation has looked at, and those that are known."""
    cdef ndarray counts = PyArray_EMPTY(1, [engine.size], NPY_INT64, 0)
    cdef int64_t *numbers = <int64_t *>PyArray_DATA(counts)
    cdef const cc_publication *line
    cdef const Operand *operand
    cdef int i
    memcpy(numbers, known, engine.size * sizeof(int64_t))
    for i in range(op.plan.rounds[op.plan.nrounds - 1].steps_end):
        operand = &op.plan.operands[op.plan.steps[i].operand]
        if operand.space != SLOT:
            continue
        line = cc_line_of(op.shared.segment, operand.peer, op.shared.page, operand.first)
        op.shared.untold = op.shared.told and not line.nbytes >> CC_OFFSET_BITS
        rank = engine.rank if op.shared.told else engine.segment.ranks[operand.peer]
        numbers[rank] = cc_length(line) // op.layout.itemsize
    return counts


cdef int compare_own(Engine engine, ndarray sent, ndarray received) except -1:
    """Compare the numbers of elements that a rank sends to itself."""
    cdef int64_t mine = (<const int64_t *>PyArray_DATA(sent))[engine.rank]
    if (<const int64_t *>PyArray_DATA(received))[engine.rank] != mine:
        own = received.copy()
        own[engine.rank] = mine
        compare_counts(received, own)
    return 0


cdef int tell_refusal(Engine engine, int kind, error) except -1:
    """Tell the other ranks of an error in the arguments of a vector form, if ranks agree."""
    if engine.agree is not None and engine.broken is None:
        refuse(engine, COLLECTIVES[kind] + "v", error, COMMON)
    return 0


cdef int take_told(
    Engine engine, Parts parts, int kind, int root, timeout, bint blocking
) except -1:
    """Set the counts that the root tells, or None if it has none. For a call that does not wait for
    the root, or has other counts, also set `before` and `after`. Collective.
    """
    cdef Call call
    cdef ndarray given = parts.counts
    cdef ndarray told = given
    cdef npy_intp length = engine.size
    if engine.size == 1:
        return 0
    if engine.rank != root:
        told = PyArray_EMPTY(1, &length, NPY_INT64, 0)
    elif given is None:
        told = numpy.full(engine.size, -1, numpy.int64)
    call = open_call(engine, BROADCAST, given is None or blocking, None, None)
    call.given.timeout = deadline_of(timeout)
    call.given.announced = kind + 1
    request = announce(engine, call, told, told, root)
    if given is None:
        if numbers_in(told)[0] >= 0:
            parts.counts = same_as_kept(engine, kind, told)
        return 0
    if request is None and have_same(given, told):
        return 0
    # If this rank continues with other counts, the comparison of calls tells all ranks of it.
    if request is None and engine.agree is None and (
        engine.segment is None or engine.hosts is not None
    ):
        raise other_counts(engine, given, told, root)
    parts.before, parts.after = request, checked_after(engine, request, given, told, root)
    return 0


cdef ndarray same_as_kept(Engine engine, int kind, ndarray counts):
    """Return the counts of the last call of a kind if they are the same, or else keep these."""
    cdef ndarray kept = engine.counts[2 * kind]
    if kept is not None and have_same(kept, counts):
        return kept
    keep_counts(engine, 2 * kind, counts)
    return counts


cdef object checked_after(Engine engine, request, ndarray given, ndarray told, int root):
    """Return a function that returns a result when the root has told its counts."""

    def after(result):
        if request is not None:
            request.wait()
        if not have_same(given, told):
            raise other_counts(engine, given, told, root)
        return result

    return after


cdef inline bint have_same(ndarray given, ndarray told) noexcept:
    """Return whether two arrays have the same counts."""
    cdef size_t nbytes = PyArray_SIZE(given) * sizeof(int64_t)
    return given is told or memcmp(PyArray_DATA(given), PyArray_DATA(told), nbytes) == 0


cdef object other_counts(Engine engine, ndarray given, ndarray told, int root):
    """Return the error of a rank that was given other counts than the root."""
    theirs = "none" if told[0] < 0 else told.tolist()
    return MismatchError(
        f"the ranks do not agree: counts is {given.tolist()} on rank {engine.rank}, and {theirs} "
        f"on rank {root}, the root; {SAME_COUNTS}"
    )
