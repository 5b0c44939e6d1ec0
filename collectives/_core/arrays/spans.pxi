# Spans: elements in a row at an address, in memory that another part of the library owns.


@cython.final
cdef class Span:
    """Elements in a row, as an argument of a call. A `remote` span is in the memory of a device: it
    is checked with the other arguments, and neither read nor written.
    """

    cdef readonly uintptr_t address
    cdef readonly tuple shape
    cdef readonly int64_t count
    cdef bint remote
    cdef int dtype, itemsize
    cdef object owner  # of the memory

    def __cinit__(
        self, uintptr_t address, tuple shape, str dtype, int itemsize, owner=None,
        bint remote=False,
    ):
        self.address = address
        self.shape = shape
        self.count = 1
        for n in shape:
            self.count *= n
        self.dtype = DTYPES.index(dtype) if dtype in DTYPES else other_code(dtype)
        self.itemsize = itemsize
        self.owner = owner
        self.remote = remote


cdef Span view_of_span(Span span, View *view, str name, bint moves):
    """Fill a view of a span."""
    if span.dtype >= CC_NDTYPES and not moves:
        raise buffers.unsupported(name, dtype_text(span.dtype), True, moves)
    view.data = <char *>span.address if span.count else &nowhere
    view.count = span.count
    view.itemsize = span.itemsize
    view.dtype = span.dtype
    return span


cdef Span span_like(Span like, tuple shape, View *out):
    """Return a span without memory, which describes a result."""
    made = Span(
        0, like.shape if shape is None else shape, dtype_text(like.dtype), like.itemsize, None, True
    )
    view_of_span(made, out, "out", True)
    return made


cdef inline bint is_remote(kept) noexcept:
    """Return whether a result of view_of() is the memory of a device."""
    return type(kept) is Span and (<Span>kept).remote


cdef object on_device(str name, str where, tuple shape):
    """Return the error for an array of a device. Calls that take such arrays catch it, and make the
    result of shape `device_shape` elsewhere.
    """
    error = BufferError(
        f"{name} is on {where}, and must be in host memory; pass a copy in host memory"
    )
    error.device_shape = shape
    return error


cdef bint shows_device(object array, str name) except -1:
    """Return whether an array has a ``__cuda_array_interface__``. In some classes, only arrays on a
    device have the attribute.
    """
    try:
        return getattr(array, "__cuda_array_interface__", None) is not None
    except Exception as error:
        raise frameworks.unexported(array, name, None, error) from error


cdef object by_interface(object array, str name):
    """Return the error for an array that has only a ``__cuda_array_interface__``."""
    where = "a CUDA device"
    try:
        if hasattr(array, "__dlpack_device__"):
            number, device = array.__dlpack_device__()
            where = f"{DL_DEVICES.get(int(number), 'device')}:{device}"
        return on_device(name, where, tuple(array.__cuda_array_interface__["shape"]))
    except Exception as error:
        return frameworks.unexported(array, name, None, error)


def tensor(capsule, str name):
    """Take a DLPack capsule over, and return its contents. Local.

    Returns
    -------
    tuple
        The address, the kind and number of the device, the shape, the strides in elements or None,
        the name of the dtype, the bytes of an element, whether it is read-only, and the object that
        keeps the memory alive.
    """
    cdef Held held = consumed(capsule, name)
    cdef DLTensor *found = held.tensor
    cdef int dtype = code_of(found.dtype, name, True)
    strides = None
    if found.strides != NULL:
        strides = tuple([found.strides[k] for k in range(found.ndim)])
    return (
        <uintptr_t>found.data + found.byte_offset, found.device.device_type, found.device.device_id,
        tuple([found.shape[k] for k in range(found.ndim)]), strides, dtype_text(dtype),
        found.dtype.bits // 8, held.flags & DL_READ_ONLY != 0, held,
    )
