/* The time of an allreduce of 8 bytes on more processes than cores, without the library: each process
 * writes a line, and adds up the lines of all. Who waits looks at a line `looks` times, then yields.
 *
 *     cc -O2 -o floor_of_waits floor_of_waits.c && ./floor_of_waits 4 1
 *
 * The arguments are the number of processes and of looks. It prints the microseconds of one allreduce,
 * and how often a process yielded in it. measure_floor.py compares it with the library.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 60000, WARM = 6000 };

typedef struct {
    _Alignas(128) _Atomic long number; /* of the last allreduce that `value` is of */
    double value[2];                   /* of this one and of the one before, which others may still read */
} line;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv)
{
    const int p = argc > 1 ? atoi(argv[1]) : 4, looks = argc > 2 ? atoi(argv[2]) : 1;
    line *lines = mmap(NULL, p * sizeof(line), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double start = 0, sum = 0;
    long yields = 0;
    int me = 0;
    for (int i = 1; i < p && me == 0; ++i)
        if (fork() == 0)
            me = i;
    for (long k = 1; k <= TIMES; ++k) {
        if (k == WARM)
            start = now();
        lines[me].value[k & 1] = me;
        atomic_store_explicit(&lines[me].number, k, memory_order_release);
        for (int r = 0; r < p; ++r) {
            for (int look = 0; atomic_load_explicit(&lines[r].number, memory_order_acquire) < k;)
                if (++look > looks) {
                    sched_yield();
                    ++yields;
                    look = 0;
                }
            sum += lines[r].value[k & 1];
        }
    }
    if (me != 0)
        _exit(sum < 0);
    printf("%.2f us, %.2f yields\n", (now() - start) / (TIMES - WARM) * 1e6, (double)yields / TIMES);
    while (wait(NULL) > 0)
        ;
    return 0;
}
