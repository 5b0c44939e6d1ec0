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
    cdef bint folds = engine.reduces[kind]
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
