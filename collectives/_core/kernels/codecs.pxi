# The compressing kernels for Python: codes of 8, 4 and 1 bits, halves, and low rank.

from numpy cimport NPY_UINT64

cdef dict code_numbers = {8: CC_CODE8, 4: CC_CODE4, 1: CC_CODE1}


cdef int code_number(int bits) except -1:
    """Return the number of the kernels for codes of 8, 4 or 1 bits."""
    if bits not in code_numbers:
        raise ArgumentError(f"bits is {bits}, and must be 8, 4 or 1")
    return code_numbers[bits]


cdef int check_block(int64_t block) except -1:
    if block < 1:
        raise ArgumentError(f"block is {block}, and must be at least 1")
    return 0


cdef object floats_of(array, View *view, str name, bint writable):
    """Fill a view of an array of float32; return what keeps it alive."""
    kept = view_of(array, view, name, writable)
    if view.dtype != CC_FLOAT32:
        raise UnsupportedTypeError(f"{name} is {dtype_text(view.dtype)}, and must be float32")
    return kept


cdef object codes_of(array, View *view, str name, bint writable, int64_t wanted):
    """Fill a view of the bytes of some codes; return what keeps them alive."""
    kept = view_of(array, view, name, writable)
    if view.itemsize != 1 or view.count != wanted:
        raise ArgumentError(
            f"{name} has {view.count} elements of {view.itemsize} bytes, and must have {wanted} of "
            f"one byte"
        )
    return kept


def encoded_bytes(int bits, int64_t count, int64_t block):
    """Return the number of bytes of encoded elements, of which each block has a scale. Local."""
    check_block(block)
    code_number(bits)
    return cc_encoded_bytes(count, block, 8 // bits)


def random_word(uint64_t seed, uint64_t number):
    """Return the random word of 64 bits with this `number` and `seed`. Local."""
    return cc_random_word(seed, number)


def random_words(uint64_t seed, int64_t count):
    """Return an array of the first random numbers of a seed. Local."""
    cdef npy_intp shape = count
    cdef ndarray words = PyArray_EMPTY(1, &shape, NPY_UINT64, 0)
    cdef uint64_t *word = <uint64_t *>PyArray_DATA(words)
    cdef int64_t i
    for i in range(count):
        word[i] = cc_random_word(seed, i)
    return words


def encode(int bits, out, x, residual, int64_t block, uint64_t seed=0, uint64_t first=0):
    """Encode float32 elements by codes of 8, 4 or 1 bits and a scale for each block. Local.

    8 and 4 bits are rounded at random, by `seed` and the number of the block (`first` for the first
    one). 1 bit is the sign of the element, and the scale is the mean magnitude. `residual`, only
    for signs, is None or is added to `x` before, and gets the error of the codes.
    """
    cdef View to, a, e
    cdef float *lost = NULL
    cdef int number = code_number(bits)
    cdef const cc_codecs *kernels = cc_codecs_now()
    check_block(block)
    keep_x = floats_of(x, &a, "x", False)
    keep_out = codes_of(out, &to, "out", True, cc_encoded_bytes(a.count, block, 8 // bits))
    if residual is not None:
        keep_residual = floats_of(residual, &e, "residual", True)
        if e.count != a.count or bits != 1 or overlap(&e, &a):
            raise ArgumentError("residual must be of signs, and apart from x, and as long")
        lost = <float *>e.data
    with nogil:
        kernels.encode[number](
            <unsigned char *>to.data, <const float *>a.data, lost, a.count, block, seed, first
        )


def decode(int bits, out, codes, int64_t block, bint add=False):
    """Decode elements into an array of float32, or `add` them to its elements. Local."""
    cdef View to, a
    cdef int number = code_number(bits)
    cdef const cc_codecs *kernels = cc_codecs_now()
    check_block(block)
    keep_out = floats_of(out, &to, "out", True)
    keep = codes_of(codes, &a, "codes", False, cc_encoded_bytes(to.count, block, 8 // bits))
    with nogil:
        kernels.decode[number](
            <float *>to.data, <const unsigned char *>a.data, to.count, block, add
        )


cdef int convert_views(const View *to, const View *origin) except -1:
    """Convert elements of float32 to float16 or bfloat16, or back."""
    cdef const cc_codecs *kernels = cc_codecs_now()
    cdef cc_convert_fn run = NULL
    if to.dtype == CC_FLOAT32 and (origin.dtype == CC_FLOAT16 or origin.dtype == CC_BFLOAT16):
        run = kernels.of_half[origin.dtype == CC_BFLOAT16]
    elif origin.dtype == CC_FLOAT32 and (to.dtype == CC_FLOAT16 or to.dtype == CC_BFLOAT16):
        run = kernels.to_half[to.dtype == CC_BFLOAT16]
    if run == NULL:
        raise UnsupportedTypeError(
            f"{dtype_text(origin.dtype)} is not converted to {dtype_text(to.dtype)}"
        )
    if to.count != origin.count:
        raise ArgumentError("out and x must have the same number of elements")
    with nogil:
        run(to.data, origin.data, to.count)
    return 0


def convert(out, x):
    """Convert float32 to float16 or bfloat16, rounded to nearest even, or back. Local."""
    cdef View to, origin
    keep_out = view_of(out, &to, "out", True)
    keep = view_of(x, &origin, "x", False)
    convert_views(&to, &origin)


def orthonormalise(rows):
    """Make the rows of a float32 matrix orthonormal; return the number of nonzero rows. Local.

    The bits of the result are equal on all processors.
    """
    cdef View view
    cdef int64_t rank
    cdef size_t kept
    cdef const cc_codecs *kernels = cc_codecs_now()
    keep = floats_of(rows, &view, "rows", True)
    rank = shape_of(keep)[0]
    with nogil:
        kept = kernels.orthonormalise(<float *>view.data, rank, view.count // max(1, rank))
    return kept


def low_rank(out, left, right, bint subtract=False):
    """Write ``left.T @ right`` into a float32 matrix, or `subtract` it from the matrix. Local.

    `left` has the shape (rank, n), `right` (rank, m), `out` (n, m). Unlike those of a matrix
    product, the bits of the result are equal on all processors.
    """
    cdef View to, a, b
    cdef int64_t rank
    cdef const cc_codecs *kernels = cc_codecs_now()
    keep_out = floats_of(out, &to, "out", True)
    keep_left = floats_of(left, &a, "left", False)
    keep_right = floats_of(right, &b, "right", False)
    (rank, n), (others, m) = shape_of(keep_left), shape_of(keep_right)
    if rank != others or to.count != n * m:
        raise ArgumentError("left, right and out must have the shapes (rank, n), (rank, m), (n, m)")
    with nogil:
        kernels.low_rank(
            <float *>to.data, <const float *>a.data, <const float *>b.data, rank,
            a.count // max(1, rank), b.count // max(1, rank), subtract
        )
