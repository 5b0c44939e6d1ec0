# Results: new arrays of the kind of the input, allocated by NumPy or the library of the input.

from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches, PyErr_SetString
from numpy cimport PyArray_Descr, PyArray_DESCR, PyArray_EMPTY

import numpy

cdef extern from "numpy/arrayobject.h":
    PyObject *PyArray_Empty(int, npy_intp *, PyArray_Descr *, int)
    PyObject *PyArray_NewLikeArray(ndarray, int, void *, int)

cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_HUGEPAGE
    int madvise(void *, size_t, int)


cdef object result_like(object x, object kept, const View *like, tuple shape, View *out):
    """Make memory for a result of x's kind, and fill a view of it.

    `kept` and `like` are the results of view_of(x); `shape` is the result's, or None for that of x.
    The returned object must be kept alive, and passed to finished() when the operation is complete,
    because immutable arrays are made only then.
    """
    cdef Kind kind
    out.itemsize = like.itemsize
    out.dtype = like.dtype
    if PyArray_CheckExact(x):
        return numpy_result(kept, shape, out)
    if type(x) is Span:
        return span_like(x, shape, out)
    kind = kind_of(type(x))
    if kind.immutable:
        return pending_result(x, kind, kept, shape, out)
    if type(kept) is not Held:
        return numpy_result(kept, shape, out)
    if kind.api != NULL and not is_shared(like.count * like.itemsize):
        return allocated_result(kind, <Held>kept, shape, out)
    if shape is None:
        shape = shape_of(kept)
    if kind.framework == "torch":
        result = frameworks.empty(x, shape, shares_arrays())
    else:
        result = numpy.empty(shape, frameworks.numpy_dtype(dtype_text(like.dtype), "x"))
    # The caller keeps the result, and with it the memory.
    view_of(result, out, "out", True, True)
    return result


cdef inline bint is_shared(int64_t nbytes) except -1:
    """Return whether a result of `nbytes` is made in the heap."""
    return nbytes >= CC_LEAST and shares_arrays()


cdef object numpy_result(ndarray like, tuple shape, View *out):
    cdef npy_intp dims[DL_MAX_DIMENSIONS]
    cdef ndarray made
    cdef int k
    if shape is None:
        made = owned(PyArray_NewLikeArray(like, NPY_CORDER, NULL, 0))
    else:
        fill_dims(<int64_t *>dims, len(shape), shape)
        Py_INCREF(<object>PyArray_DESCR(like))  # PyArray_Empty steals a reference
        made = owned(PyArray_Empty(len(shape), dims, PyArray_DESCR(like), 0))
    out.data = <char *>PyArray_DATA(made)
    out.count = PyArray_SIZE(made)
    return made


cdef inline ndarray owned(PyObject *made):
    """Return an array that NumPy has made; raise CommunicatorError if there was no memory."""
    if made == NULL:
        refuse_memory()
    array = <ndarray>made
    Py_DECREF(array)  # `array` has a reference of its own beside the new one
    return array


cdef int refuse_memory() except -1:
    if PyErr_ExceptionMatches(MemoryError):
        PyErr_Clear()
        raise CommunicatorError("there is no memory for an array of the size of the result")
    return -1


cdef int64_t fill_dims(int64_t *dims, int ndim, tuple shape) except -1:
    """Write a shape as an array of C; return the number of elements."""
    cdef int64_t count = 1
    cdef int k
    if ndim > DL_MAX_DIMENSIONS:
        raise BufferError(
            f"the result has {ndim} dimensions, and may have at most {DL_MAX_DIMENSIONS}"
        )
    for k in range(ndim):
        dims[k] = shape[k]
        count *= dims[k]
    return count


cdef int64_t shape_result(DLTensor *made, int64_t *dims, Held like, tuple shape) except -1:
    """Set the shape and the dtype of a new tensor; return the number of elements."""
    cdef int64_t count = 1
    cdef int k
    made.data = NULL
    made.device = DLDevice(DL_CPU, 0)
    made.dtype = like.tensor.dtype
    made.shape = dims
    made.strides = NULL
    made.byte_offset = 0
    if shape is not None:
        made.ndim = len(shape)
        return fill_dims(dims, made.ndim, shape)
    made.ndim = like.tensor.ndim
    for k in range(made.ndim):
        dims[k] = like.tensor.shape[k]
        count *= dims[k]
    return count


cdef void advise_huge_pages(char *data, int64_t nbytes) noexcept:
    """Ask for huge pages for untouched memory from 4 MiB on, as NumPy does.

    A new result of 64 MiB, torch's or JAX's, takes 6.2 ms with them on 1 rank and 31 without
    (EPYC, 2026-11-20).
    """
    cdef uintptr_t first = (<uintptr_t>data + 4095) & ~<uintptr_t>4095
    if nbytes >= 1 << 22:
        madvise(<void *>first, <uintptr_t>data + nbytes - first, MADV_HUGEPAGE)


cdef void report(void *context, const char *kind, const char *message) noexcept with gil:
    """Raise MemoryError with the message of an allocator."""
    PyErr_SetString(MemoryError, message)


cdef object allocated_result(Kind kind, Held like, tuple shape, View *out):
    """Return a tensor that the library of x allocates."""
    cdef int64_t dims[DL_MAX_DIMENSIONS]
    cdef DLTensor prototype
    cdef DLManagedTensorVersioned *managed = NULL
    cdef void *made = NULL
    out.count = shape_result(&prototype, dims, like, shape)
    if kind.api.allocate(&prototype, &managed, NULL, report) or managed == NULL:
        PyErr_Clear()  # the error of report()
        raise CommunicatorError("the library of x has no memory for the result")
    out.data = <char *>managed.dl_tensor.data + managed.dl_tensor.byte_offset
    if out.count == 0:
        out.data = &nowhere
    advise_huge_pages(out.data, out.count * out.itemsize)
    if kind.api.to_object(managed, &made) or made == NULL:
        raise BufferError(f"the library of x made no tensor of a result of shape {shape}")
    result = <object>made
    Py_DECREF(result)  # `result` has a reference of its own beside the new one
    return result


cdef ndarray scratch_like(View *view):
    """Allocate uninitialised memory for the elements of a view, and point the view to it."""
    cdef npy_intp nbytes = view.count * view.itemsize
    cdef ndarray memory = PyArray_EMPTY(1, &nbytes, NPY_UBYTE, 0)
    view.data = <char *>PyArray_DATA(memory)
    return memory
