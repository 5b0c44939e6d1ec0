/* The tape of a process: its records, and their writers, which take no lock (timeline.c). */
#ifndef COLLECTIVES_TIMELINE_H
#define COLLECTIVES_TIMELINE_H

#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "../shared/clock.h"

/* Kinds of records; collectives/records/tape.py has the same numbers. */
enum {
    CC_T_CALL = 1, /* a whole call */
    CC_T_FAILED,   /* the same, which failed */
    CC_T_QUEUE,    /* from the call until its first advance */
    CC_T_WAIT,     /* for a message */
    CC_T_AWAIT,    /* for a rank of this host, whose number among them is the peer */
    CC_T_COPY,
    CC_T_FOLD,
    CC_T_PUBLISH,  /* a copy for other ranks of this host */
    CC_T_TAKE,     /* a copy of a publication of another rank of this host */
    CC_T_POST,     /* messages given to MPI */
    CC_T_SENT,     /* a message, from its post until MPI has completed it */
    CC_T_RECEIVED,
    CC_T_NEGOTIATE, /* in the background: until all ranks are known to have the task */
    CC_T_TURN,      /* until the turn of the task has come */
    CC_T_COPY_IN,
    CC_T_COMMUNICATE,
    CC_T_COPY_OUT
};

enum {
    CC_T_CHUNK = 64,       /* records: one clock_gettime for each chunk costs 1 ns a record */
    CC_T_KIND = 56         /* bits of a duration; the kind is above them */
};

typedef struct {
    uint64_t start;       /* ticks */
    uint64_t size;        /* bytes in the low 40 bits; above, 1 + the peer, or the label of a call */
    uint32_t call;        /* the number of the call in the process, from 1 */
    uint16_t round;       /* for a call, the low half of its number on its communicator */
    uint16_t segment;     /* for a call, the high half */
    uint64_t span;        /* ticks, and the kind; written last */
} cc_record;

typedef struct {
    uint64_t version;
    uint64_t counts;      /* whether ticks are the processor's; else they are nanoseconds */
    uint64_t ticks[2], ns[2];
    uint64_t used;        /* bytes of the file in which records may lie */
    uint64_t full;        /* whether there was no room for further records */
} cc_tape_head;

typedef struct {
    cc_tape_head *head;
    uint64_t limit;       /* bytes of the file at most, and of the mapping */
    uint64_t ready;       /* bytes that have their blocks */
    uint64_t tightest;    /* ticks between which nanoseconds were read at the start */
    int file;
    int lock;
    uint32_t calls;
    cc_record nowhere[CC_T_CHUNK]; /* the place of records for which there is no room */
} cc_tape;

extern int cc_counts; /* whether the processor's counter is used */

/* Return whether the processor's counter has a constant rate, equal on all cores. */
static inline int cc_counter_is_even(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1;
#else
    return 1;
#endif
}

/* Return the processor's counter, or nanoseconds. */
static inline uint64_t cc_counter(int counts)
{
#if defined(__x86_64__)
    if (counts)
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    if (counts) {
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
        return value;
    }
#endif
    return cc_nanoseconds();
}

static inline uint64_t cc_ticks(void) { return cc_counter(cc_counts); }

/* Start on an empty file. Return NULL, with errno, if that fails. */
cc_tape *cc_tape_open(int file, uint64_t limit, int counts);
/* Record a later pair. */
void cc_tape_clock(cc_tape *tape);
/* Release the memory. If operations may still be in flight, put anonymous memory in its place. */
void cc_tape_close(cc_tape *tape, int busy);
/* Return the first record of a new chunk. */
cc_record *cc_new_chunk(cc_tape *tape);

/* Return the next record of a chunk of which `*left` are left. */
static inline cc_record *cc_next_record(cc_tape *tape, cc_record **next, int *left)
{
    if (*left == 0) {
        *next = cc_new_chunk(tape);
        *left = CC_T_CHUNK;
    }
    --*left;
    return (*next)++;
}

static inline void cc_fill(cc_record *record, int kind, uint64_t start, uint64_t end, uint32_t call,
                           uint64_t nbytes, uint64_t peer, uint32_t where)
{
    record->start = start;
    record->size = (nbytes & (((uint64_t)1 << 40) - 1)) | peer << 40;
    record->call = call;
    record->round = (uint16_t)where;
    record->segment = (uint16_t)(where >> 16);
    __atomic_store_n(&record->span, (uint64_t)kind << CC_T_KIND | (end - start), __ATOMIC_RELEASE);
}

#endif
