/*
 * Reduction kernels: dst[i] = left[i] op right[i], and dst[i] = src[i] * factor.
 *
 * kernels.c compiles them for each instruction set; cc_kernels_init picks a set at run time, and its
 * table gives the kernel of an (operation, dtype).  All sets give the same bits, and so does
 * exchanging left and right, of NaNs and zeros too (floats.h).
 *
 * Integers wrap.  float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
 * Logical results are 0 or 1; a bool is any byte, true unless 0, and folded as C has it: its sum and
 * its maximum are lor, its product and its minimum are land.
 */
#ifndef CC_KERNELS_H
#define CC_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "codes.h"
#include "copies.h"
#include "words.h"

/* The order is mirrored in kernels/headers.pxi, and in collectives/arrays/buffers.py (DTYPES). */
enum {
    CC_BOOL = 0,
    CC_INT8, CC_INT16, CC_INT32, CC_INT64,
    CC_UINT8, CC_UINT16, CC_UINT32, CC_UINT64,
    CC_FLOAT16, CC_BFLOAT16, CC_FLOAT32, CC_FLOAT64, CC_FLOAT128, /* long double */
    CC_COMPLEX64, CC_COMPLEX128,
    CC_NDTYPES
};
enum {
    CC_SUM = 0, CC_PROD, CC_MIN, CC_MAX,
    CC_LAND, CC_LOR, CC_LXOR,
    CC_BAND, CC_BOR, CC_BXOR,
    CC_NOPS
};

/* dst may be exactly left or exactly right (or src); no other overlap.  No alignment is needed
   but that of the dtype. */
typedef void (*cc_fold_fn)(void *dst, const void *left, const void *right, size_t n);
typedef void (*cc_scale_fn)(void *dst, const void *src, long double factor, size_t n);

/* The compressing kernels (quantise.h).  `first` is the number of the first block, for random numbers;
   `residual`, if there is one, is added to x, and gets the error of the codes. */
enum { CC_CODE8 = 0, CC_CODE4, CC_CODE1, CC_NCODES };
typedef void (*cc_encode_fn)(unsigned char *to, const float *x, float *residual, size_t n,
                             size_t block, uint64_t seed, uint64_t first);
typedef void (*cc_decode_fn)(float *dst, const unsigned char *from, size_t n, size_t block,
                             int add);
typedef void (*cc_convert_fn)(void *dst, const void *src, size_t n);
typedef struct {
    cc_encode_fn encode[CC_NCODES];
    cc_decode_fn decode[CC_NCODES];
    cc_convert_fn to_half[2], of_half[2]; /* float16, bfloat16 */
    size_t (*orthonormalise)(float *rows, size_t rank, size_t n);
    void (*low_rank)(float *dst, const float *left, const float *right, size_t rank, size_t n,
                     size_t m, int subtract);
} cc_codecs;

/* Exact sums (exact.h, words.h), by the kind of float. */
typedef void (*cc_rows_fn)(void *dst, const void *x, size_t stride, size_t rows, size_t n);
typedef struct {
    cc_rows_fn rows[CC_NEXACT];
    void (*columns[CC_NEXACT])(int64_t *words, const void *x, size_t stride, size_t rows, size_t n);
    void (*total[CC_NEXACT])(int64_t *words, const void *x, size_t n, int parts);
} cc_exacts;

/* ---- the set in use -------------------------------------------------------------------------- */

struct cc_kernels {
    const char *isa;
    int (*available)(void);
    const cc_fold_fn (*folds)[CC_NDTYPES];
    const cc_scale_fn *scales;
    const cc_codecs *codecs;
    const cc_exacts *exacts;
    const cc_copies *copies;
};

extern const struct cc_kernels *cc_kernels_now;

/* Choose the named set of kernels, or for NULL the best that the CPU has.
   Return 0, or -1 (and change nothing) if the name is unknown or the CPU lacks the set. */
int cc_kernels_init(const char *isa);

/* Pairs of a value and an index (pairs.c). */
enum { CC_MINLOC = CC_NOPS, CC_MAXLOC };

/* Return the kernel for a dtype of values, an index of 64 bits if `wide`, and the layout; or NULL. */
cc_fold_fn cc_pair_kernel(int op, int value, int wide, int aligned);

static inline const char *cc_kernels_isa(void) { return cc_kernels_now->isa; }

/* Return a kernel, or NULL if the operation is not supported on the dtype, or does not exist. */
static inline cc_fold_fn cc_fold_kernel(int op, int dtype)
{
    if (op < 0 || op >= CC_NOPS || dtype < 0 || dtype >= CC_NDTYPES)
        return NULL;
    return cc_kernels_now->folds[op][dtype];
}

static inline cc_scale_fn cc_scale_kernel(int dtype)
{
    if (dtype < 0 || dtype >= CC_NDTYPES)
        return NULL;
    return cc_kernels_now->scales[dtype];
}

static inline const cc_codecs *cc_codecs_now(void) { return cc_kernels_now->codecs; }
static inline const cc_exacts *cc_exacts_now(void) { return cc_kernels_now->exacts; }
static inline const cc_copies *cc_copies_now(void) { return cc_kernels_now->copies; }

#endif
