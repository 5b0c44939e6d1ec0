# Exact sums for Python: as words, and as floats that are rounded once.

from numpy cimport NPY_INT64, PyArray_ZEROS

cdef int exact_kind(int dtype) noexcept nogil:
    """Return the number of a dtype's kernels, which add the parts of complex numbers; or -1."""
    if dtype == CC_COMPLEX64:
        dtype = CC_FLOAT32
    elif dtype == CC_COMPLEX128:
        dtype = CC_FLOAT64
    if dtype == CC_FLOAT64:
        return CC_EXACT_F64
    return dtype - CC_FLOAT16 if CC_FLOAT16 <= dtype <= CC_FLOAT32 else -1


cdef int exact_parts(int dtype) noexcept nogil:
    """Return the floats of an element."""
    return 2 if dtype == CC_COMPLEX64 or dtype == CC_COMPLEX128 else 1


cdef int exact_code(str dtype) except -1:
    """Return the code of a dtype that has exact sums."""
    cdef int code = DTYPES.index(dtype) if dtype in DTYPES else -1
    if code < 0 or exact_kind(code) < 0:
        raise UnsupportedTypeError(f"there are no exact sums of {dtype}")
    return code


def exact_words(str dtype):
    """Return the number of words of an exact sum of a dtype. Local."""
    cdef int code = exact_code(dtype)
    return exact_parts(code) * (cc_exact_dtypes[exact_kind(code)].limbs + 1)


def exact_total(x, int64_t rows=1):
    """Return the exact sums of the columns of an array with `rows` rows, or of all elements if
    `rows` is 0, as words, and the name of the dtype. Local.
    """
    cdef View view
    cdef npy_intp length
    cdef int kind, parts
    cdef int64_t n
    keep = view_of(x, &view, "x", False)
    kind = exact_kind(view.dtype)
    if kind < 0:
        raise UnsupportedTypeError(
            f"SUM_REPRODUCIBLE adds floating numbers, and x is {dtype_text(view.dtype)}; integers "
            f"have the same sum in any order"
        )
    parts = exact_parts(view.dtype)
    n = parts * (view.count // rows if rows else 1)
    length = n * (cc_exact_dtypes[kind].limbs + 1)
    cdef ndarray made = PyArray_ZEROS(1, &length, NPY_INT64, 0)
    cdef int64_t *words = <int64_t *>PyArray_DATA(made)
    with nogil:
        if rows:
            exacts.columns[kind](words, view.data, view.count // rows * view.itemsize, rows, n)
        else:
            exacts.total[kind](words, view.data, view.count * parts, parts)
    return made, dtype_text(view.dtype)


def exact_joined(ndarray words, str dtype, int64_t rows):
    """Return the words of the sums of the columns of an array of words with `rows` rows, each of
    which has one sum or more. Local.
    """
    cdef const cc_exact_dtype *t = &cc_exact_dtypes[exact_kind(exact_code(dtype))]
    cdef npy_intp length = PyArray_SIZE(words) // rows
    cdef ndarray made = PyArray_ZEROS(1, &length, NPY_INT64, 0)
    cdef int64_t *to = <int64_t *>PyArray_DATA(made)
    cdef const int64_t *source = <const int64_t *>PyArray_DATA(words)
    cdef int64_t i, k
    with nogil:
        for k in range(rows):
            for i in range(length // (t.limbs + 1)):
                cc_words_join(to + i * (t.limbs + 1), source, t)
                source += t.limbs + 1
    return made


def exact_rounded(ndarray words, str dtype, out):
    """Round the sums in `words` to floats in `out`. Local."""
    cdef View view
    cdef int code = exact_code(dtype)
    cdef int kind = exact_kind(code)
    cdef int64_t n
    kept = view_of(out, &view, "out", True)
    n = view.count * exact_parts(code)
    if view.dtype != code or PyArray_SIZE(words) != n * (cc_exact_dtypes[kind].limbs + 1):
        raise ArgumentError(f"out must have {dtype}, and an element for each sum")
    with nogil:
        cc_exact_rounded(view.data, <const int64_t *>PyArray_DATA(words), n, kind)
    return kept


def exact_rows(out, x):
    """Write the exact sums of the columns of an array of two dimensions, rounded once. Local."""
    cdef View to, source
    kept = view_of(out, &to, "out", True)
    keep = view_of(x, &source, "x", False)
    if to.dtype != source.dtype or exact_kind(to.dtype) < 0 or not to.count:
        raise ArgumentError("out and x must have the same floating dtype, and elements")
    with nogil:
        sum_rows(to.data, source.data, source.count // to.count, to.count, to.dtype)
    return kept


cdef void sum_rows(
    char *dst, const char *x, int64_t rows, int64_t n, int dtype
) noexcept nogil:
    """Write the sums of the columns of `rows` rows, which lie one after the other."""
    cdef int parts = exact_parts(dtype)
    cdef int kind = exact_kind(dtype)
    cdef int64_t stride = n * parts * cc_exact_dtypes[kind].size
    exacts.rows[kind](dst, x, stride, rows, n * parts)
