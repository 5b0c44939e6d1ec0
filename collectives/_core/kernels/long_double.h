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

#endif
