# Results that become the caller's when the operation is complete.

from cpython.pycapsule cimport PyCapsule_New

import threading


# Memory for an immutable array: the struct of a DLPack capsule, then the numbers of the array.
cdef struct Block:
    DLManagedTensor managed
    int64_t shape[DL_MAX_DIMENSIONS]
    int64_t strides[DL_MAX_DIMENSIONS]


cdef void free_block(DLManagedTensor *managed) noexcept:
    """Free a block. Its new owner calls this, on any thread."""
    cdef cc_heap *heap = cc_heap_of(managed)
    if heap != NULL:
        cc_free_block(heap, managed)
    else:
        free(managed)


cdef void drop_capsule(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor"):
        free_block(<DLManagedTensor *>PyCapsule_GetPointer(capsule, "dltensor"))


# Two threads may wait for one request; only one of them makes its array.
cdef object making = threading.RLock()


@cython.final
cdef class Pending:
    """A result that is not yet the caller's: memory that becomes an immutable array, or a result
    that is still copied to its place.
    """

    cdef Block *block  # the first capsule takes it over
    cdef object x, array, made
    cdef str framework
    cdef object place  # a function that returns the caller's result; None for an immutable array
    cdef object before  # None, or a request that must be complete, too

    def __dealloc__(self):
        free_block(<DLManagedTensor *>self.block)

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

    cdef bint arrived(self) except -1:
        """Return whether the caller has the result, once the operation is complete."""
        if self.before is not None and not self.before.test():
            return False
        if type(self.array) is Pending and not (<Pending>self.array).arrived():
            return False
        if self.place is not None:
            self.finish()
        return True

    cdef object finish(self):
        if self.place is not None:
            return self.place(finished(self.array))
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
    block = NULL
    if is_shared(out.count * out.itemsize):
        block = <Block *>cc_heap_malloc(head + out.count * out.itemsize, 0)
    if block == NULL:
        if posix_memalign(<void **>&block, 64, head + max(64, out.count * out.itemsize)):
            raise MemoryError(f"no memory for a result of {out.count * out.itemsize} bytes")
        advise_huge_pages(<char *>block + head, out.count * out.itemsize)
    result.block = block
    block.managed.manager_ctx = NULL
    block.managed.deleter = free_block
    tensor = &block.managed.dl_tensor
    tensor[0] = prototype
    tensor.data = out.data = <char *>block + head
    tensor.shape = block.shape
    tensor.strides = block.strides
    for k in range(tensor.ndim - 1, -1, -1):
        block.shape[k] = dims[k]
        block.strides[k] = 1 if k == tensor.ndim - 1 else block.strides[k + 1] * dims[k + 1]
    return result


cdef Pending pending_place(object array, object place, object before=None):
    """Return a result that `place` turns into the caller's when it and the request `before` are
    complete.
    """
    cdef Pending result = Pending.__new__(Pending)
    result.array = array
    result.place = place
    result.before = before
    return result


cdef inline object finished(object result):
    """Return the caller's result, which is made of a pending one now."""
    return (<Pending>result).finish() if type(result) is Pending else result
