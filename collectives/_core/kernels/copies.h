/* Copies of blocks, to the cache and past it, for each instruction set. */
#ifndef COLLECTIVES_COPIES_H
#define COLLECTIVES_COPIES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `dst` and `src` do not overlap, and need no alignment. */
typedef void (*cc_copy_fn)(void *dst, const void *src, size_t n);
typedef struct {
    cc_copy_fn copy, stream;
} cc_copies;

/* Each instruction set has its own (copies.c). */
extern const cc_copies cc_copies_portable;
#if defined(__x86_64__)
extern const cc_copies cc_copies_avx2, cc_copies_avx512;
#endif

/* Copy as the C library does, which knows the processor, and may use its string instruction. This
 * needs no line to be read before it is written, and is the fastest way on some processors; on AMD's
 * Zen 3 and 4, it is 16 times slower where `dst` begins 1 to 31 bytes after `src`, modulo 4096: 128 KiB
 * at 3.0 GB/s instead of 50 (EPYC of family 25, glibc 2.36, throw-away program, 2026-11-22). NumPy's
 * long arrays begin 16 bytes after a page, and payloads on pages. (glibc bug 30994.) The loop copies where
 * they begin in the same line. */
static inline void cc_copy_by_library(const cc_copies *copies, void *dst, const void *src, size_t n)
{
    const size_t after = ((uintptr_t)dst - (uintptr_t)src) % 4096;
    if (after - 1 < 63)
        copies->copy(dst, src, n);
    else
        memcpy(dst, src, n);
}

#endif
