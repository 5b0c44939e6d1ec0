/*
 * Reduction kernels: dst[i] = left[i] op right[i], and dst[i] = src[i] * factor.
 *
 * One set of loops (loops.h) is compiled for each instruction set; cc_kernels_init picks
 * a set at run time, and its table gives the kernel of an (operation, dtype).  All sets give the
 * same bits, and so does exchanging left and right, of NaNs and zeros too (floats.h).
 *
 * Integers wrap.  float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
 * Logical results are 0 or 1; a bool is any byte, true unless 0, and folded as C has it: its sum and
 * its maximum are lor, its product and its minimum are land.
 *
 * Compile with -O3 (the loops are written for the vectoriser) and without -march: where a set may
 * use fused multiply-add, gcc 12 fuses the complex product whatever -ffp-contract says.
 */
#ifndef CC_KERNELS_H
#define CC_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "codes.h"
#include "copies.h"
#include "half.h"
#include "long_double.h"
#include "words.h"

/* The order is mirrored in kernels/headers.pxi, and in collectives/arrays/buffers.py (DTYPES). */
enum {
    CC_BOOL = 0,
    CC_INT8, CC_INT16, CC_INT32, CC_INT64,
    CC_UINT8, CC_UINT16, CC_UINT32, CC_UINT64,
    CC_FLOAT16, CC_BFLOAT16, CC_FLOAT32, CC_FLOAT64, CC_FLOAT128, /* long double */
    CC_COMPLEX64, CC_COMPLEX128,
    CC_NDTYPES
};
enum {
    CC_SUM = 0, CC_PROD, CC_MIN, CC_MAX,
    CC_LAND, CC_LOR, CC_LXOR,
    CC_BAND, CC_BOR, CC_BXOR,
    CC_NOPS
};

/* dst may be exactly left or exactly right (or src); no other overlap.  No alignment is needed
   but that of the dtype. */
typedef void (*cc_fold_fn)(void *dst, const void *left, const void *right, size_t n);
typedef void (*cc_scale_fn)(void *dst, const void *src, long double factor, size_t n);

/* The compressing kernels (quantise.h).  `first` is the number of the first block, for random numbers;
   `residual`, if there is one, is added to x, and gets the error of the codes. */
enum { CC_CODE8 = 0, CC_CODE4, CC_CODE1, CC_NCODES };
typedef void (*cc_encode_fn)(unsigned char *to, const float *x, float *residual, size_t n,
                             size_t block, uint64_t seed, uint64_t first);
typedef void (*cc_decode_fn)(float *dst, const unsigned char *from, size_t n, size_t block,
                             int add);
typedef void (*cc_convert_fn)(void *dst, const void *src, size_t n);
typedef struct {
    cc_encode_fn encode[CC_NCODES];
    cc_decode_fn decode[CC_NCODES];
    cc_convert_fn to_half[2], of_half[2]; /* float16, bfloat16 */
    size_t (*orthonormalise)(float *rows, size_t rank, size_t n);
    void (*low_rank)(float *dst, const float *left, const float *right, size_t rank, size_t n,
                     size_t m, int subtract);
} cc_codecs;

/* Exact sums (exact.h, words.h), by the kind of float. */
typedef void (*cc_rows_fn)(void *dst, const void *x, size_t stride, size_t rows, size_t n);
typedef struct {
    cc_rows_fn rows[CC_NEXACT];
    void (*columns[CC_NEXACT])(int64_t *words, const void *x, size_t stride, size_t rows, size_t n);
    void (*total[CC_NEXACT])(int64_t *words, const void *x, size_t n, int parts);
} cc_exacts;

/* ---- names of compilers -------------------------------------------------------------------- */

#define CC_UNUSED __attribute__((unused))
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

struct cc_kernels {
    const char *isa;
    int (*available)(void);
    const cc_fold_fn (*folds)[CC_NDTYPES];
    const cc_scale_fn *scales;
    const cc_codecs *codecs;
    const cc_exacts *exacts;
    const cc_copies *copies;
};

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

static const struct cc_kernels *cc_kernels_now = &cc_kernels_all[CC_NKERNELS - 1];

/* Choose the named set of kernels, or for NULL the best that the CPU has.
   Return 0, or -1 (and change nothing) if the name is unknown or the CPU lacks the set. */
CC_UNUSED static int cc_kernels_init(const char *isa)
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

CC_UNUSED static const char *cc_kernels_isa(void) { return cc_kernels_now->isa; }

/* Return a kernel, or NULL if the operation is not supported on the dtype, or does not exist. */
CC_UNUSED static cc_fold_fn cc_fold_kernel(int op, int dtype)
{
    if (op < 0 || op >= CC_NOPS || dtype < 0 || dtype >= CC_NDTYPES)
        return NULL;
    return cc_kernels_now->folds[op][dtype];
}

CC_UNUSED static cc_scale_fn cc_scale_kernel(int dtype)
{
    if (dtype < 0 || dtype >= CC_NDTYPES)
        return NULL;
    return cc_kernels_now->scales[dtype];
}

CC_UNUSED static const cc_codecs *cc_codecs_now(void) { return cc_kernels_now->codecs; }
CC_UNUSED static const cc_exacts *cc_exacts_now(void) { return cc_kernels_now->exacts; }
CC_UNUSED static const cc_copies *cc_copies_now(void) { return cc_kernels_now->copies; }

#endif
