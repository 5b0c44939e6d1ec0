/*
 * The kernels: one set of loops (loops.h) for each instruction set, and the choice among the sets.
 *
 * Compile with -O3 (the loops are written for the vectoriser) and without -march: where a set may
 * use fused multiply-add, gcc 12 fuses the complex product whatever -ffp-contract says.
 */
#include "kernels.h"
#include "half.h"
#include "long_double.h"

/* ---- names of compilers -------------------------------------------------------------------- */

#define CC_NOINLINE __attribute__((noinline))
#define CC_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define CC_NO_OVERLAP CC_PRAGMA(clang loop vectorize(assume_safety))
#else
/* Without ivdep, dst == left fails the run-time alias check and takes the scalar loop. */
#define CC_NO_OVERLAP CC_PRAGMA(GCC ivdep) CC_PRAGMA(GCC unroll 4)
#endif

/* Buffers may have been written with another type. */
#define CC_ANY(type) typedef type cc_any_##type __attribute__((may_alias))
CC_ANY(uint8_t); CC_ANY(uint16_t); CC_ANY(uint32_t); CC_ANY(uint64_t);
CC_ANY(int8_t); CC_ANY(int16_t); CC_ANY(int32_t); CC_ANY(int64_t);
CC_ANY(float); CC_ANY(double);

/* ---- stores on cache lines ------------------------------------------------------------------ */

/* Summing 256 KiB of float32 in place, 16 bytes off a line, in a loop of C: 91 GB/s as it comes,
   111 GB/s with the stores aligned, 129 GB/s unrolled as well (AMD EPYC family 26, AVX-512,
   gcc 12.2, November 2026).  The 16 lines are a guess: short arrays are not worth a second call. */
static inline void cc_fold_aligned(cc_fold_fn run, size_t size, void *dst, const void *left,
                                   const void *right, size_t n)
{
    const size_t line = 64, bytes_to_line = -(uintptr_t)dst % line;
    const size_t head = bytes_to_line % size ? 0 : bytes_to_line, count = head / size;
    if (head && n * size >= 16 * line) {
        run(dst, left, right, count);
        run((char *)dst + head, (const char *)left + head, (const char *)right + head, n - count);
    } else {
        run(dst, left, right, n);
    }
}

/* From these bytes on, 512-bit loops are slower than 256-bit ones: 0.96 to 0.98 against 1.00 to
   1.02 of numpy.add at 16 and 64 MiB of float32 and float64 (AMD EPYC family 26, November 2026).
   At 4 MiB they are faster. */
#define CC_FAR_BYTES ((size_t)8 << 20)

/* ---- long double, for all sets ---------------------------------------------------------------- */

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

/* ---- one set of kernels per instruction set ------------------------------------------------ */

/* AVX-512 and NEON have fused multiply-add, but the complex product must round as without it. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define CC_BEGIN_TARGET(features)                                                                  \
    CC_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define CC_END_TARGET CC_PRAGMA(clang attribute pop)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#define CC_BEGIN_TARGET(features) CC_PRAGMA(GCC push_options) CC_PRAGMA(GCC target(features))
#define CC_END_TARGET CC_PRAGMA(GCC pop_options)
#endif

#define CC_ISA portable
#define CC_FAR_ISA portable
#define CC_WIDTH 1
#include "loops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

CC_BEGIN_TARGET("avx2,f16c")
#define CC_ISA avx2
#define CC_FAR_ISA avx2
#define CC_WIDTH 16
#include "loops.h"
CC_END_TARGET

CC_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#define CC_ISA avx512
#define CC_FAR_ISA avx2
#define CC_WIDTH 32
#include "loops.h"
CC_END_TARGET
#endif

#if !defined(__clang__)
#pragma GCC pop_options
#endif

/* ---- the choice ---------------------------------------------------------------------------- */

static int cc_cpu_has_any(void) { return 1; }

#if defined(__x86_64__)
/* Return 1 if the processor has all of some features, and the system saves their registers. It asks
   cpuid, as __builtin_cpu_supports finds nothing where zig's clang has linked its own library. */
static int cc_cpu_has(unsigned features, unsigned registers) /* bits of leaf 7's EBX, and of XCR0 */
{
    const unsigned basic = bit_OSXSAVE | bit_AVX | bit_F16C;
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & basic) != basic)
        return 0;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    if ((eax & registers) != registers)
        return 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & features) == features;
}

static int cc_cpu_has_avx2(void) { return cc_cpu_has(bit_AVX2, 0x06); }

static int cc_cpu_has_avx512(void)
{
    return cc_cpu_has(bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL, 0xe6);
}
#endif

#define CC_SET(isa, available)                                                                     \
    {#isa, available, cc_folds_##isa, cc_scales_##isa, &cc_codecs_##isa, &cc_exacts_##isa, &cc_copies_##isa}
static const struct cc_kernels cc_kernels_all[] = { /* best first */
#if defined(__x86_64__)
    CC_SET(avx512, cc_cpu_has_avx512),
    CC_SET(avx2, cc_cpu_has_avx2),
#endif
    CC_SET(portable, cc_cpu_has_any),
};
enum { CC_NKERNELS = sizeof cc_kernels_all / sizeof *cc_kernels_all };

const struct cc_kernels *cc_kernels_now = &cc_kernels_all[CC_NKERNELS - 1];

int cc_kernels_init(const char *isa)
{
    for (int i = 0; i < CC_NKERNELS; ++i) {
        const struct cc_kernels *const k = &cc_kernels_all[i];
        if ((isa == NULL || strcmp(isa, k->isa) == 0) && k->available()) {
            cc_kernels_now = k;
            return 0;
        }
    }
    return -1;
}
