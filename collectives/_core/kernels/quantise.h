/*
 * Compression: float32 to 8 bits, 4 bits or a sign for each element, with a scale for each block,
 * and to float16 and bfloat16; and the dense algebra of low-rank compression.
 *
 * A template, part of loops.h.  All sets give the same bits, because one rank decodes the codes of
 * another, and all ranks must get the same result.  So sums have a fixed number of lanes.
 */

static inline uint32_t CC_K(most_bits)(const float *x, size_t n)
{
    int32_t most = 0;
    CC_NO_OVERLAP
    for (size_t i = 0; i < n; ++i) {
        const int32_t bits = (int32_t)(cc_bits_of_float(x[i]) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return (uint32_t)most;
}

/* ---- 8 and 4 bits, rounded at random ------------------------------------------------------- */

/* Element j gets the lower random number of pair j, element half + j the upper one. */
#define CC_PAIR_LOOP(PUT)                                                                          \
    for (; j < n / 2; ++j) {                                                                       \
        const uint32_t bits = cc_random_bits((uint32_t)j, low, high);                              \
        const int32_t a = cc_dithered(x[j], inverse, bits);                                        \
        const int32_t b = cc_dithered(x[half + j], inverse, bits >> 17);                           \
        PUT;                                                                                       \
    }                                                                                              \
    if (j < half)                                                                                  \
        last = cc_dithered(x[j], inverse, cc_random_bits((uint32_t)j, low, high))

#if CC_WIDTH > 1

/* AVX2, for AVX-512 as well: 32 elements at a time, j to j + 15 and half + j to half + j + 15. */

/* cc_random_bits, from what it has after its first line */
static inline __m256i CC_K(random_bits)(__m256i h, __m256i high)
{
    h = _mm256_xor_si256(h, _mm256_srli_epi32(h, 15));
    return _mm256_xor_si256(_mm256_mullo_epi32(h, _mm256_set1_epi32((int)CC_MIX)), high);
}

/* cc_dithered and CC_BIAS, which CC_MAGIC leaves above the steps */
static inline __m256i CC_K(rounded)(const float *x, __m256 inverse, __m256i random)
{
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), inverse);
    const __m256i fixed = _mm256_castps_si256(_mm256_add_ps(v, _mm256_set1_ps(CC_MAGIC)));
    return _mm256_srli_epi32(_mm256_add_epi32(fixed, random), CC_FRACTION);
}

/* 16 words with CC_BIAS as int16, in the order 0 to 3, 8 to 11, 4 to 7, 12 to 15 */
static inline __m256i CC_K(steps)(__m256i first, __m256i second)
{
    return _mm256_sub_epi16(_mm256_packus_epi32(first, second), _mm256_set1_epi16((short)CC_BIAS));
}

#undef CC_WIDE_LOOP
#define CC_WIDE_LOOP(PUT)                                                                          \
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);                               \
    const __m256i weyl = _mm256_mullo_epi32(lanes, _mm256_set1_epi32((int)CC_WEYL));               \
    const __m256i on = _mm256_set1_epi32((int)(16 * CC_WEYL));                                     \
    const __m256i upper = _mm256_set1_epi32((int)high), some = _mm256_set1_epi32(0x7fff);          \
    const __m256 factor = _mm256_set1_ps(inverse);                                                 \
    __m256i first = _mm256_add_epi32(weyl, _mm256_set1_epi32((int)low));                           \
    __m256i second = _mm256_add_epi32(first, _mm256_set1_epi32((int)(8 * CC_WEYL)));               \
    for (; j + 16 <= n / 2; j += 16) {                                                             \
        const __m256i r = CC_K(random_bits)(first, upper), s = CC_K(random_bits)(second, upper);   \
        const __m256i a = CC_K(steps)(                                                             \
            CC_K(rounded)(x + j, factor, _mm256_and_si256(r, some)),                               \
            CC_K(rounded)(x + j + 8, factor, _mm256_and_si256(s, some)));                          \
        const __m256i b = CC_K(steps)(                                                             \
            CC_K(rounded)(x + half + j, factor, _mm256_srli_epi32(r, 17)),                         \
            CC_K(rounded)(x + half + j + 8, factor, _mm256_srli_epi32(s, 17)));                    \
        PUT;                                                                                       \
        first = _mm256_add_epi32(first, on);                                                       \
        second = _mm256_add_epi32(second, on);                                                     \
    }

/* Both halves as bytes */
static inline void CC_K(put_bytes)(unsigned char *lower, unsigned char *upper, __m256i a, __m256i b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    _mm_storeu_si128((__m128i *)(void *)lower, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(void *)upper, _mm256_extracti128_si256(bytes, 1));
}

/* A lower and an upper half in each byte */
static inline void CC_K(put_nibbles)(unsigned char *to, __m256i a, __m256i b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i both = _mm256_or_si256(
        _mm256_and_si256(a, _mm256_set1_epi16(0xf)),
        _mm256_and_si256(_mm256_slli_epi16(b, 4), _mm256_set1_epi16(0xf0)));
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_packus_epi16(both, _mm256_setzero_si256()), order);
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(bytes));
}

#else
#define CC_WIDE_LOOP(PUT)
#endif

static inline float CC_K(encode8_block)(unsigned char *restrict to, const float *restrict x,
                                        size_t n, uint32_t low, uint32_t high)
{
    float inverse;
    const float step = cc_step(CC_K(most_bits)(x, n), 127.0f, &inverse);
    const size_t half = (n + 1) / 2;
    size_t j = 0;
    int32_t last = 0;
    if (!(step > 0.0f)) {
        memset(to, 0, n);
        return step;
    }
    CC_WIDE_LOOP(CC_K(put_bytes)(to + j, to + half + j, a, b))
    CC_PAIR_LOOP((to[j] = (unsigned char)a, to[half + j] = (unsigned char)b));
    if (j < half)
        to[j] = (unsigned char)last;
    return step;
}

static inline float CC_K(encode4_block)(unsigned char *restrict to, const float *restrict x,
                                        size_t n, uint32_t low, uint32_t high)
{
    float inverse;
    const float step = cc_step(CC_K(most_bits)(x, n), 7.0f, &inverse);
    const size_t half = (n + 1) / 2;
    size_t j = 0;
    int32_t last = 0;
    if (!(step > 0.0f)) {
        memset(to, 0, half);
        return step;
    }
    CC_WIDE_LOOP(CC_K(put_nibbles)(to + j, a, b))
    CC_PAIR_LOOP(to[j] = (unsigned char)((a & 0xf) | (uint32_t)b << 4));
    if (j < half)
        to[j] = (unsigned char)(last & 0xf);
    return step;
}

#define CC_ENCODE(name, planes)                                                                    \
    static void CC_K(name)(unsigned char *to, const float *x, float *residual, size_t n,           \
                           size_t block, uint64_t seed, uint64_t first)                            \
    {                                                                                              \
        unsigned char *codes = to + (n + block - 1) / block * sizeof(float);                       \
        (void)residual;                                                                            \
        for (size_t k = 0, done = 0; done < n; ++k) {                                              \
            const size_t count = n - done < block ? n - done : block;                              \
            const uint64_t random = cc_random_word(seed, first + k);                               \
            cc_put_scale(to, k, CC_K(name##_block)(codes, x + done, count, (uint32_t)random,       \
                                                   (uint32_t)(random >> 32)));                     \
            codes += cc_codes(count, planes);                                                      \
            done += count;                                                                         \
        }                                                                                          \
    }

CC_ENCODE(encode8, CC_PLANES_8)
CC_ENCODE(encode4, CC_PLANES_4)

static CC_NOINLINE void CC_K(decode8_put)(float *restrict d, const unsigned char *restrict c,
                                          size_t n, float step)
{
    for (size_t j = 0; j < n; ++j)
        d[j] = (float)(signed char)c[j] * step;
}

static CC_NOINLINE void CC_K(decode8_add)(float *restrict d, const unsigned char *restrict c,
                                          size_t n, float step)
{
    for (size_t j = 0; j < n; ++j)
        d[j] += (float)(signed char)c[j] * step;
}

/* The lower or the upper half of a byte, with its sign. */
#define CC_LOWER(c) ((float)((signed char)((c) << 4) >> 4))
#define CC_UPPER(c) ((float)((signed char)(c) >> 4))

#define CC_DECODE4(name, ASSIGN)                                                                   \
    static CC_NOINLINE void CC_K(name)(float *restrict d, const unsigned char *restrict c,         \
                                       size_t n, float step)                                       \
    {                                                                                              \
        const size_t half = (n + 1) / 2, whole = n / 2;                                            \
        float *restrict const e = d + half;                                                        \
        for (size_t j = 0; j < half; ++j)                                                          \
            d[j] ASSIGN CC_LOWER(c[j]) * step;                                                     \
        for (size_t j = 0; j < whole; ++j)                                                         \
            e[j] ASSIGN CC_UPPER(c[j]) * step;                                                     \
    }
CC_DECODE4(decode4_put, =)
CC_DECODE4(decode4_add, +=)

/* ---- signs, with the mean magnitude as their scale ----------------------------------------- */

/* Add x to the residual, if there is one; return the mean magnitude, or NaN. */
static inline float CC_K(mean_magnitude)(const float *restrict x, float *restrict residual,
                                         size_t n)
{
    float sums[CC_SUMS] = {0};
    const float *const e = residual == NULL ? x : residual;
    double total = 0.0;
    size_t i = 0;
#if CC_WIDTH > 1
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 lower = _mm256_setzero_ps(), upper = _mm256_setzero_ps();
    for (; i + CC_SUMS <= n; i += CC_SUMS) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        if (residual != NULL) {
            a = _mm256_add_ps(_mm256_loadu_ps(residual + i), a);
            b = _mm256_add_ps(_mm256_loadu_ps(residual + i + 8), b);
            _mm256_storeu_ps(residual + i, a);
            _mm256_storeu_ps(residual + i + 8, b);
        }
        lower = _mm256_add_ps(lower, _mm256_and_ps(a, magnitude));
        upper = _mm256_add_ps(upper, _mm256_and_ps(b, magnitude));
    }
    _mm256_storeu_ps(sums, lower);
    _mm256_storeu_ps(sums + 8, upper);
#else
    for (; i + CC_SUMS <= n; i += CC_SUMS) {
        for (size_t j = i; residual != NULL && j < i + CC_SUMS; ++j)
            residual[j] += x[j];
        for (size_t j = 0; j < CC_SUMS; ++j)
            sums[j] += cc_magnitude_of_float(e[i + j]);
    }
#endif
    for (; i < n; ++i) {
        if (residual != NULL)
            residual[i] += x[i];
        sums[i % CC_SUMS] += cc_magnitude_of_float(e[i]);
    }
    for (size_t j = 0; j < CC_SUMS; ++j)
        total += sums[j];
    if (!(total < 0x1p1000)) { /* an infinity, a NaN, or a lane past the largest float32 */
        if (CC_K(most_bits)(e, n) >= 0x7f800000u)
            return (float)CC_NAN;
        total = 0.0;
        for (i = 0; i < n; ++i)
            total += cc_magnitude_of_float(e[i]);
    }
    return (float)(total / (double)n);
}

static CC_NOINLINE void CC_K(put_signs)(unsigned char *restrict to, const float *restrict e,
                                        size_t n)
{
    const size_t width = cc_codes(n, CC_PLANES_1);
    if (n == CC_PLANES_1 * width) {
        for (size_t j = 0; j < width; ++j) {
            uint32_t byte = cc_bits_of_float(e[j]) >> 31;
            for (int b = 1; b < CC_PLANES_1; ++b)
                byte |= (cc_bits_of_float(e[(size_t)b * width + j]) >> 31) << b;
            to[j] = (unsigned char)byte;
        }
        return;
    }
    memset(to, 0, width);
    for (size_t i = 0; i < n; ++i)
        to[i % width] |= (unsigned char)((cc_bits_of_float(e[i]) >> 31) << (i / width));
}

#define CC_SIGNS(name, ASSIGN)                                                                     \
    static CC_NOINLINE void CC_K(name)(float *restrict d, const unsigned char *restrict c,         \
                                       size_t n, float scale)                                      \
    {                                                                                              \
        const size_t width = cc_codes(n, CC_PLANES_1);                                             \
        const uint32_t bits = cc_bits_of_float(scale);                                             \
        for (size_t b = 0, start = 0; start < n; ++b, start += width) {                            \
            const size_t count = n - start < width ? n - start : width;                            \
            float *restrict const e = d + start;                                                   \
            for (size_t j = 0; j < count; ++j)                                                     \
                e[j] ASSIGN cc_float_of_bits(bits ^ ((uint32_t)c[j] >> b & 1u) << 31);             \
        }                                                                                          \
    }
CC_SIGNS(decode1_put, =)
CC_SIGNS(decode1_add, +=)

static void CC_K(encode1)(unsigned char *to, const float *x, float *residual, size_t n,
                          size_t block, uint64_t seed, uint64_t first)
{
    unsigned char *codes = to + (n + block - 1) / block * sizeof(float);
    (void)seed;
    (void)first;
    for (size_t k = 0, done = 0; done < n; ++k) {
        const size_t count = n - done < block ? n - done : block;
        float *const lost = residual == NULL ? NULL : residual + done;
        const float scale = CC_K(mean_magnitude)(x + done, lost, count);
        cc_put_scale(to, k, scale);
        if (scale == scale) {
            CC_K(put_signs)(codes, lost == NULL ? x + done : lost, count);
            for (size_t j = 0; lost != NULL && j < count; ++j)
                lost[j] -= cc_float_of_bits(cc_bits_of_float(scale)
                                            | (cc_bits_of_float(lost[j]) & 0x80000000u));
        } else { /* the residual must not keep a NaN for all later calls */
            memset(codes, 0, cc_codes(count, CC_PLANES_1));
            if (lost != NULL)
                memset(lost, 0, count * sizeof *lost);
        }
        codes += cc_codes(count, CC_PLANES_1);
        done += count;
    }
}

/* ---- decoding, block by block -------------------------------------------------------------- */

#define CC_DECODE(name, planes)                                                                    \
    static void CC_K(name)(float *dst, const unsigned char *from, size_t n, size_t block, int add) \
    {                                                                                              \
        const unsigned char *codes = from + (n + block - 1) / block * sizeof(float);               \
        for (size_t k = 0, done = 0; done < n; ++k) {                                              \
            const size_t count = n - done < block ? n - done : block;                              \
            (add ? CC_K(name##_add) : CC_K(name##_put))(dst + done, codes, count,                  \
                                                        cc_get_scale(from, k));                    \
            codes += cc_codes(count, planes);                                                      \
            done += count;                                                                         \
        }                                                                                          \
    }
CC_DECODE(decode8, CC_PLANES_8)
CC_DECODE(decode4, CC_PLANES_4)
CC_DECODE(decode1, CC_PLANES_1)

/* ---- float16 and bfloat16 ------------------------------------------------------------------- */

static void CC_K(to_bf16)(void *dst, const void *src, size_t n)
{
    cc_any_uint16_t *const d = (cc_any_uint16_t *)dst;
    const cc_any_float *const s = (const cc_any_float *)src;
    CC_NO_OVERLAP
    for (size_t i = 0; i < n; ++i)
        d[i] = cc_bf16_round(cc_number_float(s[i]));
}

static void CC_K(of_bf16)(void *dst, const void *src, size_t n)
{
    cc_any_float *const d = (cc_any_float *)dst;
    const cc_any_uint16_t *const s = (const cc_any_uint16_t *)src;
    CC_NO_OVERLAP
    for (size_t i = 0; i < n; ++i)
        d[i] = cc_bf16_load(s[i]);
}

static void CC_K(to_f16)(void *dst, const void *src, size_t n)
{
    cc_any_uint16_t *const d = (cc_any_uint16_t *)dst;
    const cc_any_float *const s = (const cc_any_float *)src;
    size_t i = 0;
#if CC_WIDTH > 1 /* AVX2 and AVX-512 alike: memory is the limit */
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps((const float *)(const void *)(s + i));
        const __m256 v_or_nan = _mm256_blendv_ps(v, _mm256_set1_ps((float)CC_NAN),
                                                 _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(void *)(d + i),
                         _mm256_cvtps_ph(v_or_nan, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < n; ++i)
        d[i] = cc_f16_round(cc_number_float(s[i]));
}

static void CC_K(of_f16)(void *dst, const void *src, size_t n)
{
    cc_any_float *const d = (cc_any_float *)dst;
    const cc_any_uint16_t *const s = (const cc_any_uint16_t *)src;
    size_t i = 0;
#if CC_WIDTH > 1
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps((float *)(void *)(d + i),
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(s + i))));
#endif
    for (; i < n; ++i)
        d[i] = cc_f16_load(s[i]);
}

/* ---- low rank ------------------------------------------------------------------------------- */

static double CC_K(dot)(const float *restrict a, const float *restrict b, size_t n)
{
    double sums[CC_SUMS] = {0}, total = 0.0;
    size_t i = 0;
    for (; i + CC_SUMS <= n; i += CC_SUMS)
        for (size_t j = 0; j < CC_SUMS; ++j)
            sums[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; ++i)
        sums[i % CC_SUMS] += (double)a[i] * (double)b[i];
    for (size_t j = 0; j < CC_SUMS; ++j)
        total += sums[j];
    return total;
}

/* Gram-Schmidt on `rank` rows of n elements, twice for each, which is enough for them to be
   orthogonal to rounding (L. Giraud, J. Langou, M. Rozloznik: "The loss of orthogonality in the
   Gram-Schmidt orthogonalization process", 2005, doi:10.1016/j.camwa.2005.08.009).  A row that
   depends on those before it becomes zero.  Return the number of rows that did not. */
static size_t CC_K(orthonormalise)(float *rows, size_t rank, size_t n)
{
    size_t kept = 0;
    for (size_t r = 0; r < rank; ++r) {
        float *restrict const row = rows + r * n;
        const double before = CC_K(dot)(row, row, n);
        for (int twice = 0; twice < 2; ++twice) {
            for (size_t s = 0; s < r; ++s) {
                const float *restrict const other = rows + s * n;
                const double along = CC_K(dot)(row, other, n);
                for (size_t i = 0; i < n; ++i)
                    row[i] = (float)(row[i] - along * other[i]);
            }
        }
        const double after = CC_K(dot)(row, row, n);
        /* The rest of the row is rounding error, below 1e-5 of its length; or it has a NaN. */
        const double factor = after > 1e-10 * before ? 1.0 / __builtin_sqrt(after) : 0.0;
        if (before != before || before > 0x1p1000) {
            for (size_t i = 0; i < n; ++i)
                row[i] = (float)CC_NAN;
            continue;
        }
        for (size_t i = 0; i < n; ++i)
            row[i] = (float)(row[i] * factor);
        kept += factor > 0.0;
    }
    return kept;
}

/* dst[i][j] = the sum over r of left[r][i] * right[r][j]; or subtract the sum from dst[i][j]. */
static void CC_K(low_rank)(float *restrict dst, const float *restrict left,
                           const float *restrict right, size_t rank, size_t n, size_t m,
                           int subtract)
{
    const float sign = subtract ? -1.0f : 1.0f;
    for (size_t i = 0; i < n; ++i) {
        float *restrict const row = dst + i * m;
        if (!subtract)
            memset(row, 0, m * sizeof *row);
        for (size_t r = 0; r < rank; ++r) {
            const float a = sign * left[r * n + i];
            const float *restrict const other = right + r * m;
            for (size_t j = 0; j < m; ++j)
                row[j] += a * other[j];
        }
    }
}

static const cc_codecs CC_K(codecs) = {
    .encode = {CC_K(encode8), CC_K(encode4), CC_K(encode1)},
    .decode = {CC_K(decode8), CC_K(decode4), CC_K(decode1)},
    .to_half = {CC_K(to_f16), CC_K(to_bf16)},
    .of_half = {CC_K(of_f16), CC_K(of_bf16)},
    .orthonormalise = CC_K(orthonormalise),
    .low_rank = CC_K(low_rank),
};
