/*
 * float16 and bfloat16, one at a time: to float32, and back rounded to nearest even.
 *
 * These are branch-free, so that a loop over them vectorises on any instruction set.  The wider
 * kernels use instructions, which must agree with these functions bit by bit: a float16 NaN becomes
 * quiet and keeps its sign and the upper bits of its payload, as with F16C and NEON.
 */
#ifndef CC_KERNELS_HALF_H
#define CC_KERNELS_HALF_H

#include <stdint.h>

#include "floats.h"

/* condition ? yes : no, where the compiler would branch around a float operation */
static inline uint32_t cc_choose(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float cc_bf16_load(uint16_t half)
{
    return cc_float_of_bits((uint32_t)half << 16);
}

/* Needs no test for NaN: the lower half of CC_NAN is zero, so nothing carries. */
static inline uint16_t cc_bf16_round(float value)
{
    const uint32_t u = cc_bits_of_float(value);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#if defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)

/* Every ARMv8 converts float16 by instruction; __fp16 is the type for storage alone. */
static inline float cc_f16_load(uint16_t half)
{
    union { uint16_t u; __fp16 h; } x = {.u = half};
    return (float)x.h;
}

static inline uint16_t cc_f16_round(float value)
{
    union { __fp16 h; uint16_t u; } x = {.h = (__fp16)value};
    return x.u;
}

#else

/* After F. Giesen, "Float->half variants" (2012), https://gist.github.com/rygorous/2156668:
   subnormals are left to one float addition, which aligns or rounds them in hardware.  The
   additions see float32 normals only, so flush-to-zero modes make no difference. */
static inline float cc_f16_load(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t shifted = (uint32_t)(half & 0x7fffu) << 13;
    const uint32_t exponent = shifted & 0x0f800000u;
    const uint32_t normal = shifted + (112u << 23); /* 112 = 127 - 15, the biases */
    const uint32_t quiet = cc_choose((shifted & 0x007fffffu) != 0, 0x00400000u, 0u);
    const uint32_t special = (normal + (112u << 23)) | quiet;
    const uint32_t subnormal =
        cc_bits_of_float(cc_float_of_bits(normal + (1u << 23)) - cc_float_of_bits(113u << 23));
    const uint32_t finite = cc_choose(exponent == 0u, subnormal, normal);
    const uint32_t magnitude = cc_choose(exponent == 0x0f800000u, special, finite);
    return cc_float_of_bits(magnitude | sign);
}

static inline uint16_t cc_f16_round(float value)
{
    const uint32_t u = cc_bits_of_float(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t m = u & 0x7fffffffu;
    const uint32_t half_ulp = 126u << 23; /* 0.5: its last bit is worth float16's smallest, 2^-24 */
    const uint32_t subnormal =
        cc_bits_of_float(cc_float_of_bits(m) + cc_float_of_bits(half_ulp)) - half_ulp;
    const uint32_t normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
    const uint32_t quiet_nan = 0x7e00u | ((m >> 13) & 0x3ffu);
    const uint32_t finite = cc_choose(m < (113u << 23), subnormal, normal);
    const uint32_t special = cc_choose(m > 0x7f800000u, quiet_nan, 0x7c00u);
    return (uint16_t)(cc_choose(m >= (143u << 23), special, finite) | sign); /* from 2^16: inf */
}

#endif
#endif
