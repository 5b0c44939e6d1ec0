/* The distance of the cores that read the data of this one.
 *
 * Before a core writes a line that another has in its cache, it must invalidate that copy. This takes
 * some 30 ns if both share a cache, and otherwise 100 ns or more, also for each line of a payload.
 * Writing past the cache avoids it, but the reader then reads from memory.
 *
 * So a rank times some of the stores that publish a line. Readers have that line from their last read,
 * or have lost it since, in which case the store is fast at any distance. Hence a slow store counts for
 * several fast ones. Virtual machines move between cores, so the timing continues as long as there are
 * calls. Each rank measures for itself.
 */
#ifndef COLLECTIVES_DISTANCE_H
#define COLLECTIVES_DISTANCE_H

#include "clock.h"

enum {
    /* Nanoseconds of the stores to a line. On 2 cores of an EPYC (family 25), 98 of 100 took up to 50
     * near; far, 25 to 60 of 100 took 90 to 180 (throw-away program, 2026-11-22). */
    CC_FAR = 65,
    CC_DISTURBED = 2000, /* from which on the measurement was disturbed */
    CC_SOON = 32,        /* first pages, which are all timed */
    CC_EVERY = 16,       /* later pages, of which one is timed */
    CC_LONG = 64 << 10,  /* bytes of a payload from which on one in 4 is timed, at a small cost */
    CC_WEIGHT = 6,       /* of a slow store; a fast one has 1 */
    CC_SCORE = 40,       /* the highest */
    CC_CALLED_FAR = 12,
    CC_CALLED_NEAR = 2
};

typedef struct {
    int score;  /* high if cores are far */
    int is_far;
} cc_distance;

static inline int cc_is_due(uint64_t page, uint64_t nbytes)
{
    return page < CC_SOON || page % (nbytes < CC_LONG ? CC_EVERY : CC_EVERY / 4) == 0;
}

static void cc_judge(cc_distance *distance, uint64_t ns)
{
    int score = distance->score;
    if (ns >= CC_DISTURBED)
        return;
    score += ns >= CC_FAR ? CC_WEIGHT : -1;
    distance->score = score < 0 ? 0 : score > CC_SCORE ? CC_SCORE : score;
    if (score >= CC_CALLED_FAR)
        distance->is_far = 1;
    else if (score <= CC_CALLED_NEAR)
        distance->is_far = 0;
}

/* Begin to time the stores to a line; return the time, corrected for the duration of a reading. */
static uint64_t cc_begin_stores(void)
{
    uint64_t before, start;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* earlier writes must leave this core first */
    before = cc_nanoseconds();
    start = cc_nanoseconds();
    return start + (start - before);
}

/* End the timing when all stores have left this core. */
static void cc_end_stores(cc_distance *distance, uint64_t start)
{
    uint64_t end;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    end = cc_nanoseconds();
    cc_judge(distance, end > start ? end - start : 0);
}

#endif
