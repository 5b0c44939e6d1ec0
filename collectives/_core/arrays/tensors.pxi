# Views of tensors of other libraries.
#
# A tensor is taken by the first of these that its class has: the exchange table of C functions, a
# capsule of __dlpack__ (versioned or not), the buffer protocol. Only host memory is accepted: a
# tensor of a device raises an error, which calls that take such tensors catch (checking.pxi).

from cpython.pycapsule cimport PyCapsule_SetName
from numpy cimport NPY_CORDER, NPY_VOID, PyArray_Check, PyArray_New, PyArray_NewCopy

from collectives.text.words import article


cdef object view_of_other(object array, View *view, str name, bint writable, int others):
    """Fill a view of any array but a plain NumPy array; return the object that keeps it alive."""
    cdef Kind kind
    cdef Held held
    if type(array) is Span:
        return view_of_span(array, view, name, others & NUMBERS)
    kind = kind_of(type(array))
    if kind.away and shows_device(array, name):
        raise by_interface(array, name)
    if not kind.exports:
        return view_of(buffers.as_array(array, name, writable), view, name, writable, others)
    if writable and kind.immutable:
        raise BufferError(
            f"{name} is a {frameworks.LABELS[kind.framework]}, which is immutable; "
            f"omit {name} and use the result"
        )
    if kind.api != NULL:
        held = exchanged(array, kind, name)
    else:
        exported = frameworks.exported(array, name, kind.framework)
        if PyArray_Check(exported):
            return view_of(exported, view, name, writable, others)
        try:
            held = consumed(exported, name)
        finally:
            # The destructor of a capsule may be a Python function, which must not run while an
            # error is set.
            exported = None
    read(held, array, kind, view, name, writable, others & NUMBERS)
    return held


cdef Held exchanged(object array, Kind kind, str name):
    """Take a tensor over with its library's C functions."""
    cdef Held held = Held.__new__(Held)
    try:
        if kind.api.from_object(<void *>array, &held.versioned) or held.versioned == NULL:
            raise RuntimeError("its library exported nothing")
    except MemoryError:
        raise
    except Exception as error:
        raise frameworks.unexported(array, name, kind.framework, error) from error
    held.tensor = &held.versioned.dl_tensor
    held.flags = held.versioned.flags
    if kind.framework is not None:  # only torch has the functions
        refuse_lazy(array, held.tensor.dtype.code, name)
    return held


cdef int refuse_lazy(object tensor, int code, str name) except -1:
    """Refuse a tensor of torch whose memory has other values than the tensor, or needs autograd."""
    if code == DL_COMPLEX and tensor.is_conj():
        reason = "its values are the conjugates of those in its memory"
    elif (code == DL_FLOAT or code == DL_COMPLEX) and tensor.is_neg():
        reason = "its values are the negatives of those in its memory"
    elif tensor.requires_grad:
        reason = "it requires a gradient"
    else:
        return 0
    raise frameworks.unexported(tensor, name, "torch", reason)


cdef Held consumed(object capsule, str name):
    """Take a tensor over from a capsule, which is marked as used."""
    cdef Held held = Held.__new__(Held)
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        held.versioned = <DLManagedTensorVersioned *>PyCapsule_GetPointer(
            capsule, "dltensor_versioned"
        )
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        if held.versioned.version.major != DL_MAJOR:
            raise BufferError(
                f"{name} comes by DLPack {held.versioned.version.major}."
                f"{held.versioned.version.minor}, and must by version {DL_MAJOR}"
            )
        held.tensor = &held.versioned.dl_tensor
        held.flags = held.versioned.flags
    elif PyCapsule_IsValid(capsule, "dltensor"):
        held.unversioned = <DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        held.tensor = &held.unversioned.dl_tensor
    else:
        raise BufferError(
            f"{name}.__dlpack__() returned {shown(capsule)}, and must return a DLPack capsule"
        )
    return held


cdef int read(
    Held held, object array, Kind kind, View *view, str name, bint writable, bint moves
) except -1:
    """Check a tensor, and fill a view of it or of a packed copy."""
    cdef DLTensor *tensor = held.tensor
    cdef int32_t device = tensor.device.device_type
    cdef int aligned, k
    cdef bint packed = True
    if device == DL_CUDA:
        shape = tuple([tensor.shape[k] for k in range(tensor.ndim)])
        raise on_device(name, f"cuda:{tensor.device.device_id}", shape)
    if device != DL_CPU and device != DL_CUDA_HOST and device != DL_ROCM_HOST:
        where = DL_DEVICES.get(device, f"DLPack device {device}")
        raise BufferError(
            f"{name} is on {where}:{tensor.device.device_id}, and must be in host memory; "
            f"pass a copy in host memory"
        )
    if tensor.ndim < 0 or tensor.ndim > DL_MAX_DIMENSIONS:
        raise BufferError(
            f"{name} has {tensor.ndim} dimensions, and must have at most {DL_MAX_DIMENSIONS}"
        )
    view.dtype = code_of(tensor.dtype, name, moves)
    view.itemsize = tensor.dtype.bits // 8
    if writable and held.flags & DL_READ_ONLY:
        raise BufferError(f"{name} is a read-only {type(array).__name__}, and would be written")
    if writable and held.flags & DL_IS_COPIED:
        raise BufferError(
            f"{name} is {article(type(array).__name__)} that exports a copy of its memory, and "
            f"would be written; pass an array that shares its memory"
        )
    view.count = 1
    for k in range(tensor.ndim - 1, -1, -1):
        if tensor.strides != NULL and tensor.shape[k] != 1 and tensor.strides[k] != view.count:
            packed = False
        view.count *= tensor.shape[k]
    if view.count == 0:
        view.data = &nowhere
        return 0
    if tensor.data == NULL:
        raise frameworks.unexported(array, name, kind.framework, "it has no memory")
    view.data = <char *>tensor.data + tensor.byte_offset
    aligned = view.itemsize // 2 if tensor.dtype.code == DL_COMPLEX else min(view.itemsize, 8)
    if packed and <uintptr_t>view.data % aligned == 0:
        return 0
    if not packed and writable:
        shape = tuple([tensor.shape[k] for k in range(tensor.ndim)])
        strides = tuple([tensor.strides[k] * view.itemsize for k in range(tensor.ndim)])
        raise BufferError(
            f"{name} is not C-contiguous (shape {shape}, strides {strides} bytes); "
            f"pass a contiguous array and copy the result"
        )
    if writable:
        raise BufferError(f"{name} is not aligned to its dtype {dtype_text(view.dtype)}")
    held.packed = in_order(tensor, view.data, view.itemsize)
    view.data = <char *>PyArray_DATA(held.packed)
    return 0


cdef int code_of(DLDataType dtype, str name, bint moves) except -1:
    """Return the kernels' code of a dtype, or, with `moves`, a code of a dtype without kernels."""
    cdef int bits = dtype.bits
    cdef bint whole = bits == 8 or bits == 16 or bits == 32 or bits == 64
    if dtype.lanes == 1:
        if dtype.code == DL_FLOAT:
            if bits == 32:
                return CC_FLOAT32
            if bits == 64:
                return CC_FLOAT64
            if bits == 16:
                return CC_FLOAT16
        elif dtype.code == DL_INT and whole:
            return sized(bits // 8, True)
        elif dtype.code == DL_UINT and whole:
            return sized(bits // 8, False)
        elif dtype.code == DL_BFLOAT and bits == 16:
            return CC_BFLOAT16
        elif dtype.code == DL_BOOL and bits == 8:
            return CC_BOOL
        elif dtype.code == DL_COMPLEX and bits == 64:
            return CC_COMPLEX64
        elif dtype.code == DL_COMPLEX and bits == 128:
            return CC_COMPLEX128
    text = DL_DTYPES[dtype.code] if dtype.code < len(DL_DTYPES) else f"DLPack code {dtype.code}, "
    if "_" not in text:
        text += f"{bits}" if dtype.code < len(DL_DTYPES) else f"{bits} bits"
    if text == "float128":
        text = "binary128"  # of IEEE 754; NumPy calls C's long double float128
    if dtype.lanes != 1:
        text += f" in {dtype.lanes} lanes"
    movable = dtype.lanes == 1 and dtype.code != DL_OPAQUE and (whole or bits == 128)
    if movable and moves:
        return other_code(text)
    raise buffers.unsupported(name, text, movable, moves)


cdef ndarray in_order(const DLTensor *tensor, char *data, int itemsize):
    """Return a packed copy of the bytes of a strided tensor."""
    cdef npy_intp strides[DL_MAX_DIMENSIONS]
    cdef int k
    cdef int64_t packed = itemsize
    for k in range(tensor.ndim - 1, -1, -1):
        strides[k] = packed if tensor.strides == NULL else tensor.strides[k] * itemsize
        packed *= tensor.shape[k]
    gaps = PyArray_New(
        ndarray, tensor.ndim, <npy_intp *>tensor.shape, NPY_VOID, strides, data, itemsize, 0, None
    )
    return PyArray_NewCopy(gaps, NPY_CORDER)
