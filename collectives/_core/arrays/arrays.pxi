# Arrays and reductions: how the core reads a NumPy array, and which kernel folds it. What is no
# NumPy array goes to dlpack.pxi.

from numpy cimport (
    NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO, NPY_ARRAY_WRITEABLE, NPY_BOOL, NPY_BYTE, NPY_CDOUBLE,
    NPY_CFLOAT, NPY_CORDER, NPY_DOUBLE, NPY_FLOAT, NPY_INT, NPY_LONG, NPY_LONGLONG, NPY_SHORT,
    NPY_UBYTE, NPY_UINT, NPY_ULONG, NPY_ULONGLONG, NPY_USHORT, PyArray_CheckExact, PyArray_CHKFLAGS,
    PyArray_CLEARFLAGS, PyArray_DATA, PyArray_ISNOTSWAPPED, PyArray_ITEMSIZE, PyArray_SIZE,
    PyArray_SimpleNewFromData, PyArray_TYPE, import_array, ndarray, npy_intp,
)

from zlib import crc32

from collectives.arrays import buffers, frameworks
from collectives.errors import (
    ArgumentError, BufferError, MismatchError, MPIError, StallError, UnsupportedTypeError,
)

cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF
    ndarray PyArray_NewLikeArray(ndarray, int, void *, int)

import_array()

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil

cdef enum:
    NTYPES = 24  # NumPy's built-in type numbers

DTYPES = buffers.DTYPES  # the order is that of the enum in kernels.h


cdef inline int bit_length(uint64_t n) noexcept nogil:
    return 64 - __builtin_clzll(n) if n else 0


cdef inline int64_t ceiling(int64_t a, int64_t b) noexcept nogil:
    """Return a / b, rounded up, for a >= 0 (division is C's here)."""
    return (a + b - 1) // b


cdef signed char dtype_codes[NTYPES]
cdef int bfloat16_number = -1  # what NumPy calls the bfloat16 of ml_dtypes, once it has been seen
cdef cc_fold_fn folds[<int>CC_NOPS][<int>CC_NDTYPES]
cdef cc_scale_fn scales[<int>CC_NDTYPES]


cdef int sized(int nbytes, bint signed) noexcept:
    """Return the code of the integer of that many bytes."""
    cdef int step = {1: 0, 2: 1, 4: 2, 8: 3}[nbytes]
    return (CC_INT8 if signed else CC_UINT8) + step


cdef void fill_dtypes() noexcept:
    cdef int i
    for i in range(NTYPES):
        dtype_codes[i] = -1
    dtype_codes[<int>NPY_BOOL] = CC_BOOL
    dtype_codes[<int>NPY_BYTE] = sized(sizeof(char), True)
    dtype_codes[<int>NPY_SHORT] = sized(sizeof(short), True)
    dtype_codes[<int>NPY_INT] = sized(sizeof(int), True)
    dtype_codes[<int>NPY_LONG] = sized(sizeof(long), True)
    dtype_codes[<int>NPY_LONGLONG] = sized(sizeof(long long), True)
    dtype_codes[<int>NPY_UBYTE] = sized(sizeof(char), False)
    dtype_codes[<int>NPY_USHORT] = sized(sizeof(short), False)
    dtype_codes[<int>NPY_UINT] = sized(sizeof(int), False)
    dtype_codes[<int>NPY_ULONG] = sized(sizeof(long), False)
    dtype_codes[<int>NPY_ULONGLONG] = sized(sizeof(long long), False)
    dtype_codes[<int>NPY_HALF] = CC_FLOAT16
    dtype_codes[<int>NPY_FLOAT] = CC_FLOAT32
    dtype_codes[<int>NPY_DOUBLE] = CC_FLOAT64
    dtype_codes[<int>NPY_CFLOAT] = CC_COMPLEX64
    dtype_codes[<int>NPY_CDOUBLE] = CC_COMPLEX128


cdef void fill_kernels() noexcept:
    cdef int op, dtype
    for dtype in range(CC_NDTYPES):
        scales[dtype] = cc_scale_kernel(dtype)
        for op in range(CC_NOPS):
            folds[op][dtype] = cc_fold_kernel(op, dtype)


def kernels_isa():
    return cc_kernels_isa().decode()


def kernels_select(isa=None):
    if isa is None:
        cc_kernels_init(NULL)
    elif cc_kernels_init(isa.encode()):
        raise ArgumentError(
            f"this processor has no kernels for {isa!r}; there are portable, avx2 and avx512"
        )
    fill_kernels()


fill_dtypes()
kernels_select()


# Those that kernels fold, by name: what `collectives.reductions` has made.
cdef dict built_in = {}


def reduction_named(name):
    """Return the reduction that a pickle names. Local."""
    return built_in[name]


@cython.final
cdef class Reduction:
    """A reduction operation, such as `collectives.SUM`; `collectives.reduction` makes others.

    Attributes
    ----------
    name : str
    code : int
        The number of its kernels.
    number : int
        A number of its own, for ranks to compare; those of functions may be equal.
    average : bool
        Whether the result is divided by the number of ranks.
    function : callable or None
        What folds, if that is no kernel.
    commutative : bool
        Whether the order of the operands does not matter.
    """

    cdef readonly str name
    cdef readonly int code
    cdef readonly int number
    cdef readonly bint average
    cdef readonly object function
    cdef readonly bint commutative

    def __init__(
        self, str name, int code, bint average=False, function=None, bint commutative=True,
    ):
        self.name = name
        self.code = code
        self.average = average
        self.function = function
        self.commutative = commutative
        self.number = code | average << 6
        if function is None:
            built_in[name] = self
        else:
            self.number = 0x80 | crc32(name.encode()) & 0x3F

    def __repr__(self):
        return f"collectives.{self.name}" if self.function is None else f"<Reduction {self.name}>"

    def __reduce__(self):
        if self.function is None:
            return reduction_named, (self.name,)
        return Reduction, (self.name, self.code, False, self.function, self.commutative)

    def dtypes(self):
        """Return the names of the dtypes that it can fold. Local."""
        if self.function is not None:
            return list(DTYPES)
        return [
            name for code, name in enumerate(DTYPES)
            if folds[self.code][code] != NULL and (not self.average or scales[code] != NULL)
        ]


# An array as the executor sees it.
cdef struct View:
    char *data
    int64_t count
    int itemsize
    int dtype


# The dtypes that no kernel knows and that were moved; the code of each is CC_NDTYPES + its index.
cdef list other_dtypes = []


cdef int other_code(str dtype) except -1:
    """Return the code of a dtype that no kernel knows: a new one if it was never seen."""
    if dtype not in other_dtypes:
        other_dtypes.append(dtype)
    return CC_NDTYPES + other_dtypes.index(dtype)


cdef str dtype_text(int code):
    """Return the name of a dtype, for messages, and for ranks to agree on."""
    return DTYPES[code] if code < CC_NDTYPES else other_dtypes[code - CC_NDTYPES]


cdef object view_of(object array, View *view, str name, bint writable, bint moves=False):
    """Fill a view; return the object that keeps it alive (a packed copy where one was needed).

    That is an ndarray, or a Held for what comes by DLPack. With `moves`, dtypes without kernels are
    accepted: the code is CC_NDTYPES or more then, and must not be looked up in `folds` or `scales`.
    """
    cdef int flags = NPY_ARRAY_CARRAY if writable else NPY_ARRAY_CARRAY_RO
    global bfloat16_number
    cdef int number
    cdef ndarray a
    if not PyArray_CheckExact(array):
        return view_of_other(array, view, name, writable, moves)
    a = array
    number = PyArray_TYPE(a)
    if 0 <= number < NTYPES:
        view.dtype = dtype_codes[number]
    else:
        view.dtype = CC_BFLOAT16 if number == bfloat16_number else -1
    if view.dtype < 0 or not PyArray_ISNOTSWAPPED(a):
        dtype = buffers.dtype_name(a, name, moves)
        view.dtype = DTYPES.index(dtype) if dtype in DTYPES else other_code(dtype)
        if view.dtype == CC_BFLOAT16:
            bfloat16_number = number
    if not PyArray_CHKFLAGS(a, flags):
        a = buffers.contiguous(a, name, writable)
    view.data = <char *>PyArray_DATA(a)
    view.count = PyArray_SIZE(a)
    view.itemsize = PyArray_ITEMSIZE(a)
    return a


# A fold that a user wrote, in one call: the function, and NumPy's number of the dtype.
@cython.final
cdef class UserFold:
    cdef object function
    cdef int number
    cdef object error  # what the function raised

    cdef ndarray view(self, char *data, int64_t n):
        cdef npy_intp shape = n
        return PyArray_SimpleNewFromData(1, &shape, self.number, data)

    cdef int fold(self, char *dst, char *left, char *right, int64_t n) except -1:
        """Have the function fold `left` into a copy of `right`, and leave that in `dst`."""
        incoming = self.view(left, n)
        accumulator = self.view(dst, n)
        if dst == left:
            incoming = incoming.copy()
        # It may be what the caller passed, or what other ranks are still sent.
        PyArray_CLEARFLAGS(incoming, NPY_ARRAY_WRITEABLE)
        if dst != right:
            memcpy(dst, right, n * PyArray_ITEMSIZE(accumulator))
        self.function(incoming, accumulator)
        return 0


cdef int user_fold(void *user, char *dst, char *left, char *right, int64_t n) noexcept with gil:
    """Run a fold written in Python. Returns 0, or -1 if it raised; the object has the error."""
    cdef UserFold fold = <UserFold>user
    try:
        fold.fold(dst, left, right, n)
    except BaseException as error:
        fold.error = error
        return -1
    return 0


def shape(x, str name="x"):
    """Return the shape of an array of any kind. Local."""
    cdef View view
    return shape_of(view_of(x, &view, name, False, True))


def fold(int op, out, left, right, dtype=None):
    """Fold two arrays with a kernel: ``out[i] = left[i] op right[i]``. Local."""
    cdef View dst, a, b
    cdef int code
    kept_out = view_of(out, &dst, "out", True)
    keep = view_of(left, &a, "left", False), view_of(right, &b, "right", False)
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.count != b.count or dst.dtype != a.dtype or dst.dtype != b.dtype:
        raise ArgumentError("out, left and right must have the same dtype and number of elements")
    if not 0 <= op < CC_NOPS or not 0 <= code < CC_NDTYPES or folds[op][code] == NULL:
        raise UnsupportedTypeError(f"there is no kernel for operation {op} on dtype {code}")
    with nogil:
        folds[op][code](dst.data, a.data, b.data, dst.count)
    return kept_out


def scale(out, src, double factor, dtype=None):
    """Scale an array with a kernel: ``out[i] = src[i] * factor``. Local."""
    cdef View dst, a
    cdef int code
    kept_out = view_of(out, &dst, "out", True)
    keep = view_of(src, &a, "src", False)
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.dtype != a.dtype:
        raise ArgumentError("out and src must have the same dtype and number of elements")
    if not 0 <= code < CC_NDTYPES or scales[code] == NULL:
        raise UnsupportedTypeError(f"there is no scaling of dtype {code}")
    with nogil:
        scales[code](dst.data, a.data, factor, dst.count)
    return kept_out


def stream_copy(dst, src):
    """Copy an array past the cache, as far as this machine can. Local."""
    cdef View to, origin
    kept_dst = view_of(dst, &to, "dst", True)
    keep = view_of(src, &origin, "src", False)
    if to.count != origin.count or to.dtype != origin.dtype:
        raise ArgumentError("dst and src must have the same dtype and number of elements")
    if overlap(&to, &origin):
        raise BufferError("dst overlaps src; pass arrays that share no memory")
    with nogil:
        cc_stream(to.data, origin.data, to.count * to.itemsize)
        cc_fence_streams()
    return kept_dst
