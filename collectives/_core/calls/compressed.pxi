# The arrays of a compressed allreduce: its input as floats in a row, and the place of its result.

@cython.final
cdef class Compressed:
    """The checked input and result of a compressed allreduce.

    Attributes
    ----------
    op, dtype : str
        The names of the operation and of the dtype.
    shape : tuple of int
        The shape of the input.
    values : ndarray
        The scaled input, which the compression reduces in place. For float32 and float64, it has
        the memory of the result; for float16 and bfloat16, it is an array of float32.
    """

    cdef Call call
    cdef tuple keep  # the result of take()
    cdef readonly str op, dtype
    cdef readonly tuple shape
    cdef readonly object values

    cdef int set_up(self, op) except -1:
        cdef Arguments *call = &self.call.given
        cdef Reduction reduction = op if type(op) is Reduction else reduction_called(op)
        cdef bint is_half = call.x.dtype == CC_FLOAT16 or call.x.dtype == CC_BFLOAT16
        cdef npy_intp count = call.x.count
        cdef View view
        self.op = reduction.name
        self.dtype = dtype_text(call.x.dtype)
        self.shape = shape_of(self.keep[1])
        if reduction.function is not None or reduction.name not in ("SUM", "AVG"):
            raise ArgumentError(
                f"op is {reduction.name}, and a compressed allreduce has only SUM and AVG"
            )
        if not is_half and call.x.dtype != CC_FLOAT32 and call.x.dtype != CC_FLOAT64:
            raise UnsupportedTypeError(
                f"x is {self.dtype}, and only float16, bfloat16, float32 and float64 are compressed"
            )
        if is_half:
            call.scale = scales[<int>CC_FLOAT32]
            self.values = numpy.empty(count, numpy.float32)
            view_of(self.values, &view, "values", True)
            convert_views(&view, &call.x)
        else:
            if call.x.data != call.out.data:
                memcpy(call.out.data, call.x.data, count * call.x.itemsize)
            self.values = PyArray_SimpleNewFromData(
                1, &count, NPY_FLOAT if call.x.dtype == CC_FLOAT32 else NPY_DOUBLE, call.out.data
            )
            set_array_base(self.values, self.keep)
        self.multiply(call.prescale)
        return 0

    cdef int multiply(self, long double factor) except -1:
        cdef View view
        if factor != 1.0:
            view_of(self.values, &view, "values", True)
            self.call.given.scale(view.data, view.data, factor, view.count)
        return 0

    def finish(self):
        """Scale the reduced `values`; return the caller's result. Local."""
        cdef View view
        cdef const Arguments *call = &self.call.given
        self.multiply(call.factor)
        if call.x.dtype == CC_FLOAT16 or call.x.dtype == CC_BFLOAT16:
            view_of(self.values, &view, "values", False)
            convert_views(&call.out, &view)
        return finished(self.keep[0])
