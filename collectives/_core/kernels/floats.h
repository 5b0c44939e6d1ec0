/*
 * Folds of floats whose bits do not depend on the order of two operands.
 *
 * Of two NaNs, a processor keeps the first; of two zeros, it takes either as the minimum.  The
 * compiler decides which operand comes first.  So every NaN that a kernel writes is CC_NAN, and -0
 * is less than +0.  MIN and MAX are the minimum and maximum of IEEE 754-2019.
 *
 * A sum of float32 in the first-level cache (4 KiB) takes 1.1 to 1.3 times as long as without, one
 * in the second (256 KiB) 1.03 to 1.05 times, and one from memory no longer; a maximum 1.5, 1.2
 * times and no longer (both loops in turn, in C; AVX2, EPYC family 25, gcc 12.2, November 2026).
 */
#ifndef CC_KERNELS_FLOATS_H
#define CC_KERNELS_FLOATS_H

#include <stdint.h>

#define CC_NAN __builtin_nan("") /* quiet, positive, without payload: NumPy's nan */

static inline uint32_t cc_bits_of_float(float value)
{
    union { float f; uint32_t u; } x = {.f = value};
    return x.u;
}

static inline float cc_float_of_bits(uint32_t bits)
{
    union { uint32_t u; float f; } x = {.u = bits};
    return x.f;
}

static inline uint64_t cc_bits_of_double(double value)
{
    union { double f; uint64_t u; } x = {.f = value};
    return x.u;
}

static inline double cc_double_of_bits(uint64_t bits)
{
    union { uint64_t u; double f; } x = {.u = bits};
    return x.f;
}

/* Operands that are equal have equal bits, except for zeros: `or` keeps a minus sign, and `and` a
   plus sign.  `or` also keeps a NaN, which `and` may not. */
#define CC_OF_FLOATS(type)                                                                         \
    static inline type cc_number_##type(type x) { return x == x ? x : (type)CC_NAN; }              \
    static inline type cc_min_##type(type a, type b)                                               \
    {                                                                                              \
        const type x = a < b ? a : b, y = b < a ? b : a;                                           \
        return cc_number_##type(                                                                   \
            cc_##type##_of_bits(cc_bits_of_##type(x) | cc_bits_of_##type(y)));                     \
    }                                                                                              \
    static inline type cc_max_##type(type a, type b)                                               \
    {                                                                                              \
        const type x = a > b ? a : b, y = b > a ? b : a;                                           \
        const type most = cc_##type##_of_bits(cc_bits_of_##type(x) & cc_bits_of_##type(y));        \
        return ((a == a) & (b == b)) ? most : (type)CC_NAN;                                        \
    }
CC_OF_FLOATS(float)
CC_OF_FLOATS(double)

#endif
