/* One pass over memory: fold or copy operands into one or two destinations.
 *
 * It goes by tiles that stay in the first-level cache, so that every byte is read from and written to
 * farther memory once, for any number of operands and any dtype: the kernels for two operands fold a
 * tile. Destinations can be written past the cache ("streamed").
 */
#ifndef COLLECTIVES_COMBINE_H
#define COLLECTIVES_COMBINE_H

#include "kernels.h"

enum {
    CC_HEIGHT = 12, /* most values that a pass holds at the same time: HEIGHT in plans/program.py */
    CC_ROWS = 1024,  /* most operands that are folded at once; plans/order.py has fewer ranks */
    CC_TILE = 8192,
    CC_TILES = 3, /* whole tiles for intermediate results, which eight ranks in pairs have */
    /* Streamed results make reads and writes of memory alternate more often: a fold of two arrays
     * into two others takes 9.7 ms with tiles of 8192 bytes, 8.2 with 2048, 7.9 with 1024, 8.2 with 512
     * (32 MiB, two processes at once, EPYC of family 25, throw-away program, 2026-11-22). */
    CC_TILE_STREAMED = 1024,
    CC_SHORT = 1024 /* bytes up to which memcpy copies */
};

/* One pass over memory. */
typedef struct {
    const char **sources;
    /* For each source, the number of folds of the last two values after it: a postfix notation. If
       -1, one fold follows, with this value on the left. */
    const signed char *folds;
    int n;
    char *dst;            /* or NULL */
    char *publication;    /* or NULL; it gets the unscaled result */
    char **targets;       /* further places for the contents of `dst` */
    int ntargets;
    int stream_dst, stream_publication, stream_targets;
    int by_library;       /* whether other copies are made by memcpy */
    cc_scale_fn scale;    /* of dst, or NULL */
    long double factor;
} cc_pass;

static inline void cc_put(const cc_pass *pass, char *dst, const char *src, size_t n, int stream)
{
    const cc_copies *const copies = cc_copies_now();
    if (dst == src)
        return;
    if (stream)
        copies->stream(dst, src, n);
    else if (n < CC_SHORT)
        memcpy(dst, src, n);
    else if (pass->by_library)
        cc_copy_by_library(copies, dst, src, n);
    else
        copies->copy(dst, src, n);
}

/* Return the target of the last fold of a pass: memory that is not streamed, or else NULL. */
static inline char *cc_direct(const cc_pass *pass)
{
    if (pass->dst && !pass->stream_dst)
        return pass->dst;
    return pass->publication && !pass->stream_publication ? pass->publication : NULL;
}

/* Write `n` folded elements to the destinations of a pass, from the byte `at` on. */
static inline void cc_deliver(const cc_pass *pass, const char *made, char *scratch, size_t at, size_t n,
                              size_t itemsize)
{
    const size_t nbytes = n * itemsize;
    if (pass->publication)
        cc_put(pass, pass->publication + at, made, nbytes, pass->stream_publication);
    if (!pass->dst)
        return;
    if (pass->scale) {
        char *const to = pass->stream_dst ? scratch : pass->dst + at;
        pass->scale(to, made, pass->factor, n);
        made = to;
    }
    cc_put(pass, pass->dst + at, made, nbytes, pass->stream_dst);
    for (int k = 0; k < pass->ntargets; ++k)
        cc_put(pass, pass->targets[k] + at, made, nbytes, pass->stream_targets);
}

/* Return the most values that a pass holds at the same time. */
static inline int cc_height(const cc_pass *pass)
{
    int height = 0, number = 0;
    for (int k = 0; k < pass->n; ++k) {
        height = ++number > height ? number : height;
        number -= pass->folds[k] < 0 ? 1 : pass->folds[k];
    }
    return height;
}

static void cc_combine(const cc_pass *pass, cc_fold_fn fold, size_t count, size_t itemsize)
{
    _Alignas(64) char scratch[CC_TILES][CC_TILE];
    const char **s = pass->sources;
    const int last = pass->n - 1;
    const size_t nbytes = count * itemsize;
    char *const dst = pass->dst, *const pub = pass->publication;
    char *const direct = cc_direct(pass);
    const int both = (dst && pub) || pass->ntargets;

    if (last == 0 && !both && !pass->scale) {
        cc_put(pass, dst ? dst : pub, s[0], nbytes, dst ? pass->stream_dst : pass->stream_publication);
        return;
    }
    if (last == 1 && direct && !both && !pass->scale) {
        const int is_left = pass->folds[1] < 0;
        fold(direct, s[is_left], s[!is_left], count);
        return;
    }
    const int height = cc_height(pass);
    size_t most = pass->stream_dst || pass->stream_publication || pass->stream_targets
        ? CC_TILE_STREAMED : CC_TILE;
    if (height - 1 > CC_TILES)
        most = (most * CC_TILES / (height - 1)) & ~(size_t)63;
    const size_t tile = most - most % itemsize; /* pairs may have 12 bytes */
    for (size_t at = 0; at < nbytes; at += tile) {
        const size_t left = nbytes - at < tile ? nbytes - at : tile, n = left / itemsize;
        const char *values[CC_HEIGHT];
        int number = 0;
        for (int k = 0; k <= last; ++k) {
            const int is_left = pass->folds[k] < 0;
            values[number++] = s[k] + at;
            for (int folds = is_left ? 1 : pass->folds[k]; folds > 0; --folds) {
                const char **const two = &values[--number - 1];
                char *const to = k == last && number == 1 && direct
                    ? direct + at : scratch[0] + (number - 1) * most;
                fold(to, two[is_left], two[!is_left], n);
                two[0] = to;
            }
        }
        cc_deliver(pass, values[0], scratch[0], at, n, itemsize);
    }
}

/* Fold all operands of a pass, copied side by side as rows, by a function that takes them at once; an
   element has `parts` floats. */
static void cc_combine_rows(const cc_pass *pass, cc_rows_fn fold, int parts, size_t count, size_t itemsize)
{
    const size_t rows = pass->n, most = (CC_TILES * CC_TILE / (rows + 1)) & ~(size_t)63;
    const size_t stride = most ? most : 64, tile = stride - stride % itemsize;
    char *const direct = cc_direct(pass);
    char room[(rows + 1) * stride + 64];
    char *const made = room + (-(uintptr_t)room & 63);
    for (size_t at = 0; at < count * itemsize; at += tile) {
        const size_t left = count * itemsize - at < tile ? count * itemsize - at : tile;
        char *const to = direct ? direct + at : made;
        for (size_t k = 0; k < rows; ++k)
            memcpy(made + (k + 1) * stride, pass->sources[k] + at, left);
        fold(to, made + stride, stride, rows, left / itemsize * parts);
        cc_deliver(pass, to, made, at, left / itemsize, itemsize);
    }
}

#endif
