# DLPack: the structs with which libraries exchange tensors, and a tensor that this library holds.
#
# The structs are those of version 1.3, https://dmlc.github.io/dlpack/latest/c_api.html.

from libc.stdint cimport uint8_t, uint16_t

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
    int64_t *strides  # in elements; before version 1.2, NULL for a contiguous tensor
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
    DL_MAX_DIMENSIONS = 64  # the limit of NumPy and torch

cdef enum:
    DL_CPU = 1
    DL_CUDA = 2
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

# The names are those of NumPy and ml_dtypes, so that a dtype has the same name in every library.
cdef tuple DL_DTYPES = (
    "int", "uint", "float", "opaque", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)

cdef char nowhere  # tensors without elements point here


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Held:
    """A tensor of another library, whose deleter is called when nothing here needs it any more."""

    cdef DLManagedTensorVersioned *versioned
    cdef DLManagedTensor *unversioned
    cdef DLTensor *tensor
    cdef uint64_t flags
    cdef object packed  # a packed copy, if the tensor has gaps between its elements

    def __dealloc__(self):
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)
        if self.unversioned != NULL and self.unversioned.deleter != NULL:
            self.unversioned.deleter(self.unversioned)
