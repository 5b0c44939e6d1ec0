/*
 * CC_WIDTH float16 or bfloat16 at a time: get (to float32), an operation, put (rounded to even).
 *
 * A template, part of loops.h.  The vectors are pairs.  For bfloat16 these are the even
 * and the odd elements, which a 32-bit word holds in its lower and its upper half: a shift and a
 * mask take it apart and one blend puts it together, where widening would cross lanes.  For
 * float16 they are just the first and the second half.
 *
 * vcvtneps2bf16 is not used: it flushes subnormals.
 */

#if CC_WIDTH == 1

#define CC_LANE_LOOP CC_NO_OVERLAP
#define CC_ON_LANES(op, a, b) CC_K(op)(a, b)

typedef float CC_K(lanes);

static inline float CC_K(lanes_of)(float x) { return x; }
static inline float CC_K(f16_get)(const cc_any_uint16_t *p) { return cc_f16_load(*p); }
static inline float CC_K(bf16_get)(const cc_any_uint16_t *p) { return cc_bf16_load(*p); }
static inline void CC_K(f16_put)(cc_any_uint16_t *p, float v) { *p = cc_f16_round(v); }
static inline void CC_K(bf16_put)(cc_any_uint16_t *p, float v) { *p = cc_bf16_round(v); }
static inline float CC_K(sum)(float a, float b) { return cc_number_float(a + b); }
static inline float CC_K(prod)(float a, float b) { return cc_number_float(a * b); }
static inline float CC_K(min)(float a, float b) { return cc_min_float(a, b); }
static inline float CC_K(max)(float a, float b) { return cc_max_float(a, b); }

#else

#define CC_LANE_LOOP
#define CC_ON_LANES(op, a, b) ((CC_K(lanes)){CC_K(op)(a.even, b.even), CC_K(op)(a.odd, b.odd)})

#if CC_WIDTH == 16 /* AVX2, F16C */

typedef struct { __m256 even, odd; } CC_K(lanes);

static inline CC_K(lanes) CC_K(lanes_of)(float x)
{
    return (CC_K(lanes)){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline CC_K(lanes) CC_K(f16_get)(const cc_any_uint16_t *p)
{
    const __m128i *const h = (const __m128i *)(const void *)p;
    return (CC_K(lanes)){_mm256_cvtph_ps(_mm_loadu_si128(h)),
                         _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

static inline void CC_K(f16_put)(cc_any_uint16_t *p, CC_K(lanes) v)
{
    __m128i *const h = (__m128i *)(void *)p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(v.even, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(v.odd, _MM_FROUND_TO_NEAREST_INT));
}

static inline CC_K(lanes) CC_K(bf16_get)(const cc_any_uint16_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i odd = _mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000u));
    return (CC_K(lanes)){_mm256_castsi256_ps(_mm256_slli_epi32(h, 16)), _mm256_castsi256_ps(odd)};
}

/* cc_bf16_round, before its shift */
static inline __m256i CC_K(bf16_round)(__m256 v)
{
    const __m256i u = _mm256_castps_si256(v);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i to_even = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
    return _mm256_add_epi32(u, to_even);
}

static inline void CC_K(bf16_put)(cc_any_uint16_t *p, CC_K(lanes) v)
{
    const __m256i even = _mm256_srli_epi32(CC_K(bf16_round)(v.even), 16);
    const __m256i both = _mm256_blend_epi16(even, CC_K(bf16_round)(v.odd), 0xaa);
    _mm256_storeu_si256((__m256i *)(void *)p, both);
}

/* floats.h, for eight at a time */
static inline __m256 CC_K(number)(__m256 v, __m256 is_nan)
{
    return _mm256_blendv_ps(v, _mm256_set1_ps((float)CC_NAN), is_nan);
}

static inline __m256 CC_K(sum)(__m256 a, __m256 b)
{
    const __m256 v = _mm256_add_ps(a, b);
    return CC_K(number)(v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static inline __m256 CC_K(prod)(__m256 a, __m256 b)
{
    const __m256 v = _mm256_mul_ps(a, b);
    return CC_K(number)(v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static inline __m256 CC_K(min)(__m256 a, __m256 b)
{
    const __m256 v = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
    return CC_K(number)(v, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

static inline __m256 CC_K(max)(__m256 a, __m256 b)
{
    const __m256 v = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
    return CC_K(number)(v, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

#elif CC_WIDTH == 32 /* AVX-512 */

typedef struct { __m512 even, odd; } CC_K(lanes);

static inline CC_K(lanes) CC_K(lanes_of)(float x)
{
    return (CC_K(lanes)){_mm512_set1_ps(x), _mm512_set1_ps(x)};
}

static inline CC_K(lanes) CC_K(f16_get)(const cc_any_uint16_t *p)
{
    const __m256i *const h = (const __m256i *)(const void *)p;
    return (CC_K(lanes)){_mm512_cvtph_ps(_mm256_loadu_si256(h)),
                         _mm512_cvtph_ps(_mm256_loadu_si256(h + 1))};
}

static inline void CC_K(f16_put)(cc_any_uint16_t *p, CC_K(lanes) v)
{
    __m256i *const h = (__m256i *)(void *)p;
    _mm256_storeu_si256(h, _mm512_cvtps_ph(v.even, _MM_FROUND_TO_NEAREST_INT));
    _mm256_storeu_si256(h + 1, _mm512_cvtps_ph(v.odd, _MM_FROUND_TO_NEAREST_INT));
}

static inline CC_K(lanes) CC_K(bf16_get)(const cc_any_uint16_t *p)
{
    const __m512i h = _mm512_loadu_si512(p);
    const __m512i odd = _mm512_and_si512(h, _mm512_set1_epi32((int)0xffff0000u));
    return (CC_K(lanes)){_mm512_castsi512_ps(_mm512_slli_epi32(h, 16)), _mm512_castsi512_ps(odd)};
}

/* cc_bf16_round, before its shift */
static inline __m512i CC_K(bf16_round)(__m512 v)
{
    const __m512i u = _mm512_castps_si512(v);
    const __mmask16 is_odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __m512i to_even = _mm512_mask_blend_epi32(is_odd, _mm512_set1_epi32(0x7fff),
                                                    _mm512_set1_epi32(0x8000));
    return _mm512_add_epi32(u, to_even);
}

static inline void CC_K(bf16_put)(cc_any_uint16_t *p, CC_K(lanes) v)
{
    const __m512i even = _mm512_srli_epi32(CC_K(bf16_round)(v.even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, even, CC_K(bf16_round)(v.odd)));
}

/* floats.h, for sixteen at a time */
static inline __m512 CC_K(number)(__m512 v, __mmask16 is_nan)
{
    return _mm512_mask_mov_ps(v, is_nan, _mm512_set1_ps((float)CC_NAN));
}

static inline __m512 CC_K(sum)(__m512 a, __m512 b)
{
    const __m512 v = _mm512_add_ps(a, b);
    return CC_K(number)(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q));
}

static inline __m512 CC_K(prod)(__m512 a, __m512 b)
{
    const __m512 v = _mm512_mul_ps(a, b);
    return CC_K(number)(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q));
}

static inline __m512 CC_K(min)(__m512 a, __m512 b)
{
    const __m512 v = _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
    return CC_K(number)(v, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q));
}

static inline __m512 CC_K(max)(__m512 a, __m512 b)
{
    const __m512 v = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
    return CC_K(number)(v, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q));
}

#endif
#endif
