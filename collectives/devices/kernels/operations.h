/*
 * The operations: what a fold makes of two elements.
 *
 * Integers wrap. Halves are folded in float32 and rounded after each fold. For the minimum and the
 * maximum, -0 is less than +0, and a NaN on either side wins (IEEE 754-2019). The complex product is
 * the textbook's. Exchanging the operands changes no bit of any of them.
 */
#ifndef FOLD_OPERATIONS_H
#define FOLD_OPERATIONS_H

#include "elements.h"

namespace operations {

using namespace elements;

/* Operands that are equal have equal bits, except for zeros: `or` keeps a minus sign, and `and` a plus
   sign. `or` also keeps a NaN, which `and` may not. */
template <class Float>
__device__ inline Float least(Float a, Float b)
{
    return float_of(bits_of(is_less(a, b) ? a : b) | bits_of(is_less(b, a) ? b : a));
}

template <class Float>
__device__ inline Float most(Float a, Float b)
{
    const Float larger = float_of(bits_of(is_less(b, a) ? a : b) & bits_of(is_less(a, b) ? b : a));
    return a == a && b == b ? larger : add(a, b);
}

/* How an operation of numbers folds each kind of element. `Of` has `on`, for integers and for floats;
   of floats it may return any NaN. */
template <class Of>
struct arithmetic {
    template <class Integer>
    __device__ static Integer fold(Integer a, Integer b)
    {
        return Of::on(a, b);
    }
    __device__ static float32 fold(float32 a, float32 b) { return number(Of::on(a, b)); }
    __device__ static float64 fold(float64 a, float64 b) { return number(Of::on(a, b)); }
    __device__ static float16 fold(float16 a, float16 b) { return by_float32(a, b); }
    __device__ static bfloat16 fold(bfloat16 a, bfloat16 b) { return by_float32(a, b); }
    template <class Part>
    __device__ static complex<Part> fold(complex<Part> a, complex<Part> b)
    {
        const complex<Part> made = Of::on(a, b);
        return {number(made.re), number(made.im)};
    }

private:
    template <class Half>
    __device__ static Half by_float32(Half a, Half b)
    {
        return narrowed<Half>(Of::on(widened(a), widened(b)));
    }
};

struct sum : arithmetic<sum> {
    template <class Integer>
    __device__ static Integer on(Integer a, Integer b)
    {
        return (Integer)(a + b);
    }
    __device__ static float32 on(float32 a, float32 b) { return add(a, b); }
    __device__ static float64 on(float64 a, float64 b) { return add(a, b); }
    template <class Part>
    __device__ static complex<Part> on(complex<Part> a, complex<Part> b)
    {
        return {add(a.re, b.re), add(a.im, b.im)};
    }
};

struct prod : arithmetic<prod> {
    template <class Integer>
    __device__ static Integer on(Integer a, Integer b)
    {
        return (Integer)(1u * a * b); /* two uint16 would become int, and overflow */
    }
    __device__ static float32 on(float32 a, float32 b) { return multiply(a, b); }
    __device__ static float64 on(float64 a, float64 b) { return multiply(a, b); }
    template <class Part>
    __device__ static complex<Part> on(complex<Part> a, complex<Part> b)
    {
        return {subtract(multiply(a.re, b.re), multiply(a.im, b.im)),
                add(multiply(a.re, b.im), multiply(a.im, b.re))};
    }
};

struct min : arithmetic<min> {
    template <class Integer>
    __device__ static Integer on(Integer a, Integer b)
    {
        return a < b ? a : b;
    }
    __device__ static float32 on(float32 a, float32 b) { return least(a, b); }
    __device__ static float64 on(float64 a, float64 b) { return least(a, b); }
};

struct max : arithmetic<max> {
    template <class Integer>
    __device__ static Integer on(Integer a, Integer b)
    {
        return a > b ? a : b;
    }
    __device__ static float32 on(float32 a, float32 b) { return most(a, b); }
    __device__ static float64 on(float64 a, float64 b) { return most(a, b); }
};

/* Of unsigned integers only, whatever the caller's dtype: the bits are the same. */
#define FOLD_OF_BITS(name, result)                                                                  \
    struct name {                                                                                   \
        template <class Integer>                                                                    \
        __device__ static Integer fold(Integer a, Integer b)                                        \
        {                                                                                           \
            return (Integer)(result);                                                               \
        }                                                                                           \
    };
FOLD_OF_BITS(land, (a != 0) & (b != 0))
FOLD_OF_BITS(lor, (a | b) != 0)
FOLD_OF_BITS(lxor, (a != 0) ^ (b != 0))
FOLD_OF_BITS(band, a & b)
FOLD_OF_BITS(bor, a | b)
FOLD_OF_BITS(bxor, a ^ b)

} // namespace operations

#endif
