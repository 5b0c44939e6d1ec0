# Arrays in shared memory by default: NumPy makes its arrays in the heap (heap.h) by NEP 49.

import warnings

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

cdef extern from "Python.h":
    int PyCapsule_SetPointer(object, void *) except -1
    int Py_AddPendingCall(int (*)(void *) except -1, void *) nogil

cdef extern from "<errno.h>" nogil:
    enum:
        EAGAIN

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *, size_t) noexcept nogil
        void *(*calloc)(void *, size_t, size_t) noexcept nogil
        void *(*realloc)(void *, void *, size_t) noexcept nogil
        void (*free)(void *, void *, size_t) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char *name
        unsigned char version
        PyDataMemAllocator allocator
    object PyDataMem_SetHandler(object)
    object PyDataMem_GetHandler()
    PyObject *PyDataMem_DefaultHandler

cdef PyDataMemAllocator usual  # NumPy's own, for short arrays, and if the heap has no room
cdef PyDataMem_Handler heap_handler
cdef object heap_capsule = None
cdef bint has_warned_full = False
cdef bint all_are_shared = False  # whether share_all_arrays() was called


cdef void *heap_malloc(void *_, size_t nbytes) noexcept nogil:
    cdef void *made = cc_heap_malloc(nbytes, 0)
    if made == NULL:
        made = usual.malloc(usual.ctx, nbytes)
        note_full(made, nbytes)
    return made


cdef void *heap_calloc(void *_, size_t n, size_t each) noexcept nogil:
    cdef size_t nbytes = n * each
    cdef void *made = NULL
    if each == 0 or nbytes // each == n:
        made = cc_heap_malloc(nbytes, 1)
    if made == NULL:
        made = usual.calloc(usual.ctx, n, each)
        note_full(made, nbytes)
    return made


cdef void heap_free(void *_, void *data, size_t nbytes) noexcept nogil:
    cdef cc_heap *heap = cc_heap_of(data)
    if heap != NULL:
        cc_free_block(heap, data)
    else:
        usual.free(usual.ctx, data, nbytes)


cdef void *heap_realloc(void *_, void *data, size_t nbytes) noexcept nogil:
    cdef cc_heap *heap = cc_heap_of(data)
    cdef size_t room
    cdef void *made
    if heap == NULL:
        return usual.realloc(usual.ctx, data, nbytes)
    room = cc_room_of(heap, data)
    if nbytes >= CC_LEAST and cc_room_for(nbytes) == room:
        return data
    made = heap_malloc(NULL, nbytes)
    if made != NULL:
        memcpy(made, data, min(nbytes, room))
        cc_free_block(heap, data)
    return made


cdef inline void note_full(const void *made, size_t nbytes) noexcept nogil:
    """Schedule a warning for Python if an array had no room in the heap."""
    global has_warned_full
    if made != NULL and nbytes >= CC_LEAST and cc_heap_now() != NULL and not has_warned_full:
        has_warned_full = True
        Py_AddPendingCall(warn_full, NULL)


cdef int warn_full(void *_) except -1 with gil:
    warnings.warn(
        f"the heap of shared arrays has no room for another array (limit {cc_heap_limit} bytes, "
        f"COLLECTIVES_SHM_LIMIT): it is an ordinary one, which collectives copy",
        SharedMemoryWarning,
        stacklevel=levels(),
    )
    return 0


def open_heap(size_t limit):
    """Make the heap of this process, if it has none. Local.

    Parameters
    ----------
    limit : int
        The most bytes of its arrays, if the heap is made now.

    Raises
    ------
    OSError
        If it cannot be made, also in later calls.
    """
    global heap_capsule, usual
    cdef PyDataMem_Handler *default
    if heap_capsule is None:
        default = <PyDataMem_Handler *>PyCapsule_GetPointer(
            <object>PyDataMem_DefaultHandler, "mem_handler"
        )
        usual = default.allocator
        memcpy(heap_handler.name, b"collectives", 12)
        heap_handler.version = default.version
        heap_handler.allocator.malloc = heap_malloc
        heap_handler.allocator.calloc = heap_calloc
        heap_handler.allocator.realloc = heap_realloc
        heap_handler.allocator.free = heap_free
        heap_capsule = PyCapsule_New(&heap_handler, "mem_handler", NULL)
    if cc_heap_now() == NULL and cc_heap_open(limit) == NULL:
        raise OSError(cc_heap_error or EAGAIN, os.strerror(cc_heap_error or EAGAIN))


def begin_shared_arrays():
    """Make NumPy allocate the arrays of this context in the heap, which is open; return the handler
    before. Local.
    """
    return PyDataMem_SetHandler(heap_capsule)


def end_shared_arrays(earlier):
    """Restore the earlier handler for arrays of this context. Local."""
    PyDataMem_SetHandler(earlier)


def share_all_arrays():
    """Make NumPy allocate the arrays of all threads in the heap, which is open. Local.

    Each thread begins with NumPy's default handler, so the heap replaces that, and also handles
    memory that the default has allocated. This cannot be undone.
    """
    global all_are_shared
    PyCapsule_SetPointer(<object>PyDataMem_DefaultHandler, &heap_handler)
    all_are_shared = True


cpdef bint shares_arrays() except -1:
    """Return whether NumPy makes arrays of this context in the heap. Local."""
    return all_are_shared or (heap_capsule is not None and PyDataMem_GetHandler() is heap_capsule)


def heap_state():
    """Return the bytes of the heap: reserved addresses, arrays, pages kept for new arrays, and the
    limit; None if there is no heap. Local.
    """
    cdef cc_heap *heap = cc_heap_now()
    if heap == NULL:
        return None
    return heap.nbytes, heap.used, heap.all_kept, heap.limit


def in_heap(array, bint lend=False):
    """Return whether the memory of an object is in a heap of this process; with `lend`, whether
    calls may lend it, and count it as lent. Local.
    """
    cdef Py_buffer view
    cdef bint answer
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    if lend:
        answer = cc_heap_lends(<const char *>view.buf, view.len)
    else:
        answer = cc_heap_of(view.buf) != NULL
    PyBuffer_Release(&view)
    return answer
