/* The flight recorder: the last calls of a process, and the states of its communicators.
 *
 * They are always kept, in memory that other processes of the user can read, and that a forked child
 * does not use. Only this process writes, with the GIL held, and waits for nobody. A call is written
 * before its `order`, so readers use it if the order was the same before and after. A text is valid if
 * its `turn` was even, and is the same afterwards.
 */
#ifndef COLLECTIVES_FLIGHT_H
#define COLLECTIVES_FLIGHT_H

#include <stdint.h>
#include <string.h>

#include "timeline.h"

enum {
    CC_F_LAYOUT = 2,   /* the version of all of this */
    CC_F_CALLS = 128,  /* of which readers show 100, since the process goes on meanwhile */
    CC_F_PLACES = 64,  /* communicators; all that have no place of their own are at 0 */
    CC_F_NAME = 40,
    CC_F_TEXT = 2048,
    CC_F_ABOUT = 4096
};

enum { CC_F_BLOCKS = 1, CC_F_STARTED, CC_F_ENDED, CC_F_FAILED };

typedef struct {
    uint64_t order;    /* 1 + the number of calls of the process before it; 0 while it is written */
    uint64_t start;    /* ticks */
    uint64_t end;      /* the same, of a call that has waited for long, or has failed; otherwise 0 */
    uint64_t what[3];  /* the fingerprint */
    uint64_t number;   /* on its communicator, from 1; or the peers of a message */
    int64_t nbytes;
    uint32_t place;    /* of its communicator */
    uint32_t state;
    char name[CC_F_NAME]; /* of a submission in the background */
} cc_flight_call;

typedef struct {
    uint64_t turn;
    uint64_t first;           /* the order of the last call before the communicator had this place */
    uint64_t calls;           /* those that ranks count */
    uint64_t awaited;         /* the order of the call whose request the program waits for, or 0 */
    char wait[CC_F_TEXT];     /* a long wait, or a failure */
    char about[CC_F_ABOUT];   /* the ranks; empty if the place is free */
} cc_flight_place;

typedef struct {
    uint64_t layout;
    uint64_t counts;          /* whether ticks are those of the processor's counter */
    uint64_t ticks, ns;       /* one moment on both clocks */
    uint64_t made;            /* calls */
    uint64_t has_left;        /* whether the process has come to its end in good order */
    cc_flight_call calls[CC_F_CALLS];
    cc_flight_place places[CC_F_PLACES];
} cc_flight;

/* Record a call, which has a `name` or NULL; return its order. */
static inline uint64_t cc_flight_note(cc_flight *f, uint32_t place, uint64_t number, int counted,
                                      const uint64_t *what, int64_t nbytes, uint32_t state,
                                      const char *name)
{
    const uint64_t order = ++f->made;
    cc_flight_call *call = &f->calls[order % CC_F_CALLS];
    __atomic_store_n(&call->order, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    call->start = cc_counter((int)f->counts);
    call->end = 0;
    call->what[0] = what[0], call->what[1] = what[1], call->what[2] = what[2];
    call->number = number;
    call->nbytes = nbytes;
    call->place = place;
    call->state = state;
    call->name[0] = 0;
    if (name)
        strncpy(call->name, name, CC_F_NAME - 1);
    __atomic_store_n(&call->order, order, __ATOMIC_RELEASE);
    if (counted)
        __atomic_store_n(&f->places[place].calls, number, __ATOMIC_RELEASE);
    return order;
}

/* Set the state of a recorded call, if its record is still there; with `is_late`, also its end. */
static inline void cc_flight_end(cc_flight *f, uint64_t order, uint32_t state, int is_late)
{
    cc_flight_call *call = &f->calls[order % CC_F_CALLS];
    if (call->order != order)
        return;
    if (is_late)
        call->end = cc_counter((int)f->counts);
    __atomic_store_n(&call->state, state, __ATOMIC_RELEASE);
}

/* Write one of the texts of a place. */
static void cc_flight_say(cc_flight_place *place, char *text, size_t room, const char *said)
{
    __atomic_store_n(&place->turn, place->turn + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    strncpy(text, said, room - 1);
    __atomic_store_n(&place->turn, place->turn + 1, __ATOMIC_RELEASE);
}

#endif
