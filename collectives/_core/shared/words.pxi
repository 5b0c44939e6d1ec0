# Words in shared memory, which Python writes and reads.

@cython.no_gc_clear  # the garbage collector must not clear its memory
@cython.final
cdef class Words:
    """Words of 64 bits in memory that ranks share. All ranks see writes and reads in one order, and
    a reader of a word sees all earlier writes of its writer.

    Parameters
    ----------
    memory : buffer
    start : int
        The first byte, a multiple of 8.
    count : int
        The number of words.
    """

    cdef Py_buffer memory
    cdef uint64_t *words
    cdef Py_ssize_t count

    def __cinit__(self, memory, Py_ssize_t start, Py_ssize_t count):
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        if start % 8 or not 0 <= start <= self.memory.len - 8 * count:
            raise ValueError("the words are not in the memory, or not aligned")
        self.words = <uint64_t *>(<char *>self.memory.buf + start)
        self.count = count

    def __dealloc__(self):
        PyBuffer_Release(&self.memory)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        cc_fence()
        return cc_read(&self.words[i])

    def __setitem__(self, Py_ssize_t i, uint64_t value):
        if not 0 <= i < self.count:
            raise IndexError(i)
        cc_write(&self.words[i], value)
        cc_fence()
