/*
 * The loops of every fold and scale kernel, for one instruction set.
 *
 * A template: kernels.c includes it once per instruction set, inside that set's target pragma,
 * with CC_ISA (a suffix for the names), CC_FAR_ISA and CC_WIDTH (halves converted at a time: 32,
 * 16 or 1) defined.  The compiler vectorises the loops; float16 and bfloat16 are converted by lanes.
 * The tables at its end are the only part that kernels.c uses.
 */

#define CC_PASTE(name, isa) name##_##isa
#define CC_EXPAND(name, isa) CC_PASTE(name, isa)
#define CC_K(name) CC_EXPAND(cc_##name, CC_ISA)

/* ---- one loop ------------------------------------------------------------------------------ */

/* The kernel proper: the run above, with its stores on cache lines.  Arrays in memory are left to the
   set CC_FAR_ISA; the bits are the same. */
#define CC_ALIGNED_FOLD(name, size)                                                                \
    static void CC_K(name)(void *dst, const void *left, const void *right, size_t n)              \
    {                                                                                              \
        cc_fold_fn run = n * (size) < CC_FAR_BYTES ? CC_K(name##_run)                              \
                                                   : CC_EXPAND(cc_##name##_run, CC_FAR_ISA);       \
        cc_fold_aligned(run, size, dst, left, right, n);                                           \
    }

#define CC_FOLD(op, suffix, type, DO)                                                              \
    static CC_NOINLINE void CC_K(op##_##suffix##_run)(void *dst, const void *left,                 \
                                                      const void *right, size_t n)                 \
    {                                                                                              \
        cc_any_##type *const d = (cc_any_##type *)dst;                                             \
        const cc_any_##type *const l = (const cc_any_##type *)left;                                \
        const cc_any_##type *const r = (const cc_any_##type *)right;                               \
        CC_NO_OVERLAP                                                                              \
        for (size_t i = 0; i < n; ++i) {                                                           \
            const type a = l[i], b = r[i];                                                         \
            d[i] = DO(type, a, b);                                                                 \
        }                                                                                          \
    }                                                                                              \
    CC_ALIGNED_FOLD(op##_##suffix, sizeof(type))

#define CC_UNSIGNED(LOOP, op, DO)                                                                  \
    LOOP(op, u8, uint8_t, DO)                                                                      \
    LOOP(op, u16, uint16_t, DO)                                                                    \
    LOOP(op, u32, uint32_t, DO)                                                                    \
    LOOP(op, u64, uint64_t, DO)
#define CC_SIGNED(LOOP, op, DO)                                                                    \
    LOOP(op, i8, int8_t, DO)                                                                       \
    LOOP(op, i16, int16_t, DO)                                                                     \
    LOOP(op, i32, int32_t, DO)                                                                     \
    LOOP(op, i64, int64_t, DO)
#define CC_FLOAT(LOOP, op, DO)                                                                     \
    LOOP(op, f32, float, DO)                                                                       \
    LOOP(op, f64, double, DO)

/* ---- integers: arithmetic is unsigned, hence wraps, and one kernel serves both signs ------- */

#define CC_DO_SUM(type, a, b) (type)(a + b)
#define CC_DO_PROD(type, a, b) (type)(1u * a * b) /* uint16 * uint16 would promote to int */
#define CC_DO_MIN(type, a, b) (a < b ? a : b)
#define CC_DO_MAX(type, a, b) (a > b ? a : b)
#define CC_DO_LAND(type, a, b) (type)((a != 0) & (b != 0))
#define CC_DO_LOR(type, a, b) (type)((a | b) != 0)
#define CC_DO_LXOR(type, a, b) (type)((a != 0) ^ (b != 0))
#define CC_DO_BAND(type, a, b) (type)(a & b)
#define CC_DO_BOR(type, a, b) (type)(a | b)
#define CC_DO_BXOR(type, a, b) (type)(a ^ b)

CC_UNSIGNED(CC_FOLD, sum, CC_DO_SUM)
CC_UNSIGNED(CC_FOLD, prod, CC_DO_PROD)
CC_UNSIGNED(CC_FOLD, min, CC_DO_MIN)
CC_UNSIGNED(CC_FOLD, max, CC_DO_MAX)
CC_SIGNED(CC_FOLD, min, CC_DO_MIN)
CC_SIGNED(CC_FOLD, max, CC_DO_MAX)
CC_UNSIGNED(CC_FOLD, land, CC_DO_LAND)
CC_UNSIGNED(CC_FOLD, lor, CC_DO_LOR)
CC_UNSIGNED(CC_FOLD, lxor, CC_DO_LXOR)
CC_UNSIGNED(CC_FOLD, band, CC_DO_BAND)
CC_UNSIGNED(CC_FOLD, bor, CC_DO_BOR)
CC_UNSIGNED(CC_FOLD, bxor, CC_DO_BXOR)

/* ---- float32, float64 ---------------------------------------------------------------------- */

#define CC_DO_FSUM(type, a, b) cc_number_##type(a + b)
#define CC_DO_FPROD(type, a, b) cc_number_##type(a * b)
#define CC_DO_FMIN(type, a, b) cc_min_##type(a, b)
#define CC_DO_FMAX(type, a, b) cc_max_##type(a, b)

CC_FLOAT(CC_FOLD, sum, CC_DO_FSUM)
CC_FLOAT(CC_FOLD, prod, CC_DO_FPROD)
CC_FLOAT(CC_FOLD, min, CC_DO_FMIN)
CC_FLOAT(CC_FOLD, max, CC_DO_FMAX)

/* ---- complex: (re, im) pairs; the product is the textbook's, without fused multiply-add ---- */

#define CC_COMPLEX_SUM(suffix, part)                                                               \
    static void CC_K(sum_##suffix)(void *dst, const void *left, const void *right, size_t n)      \
    {                                                                                              \
        CC_K(sum_##part)(dst, left, right, 2 * n);                                                 \
    }

#define CC_COMPLEX_PROD(suffix, type)                                                              \
    static CC_NOINLINE void CC_K(prod_##suffix##_run)(void *dst, const void *left,                 \
                                                      const void *right, size_t n)                 \
    {                                                                                              \
        cc_any_##type *const d = (cc_any_##type *)dst;                                             \
        const cc_any_##type *const l = (const cc_any_##type *)left;                                \
        const cc_any_##type *const r = (const cc_any_##type *)right;                               \
        CC_NO_OVERLAP                                                                              \
        for (size_t i = 0; i < n; ++i) {                                                           \
            const type a = l[2 * i], b = l[2 * i + 1], x = r[2 * i], y = r[2 * i + 1];             \
            d[2 * i] = cc_number_##type(a * x - b * y);                                            \
            d[2 * i + 1] = cc_number_##type(a * y + b * x);                                        \
        }                                                                                          \
    }                                                                                              \
    CC_ALIGNED_FOLD(prod_##suffix, 2 * sizeof(type))

CC_COMPLEX_SUM(c64, f32)
CC_COMPLEX_SUM(c128, f64)

#if CC_WIDTH == 32
/* AVX-512 includes fused multiply-add, and gcc 12 makes vfmaddsub of this loop even with
   -ffp-contract=off, which rounds differently.  So this set has the product of the set below. */
#define CC_COMPLEX_PRODS [CC_COMPLEX64] = cc_prod_c64_avx2, [CC_COMPLEX128] = cc_prod_c128_avx2
#else
#define CC_COMPLEX_PRODS CC_COMPLEXES(prod)
CC_COMPLEX_PROD(c64, float)
CC_COMPLEX_PROD(c128, double)
#endif

/* ---- float16, bfloat16: to float32, one operation, back with one rounding ------------------ */

#include "lanes.h"

/* The last n % CC_WIDTH elements go through padded copies, so that the same code folds them. */
#define CC_HALF_FOLD(op, half)                                                                     \
    static CC_NOINLINE void CC_K(op##_##half##_run)(void *dst, const void *left,                   \
                                                    const void *right, size_t n)                   \
    {                                                                                              \
        cc_any_uint16_t *const d = (cc_any_uint16_t *)dst;                                         \
        const cc_any_uint16_t *const l = (const cc_any_uint16_t *)left;                            \
        const cc_any_uint16_t *const r = (const cc_any_uint16_t *)right;                           \
        const size_t whole = n - n % CC_WIDTH, rest = (n - whole) * sizeof *d;                     \
        CC_LANE_LOOP                                                                               \
        for (size_t i = 0; i < whole; i += CC_WIDTH) {                                             \
            const CC_K(lanes) a = CC_K(half##_get)(l + i), b = CC_K(half##_get)(r + i);            \
            CC_K(half##_put)(d + i, CC_ON_LANES(op, a, b));                                        \
        }                                                                                          \
        if (rest) {                                                                                \
            cc_any_uint16_t left_rest[CC_WIDTH] = {0}, right_rest[CC_WIDTH] = {0};                 \
            memcpy(left_rest, l + whole, rest);                                                    \
            memcpy(right_rest, r + whole, rest);                                                   \
            const CC_K(lanes) a = CC_K(half##_get)(left_rest), b = CC_K(half##_get)(right_rest);   \
            CC_K(half##_put)(left_rest, CC_ON_LANES(op, a, b));                                    \
            memcpy(d + whole, left_rest, rest);                                                    \
        }                                                                                          \
    }                                                                                              \
    CC_ALIGNED_FOLD(op##_##half, sizeof(uint16_t))

CC_HALF_FOLD(sum, f16)
CC_HALF_FOLD(prod, f16)
CC_HALF_FOLD(min, f16)
CC_HALF_FOLD(max, f16)
CC_HALF_FOLD(sum, bf16)
CC_HALF_FOLD(prod, bf16)
CC_HALF_FOLD(min, bf16)
CC_HALF_FOLD(max, bf16)

/* ---- scaling: float32 in float64, float16 and bfloat16 in float32, rounded once ------------ */

#define CC_FLOAT_SCALE(name, suffix, type, unused)                                                 \
    static void CC_K(name##_##suffix)(void *dst, const void *src, long double factor, size_t n)   \
    {                                                                                              \
        const double f = (double)factor;                                                           \
        cc_any_##type *const d = (cc_any_##type *)dst;                                             \
        const cc_any_##type *const s = (const cc_any_##type *)src;                                 \
        CC_NO_OVERLAP                                                                              \
        for (size_t i = 0; i < n; ++i)                                                             \
            d[i] = cc_number_##type((type)(s[i] * f));                                             \
    }

#define CC_COMPLEX_SCALE(suffix, part)                                                             \
    static void CC_K(scale_##suffix)(void *dst, const void *src, long double factor, size_t n)    \
    {                                                                                              \
        CC_K(scale_##part)(dst, src, factor, 2 * n);                                               \
    }

#define CC_HALF_SCALE(half)                                                                        \
    static void CC_K(scale_##half)(void *dst, const void *src, long double factor, size_t n)      \
    {                                                                                              \
        cc_any_uint16_t *const d = (cc_any_uint16_t *)dst;                                         \
        const cc_any_uint16_t *const s = (const cc_any_uint16_t *)src;                             \
        const CC_K(lanes) f = CC_K(lanes_of)((float)factor);                                       \
        const size_t whole = n - n % CC_WIDTH, rest = (n - whole) * sizeof *d;                     \
        CC_LANE_LOOP                                                                               \
        for (size_t i = 0; i < whole; i += CC_WIDTH) {                                             \
            const CC_K(lanes) a = CC_K(half##_get)(s + i);                                         \
            CC_K(half##_put)(d + i, CC_ON_LANES(prod, a, f));                                      \
        }                                                                                          \
        if (rest) {                                                                                \
            cc_any_uint16_t src_rest[CC_WIDTH] = {0};                                              \
            memcpy(src_rest, s + whole, rest);                                                     \
            const CC_K(lanes) a = CC_K(half##_get)(src_rest);                                      \
            CC_K(half##_put)(src_rest, CC_ON_LANES(prod, a, f));                                   \
            memcpy(d + whole, src_rest, rest);                                                     \
        }                                                                                          \
    }

CC_FLOAT(CC_FLOAT_SCALE, scale, )
CC_COMPLEX_SCALE(c64, f32)
CC_COMPLEX_SCALE(c128, f64)
CC_HALF_SCALE(f16)
CC_HALF_SCALE(bf16)

/* ---- the tables: NULL for unsupported pairs ------------------------------------------------ */

#define CC_EITHER_SIGN(op)                                                                         \
    [CC_INT8] = CC_K(op##_u8), [CC_INT16] = CC_K(op##_u16), [CC_INT32] = CC_K(op##_u32),           \
    [CC_INT64] = CC_K(op##_u64), [CC_UINT8] = CC_K(op##_u8), [CC_UINT16] = CC_K(op##_u16),         \
    [CC_UINT32] = CC_K(op##_u32), [CC_UINT64] = CC_K(op##_u64)
#define CC_EACH_SIGN(op)                                                                           \
    [CC_INT8] = CC_K(op##_i8), [CC_INT16] = CC_K(op##_i16), [CC_INT32] = CC_K(op##_i32),           \
    [CC_INT64] = CC_K(op##_i64), [CC_UINT8] = CC_K(op##_u8), [CC_UINT16] = CC_K(op##_u16),         \
    [CC_UINT32] = CC_K(op##_u32), [CC_UINT64] = CC_K(op##_u64)
#define CC_FLOATS(op)                                                                              \
    [CC_FLOAT16] = CC_K(op##_f16), [CC_BFLOAT16] = CC_K(op##_bf16), [CC_FLOAT32] = CC_K(op##_f32), \
    [CC_FLOAT64] = CC_K(op##_f64), [CC_FLOAT128] = cc_##op##_f128
#define CC_COMPLEXES(op) [CC_COMPLEX64] = CC_K(op##_c64), [CC_COMPLEX128] = CC_K(op##_c128)
#define CC_TRUTH(op) [CC_BOOL] = CC_K(op##_u8)

static const cc_fold_fn CC_K(folds)[CC_NOPS][CC_NDTYPES] = {
    [CC_SUM] = {CC_TRUTH(lor), CC_EITHER_SIGN(sum), CC_FLOATS(sum), CC_COMPLEXES(sum)},
    [CC_PROD] = {CC_TRUTH(land), CC_EITHER_SIGN(prod), CC_FLOATS(prod), CC_COMPLEX_PRODS},
    [CC_MIN] = {CC_TRUTH(land), CC_EACH_SIGN(min), CC_FLOATS(min)},
    [CC_MAX] = {CC_TRUTH(lor), CC_EACH_SIGN(max), CC_FLOATS(max)},
    [CC_LAND] = {CC_TRUTH(land), CC_EITHER_SIGN(land)},
    [CC_LOR] = {CC_TRUTH(lor), CC_EITHER_SIGN(lor)},
    [CC_LXOR] = {CC_TRUTH(lxor), CC_EITHER_SIGN(lxor)},
    [CC_BAND] = {CC_TRUTH(land), CC_EITHER_SIGN(band)},
    [CC_BOR] = {CC_TRUTH(lor), CC_EITHER_SIGN(bor)},
    [CC_BXOR] = {CC_TRUTH(lxor), CC_EITHER_SIGN(bxor)},
};

static const cc_scale_fn CC_K(scales)[CC_NDTYPES] = {CC_FLOATS(scale), CC_COMPLEXES(scale)};

#include "quantise.h"
#include "exact.h"

#undef CC_ISA
#undef CC_WIDTH
#undef CC_FAR_ISA
#undef CC_LANE_LOOP
#undef CC_ON_LANES
#undef CC_COMPLEX_PRODS
