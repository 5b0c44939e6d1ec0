/*
 * long double, one at a time: no instruction set has vectors of it.
 *
 * Where a part of its bytes is padding (6 of 16 on x86-64), a kernel writes zeros there, so that
 * equal numbers have equal bytes.
 */
#ifndef CC_KERNELS_LONG_DOUBLE_H
#define CC_KERNELS_LONG_DOUBLE_H

#include <float.h>
#include <stddef.h>
#include <string.h>

#include "floats.h"

#if LDBL_MANT_DIG == 64
enum { CC_LONG_DOUBLE_BYTES = 10 };
#else
enum { CC_LONG_DOUBLE_BYTES = sizeof(long double) };
#endif

typedef long double cc_any_long_double __attribute__((may_alias));

static inline void cc_put_long_double(cc_any_long_double *to, long double x)
{
    *to = x == x ? x : (long double)CC_NAN;
    memset((char *)to + CC_LONG_DOUBLE_BYTES, 0, sizeof x - CC_LONG_DOUBLE_BYTES);
}

static inline long double cc_min_long_double(long double a, long double b)
{
    if (a == b)
        return __builtin_signbit(a) ? a : b;
    return ((a < b) | (a != a)) ? a : b;
}

static inline long double cc_max_long_double(long double a, long double b)
{
    if (a == b)
        return __builtin_signbit(a) ? b : a;
    return ((a > b) | (a != a)) ? a : b;
}

#define CC_LONG_DOUBLE_FOLD(op, result)                                                            \
    static void cc_##op##_f128(void *dst, const void *left, const void *right, size_t n)           \
    {                                                                                              \
        cc_any_long_double *const d = (cc_any_long_double *)dst;                                   \
        const cc_any_long_double *const l = (const cc_any_long_double *)left;                      \
        const cc_any_long_double *const r = (const cc_any_long_double *)right;                     \
        for (size_t i = 0; i < n; ++i) {                                                           \
            const long double a = l[i], b = r[i];                                                  \
            cc_put_long_double(d + i, result);                                                     \
        }                                                                                          \
    }

CC_LONG_DOUBLE_FOLD(sum, a + b)
CC_LONG_DOUBLE_FOLD(prod, a * b)
CC_LONG_DOUBLE_FOLD(min, cc_min_long_double(a, b))
CC_LONG_DOUBLE_FOLD(max, cc_max_long_double(a, b))

static void cc_scale_f128(void *dst, const void *src, long double factor, size_t n)
{
    cc_any_long_double *const d = (cc_any_long_double *)dst;
    const cc_any_long_double *const s = (const cc_any_long_double *)src;
    for (size_t i = 0; i < n; ++i)
        cc_put_long_double(d + i, s[i] * factor);
}

#endif
