/* The tape of a process: the actions of its executor, as records of one size in a mapped file.
 *
 * The file remains after any end of the process. It is mapped as a whole, so that the addresses of
 * records do not change, and gets its blocks in steps, so that a full disk is an error of
 * posix_fallocate and not a SIGBUS. An operation takes records by chunks, so the thread that advances it
 * writes without a lock.
 *
 * Times are ticks of the processor's counter, if it runs evenly; the head of the file has two pairs of
 * ticks and nanoseconds of CLOCK_MONOTONIC, of which the later is renewed with every chunk.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "timeline.h"

enum {
    CC_T_HEAD = 4096,
    CC_T_STEP = 256 << 10 /* bytes whose blocks are allocated at a time */
};

int cc_counts;

/* Record a pair of ticks and nanoseconds, the closest of several tries, if they are close to each
 * other. Return their distance. */
static uint64_t cc_calibrate(cc_tape_head *head, int which, int tries, uint64_t enough)
{
    uint64_t best = enough;
    for (int i = 0; i < tries; ++i) {
        const uint64_t before = cc_ticks(), ns = cc_nanoseconds(), after = cc_ticks();
        if (after - before < best) {
            best = after - before;
            head->ticks[which] = before + (after - before) / 2;
            head->ns[which] = ns;
        }
    }
    return best;
}

cc_tape *cc_tape_open(int file, uint64_t limit, int counts)
{
    cc_tape *tape = (cc_tape *)calloc(1, sizeof *tape);
    void *memory;
    if (!tape)
        return NULL;
    tape->file = file;
    tape->limit = limit < CC_T_HEAD + CC_T_STEP ? CC_T_HEAD + CC_T_STEP : limit;
    tape->ready = CC_T_HEAD;
    errno = posix_fallocate(file, 0, CC_T_HEAD);
    memory = errno ? MAP_FAILED
                   : mmap(NULL, tape->limit, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        free(tape);
        return NULL;
    }
    tape->head = (cc_tape_head *)memory;
    cc_counts = counts;
    tape->head->version = 1;
    tape->head->counts = counts;
    tape->head->used = CC_T_HEAD;
    tape->tightest = cc_calibrate(tape->head, 0, 32, UINT64_MAX);
    tape->head->ticks[1] = tape->head->ticks[0];
    tape->head->ns[1] = tape->head->ns[0];
    return tape;
}

void cc_tape_clock(cc_tape *tape)
{
    while (__atomic_exchange_n(&tape->lock, 1, __ATOMIC_ACQUIRE))
        ;
    cc_calibrate(tape->head, 1, 32, UINT64_MAX);
    __atomic_store_n(&tape->lock, 0, __ATOMIC_RELEASE);
}

void cc_tape_close(cc_tape *tape, int busy)
{
    cc_tape_clock(tape); /* under the lock: operations in flight begin chunks, and record pairs */
    if (!busy) {
        munmap(tape->head, tape->limit);
        free(tape);
        return;
    }
    while (__atomic_exchange_n(&tape->lock, 1, __ATOMIC_ACQUIRE))
        ;
    mmap(tape->head, tape->limit, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    tape->head->full = 1;
    __atomic_store_n(&tape->lock, 0, __ATOMIC_RELEASE);
}

cc_record *cc_new_chunk(cc_tape *tape)
{
    cc_tape_head *head = tape->head;
    cc_record *chunk = NULL;
    const uint64_t nbytes = CC_T_CHUNK * sizeof(cc_record);
    while (__atomic_exchange_n(&tape->lock, 1, __ATOMIC_ACQUIRE))
        ;
    if (!head->full && head->used + nbytes > tape->ready) {
        const uint64_t step = tape->limit - tape->ready < CC_T_STEP ? 0 : CC_T_STEP;
        if (!step || posix_fallocate(tape->file, tape->ready, step))
            head->full = 1;
        else {
#ifdef MADV_POPULATE_WRITE /* or else the pages come one by one */
            madvise((char *)head + tape->ready, step, MADV_POPULATE_WRITE);
#endif
            tape->ready += step;
        }
    }
    if (!head->full) {
        chunk = (cc_record *)((char *)head + head->used);
        head->used += nbytes;
        cc_calibrate(head, 1, 1, 2 * tape->tightest + 1);
    }
    __atomic_store_n(&tape->lock, 0, __ATOMIC_RELEASE);
    return chunk ? chunk : tape->nowhere;
}
