# The arrays of a grouped call: what each of them is, and copies of small ones into one and back.

cdef struct Item:
    View x
    View out  # without data as long as there is no memory for a new result


@cython.final
cdef class Group:
    """The arrays of a grouped call, checked, and the places of their results.

    Item `i` is array `i` and its result. What is None in `outs` gets a new result, by store() or
    by allocate().
    """

    cdef Item *items
    cdef readonly Py_ssize_t count
    cdef list arrays, kept, kept_outs, places

    def __cinit__(self, list arrays, list outs):
        cdef Py_ssize_t i
        self.count = len(arrays)
        self.arrays = arrays
        self.kept = []
        self.kept_outs = []
        self.places = list(outs)
        self.items = <Item *>calloc(max(1, self.count), sizeof(Item))
        if self.items == NULL:
            raise MemoryError
        for i in range(self.count):
            self.add(&self.items[i], i, arrays[i], outs[i])

    def __dealloc__(self):
        free(self.items)

    cdef int add(self, Item *item, Py_ssize_t i, x, out) except -1:
        if out is not None:
            self.kept_outs.append(view_of(out, &item.out, f"out[{i}]", True))
            if x is out:
                item.x = item.out
                self.kept.append(None)
                return 0
        self.kept.append(view_of(x, &item.x, f"arrays[{i}]", False))
        if out is not None and item.out.dtype != item.x.dtype:
            raise BufferError(
                f"out[{i}] is {dtype_text(item.out.dtype)} and arrays[{i}] is "
                f"{dtype_text(item.x.dtype)}; they must be equal"
            )
        if out is not None and item.out.count != item.x.count:
            raise BufferError(
                f"out[{i}] has {item.out.count} elements, and arrays[{i}] has {item.x.count}; they "
                f"must be equal"
            )
        return 0

    def spans(self):
        """Return (first byte, last byte, whether it is written, name) of all arrays. Local.

        An array that is folded in place is there once.
        """
        cdef Item *item
        cdef Py_ssize_t i
        cdef int64_t nbytes
        spans = []
        for i in range(self.count):
            item = &self.items[i]
            nbytes = item.x.count * item.x.itemsize
            if nbytes == 0:
                continue
            if item.out.data != NULL:
                spans.append((<uintptr_t>item.out.data, nbytes, True, f"out[{i}]"))
            if item.x.data != item.out.data:
                spans.append((<uintptr_t>item.x.data, nbytes, False, f"arrays[{i}]"))
        return spans

    def sizes(self):
        """Return the (dtype, number of elements, bytes) of each. Local."""
        cdef Item *item
        cdef Py_ssize_t i
        sizes = []
        for i in range(self.count):
            item = &self.items[i]
            sizes.append(
                (dtype_text(item.x.dtype), item.x.count, item.x.count * item.x.itemsize)
            )
        return sizes

    def allocate(self, list which):
        """Return an array that has room for some of them, all of one dtype. Local.

        Makes the memory of their new results, too, so that nothing is left that can fail.
        """
        cdef int64_t total = 0
        cdef Item *item
        cdef Py_ssize_t i
        for i in which:
            item = &self.items[i]
            total += item.x.count
            if item.out.data == NULL:
                self.places[i] = result_like(
                    self.arrays[i], self.kept[i], &item.x, None, &item.out
                )
        first = self.arrays[which[0]]
        if kind_of(type(first)).framework == "torch":  # has dtypes that NumPy lacks
            return frameworks.empty(first, (total,))
        dtype = dtype_text(self.items[<Py_ssize_t>which[0]].x.dtype)
        return numpy.empty(total, frameworks.numpy_dtype(dtype, "arrays"))

    def pack(self, list which, memory):
        """Copy some arrays into one. Local."""
        cdef View view
        cdef const Item *item
        cdef Py_ssize_t i
        cdef char *end
        kept = view_of(memory, &view, "memory", True)
        end = view.data
        for i in which:
            item = &self.items[i]
            memcpy(end, item.x.data, item.x.count * item.x.itemsize)
            end += item.x.count * item.x.itemsize

    def unpack(self, list which, memory):
        """Copy the parts of one array to the results of those that were packed into it. Local."""
        cdef View view
        cdef const Item *item
        cdef Py_ssize_t i
        cdef char *end
        kept = view_of(memory, &view, "memory", False)
        end = view.data
        for i in which:
            item = &self.items[i]
            memcpy(item.out.data, end, item.x.count * item.x.itemsize)
            end += item.x.count * item.x.itemsize

    def array(self, Py_ssize_t i):
        """Return array `i` and its `out`, or None. Local."""
        return self.arrays[i], self.places[i]

    def store(self, Py_ssize_t i, result):
        """Take the result of array `i` over. Local."""
        self.places[i] = result

    def results(self):
        """Return what the caller gets, when all is complete. Local."""
        return [finished(place) for place in self.places]
