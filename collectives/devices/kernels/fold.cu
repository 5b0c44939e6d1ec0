/*
 * One pass over memory: fold what lies in several places into one or more, as cc_combine does on the
 * host (_core/kernels/combine.h), with the same bits.
 *
 * Each element is read once from every source and written once to every destination, by one thread, and
 * written after it was read: a destination may be exactly one of the sources. No other overlap is allowed.
 * A single source is copied, bit by bit.
 *
 * There are no kernels in this text: a line that follows it makes one. FOLD_KERNEL(sum, float32) makes
 * fold_sum_float32. So a program compiles only the kernels that it uses.
 */
#include "operations.h"

enum {
    FOLD_PLACES = 16,  /* most sources, most targets */
    FOLD_VECTOR = 16,  /* bytes of the widest load and store */
    FOLD_VECTORS = 4,  /* vectors of each source that a thread loads before it folds */
    FOLD_THREADS = 256, /* of a block, at most */
    FOLD_RESIDENT = 4  /* blocks that a multiprocessor must have room for: 64 registers for each thread */
};

/* What a pass does. The same in collectives/devices/folds.py. */
struct fold_pass {
    const char *sources[FOLD_PLACES];
    char *dst;                  /* or null */
    char *publication;          /* or null; it has what `dst` has, before it is scaled */
    char *targets[FOLD_PLACES]; /* to where what is in `dst` is written, too */
    unsigned long long count;   /* of elements */
    double prescale, postscale; /* for halves, these must be numbers of float32 */
    unsigned int is_left;       /* bit k: source k comes to the left of those before it */
    unsigned int is_prescaled;  /* bit k: source k is multiplied by `prescale` first */
    int nsources, ntargets;
    int is_postscaled; /* whether `dst` and the targets are multiplied by `postscale` */
    int unused;
};

namespace passes {

using elements::scaling;
using elements::uint64;

/* What a thread loads at once: 16 bytes, or one element. */
template <class Element, bool IS_VECTOR>
struct pack {
    static const int size = IS_VECTOR ? FOLD_VECTOR / sizeof(Element) : 1;
    Element items[size];

    __device__ void load(const char *at)
    {
        if constexpr (IS_VECTOR) {
            const uint4 words = *(const uint4 *)at;
            memcpy(items, &words, sizeof words);
        } else {
            items[0] = *(const Element *)at;
        }
    }

    __device__ void store(char *at) const
    {
        if constexpr (IS_VECTOR) {
            uint4 words;
            memcpy(&words, items, sizeof words);
            *(uint4 *)at = words;
        } else {
            *(Element *)at = items[0];
        }
    }

    __device__ void scale(double factor)
    {
#pragma unroll
        for (int i = 0; i < size; ++i)
            items[i] = scaling<Element>::times(items[i], factor);
    }

    template <class Operation>
    __device__ void fold(const pack &other, bool is_left)
    {
#pragma unroll
        for (int i = 0; i < size; ++i)
            items[i] = Operation::fold(is_left ? other.items[i] : items[i],
                                       is_left ? items[i] : other.items[i]);
    }
};

/* Some packs of one place, `step` bytes apart. */
template <class Pack, int PACKS>
__device__ inline void load_packs(Pack (&packs)[PACKS], const char *at, uint64 step)
{
#pragma unroll
    for (int j = 0; j < PACKS; ++j)
        packs[j].load(at + j * step);
}

template <class Pack, int PACKS>
__device__ inline void store_packs(const Pack (&packs)[PACKS], char *at, uint64 step)
{
#pragma unroll
    for (int j = 0; j < PACKS; ++j)
        packs[j].store(at + j * step);
}

template <class Pack, int PACKS>
__device__ inline void scale_packs(Pack (&packs)[PACKS], double factor)
{
#pragma unroll
    for (int j = 0; j < PACKS; ++j)
        packs[j].scale(factor);
}

/* Fold packs that lie `at` bytes from the beginnings, `step` bytes apart. */
template <class Operation, class Element, bool IS_VECTOR, int PACKS>
__device__ inline void fold_packs(const fold_pass &pass, uint64 at, uint64 step)
{
    pack<Element, IS_VECTOR> made[PACKS], other[PACKS];
    load_packs(made, pass.sources[0] + at, step);
    if (scaling<Element>::is_defined && (pass.is_prescaled & 1))
        scale_packs(made, pass.prescale);
#pragma unroll 1
    for (int k = 1; k < pass.nsources; ++k) {
        load_packs(other, pass.sources[k] + at, step);
        if (scaling<Element>::is_defined && (pass.is_prescaled >> k & 1))
            scale_packs(other, pass.prescale);
#pragma unroll
        for (int j = 0; j < PACKS; ++j)
            made[j].template fold<Operation>(other[j], pass.is_left >> k & 1);
    }
    if (pass.publication)
        store_packs(made, pass.publication + at, step);
    if (scaling<Element>::is_defined && pass.is_postscaled)
        scale_packs(made, pass.postscale);
    if (pass.dst)
        store_packs(made, pass.dst + at, step);
#pragma unroll 1
    for (int k = 0; k < pass.ntargets; ++k)
        store_packs(made, pass.targets[k] + at, step);
}

/* Fold `n` packs from the element `first` on. Each block goes from tile to tile, and a thread folds
   packs of the tile that are one block apart. In the last tile it folds those that there are. */
template <class Operation, class Element, bool IS_VECTOR>
__device__ inline void fold_range(const fold_pass &pass, uint64 first, uint64 n)
{
    const uint64 size = sizeof(pack<Element, IS_VECTOR>), begin = first * sizeof(Element);
    const uint64 width = blockDim.x, tile = width * FOLD_VECTORS, stride = tile * gridDim.x;
#pragma unroll 1
    for (uint64 i = tile * blockIdx.x + threadIdx.x; i < n; i += stride) {
        if (i + (FOLD_VECTORS - 1) * width < n) {
            fold_packs<Operation, Element, IS_VECTOR, FOLD_VECTORS>(pass, begin + i * size, width * size);
        } else {
#pragma unroll 1
            for (uint64 rest = i; rest < n; rest += width)
                fold_packs<Operation, Element, IS_VECTOR, 1>(pass, begin + rest * size, 0);
        }
    }
}

/* Return how many elements come before the first vector, or all where there are no vectors: where
   places lie differently to multiples of 16 bytes, or those fall between elements. */
template <class Element>
__device__ inline uint64 elements_of_head(const fold_pass &pass)
{
    const uint64 place = (uint64)pass.sources[0];
    uint64 differences = 0;
#pragma unroll 1
    for (int k = 1; k < pass.nsources; ++k)
        differences |= place ^ (uint64)pass.sources[k];
#pragma unroll 1
    for (int k = 0; k < pass.ntargets; ++k)
        differences |= place ^ (uint64)pass.targets[k];
    differences |= pass.dst ? place ^ (uint64)pass.dst : 0;
    differences |= pass.publication ? place ^ (uint64)pass.publication : 0;
    const uint64 bytes = (0 - place) % FOLD_VECTOR, head = bytes / sizeof(Element);
    const bool has_vectors = differences % FOLD_VECTOR == 0 && bytes % sizeof(Element) == 0;
    return has_vectors && head < pass.count ? head : pass.count;
}

template <class Operation, class Element>
__device__ inline void run(const fold_pass &pass)
{
    const int size = FOLD_VECTOR / sizeof(Element);
    const uint64 head = elements_of_head<Element>(pass);
    const uint64 vectors = (pass.count - head) / size, tail = head + vectors * size;
    fold_range<Operation, Element, true>(pass, head, vectors);
#pragma unroll 1
    for (int part = 0; part < 2; ++part)
        fold_range<Operation, Element, false>(
            pass, part ? tail : 0, part ? pass.count - tail : head);
}

} // namespace passes

#define FOLD_KERNEL(operation, element)                                                             \
    extern "C" __global__ void __launch_bounds__(FOLD_THREADS, FOLD_RESIDENT)                       \
        fold_##operation##_##element(const __grid_constant__ fold_pass pass)                        \
    {                                                                                               \
        passes::run<operations::operation, elements::element>(pass);                                \
    }
