/* Messages between the ranks of one host through memory that they share: what MPI does elsewhere.
 *
 * Each ordered pair of ranks has a box, a ring of bytes with one writer and one reader. Frames lie in
 * it one after the other, each whole. A message of up to a quarter of a box is one frame. A longer one
 * is offered; its receiver accepts it when it has a place for it, and then it comes in pieces. So a
 * rank stores no more than a quarter of a box of a message that nobody has asked for, and no message
 * keeps others back.
 *
 * A receive takes the first message of its context, peer and tag, in the order of the sends: frames
 * of a pair of ranks keep their order, and what nobody has asked for waits in a list.
 *
 * Any thread may call anything: a lock is held while boxes are read and written.
 */
#ifndef COLLECTIVES_MAIL_H
#define COLLECTIVES_MAIL_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "box.h"

/* Error codes, as MPI's: of a message that is longer than the place for it, of memory that is not
 * there, and one that says that the status of each message has its code. */
enum { CC_MAIL_TRUNCATED = 1, CC_MAIL_NO_MEMORY = 2, CC_MAIL_IN_STATUS = 3 };

/* A frame that came before anybody asked for it. */
typedef struct cc_early {
    struct cc_early *next;
    cc_frame frame;
    char data[];
} cc_early;

/* A send or a receive that has been started: a request. It is in one of the lists of its peer. */
typedef struct cc_letter {
    struct cc_letter *next;
    struct cc_letter *next_out; /* among those whose frame has to wait for room in the box */
    struct cc_mail *mail;
    uint64_t context;
    uint64_t number;
    uint64_t theirs; /* its number at the peer */
    char *data;
    int64_t nbytes; /* of the message; for a receive, of the place for it, until it is known */
    int64_t moved;  /* bytes that are sent, or have come */
    int32_t peer;
    int32_t tag;
    int32_t is_send;
    int32_t is_done;
    int32_t error;
    int32_t waits; /* whether it is in the list of next_out */
} cc_letter;

typedef struct {
    cc_letter *first;
    cc_letter **end;
} cc_letters;

typedef struct {
    cc_box *out, *in;
    cc_letters asked;   /* receives that nothing has come for */
    cc_letters coming;  /* receives that were accepted */
    cc_letters offered; /* sends that were not */
    cc_letters flowing; /* sends that were */
    cc_letter *waiting, **waiting_end; /* frames that the box has no room for */
    cc_early *early, **early_end;
} cc_peer;

typedef struct {
    int32_t error;
    int32_t unused;
    int64_t nbytes;
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
    cc_peer peers[];
} cc_mail;

/* Bytes that the boxes of p ranks take, each with `room` for frames, a power of two. */
static size_t cc_mail_bytes(int p, int64_t room)
{
    return (size_t)p * p * (sizeof(cc_box) + room);
}

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

/* Returns NULL without memory. `memory` is zero where nobody has written yet. */
static cc_mail *cc_mail_open(char *memory, int me, int p, int64_t room)
{
    size_t box = sizeof(cc_box) + room;
    cc_mail *mail = calloc(1, sizeof *mail + p * sizeof(cc_peer));
    if (!mail)
        return NULL;
    pthread_mutex_init(&mail->lock, NULL);
    mail->me = me;
    mail->p = p;
    mail->room = room;
    for (int i = 0; i < p; ++i) {
        cc_peer *peer = &mail->peers[i];
        peer->out = (cc_box *)(memory + ((size_t)me * p + i) * box);
        peer->in = (cc_box *)(memory + ((size_t)i * p + me) * box);
        cc_letters_open(&peer->asked);
        cc_letters_open(&peer->coming);
        cc_letters_open(&peer->offered);
        cc_letters_open(&peer->flowing);
        peer->waiting_end = &peer->waiting;
        peer->early_end = &peer->early;
    }
    return mail;
}

/* Free a list, whose members begin with the address of the next one. */
static void cc_free_all(void *first)
{
    while (first) {
        void *next;
        memcpy(&next, first, sizeof next);
        free(first);
        first = next;
    }
}

static void cc_mail_close(cc_mail *mail)
{
    for (int i = 0; i < mail->p; ++i)
        cc_free_all(mail->peers[i].early);
    cc_free_all(mail->spare);
    cc_free_all(mail->contexts);
    pthread_mutex_destroy(&mail->lock);
    free(mail);
}

/* -- sending ------------------------------------------------------------------------------------- */

/* Bytes from which on a message is offered first, and of a piece. */
static int64_t cc_mail_most(const cc_mail *mail)
{
    return mail->room / 4 - sizeof(cc_frame);
}

/* Write the frame with which a letter begins: the message, its offer, or the answer to one. */
static int cc_letter_begins(cc_letter *letter)
{
    cc_mail *mail = letter->mail;
    cc_peer *peer = &mail->peers[letter->peer];
    cc_frame frame = {CC_ACCEPT, letter->tag, letter->context, 0, letter->nbytes, letter->number, letter->theirs};
    int is_whole = letter->nbytes <= cc_mail_most(mail);
    if (letter->is_send) {
        frame.kind = is_whole ? CC_MESSAGE : CC_OFFER;
        frame.nbytes = is_whole ? letter->nbytes : 0;
    } else if (letter->is_done) {
        frame.total = -1;
    }
    if (!cc_box_write(mail->room, peer->out, &frame, letter->data))
        return 0;
    if (letter->is_send && is_whole)
        letter->is_done = 1;
    else if (letter->is_send)
        cc_letters_add(&peer->offered, letter);
    return 1;
}

/* Write that frame, or have it wait for those before it. */
static void cc_letter_out(cc_letter *letter)
{
    cc_peer *peer = &letter->mail->peers[letter->peer];
    if (!peer->waiting && cc_letter_begins(letter))
        return;
    letter->waits = 1;
    letter->next_out = NULL;
    *peer->waiting_end = letter;
    peer->waiting_end = &letter->next_out;
}

static void cc_peer_out(cc_mail *mail, cc_peer *peer)
{
    while (peer->waiting && cc_letter_begins(peer->waiting)) {
        peer->waiting->waits = 0;
        peer->waiting = peer->waiting->next_out;
        if (!peer->waiting)
            peer->waiting_end = &peer->waiting;
    }
    /* Messages take turns, piece by piece. */
    while (peer->flowing.first) {
        cc_letter *letter = peer->flowing.first;
        int64_t rest = letter->nbytes - letter->moved;
        int64_t most = cc_mail_most(mail);
        cc_frame frame = {CC_PIECE, 0, 0, rest < most ? rest : most, 0, letter->number, letter->theirs};
        if (!cc_box_write(mail->room, peer->out, &frame, letter->data + letter->moved))
            return;
        letter->moved += frame.nbytes;
        cc_letters_take(&peer->flowing, letter);
        if (letter->moved < letter->nbytes)
            cc_letters_add(&peer->flowing, letter);
        else
            letter->is_done = 1;
    }
}

/* -- receiving ----------------------------------------------------------------------------------- */

static int cc_is_for(const cc_letter *letter, const cc_frame *frame)
{
    return letter->context == frame->context && letter->tag == frame->tag;
}

/* Give a receive the length of its message; says whether it has a place for it. */
static int cc_letter_fits(cc_letter *letter, const cc_frame *frame)
{
    int fits = frame->total <= letter->nbytes;
    letter->nbytes = frame->total;
    letter->theirs = frame->from;
    if (!fits) {
        letter->error = CC_MAIL_TRUNCATED;
        letter->is_done = 1;
    }
    return fits;
}

/* Answer an offer. */
static void cc_letter_accepts(cc_letter *letter, const cc_frame *frame)
{
    if (cc_letter_fits(letter, frame))
        cc_letters_add(&letter->mail->peers[letter->peer].coming, letter);
    cc_letter_out(letter);
}

/* Take one frame out of a box. Returns 0, or -1 without memory: then it stays there. */
static int cc_frame_in(cc_mail *mail, cc_peer *peer, const cc_frame *frame, uint64_t at)
{
    cc_letter *letter;
    at += sizeof *frame;
    if (frame->kind == CC_ACCEPT) {
        letter = cc_letters_find(&peer->offered, frame->to);
        if (letter) {
            cc_letters_take(&peer->offered, letter);
            letter->theirs = frame->from;
            if (frame->total < 0)
                letter->is_done = 1;
            else
                cc_letters_add(&peer->flowing, letter);
        }
        return 0;
    }
    if (frame->kind == CC_PIECE) {
        letter = cc_letters_find(&peer->coming, frame->to);
        if (letter) {
            cc_box_get(mail->room, peer->in, at, letter->data + letter->moved, frame->nbytes);
            letter->moved += frame->nbytes;
            if (letter->moved == letter->nbytes) {
                cc_letters_take(&peer->coming, letter);
                letter->is_done = 1;
            }
        }
        return 0;
    }
    for (letter = peer->asked.first; letter && !cc_is_for(letter, frame);)
        letter = letter->next;
    if (!letter) {
        cc_early *early = malloc(sizeof *early + frame->nbytes);
        if (!early)
            return -1;
        early->next = NULL;
        early->frame = *frame;
        cc_box_get(mail->room, peer->in, at, early->data, frame->nbytes);
        *peer->early_end = early;
        peer->early_end = &early->next;
        return 0;
    }
    cc_letters_take(&peer->asked, letter);
    if (frame->kind == CC_OFFER) {
        cc_letter_accepts(letter, frame);
    } else if (cc_letter_fits(letter, frame)) {
        cc_box_get(mail->room, peer->in, at, letter->data, frame->nbytes);
        letter->is_done = 1;
    }
    return 0;
}

static void cc_peer_in(cc_mail *mail, cc_peer *peer)
{
    cc_box *box = peer->in;
    uint64_t tail = box->tail;
    uint64_t head = __atomic_load_n(&box->head, __ATOMIC_ACQUIRE);
    cc_frame frame;
    while (tail != head) {
        cc_box_get(mail->room, box, tail, &frame, sizeof frame);
        if (cc_frame_in(mail, peer, &frame, tail))
            return;
        tail += sizeof frame + ((frame.nbytes + 7) & ~(int64_t)7);
        __atomic_store_n(&box->tail, tail, __ATOMIC_RELEASE);
    }
}

/* Read and write all boxes as far as they go; the lock is held. */
static void cc_mail_moves(cc_mail *mail)
{
    for (int i = 0; i < mail->p; ++i) {
        cc_peer_in(mail, &mail->peers[i]);
        cc_peer_out(mail, &mail->peers[i]);
    }
}

/* -- letters ------------------------------------------------------------------------------------- */

static cc_letter *cc_letter_new(const cc_context *context, char *data, int64_t nbytes, int peer, int tag)
{
    cc_mail *mail = context->mail;
    cc_letter *letter = mail->spare;
    if (letter)
        mail->spare = letter->next;
    else
        letter = malloc(sizeof *letter);
    if (!letter)
        return NULL;
    memset(letter, 0, sizeof *letter);
    letter->mail = mail;
    letter->context = context->id;
    letter->number = ++mail->numbers;
    letter->data = data;
    letter->nbytes = nbytes;
    letter->peer = context->ranks[peer];
    letter->tag = tag;
    return letter;
}

static void cc_letter_free(cc_letter *letter)
{
    letter->next = letter->mail->spare;
    letter->mail->spare = letter;
}

static cc_letter *cc_mail_send(const cc_context *context, const void *data, int64_t nbytes, int peer, int tag)
{
    cc_letter *letter;
    pthread_mutex_lock(&context->mail->lock);
    letter = cc_letter_new(context, (char *)data, nbytes, peer, tag);
    if (letter) {
        letter->is_send = 1;
        cc_letter_out(letter);
    }
    pthread_mutex_unlock(&context->mail->lock);
    return letter;
}

static cc_letter *cc_mail_recv(const cc_context *context, void *data, int64_t nbytes, int peer, int tag)
{
    cc_peer *from = &context->mail->peers[context->ranks[peer]];
    cc_letter *letter;
    pthread_mutex_lock(&context->mail->lock);
    letter = cc_letter_new(context, data, nbytes, peer, tag);
    if (letter) {
        cc_early **at = &from->early;
        while (*at && !cc_is_for(letter, &(*at)->frame))
            at = &(*at)->next;
        if (*at) {
            cc_early *early = *at;
            *at = early->next;
            if (from->early_end == &early->next)
                from->early_end = at;
            if (early->frame.kind == CC_OFFER) {
                cc_letter_accepts(letter, &early->frame);
            } else if (cc_letter_fits(letter, &early->frame)) {
                memcpy(data, early->data, early->frame.nbytes);
                letter->is_done = 1;
            }
            free(early);
        } else {
            cc_letters_add(&from->asked, letter);
        }
    }
    pthread_mutex_unlock(&context->mail->lock);
    return letter;
}

/* A letter is done with when its message is, and the answer to its offer is on its way. */
static int cc_letter_ended(const cc_letter *letter)
{
    return letter->is_done && !letter->waits;
}

/* Move on, and say whether a letter has ended; then it is freed, and *status says how. */
static int cc_letter_test(cc_letter *letter, cc_mail_status *status)
{
    cc_mail *mail = letter->mail;
    int ended;
    pthread_mutex_lock(&mail->lock);
    cc_mail_moves(mail);
    ended = cc_letter_ended(letter);
    if (ended) {
        status->error = letter->error;
        status->nbytes = letter->nbytes;
        cc_letter_free(letter);
    }
    pthread_mutex_unlock(&mail->lock);
    return ended;
}

/* Forget a letter that nobody waits for any more; its memory is not touched afterwards. */
static void cc_letter_drop(cc_letter *letter)
{
    cc_peer *peer = &letter->mail->peers[letter->peer];
    pthread_mutex_lock(&letter->mail->lock);
    if (letter->waits) {
        cc_letter **at = &peer->waiting;
        while (*at != letter)
            at = &(*at)->next_out;
        *at = letter->next_out;
        if (peer->waiting_end == &letter->next_out)
            peer->waiting_end = at;
    }
    if (letter->is_send)
        (void)(cc_letters_take(&peer->offered, letter) || cc_letters_take(&peer->flowing, letter));
    else
        (void)(cc_letters_take(&peer->asked, letter) || cc_letters_take(&peer->coming, letter));
    cc_letter_free(letter);
    pthread_mutex_unlock(&letter->mail->lock);
}

/* -- contexts ------------------------------------------------------------------------------------ */

/* Returns a rank whose message with this tag has come and was not asked for, or -1. */
static int cc_mail_sender(const cc_context *context, int tag)
{
    int found = -1;
    pthread_mutex_lock(&context->mail->lock);
    cc_mail_moves(context->mail);
    for (int i = 0; i < context->size && found < 0; ++i)
        for (cc_early *each = context->mail->peers[context->ranks[i]].early; each; each = each->next)
            if (each->frame.context == context->id && each->frame.tag == tag) {
                found = i;
                break;
            }
    pthread_mutex_unlock(&context->mail->lock);
    return found;
}

/* Returns NULL without memory. It lives as long as the mail. */
static cc_context *cc_context_new(cc_mail *mail, uint64_t id, int size, const int *ranks)
{
    cc_context *context = malloc(sizeof *context + size * sizeof(int));
    if (!context)
        return NULL;
    context->mail = mail;
    context->id = id;
    context->size = size;
    context->rank = -1;
    for (int i = 0; i < size; ++i) {
        context->ranks[i] = ranks[i];
        if (ranks[i] == mail->me)
            context->rank = i;
    }
    pthread_mutex_lock(&mail->lock);
    context->next = mail->contexts;
    mail->contexts = context;
    pthread_mutex_unlock(&mail->lock);
    return context;
}

#endif
