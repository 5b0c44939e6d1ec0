/* Letters: messages that were started, their lists, and frames that have arrived early.
 *
 * A receive takes the first message of its context, peer and tag, in the order of the sends. Messages
 * without a receive wait in a list.
 */
#ifndef COLLECTIVES_LETTER_H
#define COLLECTIVES_LETTER_H

#include <stdlib.h>
#include <string.h>

#include "box.h"
#include "mail.h"

/* The context of notices between ranks, whose tag is an ended rank, or CC_GREETING. */
#define CC_NOTICES UINT64_MAX
enum { CC_GREETING = -1 };

/* The tag of the message of a rank that has given up, with its reason. No other message has it. */
enum { CC_GAVE_UP = -2 };

/* A frame that came before its receive was started. */
typedef struct cc_early {
    struct cc_early *next;
    cc_wire_header header;
    void *remote; /* UCX's descriptor of data that are still at the sender */
    char data[];
} cc_early;

/* A send or a receive that has been started: a request. It is in one of the lists of its peer. */
struct cc_letter {
    cc_letter *next;
    cc_letter *next_out; /* of the letters whose frame waits for room in the box */
    cc_mail *mail;
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
    cc_wire_header header; /* while UCX has it */
};

static inline void cc_letters_open(cc_letters *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static inline void cc_letters_add(cc_letters *list, cc_letter *letter)
{
    letter->next = NULL;
    *list->end = letter;
    list->end = &letter->next;
}

static inline int cc_letters_take(cc_letters *list, cc_letter *letter)
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

static inline cc_letter *cc_letters_find(const cc_letters *list, uint64_t number)
{
    cc_letter *letter = list->first;
    while (letter && letter->number != number)
        letter = letter->next;
    return letter;
}

static inline int cc_is_for(const cc_letter *letter, const cc_wire_header *header)
{
    return letter->context == header->context && letter->tag == header->tag;
}

/* Give a receive the length of its message; return whether the message is for it, and it has room. */
static inline int cc_letter_fits(cc_letter *letter, const cc_wire_header *header)
{
    letter->error = header->what != letter->what      ? CC_MAIL_OTHER
                    : header->total > letter->nbytes ? CC_MAIL_TRUNCATED
                                                    : 0;
    letter->nbytes = header->total;
    letter->theirs = header->from;
    letter->heard = header->what;
    if (letter->error)
        letter->is_done = 1;
    return !letter->error;
}

static inline cc_letter *cc_letter_new(cc_mail *mail, uint64_t context, char *data, int64_t nbytes, int peer, int tag,
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

static inline void cc_letter_free(cc_letter *letter)
{
    letter->next = letter->mail->spare;
    letter->mail->spare = letter;
}

/* Note that a letter is done, so that its memory is not used any more. */
static inline void cc_letter_ends(cc_letter *letter, int error)
{
    letter->is_done = 1;
    letter->is_flying = 0;
    letter->error = error;
    if (letter->is_forsaken)
        cc_letter_free(letter);
}

/* Return whether a letter has ended: its message is done, and the answer to its offer is on its way. A
 * letter that UCX has for a lost peer counts as ended. */
static inline int cc_letter_ended(const cc_letter *letter)
{
    return letter->is_flying ? letter->mail->peers[letter->peer].state != CC_PRESENT
                             : letter->is_done && !letter->waits;
}

/* Write the status of an ended letter, and free it as soon as its memory is not used any more. */
static inline void cc_letter_close(cc_letter *letter, cc_mail_status *status)
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
static inline cc_letter *cc_peer_asks(cc_peer *peer, const cc_wire_header *header)
{
    cc_letter *letter = peer->asked.first;
    while (letter && !cc_is_for(letter, header))
        letter = letter->next;
    if (letter)
        cc_letters_take(&peer->asked, letter);
    return letter;
}

/* Change the state of a rank, which others read without the lock. Return whether it was present. */
static inline int cc_peer_is_lost(cc_peer *peer, int state)
{
    if (peer->state != CC_PRESENT)
        return 0;
    __atomic_store_n(&peer->state, state, __ATOMIC_RELAXED);
    return 1;
}

/* Functions of the mail for the wire. */
void cc_mail_tell(cc_mail *mail, cc_peer *peer, int tag);
void cc_mail_hears(cc_peer *from, int tag);
void cc_peer_dies(cc_peer *peer);

#endif
