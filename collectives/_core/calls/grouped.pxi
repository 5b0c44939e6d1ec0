# The arrays of a grouped call: their properties, and copies of small ones into one array and back.

cdef struct Item:
    View x
    View out  # without data until a new result has memory


cdef struct Run:  # of an array, in memory
    uintptr_t first
    int64_t nbytes
    bint written
    Py_ssize_t which


cdef int order_of(const void *a, const void *b) noexcept nogil:
    cdef uintptr_t first = (<const Run *>a).first, second = (<const Run *>b).first
    return (first > second) - (first < second)


cdef tuple overlap_of(Run *extents, Py_ssize_t n):
    """Return the names of two arrays that overlap, at least one of which is written, or None."""
    cdef Run *each
    cdef Run *other
    cdef Run *furthest[2]  # the run with the last end so far, of those read and those written
    cdef Py_ssize_t k
    cdef int kind
    for k in range(1, n):
        if extents[k].first < extents[k - 1].first:
            qsort(extents, n, sizeof(Run), order_of)
            break
    furthest[0] = furthest[1] = NULL
    for k in range(n):
        each = &extents[k]
        for kind in range(2):
            other = furthest[kind]
            if other != NULL and each.first < other.first + other.nbytes:
                if each.written or kind:
                    return extent_name(each), extent_name(other)
        other = furthest[each.written]
        if other == NULL or each.first + each.nbytes > other.first + other.nbytes:
            furthest[each.written] = each
    return None


cdef str extent_name(const Run *extent):
    return f"{'out' if extent.written else 'arrays'}[{extent.which}]"


def overlapping(list spans):
    """Return the names of two arrays that overlap, at least one of which is written, or None.
    Local.

    Parameters
    ----------
    spans : list of tuple
        For each array, its first byte, its bytes, whether it is written, and its number.
    """
    cdef Run *extents = <Run *>calloc(max(1, len(spans)), sizeof(Run))
    cdef Py_ssize_t n = 0
    if extents == NULL:
        raise MemoryError
    try:
        for first, nbytes, written, which in spans:
            extents[n] = Run(first, nbytes, written, which)
            n += 1
        return overlap_of(extents, n)
    finally:
        free(extents)


def checksum(list sizes):
    """Return a number that depends on the dtypes and numbers of elements of arrays. Local.

    Parameters
    ----------
    sizes : list of (str, int)
        As `Group.sizes` returns them.
    """
    cdef uint64_t sum = 1
    for dtype, count in sizes:
        sum = cc_mixed(cc_mixed(sum, DTYPES.index(dtype)), count)
    return sum


@cython.final
cdef class Group:
    """The arrays of a grouped call, checked, and the places of their results.

    Item `i` is array `i` and its result. If its entry of `outs` is None, store() or allocate()
    provides a new result.
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

    def overlap(self):
        """Return the names of two arrays that overlap, at least one of which is written, or None.
        Local.

        An array that is folded in place counts once.
        """
        cdef Run *extents = <Run *>calloc(max(1, 2 * self.count), sizeof(Run))
        cdef Item *item
        cdef Py_ssize_t i, n = 0
        cdef int64_t nbytes
        if extents == NULL:
            raise MemoryError
        try:
            for i in range(self.count):
                item = &self.items[i]
                nbytes = item.x.count * item.x.itemsize
                if nbytes == 0:
                    continue
                if item.out.data != NULL:
                    extents[n] = Run(<uintptr_t>item.out.data, nbytes, True, i)
                    n += 1
                if item.x.data != item.out.data:
                    extents[n] = Run(<uintptr_t>item.x.data, nbytes, False, i)
                    n += 1
            return overlap_of(extents, n)
        finally:
            free(extents)

    def sizes(self, Py_ssize_t most):
        """Return (dtype, number of elements) of each of the first `most` arrays. Local."""
        cdef Py_ssize_t i
        return [
            (dtype_text(self.items[i].x.dtype), self.items[i].x.count)
            for i in range(min(self.count, most))
        ]

    def smallest(self):
        """Return, for each dtype, the number of the first array with the fewest elements. Local."""
        cdef Item *item
        cdef Py_ssize_t i
        cdef int dtype = -1
        cdef int64_t fewest = 0
        cdef dict found = {}
        for i in range(self.count):
            item = &self.items[i]
            if item.x.dtype != dtype:
                dtype = item.x.dtype
                fewest = self.items[<Py_ssize_t>found.setdefault(dtype, i)].x.count
            if item.x.count < fewest:
                fewest = item.x.count
                found[dtype] = i
        return list(found.values())

    def parts(self, int64_t apart, int64_t most):
        """Return the numbers of the arrays of each collective, equal on all ranks. Local.

        Arrays of one dtype with less than `apart` bytes each are joined, up to `most` bytes.
        """
        cdef Py_ssize_t i
        cdef int64_t nbytes, filled = 0
        cdef int dtype = -1
        cdef list which = [], parts = []
        cdef dict others = {}  # parts begun for the other dtypes
        for i in range(self.count):
            nbytes = self.items[i].x.count * self.items[i].x.itemsize
            if nbytes >= apart:
                parts.append([i])
                continue
            if self.items[i].x.dtype != dtype:
                others[dtype] = which, filled
                dtype = self.items[i].x.dtype
                which, filled = others.get(dtype, ([], 0))
            if not which or filled + nbytes > most:
                which, filled = [], 0
                parts.append(which)
            which.append(i)
            filled += nbytes
        return parts

    def allocate(self, list which):
        """Return an array with room for some of them, all of one dtype. Local.

        Allocate their new results, too, so that later steps cannot fail.
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
            return frameworks.empty(first, (total,), shares_arrays())
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
        """Copy the parts of a packed array to the results of its arrays. Local."""
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
        """Store the result of array `i`. Local."""
        self.places[i] = result

    def results(self):
        """Return the caller's results, when all collectives are complete. Local."""
        return [finished(place) for place in self.places]
