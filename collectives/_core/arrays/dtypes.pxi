# Dtypes: their codes, which are the numbers of the kernels, and their names.

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

# The dtypes that no kernel knows and that were moved; the code of each is CC_NDTYPES + its index.
cdef list other_dtypes = []


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
    if sizeof(long double) == 16:
        dtype_codes[<int>NPY_LONGDOUBLE] = CC_FLOAT128
    dtype_codes[<int>NPY_CFLOAT] = CC_COMPLEX64
    dtype_codes[<int>NPY_CDOUBLE] = CC_COMPLEX128


fill_dtypes()


cdef int other_code(str dtype) except -1:
    """Return the code of a dtype that no kernel knows: a new one if it was never seen."""
    if dtype not in other_dtypes:
        other_dtypes.append(dtype)
    return CC_NDTYPES + other_dtypes.index(dtype)


cdef str dtype_text(int code):
    """Return the name of a dtype, for messages, and for ranks to agree on."""
    return DTYPES[code] if code < CC_NDTYPES else other_dtypes[code - CC_NDTYPES]
