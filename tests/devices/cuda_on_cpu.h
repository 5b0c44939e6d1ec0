/*
 * What the kernels of devices need of CUDA, for a CPU: their sources compile as C++ behind this header.
 *
 * `launch` runs the threads of a grid one after the other. Threads of the kernels do not wait for each
 * other and share no memory, so each order is allowed, and the tests try two.
 */
#ifndef CUDA_ON_CPU_H
#define CUDA_ON_CPU_H

#include <string.h>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)

/* A device faults where a vector does not lie on a multiple of 16 bytes. A CPU does not, so count. */
static int misaligned = 0;

struct uint4 {
    unsigned int x, y, z, w;

    uint4() = default;
    uint4(const uint4 &from) { copy(from); }
    uint4 &operator=(const uint4 &from)
    {
        copy(from);
        return *this;
    }

private:
    void copy(const uint4 &from)
    {
        misaligned += (unsigned long long)this % 16 || (unsigned long long)&from % 16;
        x = from.x, y = from.y, z = from.z, w = from.w;
    }
} __attribute__((aligned(16)));

struct dim3 {
    unsigned int x, y, z;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

template <class To, class From>
static inline To with_bits_of(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline unsigned int __float_as_uint(float x) { return with_bits_of<unsigned int>(x); }
static inline float __uint_as_float(unsigned int x) { return with_bits_of<float>(x); }
static inline long long __double_as_longlong(double x) { return with_bits_of<long long>(x); }
static inline double __longlong_as_double(long long x) { return with_bits_of<double>(x); }

/* The compiler must be told not to contract: -ffp-contract=off. */
static inline double __dmul_rn(double a, double b) { return a * b; }

/* Run the blocks from `first` up to `end` of a grid; backwards, the last thread comes first. */
template <class Kernel, class Parameter>
static void launch(Kernel kernel, const Parameter *parameter, unsigned int blocks,
                   unsigned int threads, unsigned int first, unsigned int end, int backwards)
{
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned int block = first; block < end; ++block)
        for (unsigned int thread = 0; thread < threads; ++thread) {
            blockIdx = {backwards ? end - 1 - (block - first) : block, 0, 0};
            threadIdx = {backwards ? threads - 1 - thread : thread, 0, 0};
            kernel(*parameter);
        }
}

#endif
