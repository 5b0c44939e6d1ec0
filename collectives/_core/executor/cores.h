/* See if other processes take the cores of this one, so that waits give their cores away sooner.
 *
 * A yield returns at once if nothing else can run on the core. If yields last, others have run. A rank
 * that polls meanwhile uses its share of the core up, and runs later when it has work again.
 *
 * Two ranks on 2 cores beside some 10 busy processes, in a throw-away C program with shorter polls (3 runs each,
 * EPYC, Linux 6.18, 2026-11-28), met within:
 *   - a core each: 1.8 to 2.1 us with 2000 polls and then yields, 0.7 to 0.9 with 200 and naps after 300
 *     yields; with 300 us of work before each meeting, 3.0 to 4.1 ms and 2.0 to 2.4;
 *   - both on one core: 200 us and 18 to 25; with work, 2.2 to 2.5 ms and 1.4 to 2.3.
 * With naps after 8 yields, ranks may go on napping for each other. To sleep on a futex, for which every
 * publication must look for sleepers, was no better than naps.
 */
#ifndef COLLECTIVES_CORES_H
#define COLLECTIVES_CORES_H

#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>

#include "../shared/clock.h"

enum {
    CC_FEW = 64,            /* polls before a wait yields if cores are taken */
    CC_YIELDS = 256,        /* yields before it naps: together longer than a nap */
    CC_LONG_YIELD = 100000, /* nanoseconds from which on another process has run */
    CC_TAKEN_FOR = 50000000 /* nanoseconds for which cores are called taken after two of these */
};

static uint64_t cc_last_long;     /* when the last long yield ended */
static uint64_t cc_taken_until;   /* 0: cores are not taken */
static int cc_assumed_taken = -1; /* for tests, 0 or 1: as the result of cc_cores_are_taken() */

static inline int cc_cores_are_taken(void)
{
    const uint64_t until = __atomic_load_n(&cc_taken_until, __ATOMIC_RELAXED);
    if (cc_assumed_taken >= 0)
        return cc_assumed_taken;
    if (until == 0)
        return 0;
    if (cc_nanoseconds() < until)
        return 1;
    __atomic_store_n(&cc_taken_until, 0, __ATOMIC_RELAXED);
    return 0;
}

/* Let other processes run; return whether one has run for long. */
static inline int cc_yield(void)
{
    const uint64_t start = cc_nanoseconds();
    uint64_t end;
    sched_yield();
    end = cc_nanoseconds();
    if (end - start < CC_LONG_YIELD)
        return 0;
    if (start < __atomic_load_n(&cc_last_long, __ATOMIC_RELAXED) + CC_TAKEN_FOR)
        __atomic_store_n(&cc_taken_until, end + CC_TAKEN_FOR, __ATOMIC_RELAXED);
    __atomic_store_n(&cc_last_long, end, __ATOMIC_RELAXED);
    return 1;
}

/* Return how often this thread has lost its core to others so far. */
static inline int64_t cc_lost_cores(void)
{
    struct rusage usage;
    if (cc_assumed_taken >= 0 || getrusage(RUSAGE_THREAD, &usage))
        return 0;
    return usage.ru_nivcsw;
}

#endif
