/* The ranks of a host as threads, for the thread sanitizer: it reports what one of them reads or writes
 * without the right to, by the rules of C11 and not by what the processor happens to do.
 *
 * Each rank runs pages as the executor does, several at a time; looks up what others have called;
 * notes trials on a board; and sends messages by mail. It all ends with one that gives up.
 */
#define _GNU_SOURCE
#include <sched.h>

#include "_core/mail/mail.h"
#include "_core/shared/segment.h"
#include "check.h"

enum { RANKS = 3, CALLS = 50, LINES = 1, LANE_BYTES = 4096, ROOM = 1024, AT_A_TIME = 4, LETTER = 2000 };

static char *memory, *boxes;
static const int places[RANKS] = {0, 1, 2};
static uint64_t operations;

typedef struct {
    uint64_t page, needs, nbytes;
    int writer; /* or -1: all ranks write */
    char *place;
    int is_shown, is_done;
} page_run;

static char value_of(int rank, uint64_t page) { return (char)(rank * 31 + page * 7 + 1); }

static void show(cc_segment *s, page_run *run)
{
    const uint64_t what[3] = {run->page, 1, 2};
    cc_publication *line = cc_line_of(s, s->me, run->page, 0);
    char *const payload = run->nbytes > CC_INLINE ? run->place : line->payload;
    memset(payload, value_of(s->me, run->page), run->nbytes);
    cc_publish(s, line, run->page, what, run->nbytes > CC_INLINE ? cc_reference(s, 0, payload) : 0,
               run->nbytes, NULL);
}

static void check_payload(const cc_publication *line, const cc_segment *s, int rank, const page_run *run)
{
    const char *payload = cc_payload(s, rank, line);
    CHECK(line->what[0] == run->page && line->nbytes == run->nbytes);
    for (uint64_t i = 0; i < run->nbytes; ++i)
        CHECK(payload[i] == value_of(rank, run->page));
}

/* Move a page on; nothing waits. */
static void move(cc_segment *s, page_run *run)
{
    const int only = run->writer;
    if (!run->is_shown && !cc_all_finished(s, run->needs))
        return;
    if (!run->is_shown && (only < 0 || only == s->me))
        show(s, run);
    run->is_shown = 1;
    for (int r = 0; r < RANKS; ++r)
        if ((only < 0 || only == r) && !cc_published(s, r, run->page, 0))
            return;
    for (int r = 0; r < RANKS; ++r)
        if (only < 0 || only == r)
            check_payload(cc_published(s, r, run->page, 0), s, r, run);
    run->is_done = 1;
    cc_finish(s, run->page);
}

/* One collective: pages that take turns, at most AT_A_TIME under way. */
static void operate(cc_segment *s, unsigned *alike, unsigned *dice)
{
    const int64_t pages = 1 + roll(alike) % 12;
    const int writer = (int)(roll(alike) % (RANKS + 1)) - 1;
    const int64_t nbytes = roll(alike) % 3 ? roll(alike) % LANE_BYTES : roll(alike) % CC_INLINE;
    page_run runs[12 + AT_A_TIME];
    cc_run ring;
    int first = 0;
    cc_ring_take(&s->ring, s->next, pages, nbytes > CC_INLINE ? nbytes : 0, &ring);
    memset(runs, 0, sizeof runs);
    for (int i = 0; i < pages; ++i) {
        runs[i].page = s->next + i;
        runs[i].nbytes = nbytes;
        runs[i].writer = writer;
        runs[i].needs = cc_run_needs(&ring, s->next, i);
        if (runs[i].page + 1 > CC_LANES && runs[i].page + 1 - CC_LANES > runs[i].needs)
            runs[i].needs = runs[i].page + 1 - CC_LANES;
        runs[i].place = ring.room ? s->memory + ring.first + i % ring.slots * ring.room : NULL;
    }
    while (first < pages) {
        page_run *run = &runs[first + roll(dice) % AT_A_TIME];
        if (run < runs + pages && !run->is_done)
            move(s, run);
        first += runs[first].is_done;
        sched_yield();
    }
    s->next += pages;
}

/* Make a call, in which nobody waits for anybody, and look up one of another rank. */
static void call(cc_segment *s, unsigned *dice)
{
    const int other = roll(dice) % RANKS;
    const uint64_t number = s->calls, come = cc_read(&s->ranks[other].started);
    const uint64_t wanted = come - 1 - roll(dice) % 20;
    uint64_t what[3] = {number * 3, number * 5, number * 7}, said[3];
    cc_begin_call(s, what, said);
    if (wanted < come && cc_call_of(s, other, wanted, what) == 1)
        CHECK(what[0] == wanted * 3 && what[1] == wanted * 5 && what[2] == wanted * 7);
    cc_end_call(s, number);
}

static void note(cc_segment *s, uint32_t number)
{
    cc_board *board = &s->boards[0];
    cc_trial *trial = &board->trials[number % CC_TRIALS];
    const uint32_t rounds = number / CC_TRIALS + 1;
    CHECK(cc_decide(board, number, number + 9) == number + 9);
    cc_note_trial(trial, number + 1, number + 2 + s->me, s->me == 0);
    if (cc_noted(trial) == RANKS * rounds) {
        CHECK(__atomic_load_n(&trial->ended, __ATOMIC_RELAXED) >= number + 2);
        CHECK(__atomic_load_n(&trial->source_ended, __ATOMIC_RELAXED) >= number + 2);
    }
}

/* To the next rank from the one before: some fit into the box at once, others are offered. */
static void exchange(cc_context *context, uint64_t number, unsigned *alike)
{
    static __thread char sent[LETTER], got[LETTER];
    const int64_t nbytes = roll(alike) % LETTER;
    const int to = (context->rank + 1) % RANKS, from = (context->rank + RANKS - 1) % RANKS;
    cc_mail_status status;
    cc_letter *out, *in;
    memset(sent, value_of(context->rank, number), nbytes);
    out = cc_mail_send(context, sent, nbytes, to, (int)number, number);
    in = cc_mail_recv(context, got, LETTER, from, (int)number, number);
    while ((out || in)) {
        out = out && cc_letter_test(out, &status) ? NULL : out;
        in = in && cc_letter_test(in, &status) ? NULL : in;
        sched_yield();
    }
    for (int64_t i = 0; i < nbytes; ++i)
        CHECK(got[i] == value_of(from, number));
}

static void *rank_runs(void *number)
{
    const int me = (int)(intptr_t)number;
    unsigned alike = 1, dice = 77 + me;
    cc_segment s;
    cc_mail *mail = cc_mail_open(boxes, me, RANKS, ROOM, places);
    cc_context *context = cc_context_new(mail, 5, RANKS, places);
    CHECK(cc_segment_open(&s, memory, RANKS, me, LINES, LANE_BYTES) == 0);
    for (uint64_t i = 0; i < operations; ++i) {
        for (int k = 0; k < CALLS; ++k)
            call(&s, &dice);
        operate(&s, &alike, &dice);
        note(&s, (uint32_t)i);
        exchange(context, i, &alike);
    }
    if (me == 1)
        cc_give_up(&s, 4, operations, "enough");
    while (!cc_read(&s.shared->why))
        sched_yield();
    CHECK(s.shared->call == operations && strcmp(s.shared->text, "enough") == 0);
    cc_segment_close(&s);
    cc_mail_close(mail);
    return NULL;
}

int main(int argc, char **argv)
{
    const size_t nbytes = cc_segment_bytes(RANKS, LINES, LANE_BYTES), mailed = cc_mail_bytes(RANKS, ROOM);
    pthread_t threads[RANKS];
    operations = (uint64_t)begin(argc, argv);
    memory = aligned_alloc(CC_PAGE, cc_rounded(nbytes, CC_PAGE));
    boxes = aligned_alloc(CC_PAGE, cc_rounded(mailed, CC_PAGE));
    memset(memory, 0, nbytes);
    memset(boxes, 0, mailed);
    for (int i = 0; i < RANKS; ++i)
        pthread_create(&threads[i], NULL, rank_runs, (void *)(intptr_t)i);
    for (int i = 0; i < RANKS; ++i)
        pthread_join(threads[i], NULL);
    free(memory);
    free(boxes);
    return 0;
}
