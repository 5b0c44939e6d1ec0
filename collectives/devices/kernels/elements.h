/*
 * The elements of a fold: what they look like in memory, and what arithmetic sees of them.
 *
 * A float16 or bfloat16 is widened to float32, and the result is narrowed (rounded to nearest even).
 * Every NaN that arithmetic makes is numpy.nan: quiet, positive, without payload. The kernels of the
 * host have the same rules (_core/kernels/floats.h, half.h), and the tests compare the bits.
 *
 * Arithmetic on float32 is written as instructions. These keep subnormal numbers even where the compiler
 * was told to flush them to zero, as CuPy tells it. They round each result: a compiler contracts `*` and
 * `+` to a fused multiply-add, which rounds once instead of twice. __dmul_rn prevents this for float64.
 */
#ifndef FOLD_ELEMENTS_H
#define FOLD_ELEMENTS_H

namespace elements {

using int8 = signed char;
using int16 = short;
using int32 = int;
using int64 = long long;
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using float32 = float;
using float64 = double;

struct float16 {
    uint16 bits;
};

struct bfloat16 {
    uint16 bits;
};

/* Aligned to its parts only: an array of complex numbers may begin anywhere an array of parts may. */
template <class Part>
struct complex {
    Part re, im;
};
using complex64 = complex<float32>;
using complex128 = complex<float64>;

/* ---- bits ----------------------------------------------------------------------------------- */

__device__ inline uint32 bits_of(float32 x) { return __float_as_uint(x); }
__device__ inline uint64 bits_of(float64 x) { return (uint64)__double_as_longlong(x); }
__device__ inline float32 float_of(uint32 bits) { return __uint_as_float(bits); }
__device__ inline float64 float_of(uint64 bits) { return __longlong_as_double((int64)bits); }

/* The processor's NaN has other bits than NumPy's. */
__device__ inline float32 number(float32 x) { return float_of(x != x ? 0x7fc00000u : bits_of(x)); }
__device__ inline float64 number(float64 x) { return float_of(x != x ? 0x7ff8ull << 48 : bits_of(x)); }

/* ---- arithmetic on float32 ------------------------------------------------------------------ */

#ifdef __CUDA_ARCH__

#define FLOAT32_INSTRUCTION(name, instruction)                                                      \
    __device__ inline float32 name(float32 a, float32 b)                                            \
    {                                                                                               \
        float32 made;                                                                               \
        asm(instruction " %0, %1, %2;" : "=f"(made) : "f"(a), "f"(b));                              \
        return made;                                                                                \
    }
FLOAT32_INSTRUCTION(add, "add.rn.f32")
FLOAT32_INSTRUCTION(subtract, "sub.rn.f32")
FLOAT32_INSTRUCTION(multiply, "mul.rn.f32")

__device__ inline bool is_less(float32 a, float32 b)
{
    int32 is_true;
    asm("{ .reg .pred p; setp.lt.f32 p, %1, %2; selp.s32 %0, 1, 0, p; }"
        : "=r"(is_true)
        : "f"(a), "f"(b));
    return is_true;
}

__device__ inline float64 to_float64(float32 x)
{
    float64 wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}

__device__ inline float32 to_float32(float64 x)
{
    float32 narrow;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(x));
    return narrow;
}

#else

__device__ inline float32 add(float32 a, float32 b) { return a + b; }
__device__ inline float32 subtract(float32 a, float32 b) { return a - b; }
__device__ inline float32 multiply(float32 a, float32 b) { return a * b; }
__device__ inline bool is_less(float32 a, float32 b) { return a < b; }
__device__ inline float64 to_float64(float32 x) { return x; }
__device__ inline float32 to_float32(float64 x) { return (float32)x; }

#endif

__device__ inline float64 add(float64 a, float64 b) { return a + b; }
__device__ inline float64 subtract(float64 a, float64 b) { return a - b; }
__device__ inline float64 multiply(float64 a, float64 b) { return __dmul_rn(a, b); }
__device__ inline bool is_less(float64 a, float64 b) { return a < b; }

/* ---- halves --------------------------------------------------------------------------------- */

__device__ inline float32 widened(bfloat16 x) { return float_of((uint32)x.bits << 16); }

__device__ inline void narrow(float32 x, bfloat16 &half)
{
    const uint32 bits = bits_of(x), last = bits >> 16 & 1;
    half.bits = x != x ? 0x7fc0 : (uint16)((bits + 0x7fff + last) >> 16);
}

#ifdef __CUDA_ARCH__

/* One instruction each. They know subnormals, and round to nearest even. */
__device__ inline float32 widened(float16 x)
{
    float32 wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

__device__ inline uint16 rounded_to_half(float32 x)
{
    uint16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

#else

/* The same where there is no such instruction, by integer arithmetic. */
__device__ inline float32 widened(float16 x)
{
    const uint32 sign = (uint32)(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity, NaN */
        return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x400)
        return float_of(sign | ((magnitude << 13) + (112u << 23))); /* 112 = 127 - 15, the biases */
    return float_of(sign | bits_of((float32)magnitude * 0x1p-24f)); /* a multiple of the smallest */
}

__device__ inline uint16 rounded_to_half(float32 x)
{
    const uint32 sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
    if (magnitude >= 143u << 23) /* 2^16 and more; what rounds up to it carries into infinity below */
        return (uint16)(sign | 0x7c00);
    if (magnitude >= 113u << 23) /* 2^-14: the exponent loses 112, the significand 13 bits */
        return (uint16)(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
    /* The last bit of 0.5 is worth 2^-24, so the sum rounds to a multiple of it. */
    return (uint16)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
}

#endif

__device__ inline void narrow(float32 x, float16 &half)
{
    const uint16 rounded = rounded_to_half(x);
    half.bits = x != x ? 0x7e00 : rounded;
}

template <class Half>
__device__ inline Half narrowed(float32 x)
{
    Half half;
    narrow(x, half);
    return half;
}

/* ---- times a factor -------------------------------------------------------------------------- */

/* A float32 is scaled in float64; a half in float32, and the factor is a float32, too. */
template <class Element>
struct scaling {
    static const bool is_defined = false;
    __device__ static Element times(Element x, float64) { return x; }
};

template <>
struct scaling<float32> {
    static const bool is_defined = true;
    __device__ static float32 times(float32 x, float64 factor)
    {
        return number(to_float32(multiply(to_float64(x), factor)));
    }
};

template <>
struct scaling<float64> {
    static const bool is_defined = true;
    __device__ static float64 times(float64 x, float64 factor) { return number(multiply(x, factor)); }
};

template <class Half>
struct scaling_of_halves {
    static const bool is_defined = true;
    __device__ static Half times(Half x, float64 factor)
    {
        return narrowed<Half>(multiply(widened(x), to_float32(factor)));
    }
};

template <>
struct scaling<float16> : scaling_of_halves<float16> {
};

template <>
struct scaling<bfloat16> : scaling_of_halves<bfloat16> {
};

template <class Part>
struct scaling<complex<Part>> {
    static const bool is_defined = true;
    __device__ static complex<Part> times(complex<Part> x, float64 factor)
    {
        return {scaling<Part>::times(x.re, factor), scaling<Part>::times(x.im, factor)};
    }
};

} // namespace elements

#endif
