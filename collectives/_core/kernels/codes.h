/*
 * Codes of compressed elements: their layout, their random numbers and their steps, one at a time.
 *
 * n elements become ceil(n / block) scales (float32), then the codes of one block after the other.
 * A block of L elements has `planes` codes in a byte (1, 2 or 8).  It is cut into as many planes of
 * W = ceil(L / planes) elements, and byte j has the codes of the elements j, W + j, 2 W + j, ...: so
 * every loop reads and writes contiguous memory.
 *
 * A block with an infinity or a NaN gets the scale NaN, and is decoded as NaN throughout.
 */
#ifndef CC_KERNELS_CODES_H
#define CC_KERNELS_CODES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "floats.h"

enum { CC_PLANES_8 = 1, CC_PLANES_4 = 2, CC_PLANES_1 = 8, CC_SUMS = 16 };

/* Bits below the step: a value is rounded to a multiple of step / 2^15 before it is rounded at
   random.  So 127 steps are less than 2^22, and CC_MAGIC rounds them by an addition. */
#define CC_FRACTION 15
#define CC_MAGIC 12582912.0f /* 1.5 * 2^23: the last bit of a sum with it is worth 1 */
#define CC_BIAS 0x9680 /* the bits of CC_MAGIC, without CC_FRACTION of them */
#define CC_SMALLEST 0x1p-112f /* a step, so that 2^15 / step is finite */

static inline size_t cc_codes(size_t n, size_t planes) { return (n + planes - 1) / planes; }

/* The bytes of n encoded elements. */
static inline size_t cc_encoded_bytes(size_t n, size_t block, size_t planes)
{
    return (n + block - 1) / block * sizeof(float) + n / block * cc_codes(block, planes)
         + cc_codes(n % block, planes);
}

/* splitmix64: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014, doi:10.1145/2660193.2660195. */
static inline uint64_t cc_random_word(uint64_t seed, uint64_t number)
{
    uint64_t z = seed + (number + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Two random numbers of 15 bits for a pair of elements, from bit 0 and from bit 17 on. The seed of the
   block is (low, high), 64 bits of splitmix64 for its number. So each random number by itself is
   uniform for any `j`, and one round of a multiplicative hash decorrelates those of one block. */
#define CC_WEYL 0x9e3779b9u
#define CC_MIX 0x7feb352du
static inline uint32_t cc_random_bits(uint32_t j, uint32_t low, uint32_t high)
{
    const uint32_t h = j * CC_WEYL + low;
    return (h ^ (h >> 15)) * CC_MIX ^ high;
}

static inline void cc_put_scale(unsigned char *scales, size_t i, float scale)
{
    memcpy(scales + i * sizeof scale, &scale, sizeof scale);
}

static inline float cc_get_scale(const unsigned char *scales, size_t i)
{
    float scale;
    memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    return scale;
}

/* x in units of step / 2^15 (by `inverse`), rounded to even; then, after adding a random number below
   2^15, rounded down to steps. The average over all such numbers has no error. */
static inline int32_t cc_dithered(float x, float inverse, uint32_t random)
{
    const uint32_t fixed = cc_bits_of_float(x * inverse + CC_MAGIC) - cc_bits_of_float(CC_MAGIC);
    return (int32_t)(fixed + (random & 0x7fffu)) >> CC_FRACTION;
}

/* The step of a block whose largest magnitude has the bits `most`, and 2^15 / step, reduced by the
   error of three roundings, so that no value has more than `levels` steps. */
static inline float cc_step(uint32_t most, float levels, float *inverse)
{
    const float largest = cc_float_of_bits(most), step = largest / levels;
    *inverse = 0.0f;
    if (most >= 0x7f800000u)
        return (float)CC_NAN;
    if (most == 0)
        return 0.0f;
    if (step < CC_SMALLEST) {
        *inverse = (1 << CC_FRACTION) / CC_SMALLEST;
        return CC_SMALLEST;
    }
    *inverse = levels * (1 << CC_FRACTION) / largest * (1.0f - 0x1p-22f);
    /* A step that was rounded up might decode to infinity. */
    return largest > 0x1p127f ? step * (1.0f - 0x1p-23f) : step;
}

static inline float cc_magnitude_of_float(float x)
{
    return cc_float_of_bits(cc_bits_of_float(x) & 0x7fffffffu);
}

#endif
