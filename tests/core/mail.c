/* Messages in shared memory: a box whose bytes wrap, and ranks that are threads on one mapping. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "_core/mail/letter.h"
#include "_core/mail/mail.h"
#include "check.h"

enum { RANKS = 4, ROOM = 1024, LONGEST = 3 * ROOM, TAGS = 2, AT_A_TIME = 6, BOX = 256 };

#define MOST (ROOM / 4 - (int)sizeof(cc_wire_header))

static int rounds;
static const int places[RANKS] = {0, 1, 2, 3};
static char *memory;

static char *zeroed(size_t nbytes)
{
    char *made = aligned_alloc(128, (nbytes + 127) / 128 * 128);
    CHECK(made);
    return memset(made, 0, nbytes);
}

/* -- a box --------------------------------------------------------------------------------------- */

static cc_box *box;

static void *fills_box(void *unused)
{
    unsigned dice = 1;
    char data[BOX];
    for (int i = 0; i < rounds * 10; ++i) {
        cc_wire_header header = {.kind = CC_MESSAGE, .tag = i, .nbytes = roll(&dice) % (BOX - sizeof header - 7)};
        memset(data, i, (size_t)header.nbytes);
        while (!cc_box_write(BOX, box, &header, data))
            sched_yield();
    }
    return unused;
}

/* Frames lie in it at every multiple of eight bytes, and some at its end continue at its beginning. */
static void frames_wrap(void)
{
    pthread_t writer;
    uint64_t tail = 0, starts = 0;
    char data[BOX];
    box = (cc_box *)zeroed(sizeof *box + BOX);
    CHECK(pthread_create(&writer, NULL, fills_box, NULL) == 0);
    for (int i = 0; i < rounds * 10; ++i) {
        cc_wire_header header;
        while (__atomic_load_n(&box->head, __ATOMIC_ACQUIRE) == tail)
            sched_yield();
        starts |= (uint64_t)1 << tail % BOX / 8;
        cc_box_get(BOX, box, tail, &header, sizeof header);
        CHECK(header.tag == i && header.nbytes < BOX);
        cc_box_get(BOX, box, tail + sizeof header, data, header.nbytes);
        for (int64_t k = 0; k < header.nbytes; ++k)
            CHECK(data[k] == (char)i);
        tail += sizeof header + (((uint64_t)header.nbytes + 7) & ~(uint64_t)7);
        __atomic_store_n(&box->tail, tail, __ATOMIC_RELEASE);
    }
    pthread_join(writer, NULL);
    CHECK(box->head == tail && starts == ((uint64_t)1 << BOX / 8) - 1);
    free(box);
}

static void full_box_refuses(void)
{
    char data[BOX] = {0};
    cc_wire_header header = {.kind = CC_MESSAGE, .nbytes = BOX - sizeof header + 1};
    box = (cc_box *)zeroed(sizeof *box + BOX);
    CHECK(!cc_box_write(BOX, box, &header, data) && box->head == 0);
    --header.nbytes;
    CHECK(cc_box_write(BOX, box, &header, data) && box->head == BOX);
    header.nbytes = 0;
    CHECK(!cc_box_write(BOX, box, &header, NULL));
    box->tail = BOX;
    CHECK(cc_box_write(BOX, box, &header, NULL));
    free(box);
}

/* -- one letter ---------------------------------------------------------------------------------- */

static cc_mail *mails[2];
static cc_context *two[2];

static void open_two(void)
{
    memory = zeroed(cc_mail_bytes(2, ROOM));
    for (int i = 0; i < 2; ++i) {
        mails[i] = cc_mail_open(memory, i, 2, ROOM, places);
        two[i] = cc_context_new(mails[i], 9, 2, places);
        CHECK(mails[i] && two[i] && two[i]->rank == i);
    }
}

static void close_two(void)
{
    cc_mail_close(mails[0]);
    cc_mail_close(mails[1]);
    free(memory);
}

static cc_mail_status ended(cc_letter *letter)
{
    cc_mail_status status;
    while (!cc_letter_test(letter, &status))
        for (int i = 0; i < 2; ++i)
            cc_mail_turn(mails[i]);
    return status;
}

/* A message that does not fit its receive, in its length or its word, ends both with an error, unless
 * its send has ended before. */
static void errors_reach_both(void)
{
    char sent[LONGEST] = {1}, got[LONGEST];
    for (int early = 0; early < 2; ++early)
        for (int nbytes = MOST - 1; nbytes <= LONGEST; nbytes += LONGEST - MOST + 1)
            for (int differs = 0; differs < 2; ++differs) {
                const int error = differs ? CC_MAIL_OTHER : CC_MAIL_TRUNCATED;
                cc_letter *in = early ? NULL : cc_mail_recv(two[1], got, nbytes - !differs, 0, 3, 5);
                cc_letter *out = cc_mail_send(two[0], sent, nbytes, 1, 3, 5 + (uint64_t)differs);
                cc_mail_status status;
                cc_mail_turn(mails[1]);
                in = in ? in : cc_mail_recv(two[1], got, nbytes - !differs, 0, 3, 5);
                status = ended(in);
                CHECK(status.error == error && status.nbytes == nbytes && status.heard == 5 + (uint64_t)differs);
                CHECK(ended(out).error == (nbytes > MOST ? error : 0));
            }
}

static void senders_are_known(void)
{
    char data[LONGEST] = {2};
    cc_letter *letters[2] = {cc_mail_send(two[0], data, 8, 1, 1, 0), cc_mail_send(two[0], data, LONGEST, 1, 2, 0)};
    CHECK(cc_mail_sender(two[1], 0, 2, 1) == 0 && cc_mail_sender(two[1], 0, 2, 2) == 0);
    CHECK(cc_mail_sender(two[1], 0, 2, 3) == -1 && cc_mail_sender(two[1], 1, 2, 1) == -1);
    for (int i = 0; i < 2; ++i) {
        CHECK(ended(cc_mail_recv(two[1], data, LONGEST, 0, i + 1, 0)).error == 0);
        CHECK(ended(letters[i]).error == 0);
    }
    CHECK(cc_mail_sender(two[1], 0, 2, 1) == -1);
}

/* What is dropped is never written to, wherever it is: asked for, offered, or in pieces. */
static void dropped_ones_are_forgotten(void)
{
    for (int turns = 0; turns < 6; ++turns)
        for (int which = 0; which < 3; ++which) {
            char *sent = zeroed(LONGEST), *got = zeroed(LONGEST);
            cc_letter *in = cc_mail_recv(two[1], got, LONGEST, 0, 10 + which, 0);
            cc_letter *out = cc_mail_send(two[0], sent, LONGEST, 1, 10 + which, 0);
            for (int i = 0; i < turns; ++i)
                cc_mail_turn(mails[i % 2 == 0]);
            CHECK(which == 0 || !cc_letter_drop(in));
            CHECK(which == 1 || !cc_letter_drop(out));
            free(which != 1 ? sent : NULL);
            free(which != 0 ? got : NULL);
            for (int i = 0; i < 20; ++i)
                cc_mail_turn(mails[i % 2]);
            CHECK(which != 0 || !cc_letter_drop(in));
            CHECK(which != 1 || !cc_letter_drop(out));
            free(which == 1 ? sent : NULL);
            free(which == 0 ? got : NULL);
        }
}

static void deaths_are_noted(void)
{
    CHECK(cc_mail_state(two[0], 1) == CC_PRESENT && !cc_mail_is_unreached(two[0], 1));
    cc_mail_lose(two[0], 1);
    CHECK(cc_mail_state(two[0], 1) == CC_DIED && cc_mail_state(two[1], 0) == CC_PRESENT);
}

/* -- many ranks ---------------------------------------------------------------------------------- */

typedef struct {
    cc_letter *letter;
    int number, nbytes;
    char data[LONGEST];
} message;

typedef struct {
    int peer, tag, made, over; /* messages that were started, and that have ended */
    unsigned dice;
    message messages[AT_A_TIME];
} course;

static char value_of(int from, int to, int tag, int number)
{
    return (char)(1 + from * 61 + to * 17 + tag * 5 + number);
}

/* Start the next message of a course, or move the oldest ones on; messages of a course keep their order. */
static void move(cc_context *context, course *c, int is_send)
{
    message *m = &c->messages[c->made % AT_A_TIME];
    const int me = context->rank;
    cc_mail_status status;
    if (c->made < rounds && !m->letter && roll(&c->dice) % 3) {
        unsigned alike = (unsigned)((is_send ? me : c->peer) * 77 + c->tag + c->made * 1009);
        m->number = c->made++;
        m->nbytes = (int)(roll(&alike) % 3 ? roll(&alike) % (MOST + 2) : roll(&alike) % LONGEST);
        if (is_send) {
            memset(m->data, value_of(me, c->peer, c->tag, m->number), (size_t)m->nbytes);
            m->letter = cc_mail_send(context, m->nbytes ? m->data : NULL, m->nbytes, c->peer, c->tag, 0);
        } else {
            m->letter = cc_mail_recv(context, m->data, LONGEST, c->peer, c->tag, 0);
        }
        CHECK(m->letter);
    }
    for (int i = 0; i < AT_A_TIME; ++i) {
        m = &c->messages[i];
        if (!m->letter || !cc_letter_test(m->letter, &status))
            continue;
        m->letter = NULL;
        ++c->over;
        CHECK(status.error == 0 && status.nbytes == m->nbytes);
        for (int k = 0; !is_send && k < m->nbytes; ++k)
            CHECK(m->data[k] == value_of(c->peer, me, c->tag, m->number));
    }
}

static void *rank_runs(void *number)
{
    const int me = (int)(intptr_t)number;
    enum { COURSES = RANKS * TAGS };
    cc_mail *mail = cc_mail_open(memory, me, RANKS, ROOM, places);
    cc_context *context = cc_context_new(mail, 5, RANKS, places);
    course *courses = calloc(2 * COURSES, sizeof *courses);
    int left = 1;
    CHECK(mail && context && courses);
    for (int i = 0; i < 2 * COURSES; ++i) {
        courses[i].peer = i % RANKS;
        courses[i].tag = i / RANKS % TAGS;
        courses[i].dice = (unsigned)(me * 100 + i);
    }
    while (left) {
        left = 0;
        for (int i = 0; i < 2 * COURSES; ++i) {
            move(context, &courses[i], i < COURSES);
            left += courses[i].over < rounds;
        }
        sched_yield();
    }
    free(courses);
    cc_mail_turn(mail);
    return mail;
}

static void all_to_all(void)
{
    pthread_t threads[RANKS];
    void *made;
    memory = zeroed(cc_mail_bytes(RANKS, ROOM));
    for (int i = 0; i < RANKS; ++i)
        CHECK(pthread_create(&threads[i], NULL, rank_runs, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < RANKS; ++i) {
        pthread_join(threads[i], &made);
        cc_mail_close(made);
    }
    free(memory);
}

/* -- threads of one rank ------------------------------------------------------------------------- */

static void *talks_to_itself(void *number)
{
    const int tag = (int)(intptr_t)number;
    char sent[LONGEST], got[LONGEST];
    for (int i = 0; i < rounds; ++i) {
        const int nbytes = (i * 97 + tag) % LONGEST;
        cc_letter *out, *in;
        cc_mail_status status;
        memset(sent, tag + i, (size_t)nbytes);
        out = cc_mail_send(two[0], sent, nbytes, 0, tag, 0);
        in = cc_mail_recv(two[0], got, LONGEST, 0, tag, 0);
        while (out || in) {
            out = out && cc_letter_test(out, &status) ? NULL : out;
            in = in && cc_letter_test(in, &status) ? NULL : in;
            CHECK(cc_mail_state(two[0], 1) != CC_LEFT);
        }
        for (int k = 0; k < nbytes; ++k)
            CHECK(got[k] == (char)(tag + i));
    }
    return NULL;
}

static void threads_share_a_mail(void)
{
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; ++i)
        CHECK(pthread_create(&threads[i], NULL, talks_to_itself, (void *)(intptr_t)(20 + i)) == 0);
    deaths_are_noted(); /* while the others read the state */
    for (int i = 0; i < RANKS; ++i)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    rounds = begin(argc, argv);
    frames_wrap();
    full_box_refuses();
    open_two();
    errors_reach_both();
    senders_are_known();
    dropped_ones_are_forgotten();
    threads_share_a_mail();
    close_two();
    all_to_all();
    return 0;
}
