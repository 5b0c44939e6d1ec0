/* The tape: records of several writers, each once; a full file; an end while others still write. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "_core/records/timeline.h"
#include "check.h"

enum { WRITERS = 4, HEAD = 4096 };

static cc_tape *tape;
static int rounds, stops, written;
static cc_tape *volatile kept; /* as long as operations in flight have it: for ever */

/* Write records, each with its writer and number, until there are enough, or a word says to stop. */
static void *writes(void *number)
{
    cc_record *next = NULL;
    int left = 0;
    for (int i = 0; i < rounds && !__atomic_load_n(&stops, __ATOMIC_ACQUIRE); ++i) {
        const uint64_t start = cc_ticks();
        cc_record *record = cc_next_record(tape, &next, &left);
        cc_fill(record, CC_T_COPY, start, cc_ticks(), (uint32_t)(uintptr_t)number + 1, (uint64_t)i, 3, 7u << 16 | 5);
        __atomic_fetch_add(&written, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void start(pthread_t *threads, int writers)
{
    for (int i = 0; i < writers; ++i)
        CHECK(pthread_create(&threads[i], NULL, writes, (void *)(uintptr_t)i) == 0);
}

static void finish(pthread_t *threads, int writers)
{
    for (int i = 0; i < writers; ++i)
        pthread_join(threads[i], NULL);
}

static FILE *opened(uint64_t limit)
{
    FILE *file = tmpfile();
    CHECK(file);
    tape = cc_tape_open(fileno(file), limit, 0);
    CHECK(tape && cc_counts == 0 && tape->head->used == HEAD);
    return file;
}

/* Count the records in a file, which of each writer are in order. */
static uint64_t recorded(FILE *file, uint64_t *used)
{
    struct stat about;
    uint64_t count = 0, next[WRITERS + 1] = {0};
    char *memory;
    const cc_tape_head *head;
    CHECK(fstat(fileno(file), &about) == 0);
    memory = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, fileno(file), 0);
    CHECK(memory != MAP_FAILED);
    head = (const cc_tape_head *)memory;
    CHECK(head->version == 1 && head->used <= (uint64_t)about.st_size);
    CHECK(head->ticks[1] >= head->ticks[0] && head->ns[1] >= head->ns[0]);
    CHECK(head->ticks[1] - head->ns[1] < 1000000 || head->ns[1] - head->ticks[1] < 1000000);
    for (uint64_t at = HEAD; at < head->used; at += sizeof(cc_record)) {
        const cc_record *record = (const cc_record *)(memory + at);
        if (!record->span) /* the rest of a chunk */
            continue;
        CHECK(record->span >> CC_T_KIND == CC_T_COPY && record->call >= 1 && record->call <= WRITERS);
        CHECK(record->size >> 40 == 3 && record->round == 5 && record->segment == 7);
        CHECK((record->size & 0xFFFFFFFF) >= next[record->call]);
        next[record->call] = (record->size & 0xFFFFFFFF) + 1;
        ++count;
    }
    *used = head->used;
    munmap(memory, (size_t)about.st_size);
    fclose(file);
    return count;
}

static void each_is_recorded_once(void)
{
    pthread_t threads[WRITERS];
    uint64_t used;
    FILE *file = opened((uint64_t)1 << 30);
    start(threads, WRITERS);
    for (int i = 0; i < 50; ++i)
        cc_tape_clock(tape);
    finish(threads, WRITERS);
    CHECK(!tape->head->full);
    cc_tape_close(tape, 0);
    CHECK(recorded(file, &used) == (uint64_t)WRITERS * (uint64_t)rounds);
}

/* With the smallest limit, later records go nowhere, and all of the file has been used. */
static void a_full_file_ends_it(void)
{
    const uint64_t limit = HEAD + (256 << 10);
    uint64_t used, count;
    FILE *file = opened(1);
    CHECK(tape->limit == limit);
    rounds += (int)(limit / sizeof(cc_record));
    writes((void *)0);
    CHECK(tape->head->full);
    writes((void *)1); /* which begins a chunk of its own */
    cc_tape_close(tape, 0);
    count = recorded(file, &used);
    CHECK(used == limit && count == (limit - HEAD) / sizeof(cc_record));
    rounds -= (int)(limit / sizeof(cc_record));
}

/* Writers go on after the end of the tape; the file keeps its records. */
static void others_still_write(void)
{
#ifdef __SANITIZE_THREAD__
    const int writers = 1; /* several race by intent: records without room share a place that nobody reads */
#else
    const int writers = WRITERS;
#endif
    const int most = rounds;
    pthread_t threads[WRITERS];
    uint64_t used;
    FILE *file = opened((uint64_t)1 << 20);
    kept = tape;
    written = 0;
    rounds = 1 << 30;
    start(threads, writers);
    while (__atomic_load_n(&written, __ATOMIC_RELAXED) < most)
        ;
    cc_tape_close(tape, 1);
    CHECK(tape->head->full);
    __atomic_store_n(&stops, 1, __ATOMIC_RELEASE);
    finish(threads, writers);
    (void)recorded(file, &used);
    CHECK(used >= HEAD);
    rounds = most;
    stops = 0;
}

static void errors_are_returned(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && !cc_tape_open(ends[1], 1 << 20, 0));
    CHECK(!cc_tape_open(-1, 1 << 20, 0));
}

int main(int argc, char **argv)
{
    rounds = begin(argc, argv);
    each_is_recorded_once();
    others_still_write();
    a_full_file_ends_it();
    errors_are_returned();
    return 0;
}
