# DLPack: tensors of other libraries as the executor sees them, and results of their kind.
#
# The structs are those of version 1.3, https://dmlc.github.io/dlpack/latest/c_api.html. A tensor
# comes in by the first of these that its class has: the exchange table of C functions, a capsule of
# __dlpack__ (versioned or not), the buffer protocol. Host memory only: a tensor of a device is
# refused in read().

from cpython.exc cimport PyErr_SetString
from cpython.pycapsule cimport (
    PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from numpy cimport (
    NPY_VOID, PyArray_Check, PyArray_Descr, PyArray_DESCR, PyArray_DIMS, PyArray_EMPTY,
    PyArray_NDIM, PyArray_New, PyArray_NewCopy, npy_intp,
)

import threading

import numpy

cdef extern from "numpy/arrayobject.h":
    ndarray PyArray_Empty(int, npy_intp *, PyArray_Descr *, int)

cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_HUGEPAGE
    int madvise(void *, size_t, int)

cdef struct DLPackVersion:
    uint32_t major, minor

cdef struct DLDevice:
    int32_t device_type, device_id

cdef struct DLDataType:
    uint8_t code, bits
    uint16_t lanes

cdef struct DLTensor:
    void *data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t *shape
    int64_t *strides  # in elements; before version 1.2 NULL where they are contiguous
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void *manager_ctx
    void (*deleter)(DLManagedTensor *) noexcept

cdef struct DLManagedTensorVersioned:
    DLPackVersion version
    void *manager_ctx
    void (*deleter)(DLManagedTensorVersioned *) noexcept
    uint64_t flags
    DLTensor dl_tensor

ctypedef void (*dl_report)(void *, const char *, const char *) noexcept

cdef struct DLPackExchangeAPI:
    DLPackVersion version
    DLPackExchangeAPI *previous
    int (*allocate)(DLTensor *, DLManagedTensorVersioned **, void *, dl_report) except? -1
    int (*from_object)(void *, DLManagedTensorVersioned **) except? -1
    int (*to_object)(DLManagedTensorVersioned *, void **) except? -1
    void *borrow
    void *current_stream

cdef enum:
    DL_MAJOR = 1
    DL_READ_ONLY = 1
    DL_IS_COPIED = 2
    DL_MAX_DIMENSIONS = 64  # as NumPy and torch

cdef enum:
    DL_CPU = 1
    DL_CUDA_HOST = 3
    DL_ROCM_HOST = 11

cdef dict DL_DEVICES = {
    2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "extension device",
    13: "cuda managed memory", 14: "oneapi", 15: "webgpu", 16: "hexagon", 17: "maia",
    18: "trainium",
}

cdef enum:
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_OPAQUE = 3
    DL_BFLOAT = 4
    DL_COMPLEX = 5
    DL_BOOL = 6

# The names are NumPy's and ml_dtypes', so that a dtype has the same name in every library.
cdef tuple DL_DTYPES = (
    "int", "uint", "float", "opaque", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)

cdef char nowhere  # what tensors without elements point to


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Held:
    """A tensor of another library, held until nobody here needs it; then its deleter is called."""

    cdef DLManagedTensorVersioned *versioned
    cdef DLManagedTensor *unversioned
    cdef DLTensor *tensor
    cdef uint64_t flags
    cdef object packed  # a copy with its elements in order, where there are gaps between its own

    def __dealloc__(self):
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)
        if self.unversioned != NULL and self.unversioned.deleter != NULL:
            self.unversioned.deleter(self.unversioned)


# -- what is known of a class of arrays ------------------------------------------------------------

@cython.final
cdef class Kind:
    cdef DLPackExchangeAPI *api  # or NULL
    cdef str framework  # "torch", "jax", "tensorflow" or None
    cdef bint immutable
    cdef bint exports  # whether it comes by DLPack


cdef dict kinds = {}


cdef Kind kind_of(type cls):
    """Return what is known of a class; found out once."""
    kind = kinds.get(cls)
    if kind is None:
        kind = kinds[cls] = new_kind(cls)
    return kind


cdef Kind new_kind(type cls):
    cdef Kind kind = Kind.__new__(Kind)
    if issubclass(cls, buffers.NUMPY):
        return kind  # NumPy's own classes export DLPack too, but fewer dtypes
    kind.framework = frameworks.framework_of(cls)
    kind.immutable = kind.framework == "jax" or kind.framework == "tensorflow"
    kind.exports = kind.framework is not None or hasattr(cls, "__dlpack__")
    # A subclass may give the attributes of its tensors another meaning: it has to say so itself.
    capsule = cls.__dict__.get("__dlpack_c_exchange_api__")
    if capsule is not None and PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        kind.api = <DLPackExchangeAPI *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while kind.api != NULL and kind.api.version.major != DL_MAJOR:
            kind.api = kind.api.previous
    return kind


# -- tensors in ------------------------------------------------------------------------------------

cdef object view_of_other(object array, View *view, str name, bint writable, bint moves):
    """Fill a view of what is no plain NumPy array; return what keeps it alive."""
    cdef Kind kind = kind_of(type(array))
    cdef Held held
    if not kind.exports:
        return view_of(buffers.as_array(array, name, writable), view, name, writable, moves)
    if writable and kind.immutable:
        raise BufferError(
            f"{name} is a {frameworks.LABELS[kind.framework]}, which is immutable; "
            f"leave {name} away and take what is returned"
        )
    if kind.api != NULL:
        held = exchanged(array, kind, name)
    else:
        exported = frameworks.exported(array, name, kind.framework)
        if PyArray_Check(exported):
            return view_of(exported, view, name, writable, moves)
        held = consumed(exported, name)
    read(held, array, kind, view, name, writable, moves)
    return held


cdef Held exchanged(object array, Kind kind, str name):
    """Take a tensor over by its library's C functions."""
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
    if kind.framework is not None:  # it is torch: no other framework has the functions
        refuse_lazy(array, held.tensor.dtype.code, name)
    return held


cdef int refuse_lazy(object tensor, int code, str name) except -1:
    """Refuse what torch's functions show though its memory has other values than the tensor."""
    if code == DL_COMPLEX and tensor.is_conj():
        reason = "its values are the conjugates of what its memory has"
    elif (code == DL_FLOAT or code == DL_COMPLEX) and tensor.is_neg():
        reason = "its values are the negatives of what its memory has"
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
            f"{name}.__dlpack__() returned {capsule!r}, and must return a DLPack capsule"
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
            f"{name} is a {type(array).__name__} that exports a copy of its memory, and would be "
            f"written; pass an array that shares its memory"
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
    """Return the kernels' code of a dtype, or with `moves` one beyond them."""
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
    if dtype.lanes != 1:
        text += f" in {dtype.lanes} lanes"
    movable = dtype.lanes == 1 and dtype.code != DL_OPAQUE and (whole or bits == 128)
    if movable and moves:
        return other_code(text)
    raise buffers.unsupported(name, text, movable, moves)


cdef ndarray in_order(const DLTensor *tensor, char *data, int itemsize):
    """Return a packed copy of a strided tensor: its bytes, whatever they mean."""
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


cdef tuple shape_of(object kept):
    """Return the shape of what view_of() returned."""
    cdef DLTensor *tensor
    cdef int k
    if type(kept) is Held:
        tensor = (<Held>kept).tensor
        return tuple([tensor.shape[k] for k in range(tensor.ndim)])
    return tuple([PyArray_DIMS(<ndarray>kept)[k] for k in range(PyArray_NDIM(<ndarray>kept))])


# -- results out -----------------------------------------------------------------------------------

cdef object result_like(object x, object kept, const View *like, tuple shape, View *out):
    """Make memory for a result of x's kind, and fill a view of it.

    `kept` and `like` are what view_of() made of x; `shape` is the result's, or None for that of x.
    What is returned must be kept alive, and be given to finished() when the operation is complete:
    immutable arrays are made only then.
    """
    cdef Kind kind
    out.itemsize = like.itemsize
    out.dtype = like.dtype
    if PyArray_CheckExact(x):
        return numpy_result(kept, shape, out)
    kind = kind_of(type(x))
    if kind.immutable:
        return pending_result(x, kind, kept, shape, out)
    if type(kept) is not Held:
        return numpy_result(kept, shape, out)
    if kind.api != NULL:
        return allocated_result(kind, <Held>kept, shape, out)
    if shape is None:
        shape = shape_of(kept)
    if kind.framework == "torch":
        result = frameworks.empty(x, shape)
    else:
        result = numpy.empty(shape, frameworks.numpy_dtype(dtype_text(like.dtype), "x"))
    # Kept by the caller for its memory: torch's is its own, whoever looks at it.
    view_of(result, out, "out", True, True)
    return result


cdef object numpy_result(ndarray like, tuple shape, View *out):
    cdef npy_intp dims[DL_MAX_DIMENSIONS]
    cdef ndarray made
    cdef int k
    if shape is None:
        made = PyArray_NewLikeArray(like, NPY_CORDER, NULL, 0)
    else:
        fill_dims(<int64_t *>dims, len(shape), shape)
        Py_INCREF(<object>PyArray_DESCR(like))  # PyArray_Empty takes it away
        made = PyArray_Empty(len(shape), dims, PyArray_DESCR(like), 0)
    out.data = <char *>PyArray_DATA(made)
    out.count = PyArray_SIZE(made)
    return made


cdef int64_t fill_dims(int64_t *dims, int ndim, tuple shape) except -1:
    """Write a shape as C has it; return the number of elements."""
    cdef int64_t count = 1
    cdef int k
    if ndim > DL_MAX_DIMENSIONS:
        raise BufferError(
            f"the result has {ndim} dimensions, and may have at most {DL_MAX_DIMENSIONS}"
        )
    for k in range(ndim):
        dims[k] = shape[k]
        count *= dims[k]
    return count


cdef int64_t shape_result(DLTensor *made, int64_t *dims, Held like, tuple shape) except -1:
    """Give a tensor that is being made its shape and dtype; return the number of elements."""
    cdef int64_t count = 1
    cdef int k
    made.data = NULL
    made.device = DLDevice(DL_CPU, 0)
    made.dtype = like.tensor.dtype
    made.shape = dims
    made.strides = NULL
    made.byte_offset = 0
    if shape is not None:
        made.ndim = len(shape)
        return fill_dims(dims, made.ndim, shape)
    made.ndim = like.tensor.ndim
    for k in range(made.ndim):
        dims[k] = like.tensor.shape[k]
        count *= dims[k]
    return count


cdef void advise_huge_pages(char *data, int64_t nbytes) noexcept:
    """Ask for huge pages for memory that was never touched, as NumPy does from 4 MiB on.

    A new result of 64 MiB, torch's or JAX's, takes 6.2 ms with them on 1 rank and 31 without
    (python benchmarks/measure_arrays.py; EPYC, 2026-11-20).
    """
    cdef uintptr_t first = (<uintptr_t>data + 4095) & ~<uintptr_t>4095
    if nbytes >= 1 << 22:
        madvise(<void *>first, <uintptr_t>data + nbytes - first, MADV_HUGEPAGE)


cdef void report(void *context, const char *kind, const char *message) noexcept with gil:
    """Raise what an allocator says."""
    PyErr_SetString(MemoryError, message)


cdef object allocated_result(Kind kind, Held like, tuple shape, View *out):
    """Return a tensor that the library of x allocates."""
    cdef int64_t dims[DL_MAX_DIMENSIONS]
    cdef DLTensor prototype
    cdef DLManagedTensorVersioned *managed = NULL
    cdef void *made = NULL
    out.count = shape_result(&prototype, dims, like, shape)
    if kind.api.allocate(&prototype, &managed, NULL, report) or managed == NULL:
        raise MemoryError(f"the library of x allocated nothing for a result of shape {shape}")
    out.data = <char *>managed.dl_tensor.data + managed.dl_tensor.byte_offset
    if out.count == 0:
        out.data = &nowhere
    advise_huge_pages(out.data, out.count * out.itemsize)
    if kind.api.to_object(managed, &made) or made == NULL:
        raise BufferError(f"the library of x made no tensor of a result of shape {shape}")
    result = <object>made
    Py_DECREF(result)  # the reference that came is the one that `result` has
    return result


# Memory for an immutable array: what a capsule of ours points to, with the numbers behind it.
cdef struct Block:
    DLManagedTensor managed
    int64_t shape[DL_MAX_DIMENSIONS]
    int64_t strides[DL_MAX_DIMENSIONS]


cdef void free_block(DLManagedTensor *managed) noexcept:
    """Called by whoever took the block over, on any thread."""
    free(managed)


cdef void drop_capsule(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor"):
        free_block(<DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor"))


# Two threads may wait for one request: one of them makes its array.
cdef object making = threading.RLock()


@cython.final
cdef class Pending:
    """A result that becomes an array of an immutable kind when it is complete."""

    cdef Block *block  # given away with the first capsule
    cdef object x, array, made
    cdef str framework

    def __dealloc__(self):
        free(self.block)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self.block == NULL:
            raise BufferError("the result has been taken over before")
        capsule = PyCapsule_New(
            &self.block.managed, "dltensor", <void (*)(object) noexcept>drop_capsule
        )
        self.block = NULL
        return capsule

    def __dlpack_device__(self):
        return DL_CPU, 0

    cdef object finish(self):
        if self.made is None:
            with making:
                if self.made is None:
                    source = self if self.array is None else self.array
                    self.made = frameworks.finished(source, self.x, self.framework)
                    self.x = self.array = None
        return self.made


cdef object pending_result(object x, Kind kind, object kept, tuple shape, View *out):
    """Return memory that XLA and TensorFlow take over without a copy: aligned to 64 bytes."""
    cdef Pending result = Pending.__new__(Pending)
    cdef Block *block
    cdef DLTensor *tensor
    cdef DLTensor prototype
    cdef int64_t dims[DL_MAX_DIMENSIONS]
    cdef size_t head = (sizeof(Block) + 63) & ~63
    cdef int k
    result.x = x
    result.framework = kind.framework
    if type(kept) is not Held:
        result.array = numpy_result(kept, shape, out)
        return result
    out.count = shape_result(&prototype, dims, <Held>kept, shape)
    if posix_memalign(<void **>&block, 64, head + max(64, out.count * out.itemsize)):
        raise MemoryError(f"no memory for a result of {out.count * out.itemsize} bytes")
    result.block = block
    block.managed.manager_ctx = NULL
    block.managed.deleter = free_block
    tensor = &block.managed.dl_tensor
    tensor[0] = prototype
    tensor.data = out.data = <char *>block + head
    advise_huge_pages(out.data, out.count * out.itemsize)
    tensor.shape = block.shape
    tensor.strides = block.strides
    for k in range(tensor.ndim - 1, -1, -1):
        block.shape[k] = dims[k]
        block.strides[k] = 1 if k == tensor.ndim - 1 else block.strides[k + 1] * dims[k + 1]
    return result


cdef inline object finished(object result):
    """Return what the caller gets: the result, or the immutable array that it becomes now."""
    return (<Pending>result).finish() if type(result) is Pending else result


cdef ndarray scratch_like(View *view):
    """Make uninitialised memory for as many elements as a view has, and point the view to it."""
    cdef npy_intp nbytes = view.count * view.itemsize
    cdef ndarray memory = PyArray_EMPTY(1, &nbytes, NPY_UBYTE, 0)
    view.data = <char *>PyArray_DATA(memory)
    return memory


def examine(array, str name="x", bint writable=False, bint moves=False):
    """Return address, number of elements, their bytes and dtype, and what keeps them alive."""
    cdef View view
    kept = view_of(array, &view, name, writable, moves)
    return <uintptr_t>view.data, view.count, view.itemsize, dtype_text(view.dtype), kept
