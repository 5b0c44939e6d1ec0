# Kernels for Python: the set in use, and single kernels.

cdef cc_fold_fn folds[<int>CC_NOPS][<int>CC_NDTYPES]
cdef cc_scale_fn scales[<int>CC_NDTYPES]
cdef cc_exacts exacts


cdef void fill_kernels() noexcept:
    cdef int op, dtype
    global exacts
    exacts = cc_exacts_now()[0]
    for dtype in range(CC_NDTYPES):
        scales[dtype] = cc_scale_kernel(dtype)
        for op in range(CC_NOPS):
            folds[op][dtype] = cc_fold_kernel(op, dtype)


cdef cc_fold_fn kernel_of(int op, int dtype) except? NULL:
    """Return the kernel of an operation on a dtype, or NULL."""
    if op < CC_NOPS:
        return folds[op][dtype] if dtype < CC_NDTYPES else NULL
    layout = layouts.get(dtype)
    if layout is None:
        return NULL
    value, wide, aligned = layout
    return cc_pair_kernel(op, value, wide, aligned)


def kernels_isa():
    """Return the instruction set of the kernels in use. Local."""
    return cc_kernels_isa().decode()


def kernels_select(isa=None):
    """Use the kernels of an instruction set, or with None the best of this processor. Local."""
    if isa is None:
        cc_kernels_init(NULL)
    elif cc_kernels_init(isa.encode()):
        raise ArgumentError(
            f"this processor has no kernels for {isa!r}; there are portable, avx2 and avx512"
        )
    fill_kernels()


kernels_select()


def fold(int op, out, left, right, dtype=None):
    """Fold two arrays with a kernel: ``out[i] = left[i] op right[i]``. Local."""
    cdef View dst, a, b
    cdef int code
    kept_out = view_of(out, &dst, "out", True)
    keep = view_of(left, &a, "left", False), view_of(right, &b, "right", False)
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.count != b.count or dst.dtype != a.dtype or dst.dtype != b.dtype:
        raise ArgumentError("out, left and right must have the same dtype and number of elements")
    if not 0 <= op < CC_NOPS or not 0 <= code < CC_NDTYPES or folds[op][code] == NULL:
        raise UnsupportedTypeError(f"there is no kernel for operation {op} on dtype {code}")
    with nogil:
        folds[op][code](dst.data, a.data, b.data, dst.count)
    return kept_out


def scale(out, src, double factor, dtype=None):
    """Scale an array with a kernel: ``out[i] = src[i] * factor``. Local."""
    cdef View dst, a
    cdef int code
    kept_out = view_of(out, &dst, "out", True)
    keep = view_of(src, &a, "src", False)
    code = dst.dtype if dtype is None else dtype
    if dst.count != a.count or dst.dtype != a.dtype:
        raise ArgumentError("out and src must have the same dtype and number of elements")
    if not 0 <= code < CC_NDTYPES or scales[code] == NULL:
        raise UnsupportedTypeError(f"there is no scaling of dtype {code}")
    with nogil:
        scales[code](dst.data, a.data, factor, dst.count)
    return kept_out


def copy_array(dst, src, int ways=0):
    """Copy an array to the cache; with `ways` 1 past it, with 8 as the C library does. Local."""
    cdef View to, origin
    cdef const cc_copies *copies = cc_copies_now()
    kept_dst = view_of(dst, &to, "dst", True)
    keep = view_of(src, &origin, "src", False)
    cdef size_t nbytes = to.count * to.itemsize
    if to.count != origin.count or to.dtype != origin.dtype:
        raise ArgumentError("dst and src must have the same dtype and number of elements")
    if overlap(&to, &origin):
        raise BufferError("dst overlaps src; pass arrays that share no memory")
    with nogil:
        if ways & CC_PAYLOADS:
            copies.stream(to.data, origin.data, nbytes)
            cc_fence_streams()
        elif ways & CC_BY_LIBRARY:
            cc_copy_by_library(copies, to.data, origin.data, nbytes)
        else:
            copies.copy(to.data, origin.data, nbytes)
    return kept_dst
