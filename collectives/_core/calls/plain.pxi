# Plain calls: those of programs for MPI, on arrays of NumPy that can be used in place.
#
# As in MPI, ranks may describe the same bytes by different types, so elements that are only moved
# count as bytes.

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
    void PyType_Modified(PyTypeObject *) noexcept

# The codes of dtypes for predefined datatypes of MPI, by the addresses of mpi4py's objects.
cdef dict datatype_codes = {}


def know_datatypes(datatypes):
    """Note pairs of a datatype of MPI and the name of a dtype, or a dtype of pairs. The datatypes
    are predefined, and their objects live as long as the process. Local.
    """
    for datatype, name in datatypes:
        is_pair = isinstance(name, numpy.dtype)
        datatype_codes[id(datatype)] = pair_code(name) if is_pair else DTYPES.index(name)


def replace_in_type(type owner, str name, value):
    """Set an attribute of a type that Python's own ``setattr`` refuses to change. Local."""
    (<dict>(<PyTypeObject *>owner).tp_dict)[name] = value
    PyType_Modified(<PyTypeObject *>owner)


def capsule_dtype(capsule, str name):
    """Return the name of the dtype of a DLPack capsule, which stays unused. Local."""
    cdef DLTensor *tensor
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        tensor = &(
            <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        ).dl_tensor
    else:
        tensor = &(<DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor")).dl_tensor
    if tensor.dtype.code == DL_FLOAT and tensor.dtype.lanes == 2:  # mpi4py takes it for complex
        return f"complex{2 * tensor.dtype.bits}"
    return dtype_text(code_of(tensor.dtype, name, True))


cdef object array_of(object spec, int parts):
    """Return the array of a buffer specification that only repeats its properties. Return other
    specifications unchanged, or None for structures without a named datatype. A count is that of
    each of the `parts`.
    """
    cdef int number
    cdef Py_ssize_t items
    if not isinstance(spec, (list, tuple)):
        if PyArray_CheckExact(spec) and PyArray_TYPE(<ndarray>spec) == NPY_VOID:
            return None
        return spec
    items = len(spec)
    if not 2 <= items <= 3 or not PyArray_CheckExact(spec[0]):
        return spec
    if items == 3 and (
        type(spec[1]) is not int or spec[1] * parts != PyArray_SIZE(<ndarray>spec[0])
    ):
        return spec
    number = plain_code(<ndarray>spec[0])
    if number < 0 or number != datatype_codes.get(id(spec[items - 1])):
        return spec
    return spec[0]


cdef tuple parts_spec(object spec):
    """Return the array, counts and displacements of a buffer specification in which each part has a
    count of its own. Return None unless it has an array and counts, and repeats the array's dtype.
    """
    cdef Py_ssize_t items
    displs = datatype = None
    if not isinstance(spec, (list, tuple)):
        return None
    items = len(spec)
    if not 2 <= items <= 4 or not PyArray_CheckExact(spec[0]):
        return None
    counts = spec[1]
    if items == 4:
        displs = spec[2]
    elif type(counts) is tuple:
        if len(counts) != 2:
            return None
        counts, displs = counts
    if items > 2:
        datatype = spec[items - 1]
    number = plain_code(<ndarray>spec[0])
    if number < 0 or datatype is not None and number != datatype_codes.get(id(datatype)):
        return None
    return spec[0], counts, displs


cdef ndarray plain_parts(Engine engine, Arguments *call, object spec, bint written, list keep):
    """Return the array of a buffer specification with counts, whose parts lie in their order, and
    set those of the call, in bytes. Return None if it has to be read more closely.
    """
    cdef int at = 2 * call.kind + (written and call.kind == ALLTOALL)
    cdef ndarray array, lengths
    cdef ndarray starts = None
    cdef int64_t itemsize, start
    cdef int64_t end = 0
    cdef bint adjacent = True
    cdef int r
    found = parts_spec(spec)
    if found is None or not is_plain(found[0], written, False):
        return None
    array = found[0]
    itemsize = PyArray_ITEMSIZE(array)
    lengths = numbers_of(found[1], engine.size, itemsize, engine.counts[at])
    if found[2] is not None:
        starts = numbers_of(found[2], engine.size, itemsize, None)
    if lengths is None or (starts is None and found[2] is not None):
        return None
    keep_counts(engine, at, lengths)
    for r in range(engine.size):
        start = end if starts is None or not numbers_in(lengths)[r] else numbers_in(starts)[r]
        if start < end:
            return None
        adjacent = adjacent and start == end
        end = start + numbers_in(lengths)[r]
    if end > PyArray_SIZE(array) * itemsize:
        return None
    keep += (lengths, starts)
    if written or call.kind != ALLTOALL:
        call.receive_counts = numbers_in(lengths)
    if not written or call.kind != ALLTOALL:
        call.counts = numbers_in(lengths)
    if not adjacent and written:
        call.receive_displs = numbers_in(starts)
    elif not adjacent:
        call.displs = numbers_in(starts)
    elif end < PyArray_SIZE(array) * itemsize:
        array = array.reshape(-1)[:end // itemsize]
    return array


cdef inline int plain_code(ndarray array) except? -2:
    """Return the code of an array's dtype, or -1 if it has none. Of structured dtypes, only pairs
    have a code.
    """
    cdef int number = PyArray_TYPE(array)
    if number == NPY_VOID:
        return pair_code(<object>PyArray_DESCR(array))
    return dtype_codes[number] if 0 <= number < NTYPES else -1


cdef inline void count_bytes(View *view) noexcept:
    """Make a view count bytes instead of elements."""
    view.count *= view.itemsize
    view.itemsize = 1
    view.dtype = CC_UINT8


cdef inline bint is_plain(object array, bint written, bint folds) except -1:
    """Return whether an argument is an array of NumPy that can be used in place. Structures that
    are only moved cannot, because MPI leaves out the gaps between their fields.
    """
    cdef int flags = NPY_ARRAY_CARRAY if written else NPY_ARRAY_CARRAY_RO
    return (
        PyArray_CheckExact(array)
        and 0 <= plain_code(<ndarray>array) < (INT_MAX if folds else <int>CC_NDTYPES)
        and PyArray_ISNOTSWAPPED(<ndarray>array) and PyArray_CHKFLAGS(<ndarray>array, flags)
    )


cdef bint folds_plainly(Reduction op, int dtype) except -1:
    """Return whether MPI defines an operation on a dtype, and there is a kernel."""
    if dtype == CC_BOOL and not CC_LAND <= op.code <= CC_LXOR:
        return False
    return kernel_of(op.code, dtype) != NULL


cdef bint fits_plainly(Engine engine, int kind, const Role *role, x, out, Reduction op) except -1:
    """Return whether a call can run with these arrays and do what MPI would do."""
    cdef bint folds = engine.contracts[kind].reduces
    cdef int dtype
    if role.inputs and not is_plain(x, False, folds):
        return False
    if role.outputs and not is_plain(out, True, folds):
        return False
    if folds:
        dtype = plain_code(<ndarray>x)
        if not folds_plainly(op, dtype) or role.outputs and plain_code(<ndarray>out) != dtype:
            return False
    return lengths_fit(role, x, out)


cdef bint lengths_fit(const Role *role, x, out) noexcept:
    """Return whether arrays have whole numbers of bytes for each part, and the same numbers."""
    cdef int64_t sent, received
    if not role.inputs:
        return True
    sent = PyArray_SIZE(<ndarray>x) * PyArray_ITEMSIZE(<ndarray>x)
    if not role.outputs:
        return sent % role.inputs == 0
    received = PyArray_SIZE(<ndarray>out) * PyArray_ITEMSIZE(<ndarray>out)
    return sent * role.outputs == received * role.inputs and sent % role.inputs == 0


cdef bint parts_fit(Engine engine, const Arguments *call, array) except -1:
    """Return whether a rank sends itself as many bytes as it gets from itself; `array` is the one
    that is not cut into parts.
    """
    cdef int64_t mine = call.receive_counts[engine.rank]
    if call.kind == ALLTOALL:
        return call.counts[engine.rank] == mine
    if not is_plain(array, call.kind == SCATTER, False):
        return False
    return PyArray_SIZE(<ndarray>array) * PyArray_ITEMSIZE(<ndarray>array) == mine


cdef bint own_part_fits(Engine engine, Arguments *call, array, list keep) except -1:
    """Set the count of a rank that is not the root; return whether its array can be used in place.
    """
    if not is_plain(array, call.kind == SCATTER, False):
        return False
    lengths = own_count(
        engine, call.kind, PyArray_SIZE(<ndarray>array) * PyArray_ITEMSIZE(<ndarray>array)
    )
    call.counts = call.receive_counts = numbers_in(lengths)
    keep.append(lengths)
    return True


cdef bint folds_parts(
    Engine engine, Arguments *call, x, out, counts, Reduction op, list keep
) except -1:
    """Set the counts of a reduce_scatter; return whether it can run and do what MPI would do."""
    cdef ndarray lengths = numbers_of(counts, engine.size, 1, engine.counts[2 * call.kind])
    cdef int dtype
    if lengths is None or not is_plain(x, False, True) or not is_plain(out, True, True):
        return False
    keep_counts(engine, 2 * call.kind, lengths)
    keep.append(lengths)
    call.counts = call.receive_counts = numbers_in(lengths)
    dtype = plain_code(<ndarray>x)
    return (
        op is not None and folds_plainly(op, dtype) and plain_code(<ndarray>out) == dtype
        and PyArray_SIZE(<ndarray>out) == call.counts[engine.rank]
        and PyArray_SIZE(<ndarray>x) == elements_of(call.counts, engine.size, 0)
    )
