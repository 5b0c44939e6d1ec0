# Views: address, count and dtype of an array. For arrays of other libraries, see tensors.pxi.

from numpy cimport (
    NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO, PyArray_CheckExact, PyArray_CHKFLAGS, PyArray_DATA,
    PyArray_DIMS, PyArray_ISNOTSWAPPED, PyArray_ITEMSIZE, PyArray_NDIM, PyArray_SIZE,
    PyArray_STRIDES, PyArray_TYPE, import_array, ndarray, npy_intp,
)

import_array()

cdef int bfloat16_number = -1  # NumPy's type number of ml_dtypes' bfloat16, once it is known


cdef struct View:
    char *data
    int64_t count
    int itemsize
    int dtype


# The dtypes that a call takes in addition to those with kernels.
cdef enum:
    NUMBERS = 1  # dtypes whose elements can be moved
    STRUCTURES = 2  # structured dtypes, and raw bytes
    PAIRS = 4  # pairs of a value and an index


cdef object view_of(object array, View *view, str name, bint writable, int others=0):
    """Fill a view; return the object that keeps it alive (a packed copy if one is needed).

    That is an ndarray, or a Held for a tensor by DLPack. With `others`, dtypes without kernels are
    accepted: their codes are CC_NDTYPES or more, and must not be looked up in `folds` or `scales`.
    """
    cdef int flags = NPY_ARRAY_CARRAY if writable else NPY_ARRAY_CARRAY_RO
    global bfloat16_number
    cdef int number
    if not PyArray_CheckExact(array):
        return view_of_other(array, view, name, writable, others)
    number = PyArray_TYPE(<ndarray>array)
    if 0 <= number < NTYPES:
        view.dtype = dtype_codes[number]
    else:
        view.dtype = CC_BFLOAT16 if number == bfloat16_number else -1
    if others & (STRUCTURES | PAIRS) and number == NPY_VOID:
        if others & PAIRS:
            view.dtype = pair_code(<object>PyArray_DESCR(<ndarray>array))
        if view.dtype < 0:
            view.dtype = structured_code(<object>PyArray_DESCR(<ndarray>array), name)
    elif view.dtype < 0 or not PyArray_ISNOTSWAPPED(<ndarray>array):
        dtype = buffers.dtype_name(array, name, others & NUMBERS)
        view.dtype = DTYPES.index(dtype) if dtype in DTYPES else other_code(dtype)
        if view.dtype == CC_BFLOAT16:
            bfloat16_number = number
    if not PyArray_CHKFLAGS(<ndarray>array, flags):
        array = buffers.contiguous(array, name, writable)
    view.data = <char *>PyArray_DATA(<ndarray>array)
    view.itemsize = PyArray_ITEMSIZE(<ndarray>array)
    if PyArray_NDIM(<ndarray>array) == 1:  # a call of NumPy's function takes longer
        view.count = PyArray_DIMS(<ndarray>array)[0]
    else:
        view.count = PyArray_SIZE(<ndarray>array)
    return array


cdef tuple shape_of(object kept):
    """Return the shape of an object that view_of() has returned."""
    cdef DLTensor *tensor
    cdef int k
    if type(kept) is Span:
        return (<Span>kept).shape
    if type(kept) is Held:
        tensor = (<Held>kept).tensor
        return tuple([tensor.shape[k] for k in range(tensor.ndim)])
    return tuple([PyArray_DIMS(<ndarray>kept)[k] for k in range(PyArray_NDIM(<ndarray>kept))])


def shape(x, str name="x", bint structures=False):
    """Return the shape of an array of any kind, also of one on a device. Local."""
    cdef View view
    cdef int others = NUMBERS | STRUCTURES if structures else NUMBERS
    try:
        return shape_of(view_of(x, &view, name, False, others))
    except BufferError as error:
        if hasattr(error, "device_shape"):
            return error.device_shape
        raise


def examine(array, str name="x", bint writable=False, bint moves=False):
    """Return the address, the number of elements, their bytes and dtype, and their owner."""
    cdef View view
    kept = view_of(array, &view, name, writable, moves)
    return <uintptr_t>view.data, view.count, view.itemsize, dtype_text(view.dtype), kept
