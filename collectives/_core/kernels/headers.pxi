# Declarations of kernels.h and combine.h: the loops of folds, and passes of several operands.

cdef extern from "_core/kernels/kernels.h" nogil:
    ctypedef void (*cc_fold_fn)(void *, const void *, const void *, size_t) noexcept nogil
    ctypedef void (*cc_scale_fn)(void *, const void *, long double, size_t) noexcept nogil
    enum:
        CC_BOOL, CC_INT8, CC_UINT8, CC_FLOAT16, CC_BFLOAT16, CC_FLOAT32, CC_FLOAT64, CC_FLOAT128
        CC_COMPLEX64, CC_COMPLEX128
        CC_NDTYPES
    enum:
        CC_LAND, CC_LXOR, CC_BOR, CC_NOPS
    cc_fold_fn cc_fold_kernel(int op, int dtype)
    cc_scale_fn cc_scale_kernel(int dtype)
    enum:
        CC_CODE8, CC_CODE4, CC_CODE1
    ctypedef void (*cc_encode_fn)(
        unsigned char *, const float *, float *, size_t, size_t, uint64_t, uint64_t
    ) noexcept nogil
    ctypedef void (*cc_decode_fn)(
        float *, const unsigned char *, size_t, size_t, int
    ) noexcept nogil
    ctypedef void (*cc_convert_fn)(void *, const void *, size_t) noexcept nogil
    ctypedef size_t (*cc_orthonormalise_fn)(float *, size_t, size_t) noexcept nogil
    ctypedef void (*cc_low_rank_fn)(
        float *, const float *, const float *, size_t, size_t, size_t, int
    ) noexcept nogil
    ctypedef struct cc_codecs:
        cc_encode_fn *encode
        cc_decode_fn *decode
        cc_convert_fn *to_half
        cc_convert_fn *of_half
        cc_orthonormalise_fn orthonormalise
        cc_low_rank_fn low_rank
    const cc_codecs *cc_codecs_now()
    enum:
        CC_EXACT_F64
    ctypedef struct cc_exact_dtype:
        int size
        int limbs
    const cc_exact_dtype *cc_exact_dtypes
    ctypedef void (*cc_rows_fn)(void *, const void *, size_t, size_t, size_t) noexcept nogil
    ctypedef struct cc_exacts:
        cc_rows_fn *rows
        void (**columns)(int64_t *, const void *, size_t, size_t, size_t) noexcept nogil
        void (**total)(int64_t *, const void *, size_t, int) noexcept nogil
    const cc_exacts *cc_exacts_now()
    ctypedef struct cc_copies:
        void (*copy)(void *, const void *, size_t) noexcept nogil
        void (*stream)(void *, const void *, size_t) noexcept nogil
    const cc_copies *cc_copies_now()
    void cc_copy_by_library(const cc_copies *, void *, const void *, size_t)
    void cc_words_join(int64_t *, const int64_t *, const cc_exact_dtype *)
    void cc_exact_rounded(void *, const int64_t *, size_t, int)
    size_t cc_encoded_bytes(size_t n, size_t block, size_t planes)
    uint64_t cc_random_word(uint64_t seed, uint64_t number)
    int cc_kernels_init(const char *isa)
    const char *cc_kernels_isa()
    enum:
        CC_MINLOC, CC_MAXLOC
    cc_fold_fn cc_pair_kernel(int op, int value, int wide, int aligned)

cdef extern from "_core/kernels/combine.h" nogil:
    enum:
        CC_HEIGHT
    ctypedef struct cc_pass:
        const char **sources
        const signed char *folds
        int n
        char *dst
        char *publication
        char **targets
        int ntargets
        int stream_dst
        int stream_publication
        int stream_targets
        int by_library
        cc_scale_fn scale
        long double factor
    void cc_combine(const cc_pass *, cc_fold_fn, size_t, size_t)
    void cc_combine_rows(const cc_pass *, cc_rows_fn, int, size_t, size_t)
