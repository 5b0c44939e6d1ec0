# Dtypes: their codes, which are the numbers of the kernels, and their names.

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from numpy cimport (
    NPY_BOOL, NPY_BYTE, NPY_CDOUBLE, NPY_CFLOAT, NPY_DOUBLE, NPY_FLOAT, NPY_INT, NPY_LONG,
    NPY_LONGDOUBLE, NPY_LONGLONG, NPY_SHORT, NPY_UBYTE, NPY_UINT, NPY_ULONG, NPY_ULONGLONG,
    NPY_USHORT,
)

from collectives.arrays import buffers

cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF

cdef enum:
    NTYPES = 24  # NumPy's built-in type numbers

DTYPES = buffers.DTYPES  # the order is that of the enum in kernels.h

cdef signed char dtype_codes[NTYPES]

# The dtypes without kernels that calls have moved; the code of each is CC_NDTYPES + its index.
cdef list other_dtypes = []

# The codes of structured dtypes, which functions fold, and the dtypes by these codes.
cdef dict structured_codes = {}
cdef dict structured_dtypes = {}

# The codes of pairs, which MINLOC and MAXLOC fold, for any names of fields; -1 for other dtypes.
# And by these codes: the code of the value, whether the index has 64 bits, and whether the fields
# are aligned as in C.
cdef dict pair_codes = {}
cdef dict layouts = {}


cdef int structured_code(object dtype, str name) except -1:
    """Return the code of a structured dtype, or of raw bytes."""
    found = structured_codes.get(dtype)
    if found is None:
        if dtype.hasobject or not dtype.isnative or not dtype.itemsize:
            raise buffers.unsupported(name, str(dtype), False, False)
        found = structured_codes[dtype] = other_code(str(dtype))
        structured_dtypes[found] = dtype
    return found


cdef int pair_code(object dtype) except -2:
    """Return the code of a pair of a value and an index, or -1."""
    found = pair_codes.get(dtype)
    if found is None:
        pair = buffers.pair_of(dtype)
        found = -1
        if pair is not None:
            found = other_code(buffers.pair_name(*pair))
            layouts[found] = DTYPES.index(pair[0]), *pair[1:]
        pair_codes[dtype] = found
    return found


cdef int sized(int nbytes, bint signed) noexcept:
    """Return the code of the integer of `nbytes` bytes."""
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
    if sizeof(long double) == 16:
        dtype_codes[<int>NPY_LONGDOUBLE] = CC_FLOAT128
    dtype_codes[<int>NPY_CFLOAT] = CC_COMPLEX64
    dtype_codes[<int>NPY_CDOUBLE] = CC_COMPLEX128


fill_dtypes()


cdef int other_code(str dtype) except -1:
    """Return the code of a dtype without kernels, a new one for a new dtype."""
    if dtype not in other_dtypes:
        other_dtypes.append(dtype)
    return CC_NDTYPES + other_dtypes.index(dtype)


cdef str dtype_text(int code):
    """Return the name of a dtype, which messages have, and which ranks compare."""
    return DTYPES[code] if code < CC_NDTYPES else other_dtypes[code - CC_NDTYPES]


cdef uint64_t dtype_sum(int code) except? 0:
    """Return a number of a dtype that is the same on all ranks: its code, or a checksum."""
    return code if code < CC_NDTYPES else text_mixed(0, other_dtypes[code - CC_NDTYPES])


cdef uint64_t text_mixed(uint64_t sum, str text) except? 0:
    """Mix a text, or None, into a checksum, whose high bits are the better ones."""
    cdef Py_ssize_t n, i
    cdef const char *bytes
    if text is None:
        return cc_mixed(sum, 1)
    bytes = PyUnicode_AsUTF8AndSize(text, &n)
    for i in range(n):
        sum = cc_mixed(sum, <unsigned char>bytes[i])
    return cc_mixed(sum, n)
