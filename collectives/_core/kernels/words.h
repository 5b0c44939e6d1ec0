/*
 * Exact sums: fixed-point numbers that have a place for every bit of every float of a dtype.
 *
 * Such a number has `limbs` words of 64 bits, and is the sum of limb[k] * 2^(CC_LIMB * k + lowest).  A
 * word has room for 2^15 numbers of CC_LIMB bits.  So up to 2^14 sums are added word by word as
 * integers, in any order.  One more word has four counters of 16 bits, for operands that no integer
 * shows: +inf (or NaN), -inf (or NaN), anything but -0, and -0.
 */
#ifndef CC_KERNELS_WORDS_H
#define CC_KERNELS_WORDS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

enum { CC_LIMB = 48, CC_MOST_WORDS = 46, CC_EXACT_ADDED = 1 << 13 };
enum { CC_EXACT_F16, CC_EXACT_BF16, CC_EXACT_F32, CC_EXACT_F64, CC_NEXACT };

/* A float of a dtype: bits of its fraction with the leading 1, and the exponents of its last
   bit where it is least, of the number that is infinite, and of the last bit of the words. */
typedef struct {
    int size, precision, least, infinite, lowest, limbs;
} cc_exact_dtype;

static const cc_exact_dtype cc_exact_dtypes[CC_NEXACT] = {
    {2, 11, -24, 16, -149, 7},
    {2, 8, -133, 128, -149, 7},
    {4, 24, -149, 128, -149, 7},
    {8, 53, -1074, 1024, -1074, 45},
};

#define CC_PLUS_INF ((int64_t)1)
#define CC_MINUS_INF ((int64_t)1 << 16)
#define CC_NOT_MINUS_ZERO ((int64_t)1 << 32)
#define CC_MINUS_ZERO ((int64_t)1 << 48)
#define CC_LIMB_MASK (((int64_t)1 << CC_LIMB) - 1)

/* Add a double whose bits all have a place. */
static inline void cc_words_add(int64_t *words, const cc_exact_dtype *t, double value)
{
    const uint64_t bits = cc_bits_of_double(value), sign = bits >> 63;
    const int field = (int)(bits >> 52 & 0x7ff);
    uint64_t m = bits & (((uint64_t)1 << 52) - 1);
    if (field == 0x7ff) {
        words[t->limbs] |= (m || !sign ? CC_PLUS_INF : 0) | (m || sign ? CC_MINUS_INF : 0);
        return;
    }
    words[t->limbs] |= sign && !(field | m) ? CC_MINUS_ZERO : CC_NOT_MINUS_ZERO;
    if (!(field | m))
        return;
    m |= (uint64_t)(field != 0) << 52;
    int at = (field ? field : 1) - 1075 - t->lowest;
    if (at < 0) {
        m = at < -63 ? 0 : m >> -at; /* zeros */
        at = 0;
    }
    const int shift = at % CC_LIMB;
    int64_t *const w = words + at / CC_LIMB;
    const int64_t flip = -(int64_t)sign, low = (int64_t)(m << shift) & CC_LIMB_MASK,
                  middle = (int64_t)(m >> (CC_LIMB - shift)) & CC_LIMB_MASK,
                  high = shift > 2 * CC_LIMB - 53 ? (int64_t)(m >> (2 * CC_LIMB - shift)) : 0;
    w[0] += (low ^ flip) - flip;
    w[1] += (middle ^ flip) - flip;
    if (high)
        w[2] += (high ^ flip) - flip;
}

/* Carry, so that all limbs but the last are in 0..2^CC_LIMB - 1: the words of a number are unique. */
static inline void cc_words_carry(int64_t *words, const cc_exact_dtype *t)
{
    for (int k = 0; k + 1 < t->limbs; ++k) {
        const int64_t carry = words[k] >> CC_LIMB;
        words[k] -= (int64_t)((uint64_t)carry << CC_LIMB);
        words[k + 1] += carry;
    }
}

/* Add the words of another sum, and carry. */
static inline void cc_words_join(int64_t *words, const int64_t *others, const cc_exact_dtype *t)
{
    for (int k = 0; k < t->limbs; ++k)
        words[k] += others[k];
    for (int at = 0; at < 64; at += 16)
        words[t->limbs] |= (int64_t)((others[t->limbs] >> at & 0xffff) != 0) << at;
    cc_words_carry(words, t);
}

/* Return the bits from `at` on, as many as fit; there are none below 0. */
static inline uint64_t cc_words_from(const int64_t *w, int limbs, int at)
{
    const int k = at / CC_LIMB, off = at % CC_LIMB;
    uint64_t found = (uint64_t)w[k] >> off;
    if (k + 1 < limbs)
        found |= (uint64_t)w[k + 1] << (CC_LIMB - off);
    if (k + 2 < limbs && 2 * CC_LIMB - off < 64)
        found |= (uint64_t)w[k + 2] << (2 * CC_LIMB - off);
    return found;
}

/* Return the float of a dtype that is nearest, of two the even one, as a double. */
static inline double cc_words_round(const int64_t *words, const cc_exact_dtype *t)
{
    int64_t w[CC_MOST_WORDS];
    const int limbs = t->limbs;
    const int64_t other = words[limbs];
    const int plus = (other & 0xffff) != 0, minus = (other >> 16 & 0xffff) != 0;
    if (plus || minus)
        return plus && minus ? CC_NAN : plus ? INFINITY : -INFINITY;
    memcpy(w, words, limbs * sizeof *w);
    cc_words_carry(w, t);
    const int negative = w[limbs - 1] < 0;
    if (negative) {
        for (int k = 0; k < limbs; ++k)
            w[k] = -w[k];
        cc_words_carry(w, t);
    }
    int top = limbs - 1;
    while (top >= 0 && w[top] == 0)
        --top;
    if (top < 0)
        return (other >> 48 & 0xffff) && !(other >> 32 & 0xffff) ? -0.0 : 0.0;
    const int last = CC_LIMB * top + 63 - __builtin_clzll((uint64_t)w[top]);
    if (last + t->lowest >= t->infinite)
        return negative ? -INFINITY : INFINITY;
    int unit = last - t->precision + 1; /* the place of the last bit of the result */
    if (unit < t->least - t->lowest)
        unit = t->least - t->lowest;
    uint64_t m = 0;
    if (unit <= last)
        m = cc_words_from(w, limbs, unit) & (((uint64_t)2 << (last - unit)) - 1);
    if (unit > 0 && unit - 1 <= last && cc_words_from(w, limbs, unit - 1) & 1) {
        int more = m & 1;
        for (int k = 0; !more && k < (unit - 1) / CC_LIMB; ++k)
            more = w[k] != 0;
        more |= (w[(unit - 1) / CC_LIMB] & (((int64_t)1 << (unit - 1) % CC_LIMB) - 1)) != 0;
        m += more;
    }
    const double value = ldexp((double)m, unit + t->lowest);
    const double made = value >= ldexp(1, t->infinite - 1) * 2 ? INFINITY : value;
    return negative ? -made : made;
}

static inline double cc_exact_load(const char *x, int kind)
{
    uint16_t half;
    float single;
    double number;
    if (kind == CC_EXACT_F64) {
        memcpy(&number, x, sizeof number);
        return number;
    }
    if (kind == CC_EXACT_F32) {
        memcpy(&single, x, sizeof single);
        return single;
    }
    memcpy(&half, x, sizeof half);
    return kind == CC_EXACT_F16 ? cc_f16_load(half) : cc_bf16_load(half);
}

/* Store a double that is a float of the dtype. */
static inline void cc_exact_store(char *dst, double value, int kind)
{
    const float single = (float)value;
    const uint16_t half = kind == CC_EXACT_F16 ? cc_f16_round(single) : cc_bf16_round(single);
    if (kind == CC_EXACT_F64)
        memcpy(dst, &value, sizeof value);
    else if (kind == CC_EXACT_F32)
        memcpy(dst, &single, sizeof single);
    else
        memcpy(dst, &half, sizeof half);
}

/* Add one column of some rows, element by element. */
static inline void cc_words_column(int64_t *words, const char *x, size_t stride, size_t rows, int kind)
{
    const cc_exact_dtype *const t = &cc_exact_dtypes[kind];
    for (size_t k = 0; k < rows; ++k) {
        cc_words_add(words, t, cc_exact_load(x + k * stride, kind));
        if (k % CC_EXACT_ADDED == CC_EXACT_ADDED - 1)
            cc_words_carry(words, t);
    }
    cc_words_carry(words, t);
}

/* Write the sum of one column of some rows. */
static inline void cc_exact_element(char *dst, const char *x, size_t stride, size_t rows, int kind)
{
    int64_t words[CC_MOST_WORDS] = {0};
    cc_words_column(words, x, stride, rows, kind);
    cc_exact_store(dst, cc_words_round(words, &cc_exact_dtypes[kind]), kind);
}

/* Round `n` sums, one after the other. */
static inline void cc_exact_rounded(void *dst, const int64_t *words, size_t n, int kind)
{
    const cc_exact_dtype *const t = &cc_exact_dtypes[kind];
    for (size_t i = 0; i < n; ++i, words += t->limbs + 1)
        cc_exact_store((char *)dst + i * t->size, cc_words_round(words, t), kind);
}

#endif
