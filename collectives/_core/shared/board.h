/* A board: shared notes of the ranks of a host on the trials of a class of calls.
 *
 * A *trial* is a call that is timed. Ranks note when they began and ended it, and a trial lasts from the
 * latest beginning to the latest end: the ranks of a host have one clock. If ranks share cores, a rank
 * that reads nothing of others, such as the root of a broadcast, may have done all of its work before
 * another one had a core to begin. The trial then lasts as long as such a *source* takes, if that is
 * longer. At a *check* the ranks make a decision, without waiting: the first rank that arrives decides
 * for all. Trials and checks have the same numbers on all ranks. Beginnings, ends and counts only grow,
 * so no rank has to clear a board for others, which may be behind.
 *
 * Later, each rank *watches* its own calls. If many in a row take far longer than what was learned, or
 * far shorter, it *doubts*. A call may also be long because another rank comes late, and that one's is
 * short then. So only if all ranks doubt alike has the machine changed.
 */
#ifndef COLLECTIVES_BOARD_H
#define COLLECTIVES_BOARD_H

#include <stdint.h>

enum {
    CC_BOARDS = 128, /* classes of calls of a communicator that may have trials */
    CC_CHECKS = 64,  /* of a class that are kept: no rank is farther behind another */
    CC_TRIALS = 64,  /* of a class at a time */
    CC_DOUBTS = 32   /* calls in a row after which a rank doubts */
};
#define CC_FAR_OFF 1.5 /* times as long, or as short */

typedef struct {
    uint64_t began, ended; /* nanoseconds: the latest of all ranks */
    uint64_t source_began, source_ended; /* the latest of those that are noted as sources */
    uint32_t noted;        /* notes of all ranks together */
    uint32_t spoiled;      /* notes without a time */
    uint32_t preempted;    /* of these, notes of ranks that lost their cores */
} cc_trial;

/* The calls of a rank since the last one that took another sort of time. */
typedef struct {
    double usual;   /* seconds that were learned for `nbytes`; 0 if the calls are not watched */
    double nbytes;
    int sort;       /* 1: far longer, 2: far shorter, 0: neither */
    uint32_t calls;
} cc_watch;

typedef struct {
    uint32_t doubts[2];         /* ranks that doubt now, since calls are far longer, or far shorter */
    uint64_t checks[CC_CHECKS]; /* the number of the check + 1, and below it the decision */
    cc_trial trials[CC_TRIALS];
} cc_board;

static inline void cc_raise(uint64_t *word, uint64_t value)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen < value
           && !__atomic_compare_exchange_n(word, &seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Note when this rank began and ended a trial, or with `ended` 0 that it took no time. */
static inline void cc_note_trial(cc_trial *trial, uint64_t began, uint64_t ended, int is_source)
{
    if (ended) {
        cc_raise(&trial->began, began);
        cc_raise(&trial->ended, ended);
        if (is_source) {
            cc_raise(&trial->source_began, began);
            cc_raise(&trial->source_ended, ended);
        }
    } else {
        __atomic_fetch_add(&trial->spoiled, 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&trial->noted, 1, __ATOMIC_RELEASE);
}

/* The same for a trial in which this rank lost its core. */
static inline void cc_note_preempted(cc_trial *trial)
{
    __atomic_fetch_add(&trial->preempted, 1, __ATOMIC_RELAXED);
    cc_note_trial(trial, 0, 0, 0);
}

/* Watch calls for a time that was learned from now on, and doubt no more. */
static inline void cc_begin_watch(cc_board *board, cc_watch *watch, double usual, double nbytes)
{
    if (watch->sort && watch->calls >= CC_DOUBTS)
        __atomic_fetch_sub(&board->doubts[watch->sort - 1], 1, __ATOMIC_RELAXED);
    *watch = (cc_watch){usual, nbytes > 0 ? nbytes : 1, 0, 0};
}

/* Note the seconds of a call of this rank. Times of long arrays grow with their lengths. */
static inline void cc_watch_call(cc_board *board, cc_watch *watch, double nbytes, double seconds)
{
    const double usual = watch->usual * (nbytes / watch->nbytes);
    const int sort = seconds > CC_FAR_OFF * usual ? 1 : CC_FAR_OFF * seconds < usual ? 2 : 0;
    if (sort != watch->sort) {
        cc_begin_watch(board, watch, watch->usual, watch->nbytes);
        watch->sort = sort;
    }
    if (watch->calls < CC_DOUBTS && ++watch->calls == CC_DOUBTS && sort)
        __atomic_fetch_add(&board->doubts[sort - 1], 1, __ATOMIC_RELAXED);
}

/* Return whether all of `p` ranks doubt. */
static inline int cc_all_doubt(const cc_board *board, int p)
{
    for (int k = 0; k < 2; ++k)
        if (__atomic_load_n(&board->doubts[k], __ATOMIC_RELAXED) >= (uint32_t)p)
            return 1;
    return 0;
}

/* Return the number of times that a trial was noted; the rest of it may be read then. */
static inline uint32_t cc_noted(const cc_trial *trial)
{
    return __atomic_load_n(&trial->noted, __ATOMIC_ACQUIRE);
}

/* Return the decision at a check, or -1 if no rank has come there. */
static inline int64_t cc_decided(const cc_board *board, uint32_t number)
{
    const uint64_t word = __atomic_load_n(&board->checks[number % CC_CHECKS], __ATOMIC_ACQUIRE);
    return (uint32_t)(word >> 32) == number + 1 ? (int64_t)(uint32_t)word : -1;
}

/* Decide at a check, unless another rank has decided; return the decision. */
static inline uint32_t cc_decide(cc_board *board, uint32_t number, uint32_t value)
{
    uint64_t *const word = &board->checks[number % CC_CHECKS];
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if ((uint32_t)(seen >> 32) != number + 1) {
        const uint64_t wanted = (uint64_t)(number + 1) << 32 | value;
        if (__atomic_compare_exchange_n(word, &seen, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return value;
    }
    return (uint32_t)seen;
}

#endif
