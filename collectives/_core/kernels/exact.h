/*
 * Sums that are rounded once: of the rows of a matrix, element by element, and of all of an array.
 *
 * A template, part of loops.h.  Each lane adds its column as a pair of doubles without an error: the
 * error of each addition is an exact float (Knuth's TwoSum), and is added to the second of the pair.  If
 * that addition is not exact, or if anything is not finite, the lane's column is added again in words
 * (words.h).  So the pair is the sum, and one addition rounds it.  To a shorter dtype it is rounded to
 * odd first, which keeps the second rounding right (Boldo, Melquiond 2008, doi:10.1109/TC.2007.70819).
 */

#define CC_DOUBLES (CC_WIDTH == 1 ? 2 : CC_WIDTH / 4)
enum { CC_K(columns) = 2 * CC_DOUBLES }; /* two vectors of each kind: AVX2 has 16 registers */

typedef double CC_K(doubles) __attribute__((vector_size(8 * CC_DOUBLES)));
typedef int64_t CC_K(words) __attribute__((vector_size(8 * CC_DOUBLES)));
typedef float CC_K(floats) __attribute__((vector_size(4 * CC_DOUBLES)));

typedef struct {
    CC_K(doubles) sum[2], rest[2];
    CC_K(words) lost[2]; /* not 0 in lanes whose sum is not exact */
} CC_K(pairs);

#define CC_ALWAYS static inline __attribute__((always_inline))

CC_ALWAYS CC_K(doubles) CC_K(load_f64)(const char *x)
{
    CC_K(doubles) v;
    memcpy(&v, x, sizeof v);
    return v;
}

CC_ALWAYS CC_K(doubles) CC_K(load_f32)(const char *x)
{
    CC_K(floats) v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, CC_K(doubles));
}

#define CC_LOAD_HALVES(half)                                                                       \
    CC_ALWAYS CC_K(doubles) CC_K(load_##half)(const char *x)                                       \
    {                                                                                              \
        uint16_t from[CC_DOUBLES];                                                                 \
        float v[CC_DOUBLES];                                                                       \
        memcpy(from, x, sizeof from);                                                              \
        for (int i = 0; i < CC_DOUBLES; ++i)                                                       \
            v[i] = cc_##half##_load(from[i]);                                                      \
        return CC_K(load_f32)((const char *)v);                                                    \
    }
CC_LOAD_HALVES(f16)
CC_LOAD_HALVES(bf16)

CC_ALWAYS void CC_K(store_f64)(char *dst, CC_K(doubles) sum, CC_K(doubles) rest, int single)
{
    (void)single; /* is never */
    const CC_K(words) whole = rest == 0; /* then -0 is kept */
    const CC_K(doubles) both = sum + rest;
    const CC_K(words) v = ((CC_K(words))sum & whole) | ((CC_K(words))both & ~whole);
    memcpy(dst, &v, sizeof v);
}

/* Return the sum of a pair, rounded to odd. */
CC_ALWAYS CC_K(doubles) CC_K(odd)(CC_K(doubles) sum, CC_K(doubles) rest)
{
    const CC_K(doubles) near = sum + rest, z = near - sum, off = (sum - (near - z)) + (rest - z);
    const CC_K(words) bits = (CC_K(words))near, even = ((bits & 1) == 0) & (off != 0);
    const CC_K(words) apart = ((bits ^ (CC_K(words))off) < 0); /* -1 where the signs differ */
    const CC_K(words) whole = rest == 0;
    const CC_K(words) made = bits + (even & ((apart << 1) + 1));
    return (CC_K(doubles))(((CC_K(words))sum & whole) | (made & ~whole));
}

/* A single sum is exact, and the conversion rounds it. */
CC_ALWAYS void CC_K(store_f32)(char *dst, CC_K(doubles) sum, CC_K(doubles) rest, int single)
{
    const CC_K(doubles) from = single ? sum : CC_K(odd)(sum, rest);
    const CC_K(floats) v = __builtin_convertvector(from, CC_K(floats));
    memcpy(dst, &v, sizeof v);
}

#define CC_STORE_HALVES(half)                                                                      \
    CC_ALWAYS void CC_K(store_##half)(char *dst, CC_K(doubles) sum, CC_K(doubles) rest,            \
                                      int single)                                                  \
    {                                                                                              \
        const CC_K(doubles) v = single ? sum : CC_K(odd)(sum, rest);                               \
        uint16_t made[CC_DOUBLES];                                                                 \
        for (int i = 0; i < CC_DOUBLES; ++i) {                                                     \
            const float f = (float)v[i];                                                           \
            uint32_t bits = cc_bits_of_float(f);                                                   \
            const double off = v[i] - f;                                                           \
            if (off != 0 && !(bits & 1) && f - f == 0)                                             \
                bits += (off < 0) == (f < 0) ? 1 : -1;                                             \
            made[i] = cc_##half##_round(cc_float_of_bits(bits));                                   \
        }                                                                                          \
        memcpy(dst, made, sizeof made);                                                            \
    }
CC_STORE_HALVES(f16)
CC_STORE_HALVES(bf16)

/* Return whether the sum of a lane is not exact. */
CC_ALWAYS int CC_K(has_lost)(CC_K(pairs) *made)
{
    int64_t found = 0, each[CC_DOUBLES];
    for (int u = 0; u < 2; ++u) {
        const CC_K(words) endless = (CC_K(words))(made->sum[u] - made->sum[u]);
        made->lost[u] = (made->lost[u] | endless) & INT64_MAX; /* not the sign of 0 */
    }
    const CC_K(words) any = made->lost[0] | made->lost[1];
    memcpy(each, &any, sizeof each);
    for (int i = 0; i < CC_DOUBLES; ++i)
        found |= each[i];
    return found != 0;
}

/* Return a - b; `one` is 1. On AMD's processors, additions and multiplications have units of their own,
   and a fused multiplication by 1 is a subtraction by the latter. */
CC_ALWAYS CC_K(doubles) CC_K(minus)(CC_K(doubles) a, CC_K(doubles) b, CC_K(doubles) one)
{
#if CC_WIDTH == 32
    return (CC_K(doubles))_mm512_fnmadd_pd((__m512d)b, (__m512d)one, (__m512d)a);
#else
    (void)one;
    return a - b;
#endif
}

/* Return bits other than the sign in lanes where the sum `s` of a and b is not exact, if z is s - a. Of
   s - a and s - b, that with the larger operand is exact (Dekker's FastTwoSum). So if both are the other
   operand, the sum is exact, and only then. */
CC_ALWAYS CC_K(words) CC_K(error)(CC_K(doubles) s, CC_K(doubles) a, CC_K(doubles) b, CC_K(doubles) z,
                                  CC_K(doubles) one)
{
    const CC_K(doubles) w = CC_K(minus)(s, b, one);
    return ((CC_K(words))z ^ (CC_K(words))b) | ((CC_K(words))w ^ (CC_K(words))a);
}

enum { CC_K(single), CC_K(paired), CC_K(losing) }; /* the states of the sums of columns */

/* Add columns of some rows, `stride` bytes apart.  All dtypes but float64 have spare bits in a double:
   they are added without the second of the pair first, and with it only if there is an error. */
#define CC_PAIRS(suffix, size)                                                                     \
    CC_ALWAYS int CC_K(add_##suffix##_with)(CC_K(pairs) *made, const char *x, size_t stride,       \
                                            size_t rows, const int pairs)                          \
    {                                                                                              \
        CC_K(doubles) sum[2], rest[2];                                                             \
        CC_K(words) lost[2];                                                                       \
        CC_K(doubles) one = (CC_K(doubles)){0} + 1;                                                \
        __asm__("" : "+m"(one)); /* else the compiler drops the multiplications */                 \
        for (int u = 0; u < 2; ++u) {                                                              \
            sum[u] = CC_K(load_##suffix)(x + u * CC_DOUBLES * size);                               \
            rest[u] = (CC_K(doubles)){0};                                                          \
            lost[u] = (CC_K(words)){0};                                                            \
        }                                                                                          \
        for (size_t k = 1; k < rows; ++k) {                                                        \
            x += stride;                                                                           \
            for (int u = 0; u < 2; ++u) {                                                          \
                const CC_K(doubles) v = CC_K(load_##suffix)(x + u * CC_DOUBLES * size);            \
                const CC_K(doubles) s = sum[u] + v, z = s - sum[u];                                \
                if (pairs) {                                                                       \
                    const CC_K(doubles) w = CC_K(minus)(s, z, one);                                \
                    const CC_K(doubles) left = CC_K(minus)(sum[u], w, one);                        \
                    const CC_K(doubles) off = left + CC_K(minus)(v, z, one), r = rest[u] + off;    \
                    lost[u] |= CC_K(error)(r, rest[u], off, r - rest[u], one);                     \
                    rest[u] = r;                                                                   \
                } else {                                                                           \
                    lost[u] |= CC_K(error)(s, sum[u], v, z, one);                                  \
                }                                                                                  \
                sum[u] = s;                                                                        \
            }                                                                                      \
        }                                                                                          \
        for (int u = 0; u < 2; ++u)                                                                \
            made->sum[u] = sum[u], made->rest[u] = rest[u], made->lost[u] = lost[u];               \
        return CC_K(has_lost)(made);                                                               \
    }                                                                                              \
    CC_ALWAYS int CC_K(add_##suffix)(CC_K(pairs) *made, const char *x, size_t stride, size_t rows) \
    {                                                                                              \
        if (size < 8 && !CC_K(add_##suffix##_with)(made, x, stride, rows, 0))                      \
            return CC_K(single);                                                                   \
        const int lost = CC_K(add_##suffix##_with)(made, x, stride, rows, 1);                      \
        return lost ? CC_K(losing) : CC_K(paired);                                                 \
    }
CC_PAIRS(f16, 2)
CC_PAIRS(bf16, 2)
CC_PAIRS(f32, 4)
CC_PAIRS(f64, 8)

/* Add column `i` to `words`. */
static void CC_K(keep_column)(int64_t *words, const CC_K(pairs) *made, int i, const char *x,
                              size_t stride, size_t rows, int kind)
{
    const cc_exact_dtype *const t = &cc_exact_dtypes[kind];
    const int u = i / CC_DOUBLES, lane = i % CC_DOUBLES;
    if (made->lost[u][lane]) {
        cc_words_column(words, x + i * t->size, stride, rows, kind);
        return;
    }
    cc_words_add(words, t, made->sum[u][lane]);
    if (made->rest[u][lane] != 0)
        cc_words_add(words, t, made->rest[u][lane]);
}

#define CC_EXACT(suffix, kind, size)                                                               \
    /* Write the sums of the columns of a matrix. */                                               \
    static void CC_K(exact_rows_##suffix)(void *dst, const void *from, size_t stride, size_t rows, \
                                          size_t n)                                                \
    {                                                                                              \
        const char *x = (const char *)from;                                                        \
        char *d = (char *)dst;                                                                     \
        size_t i = 0;                                                                              \
        CC_K(pairs) made;                                                                          \
        for (; i + CC_K(columns) <= n; i += CC_K(columns)) {                                       \
            const int is = CC_K(add_##suffix)(&made, x + i * size, stride, rows);                  \
            for (int u = 0; u < 2; ++u)                                                            \
                CC_K(store_##suffix)(d + (i + u * CC_DOUBLES) * size, made.sum[u], made.rest[u],   \
                                     is == CC_K(single));                                          \
            for (int k = 0; is == CC_K(losing) && k < CC_K(columns); ++k)                                        \
                if (made.lost[k / CC_DOUBLES][k % CC_DOUBLES])                                     \
                    cc_exact_element(d + (i + k) * size, x + (i + k) * size, stride, rows, kind);  \
        }                                                                                          \
        for (; i < n; ++i)                                                                         \
            cc_exact_element(d + i * size, x + i * size, stride, rows, kind);                      \
    }                                                                                              \
    /* Add the rows of a matrix to words, those of each column to its own. */                      \
    static void CC_K(exact_columns_##suffix)(int64_t *words, const void *from, size_t stride,      \
                                             size_t rows, size_t n)                                \
    {                                                                                              \
        const cc_exact_dtype *const t = &cc_exact_dtypes[kind];                                    \
        const char *x = (const char *)from;                                                        \
        size_t i = 0;                                                                              \
        CC_K(pairs) made;                                                                          \
        for (; i + CC_K(columns) <= n; i += CC_K(columns), x += CC_K(columns) * size) {            \
            CC_K(add_##suffix)(&made, x, stride, rows);                                            \
            for (int k = 0; k < CC_K(columns); ++k, words += t->limbs + 1) {                       \
                CC_K(keep_column)(words, &made, k, x, stride, rows, kind);                         \
                cc_words_carry(words, t);                                                          \
            }                                                                                      \
        }                                                                                          \
        for (; i < n; ++i, x += size, words += t->limbs + 1)                                       \
            cc_words_column(words, x, stride, rows, kind);                                         \
    }                                                                                              \
    /* Add all of an array to words: element i to those of number i % parts, of 1 or 2. */         \
    static void CC_K(exact_total_##suffix)(int64_t *words, const void *from, size_t n, int parts)  \
    {                                                                                              \
        const cc_exact_dtype *const t = &cc_exact_dtypes[kind];                                    \
        const size_t stride = CC_K(columns) * size;                                                \
        const char *x = (const char *)from;                                                        \
        CC_K(pairs) made;                                                                          \
        size_t rows;                                                                               \
        for (; (rows = n / CC_K(columns)) != 0; n -= rows * CC_K(columns), x += rows * stride) {   \
            rows = rows < 256 ? rows : 256;                                                        \
            CC_K(add_##suffix)(&made, x, stride, rows);                                            \
            for (int k = 0; k < CC_K(columns); ++k)                                                \
                CC_K(keep_column)(words + k % parts * (t->limbs + 1), &made, k, x, stride, rows,   \
                                  kind);                                                           \
            for (int k = 0; k < parts; ++k)                                                        \
                cc_words_carry(words + k * (t->limbs + 1), t);                                     \
        }                                                                                          \
        for (int k = 0; k < parts; ++k)                                                            \
            cc_words_column(words + k * (t->limbs + 1), x + k * size, parts * size, n / parts,     \
                            kind);                                                                 \
    }
CC_EXACT(f16, CC_EXACT_F16, 2)
CC_EXACT(bf16, CC_EXACT_BF16, 2)
CC_EXACT(f32, CC_EXACT_F32, 4)
CC_EXACT(f64, CC_EXACT_F64, 8)

#define CC_EXACTS(what)                                                                            \
    {CC_K(what##_f16), CC_K(what##_bf16), CC_K(what##_f32), CC_K(what##_f64)}
static const cc_exacts CC_K(exacts) = {
    CC_EXACTS(exact_rows), CC_EXACTS(exact_columns), CC_EXACTS(exact_total),
};

#undef CC_DOUBLES
