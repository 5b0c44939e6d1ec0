/* Letters: messages that were started, their lists, and frames that have arrived early.
 *
 * A receive takes the first message of its context, peer and tag, in the order of the sends. Messages
 * without a receive wait in a list.
 */
#ifndef COLLECTIVES_LETTER_H
#define COLLECTIVES_LETTER_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "box.h"

/* Error codes like those of MPI: of a message that is too long for its receive, of missing memory, of
 * several messages, whose statuses have their codes, of a lost peer, and of a message whose word is not
 * that of its receive. */
enum { CC_MAIL_TRUNCATED = 1, CC_MAIL_NO_MEMORY = 2, CC_MAIL_IN_STATUS = 3, CC_MAIL_LOST = 4, CC_MAIL_OTHER = 5 };

/* The context of notices between ranks, whose tag is an ended rank, or CC_GREETING. */
#define CC_NOTICES UINT64_MAX
enum { CC_GREETING = -1 };

/* The tag of the message of a rank that has given up, with its reason. No other message has it. */
enum { CC_GAVE_UP = -2 };

/* The known state of a rank. */
enum { CC_PRESENT, CC_LEFT, CC_DIED };

/* A frame that came before its receive was started. */
typedef struct cc_early {
    struct cc_early *next;
    cc_frame frame;
    void *remote; /* UCX's descriptor of data that are still at the sender */
    char data[];
} cc_early;

/* A send or a receive that has been started: a request. It is in one of the lists of its peer. */
typedef struct cc_letter {
    struct cc_letter *next;
    struct cc_letter *next_out; /* of the letters whose frame waits for room in the box */
    struct cc_mail *mail;
    uint64_t context;
    uint64_t number;
    uint64_t theirs; /* its number at the peer */
    uint64_t what, heard; /* its word, and that of the peer */
    char *data;
    int64_t nbytes; /* of the message; for a receive, of its memory, until the message is known */
    int64_t moved;  /* bytes that were sent, or have come */
    int32_t peer;
    int32_t tag;
    int32_t is_send;
    int32_t is_done;
    int32_t error;
    int32_t waits;       /* whether it is in the list of next_out */
    int32_t is_flying;   /* whether UCX has it, and may use its memory */
    int32_t is_forsaken; /* whether no caller waits for it: then it is freed when it is done */
    cc_frame frame;      /* the header, while UCX has it */
} cc_letter;

typedef struct {
    cc_letter *first;
    cc_letter **end;
} cc_letters;

typedef struct {
    struct cc_mail *mail;
    int rank;
    int state;        /* CC_PRESENT, CC_LEFT or CC_DIED */
    int is_unreached; /* whether UCX failed before any message of the peer arrived */
    cc_box *out, *in; /* NULL for a rank of another host, which UCX reaches */
    char *address;
    void *endpoint;
    uint64_t sent, come; /* messages by UCX, which are numbered because they may overtake others */
    cc_early *held;      /* messages that have overtaken others */
    cc_letters asked;    /* receives without a message so far */
    cc_letters coming;   /* receives that have accepted an offer */
    cc_letters offered;  /* sends whose offers were not accepted yet */
    cc_letters flowing;  /* sends whose offers were accepted */
    cc_letter *waiting, **waiting_end; /* frames that wait for room in the box */
    cc_early *early, **early_end;
} cc_peer;

typedef struct {
    int32_t error;
    int32_t unused;
    int64_t nbytes;
    uint64_t heard; /* the word of the message */
} cc_mail_status;

/* Ranks that exchange messages. Their addresses are the handles of communicators. */
typedef struct cc_context {
    struct cc_context *next;
    struct cc_mail *mail;
    uint64_t id;
    int rank, size;
    int ranks[]; /* in the job */
} cc_context;

typedef struct cc_mail {
    pthread_mutex_t lock;
    int me, p;
    int64_t room; /* bytes of a box */
    uint64_t numbers;
    cc_letter *spare;
    cc_context *contexts;
    void *library, *worker; /* of UCX */
    int32_t token;          /* of this job, in its messages */
    cc_peer peers[];
} cc_mail;

static void cc_letters_open(cc_letters *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static void cc_letters_add(cc_letters *list, cc_letter *letter)
{
    letter->next = NULL;
    *list->end = letter;
    list->end = &letter->next;
}

static int cc_letters_take(cc_letters *list, cc_letter *letter)
{
    for (cc_letter **at = &list->first; *at; at = &(*at)->next)
        if (*at == letter) {
            *at = letter->next;
            if (list->end == &letter->next)
                list->end = at;
            return 1;
        }
    return 0;
}

static cc_letter *cc_letters_find(const cc_letters *list, uint64_t number)
{
    cc_letter *letter = list->first;
    while (letter && letter->number != number)
        letter = letter->next;
    return letter;
}

static int cc_is_for(const cc_letter *letter, const cc_frame *frame)
{
    return letter->context == frame->context && letter->tag == frame->tag;
}

/* Give a receive the length of its message; return whether the message is for it, and it has room. */
static int cc_letter_fits(cc_letter *letter, const cc_frame *frame)
{
    letter->error = frame->what != letter->what      ? CC_MAIL_OTHER
                    : frame->total > letter->nbytes ? CC_MAIL_TRUNCATED
                                                    : 0;
    letter->nbytes = frame->total;
    letter->theirs = frame->from;
    letter->heard = frame->what;
    if (letter->error)
        letter->is_done = 1;
    return !letter->error;
}

static cc_letter *cc_letter_new(cc_mail *mail, uint64_t context, char *data, int64_t nbytes, int peer, int tag,
                                uint64_t what)
{
    cc_letter *letter = mail->spare;
    if (letter)
        mail->spare = letter->next;
    else
        letter = malloc(sizeof *letter);
    if (!letter)
        return NULL;
    memset(letter, 0, sizeof *letter);
    letter->mail = mail;
    letter->context = context;
    letter->number = ++mail->numbers;
    letter->data = data;
    letter->nbytes = nbytes;
    letter->peer = peer;
    letter->tag = tag;
    letter->what = what;
    return letter;
}

static void cc_letter_free(cc_letter *letter)
{
    letter->next = letter->mail->spare;
    letter->mail->spare = letter;
}

/* Note that a letter is done, so that its memory is not used any more. */
static void cc_letter_ends(cc_letter *letter, int error)
{
    letter->is_done = 1;
    letter->is_flying = 0;
    letter->error = error;
    if (letter->is_forsaken)
        cc_letter_free(letter);
}

/* Return whether a letter has ended: its message is done, and the answer to its offer is on its way. A
 * letter that UCX has for a lost peer counts as ended. */
static int cc_letter_ended(const cc_letter *letter)
{
    return letter->is_flying ? letter->mail->peers[letter->peer].state != CC_PRESENT
                             : letter->is_done && !letter->waits;
}

/* Write the status of an ended letter, and free it as soon as its memory is not used any more. */
static void cc_letter_close(cc_letter *letter, cc_mail_status *status)
{
    status->error = letter->is_flying ? CC_MAIL_LOST : letter->error;
    status->nbytes = letter->nbytes;
    status->heard = letter->heard;
    if (letter->is_flying)
        letter->is_forsaken = 1;
    else
        cc_letter_free(letter);
}

/* Return the first receive for a message, taken out of its list; NULL if there is none. */
static cc_letter *cc_peer_asks(cc_peer *peer, const cc_frame *frame)
{
    cc_letter *letter = peer->asked.first;
    while (letter && !cc_is_for(letter, frame))
        letter = letter->next;
    if (letter)
        cc_letters_take(&peer->asked, letter);
    return letter;
}

static void cc_peer_is_lost(cc_peer *peer, int state)
{
    if (peer->state == CC_PRESENT)
        peer->state = state;
}

#endif
