/* The clock of the host. */
#ifndef COLLECTIVES_CLOCK_H
#define COLLECTIVES_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t cc_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

#endif
