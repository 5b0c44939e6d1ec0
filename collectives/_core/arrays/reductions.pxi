# Reductions: those that kernels fold, and functions of users.

from numpy cimport (
    NPY_ARRAY_OWNDATA, NPY_ARRAY_WRITEABLE, PyArray_CLEARFLAGS, PyArray_SimpleNewFromData,
    set_array_base,
)

cdef extern from *:
    """
    #define cc_array_at(descr, shape, data)                                                        \
        PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)(descr), 1, shape, NULL, data,        \
                             NPY_ARRAY_CARRAY, NULL)
    """
    ndarray cc_array_at(object, npy_intp *, char *)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

# The reductions that kernels fold, by name; `collectives.reductions` makes them.
cdef dict built_in = {}

# The names of all reductions, by the numbers that ranks compare; of functions with one number, the
# last one counts.
cdef dict said_by_number = {}


def reduction_named(name):
    """Return the reduction of a name, for pickles. Local."""
    return built_in[name]


cdef Reduction reduction_called(op):
    """Return the reduction of the name that a call has passed, in any case: ``"sum"``."""
    found = built_in.get(op.upper()) if isinstance(op, str) else None
    if found is None:
        same = spelled_here(op, built_in)
        raise ArgumentError(
            f"op is {shown(op)}, and must be one of collectives.{', '.join(built_in)}, its name, "
            f"or made by collectives.reduction" + (f"; pass op=collectives.{same}" if same else "")
        )
    return found


@cython.final
cdef class Reduction:
    """A reduction operation, such as `collectives.SUM`; `collectives.reduction` makes others.

    Attributes
    ----------
    name : str
    code : int
        The number of its kernels.
    number : int
        A number that ranks compare. Two functions may have the same.
    average : bool
        Whether the result is divided by the number of ranks.
    function : callable or None
        The function that folds, or None for kernels.
    commutative : bool
        Whether the order of the operands does not matter.
    exact : bool
        Whether it rounds once, after all operands.
    said : str
        The name in errors, which differs if the caller does a part of the reduction itself.
    """

    cdef readonly str name
    cdef readonly int code
    cdef readonly int number
    cdef readonly bint average
    cdef readonly object function
    cdef readonly bint commutative
    cdef readonly bint exact
    cdef readonly str said
    cdef uint64_t checksum  # of a function's name and properties, which ranks compare; or 0

    def __init__(
        self, str name, int code, bint average=False, function=None, bint commutative=True,
        bint exact=False, str said=None,
    ):
        self.name = name
        self.code = code
        self.average = average
        self.function = function
        self.commutative = commutative
        self.exact = exact
        self.said = said or name
        self.number = code | (said is not None) << 4 | exact << 5 | average << 6
        if function is not None:
            self.said = name.encode(errors="backslashreplace").decode()
            self.checksum = text_mixed(commutative, self.said)
            self.number = 0x80 | self.checksum >> 58
        elif said is None:
            built_in[name] = self
        said_by_number[self.number] = self.said

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
        if self.code >= CC_NOPS:
            return [
                f"{name},{index}" for code, name in enumerate(DTYPES)
                for wide, index in enumerate(buffers.INDICES)
                if cc_pair_kernel(self.code, code, wide, 0) != NULL
            ]
        return [
            name for code, name in enumerate(DTYPES)
            if folds[self.code][code] != NULL and (not self.average or scales[code] != NULL)
            and not (self.exact and code == CC_FLOAT128)
        ]


# The owner of the memory of an array that a user's function has kept.
@cython.final
cdef class Lent:
    cdef tuple memory


# A user's fold in one call: the function, and NumPy's dtype.
@cython.final
cdef class UserFold:
    cdef object function
    cdef object dtype
    cdef object error  # of the function
    cdef tuple buffers  # of the call
    cdef object segment  # or None

    cdef int lend(self, segment, tuple keep) except -1:
        """Keep the owners of the memory of the function's arguments."""
        self.segment = segment
        self.buffers = tuple([each for each in keep if each is not self])
        return 0

    cdef ndarray view(self, char *data, int64_t n):
        cdef npy_intp shape = n
        Py_INCREF(self.dtype)  # cc_array_at steals a reference
        return cc_array_at(self.dtype, &shape, data)

    cdef int secure(self, Operation *op, ndarray array) except -1:
        """Make an array that the function has kept, or a view of it, keep its memory alive."""
        if Py_REFCNT(array) == 1 or PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA):
            return 0
        lent = Lent()
        lent.memory = (*self.buffers, share_arena(op), *mappings(self.segment))
        set_array_base(array, lent)
        PyArray_CLEARFLAGS(array, NPY_ARRAY_WRITEABLE)  # later calls use the memory
        return 0

    cdef int fold(
        self, Operation *op, char *dst, char *left, char *right, int64_t n
    ) except -1:
        """Call the function with `left` and a copy of `right` in `dst`, which gets the result."""
        incoming = self.view(left, n)
        accumulator = self.view(dst, n)
        if dst == left:
            incoming = incoming.copy()
        # It may be the caller's argument, or still be sent to other ranks.
        PyArray_CLEARFLAGS(incoming, NPY_ARRAY_WRITEABLE)
        if dst != right:
            memcpy(dst, right, n * PyArray_ITEMSIZE(accumulator))
        try:
            result = self.function(incoming, accumulator)
            if result is not None and result is not accumulator and PyArray_Check(result):
                if not numpy.shares_memory(result, accumulator):
                    raise ArgumentError(
                        f"{shown(self.function)} returned a new array, and must write the result "
                        f"into its second argument: y[:] = x + y"
                    )
        finally:
            self.secure(op, incoming)
            self.secure(op, accumulator)
        return 0


cdef int user_fold(
    Operation *op, char *dst, char *left, char *right, int64_t n
) noexcept with gil:
    """Run a fold written in Python. Return 0, or -1 if it raised; the object has the error."""
    cdef UserFold fold = <UserFold>op.fold.user
    try:
        fold.fold(op, dst, left, right, n)
    except BaseException as error:
        fold.error = error
        return -1
    return 0
