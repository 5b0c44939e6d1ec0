/* The copies of each instruction set.
 *
 * Stores go to whole lines. Four registers are loaded before they are stored, so that 64, 128 or 256
 * bytes are on their way at a time.
 */
#include "copies.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__x86_64__)
#define CC_COPY(name, features, vector, LOAD, PUT)                                                 \
    __attribute__((target(features))) static void name(void *dst, const void *src, size_t n)       \
    {                                                                                              \
        enum { LINE = 64, WIDTH = sizeof(vector) };                                                \
        char *d = (char *)dst;                                                                     \
        const char *s = (const char *)src;                                                         \
        const size_t to_line = -(uintptr_t)d % LINE, head = to_line < n ? to_line : n;             \
        memcpy(d, s, head);                                                                        \
        d += head, s += head, n -= head;                                                           \
        for (; n >= 4 * WIDTH; d += 4 * WIDTH, s += 4 * WIDTH, n -= 4 * WIDTH) {                   \
            const vector a = LOAD((const vector *)s), b = LOAD((const vector *)(s + WIDTH));       \
            const vector e = LOAD((const vector *)(s + 2 * WIDTH));                                \
            const vector f = LOAD((const vector *)(s + 3 * WIDTH));                                \
            PUT((vector *)d, a);                                                                   \
            PUT((vector *)(d + WIDTH), b);                                                         \
            PUT((vector *)(d + 2 * WIDTH), e);                                                     \
            PUT((vector *)(d + 3 * WIDTH), f);                                                     \
        }                                                                                          \
        for (; n >= LINE; d += LINE, s += LINE, n -= LINE)                                         \
            for (size_t at = 0; at < LINE; at += WIDTH)                                            \
                PUT((vector *)(d + at), LOAD((const vector *)(s + at)));                           \
        memcpy(d, s, n);                                                                           \
    }
#define CC_COPIES(isa, features, vector, LOAD, STORE, STREAM)                                      \
    CC_COPY(cc_copy_##isa, features, vector, LOAD, STORE)                                          \
    CC_COPY(cc_stream_##isa, features, vector, LOAD, STREAM)                                       \
    const cc_copies cc_copies_##isa = {cc_copy_##isa, cc_stream_##isa};

CC_COPIES(portable, "sse2", __m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128)
CC_COPIES(avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256)
CC_COPIES(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_store_si512, _mm512_stream_si512)
#else
static void cc_copy_portable(void *dst, const void *src, size_t n) { memcpy(dst, src, n); }
const cc_copies cc_copies_portable = {cc_copy_portable, cc_copy_portable};
#endif
