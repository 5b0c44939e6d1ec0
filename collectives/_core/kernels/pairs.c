/*
 * MINLOC and MAXLOC on pairs of a value and an index: the smallest or largest value, and its index.
 *
 * Of equal values, the lower index wins; a NaN wins against every number, and the result has CC_NAN.
 * Zeros with different signs are equal, unless their indices are equal as well: then -0 is less.  So
 * pairs have an order, and the bits of a result depend only on the set of pairs.
 *
 * A pair is a structure of C, or has the same fields without gaps.  The gaps of a result are zeros.
 */
#include "kernels.h"
#include "long_double.h"

/* Return 1 if (a, i) wins against (b, j). */
#define CC_INTEGER_WINS(type)                                                                      \
    static inline int cc_wins_##type(type a, int64_t i, type b, int64_t j, int most)               \
    {                                                                                              \
        return a == b ? i < j : most ? a > b : a < b;                                              \
    }                                                                                              \
    static inline void cc_set_##type(type *to, type x) { *to = x; }
#define CC_FLOAT_WINS(name, type)                                                                  \
    static inline int cc_wins_##name(type a, int64_t i, type b, int64_t j, int most)               \
    {                                                                                              \
        if ((a != a) != (b != b))                                                                  \
            return a != a;                                                                         \
        if (a < b || a > b)                                                                        \
            return most ? a > b : a < b;                                                           \
        return i == j ? (__builtin_signbit(a) == 0) == most : i < j;                               \
    }

CC_INTEGER_WINS(int8_t)
CC_INTEGER_WINS(int16_t)
CC_INTEGER_WINS(int32_t)
CC_INTEGER_WINS(int64_t)
CC_INTEGER_WINS(uint8_t)
CC_INTEGER_WINS(uint16_t)
CC_INTEGER_WINS(uint32_t)
CC_INTEGER_WINS(uint64_t)
CC_FLOAT_WINS(float, float)
CC_FLOAT_WINS(double, double)
CC_FLOAT_WINS(long_double, long double)
static inline void cc_set_float(float *to, float x) { *to = cc_number_float(x); }
static inline void cc_set_double(double *to, double x) { *to = cc_number_double(x); }
static inline void cc_set_long_double(long double *to, long double x)
{
    cc_put_long_double((cc_any_long_double *)to, x);
}

#define CC_PAIR_FOLD(op, most, name, type, index, layout, attribute)                               \
    static void cc_##op##_##name##_##index##_##layout(void *dst, const void *left,                 \
                                                      const void *right, size_t n)                 \
    {                                                                                              \
        typedef struct attribute { type value; index place; } pair;                                \
        char *d = (char *)dst;                                                                     \
        const char *l = (const char *)left, *r = (const char *)right;                              \
        for (; n; --n, d += sizeof(pair), l += sizeof(pair), r += sizeof(pair)) {                  \
            pair a, b, best;                                                                       \
            type value;                                                                            \
            memcpy(&a, l, sizeof(pair));                                                           \
            memcpy(&b, r, sizeof(pair));                                                           \
            const int wins = cc_wins_##name(a.value, a.place, b.value, b.place, most);             \
            cc_set_##name(&value, wins ? a.value : b.value);                                       \
            memset(&best, 0, sizeof(pair));                                                        \
            memcpy((char *)&best + offsetof(pair, value), &value, sizeof value);                   \
            best.place = wins ? a.place : b.place;                                                 \
            memcpy(d, &best, sizeof(pair));                                                        \
        }                                                                                          \
    }
#define CC_PAIR_LAYOUTS(op, most, name, type, index)                                               \
    CC_PAIR_FOLD(op, most, name, type, index, packed, __attribute__((packed)))                     \
    CC_PAIR_FOLD(op, most, name, type, index, aligned, )
#define CC_PAIR_OPS(name, type)                                                                    \
    CC_PAIR_LAYOUTS(minloc, 0, name, type, int32_t)                                                \
    CC_PAIR_LAYOUTS(minloc, 0, name, type, int64_t)                                                \
    CC_PAIR_LAYOUTS(maxloc, 1, name, type, int32_t)                                                \
    CC_PAIR_LAYOUTS(maxloc, 1, name, type, int64_t)

CC_PAIR_OPS(int8_t, int8_t)
CC_PAIR_OPS(int16_t, int16_t)
CC_PAIR_OPS(int32_t, int32_t)
CC_PAIR_OPS(int64_t, int64_t)
CC_PAIR_OPS(uint8_t, uint8_t)
CC_PAIR_OPS(uint16_t, uint16_t)
CC_PAIR_OPS(uint32_t, uint32_t)
CC_PAIR_OPS(uint64_t, uint64_t)
CC_PAIR_OPS(float, float)
CC_PAIR_OPS(double, double)
CC_PAIR_OPS(long_double, long double)

#define CC_PAIR_KERNELS(op, name)                                                                  \
    {{cc_##op##_##name##_int32_t_packed, cc_##op##_##name##_int32_t_aligned},                      \
     {cc_##op##_##name##_int64_t_packed, cc_##op##_##name##_int64_t_aligned}}
#define CC_PAIR_ROW(op)                                                                            \
    {                                                                                              \
        [CC_INT8] = CC_PAIR_KERNELS(op, int8_t), [CC_INT16] = CC_PAIR_KERNELS(op, int16_t),        \
        [CC_INT32] = CC_PAIR_KERNELS(op, int32_t), [CC_INT64] = CC_PAIR_KERNELS(op, int64_t),      \
        [CC_UINT8] = CC_PAIR_KERNELS(op, uint8_t), [CC_UINT16] = CC_PAIR_KERNELS(op, uint16_t),    \
        [CC_UINT32] = CC_PAIR_KERNELS(op, uint32_t), [CC_UINT64] = CC_PAIR_KERNELS(op, uint64_t),  \
        [CC_FLOAT32] = CC_PAIR_KERNELS(op, float), [CC_FLOAT64] = CC_PAIR_KERNELS(op, double),     \
        [CC_FLOAT128] = CC_PAIR_KERNELS(op, long_double),                                          \
    }

cc_fold_fn cc_pair_kernel(int op, int value, int wide, int aligned)
{
    static const cc_fold_fn all[2][CC_NDTYPES][2][2] = {CC_PAIR_ROW(minloc), CC_PAIR_ROW(maxloc)};
    if (op < CC_MINLOC || op > CC_MAXLOC || value < 0 || value >= CC_NDTYPES)
        return NULL;
    return all[op - CC_MINLOC][value][wide][aligned];
}
