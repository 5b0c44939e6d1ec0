# Reductions: those that kernels fold, and functions that users wrote.

from zlib import crc32

from numpy cimport NPY_ARRAY_WRITEABLE, PyArray_CLEARFLAGS, PyArray_SimpleNewFromData

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
            self.number = 0x80 | crc32(name.encode(errors="backslashreplace")) & 0x3F

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
