/* Messages between ranks that no MPI launcher started. Between the ranks of one host they go through
 * shared memory, and between hosts through UCX (wire.h).
 *
 * Each ordered pair of ranks of a host has a box, a ring of bytes with one writer and one reader. Frames lie in
 * it one after the other, each whole. A message of up to a quarter of a box is one frame. A longer one
 * is offered; its receiver accepts it when a receive was started, and then it comes in pieces. So a
 * rank stores no more than a quarter of a box of a message without a receive, and no message blocks
 * others.
 *
 * All functions are thread-safe: a lock is held while boxes are read and written.
 */
#include <stddef.h>

#include "../ucx/wire.h"
#include "letter.h"

size_t cc_mail_bytes(int p, int64_t room)
{
    return (size_t)p * p * (sizeof(cc_box) + room);
}

cc_mail *cc_mail_open(char *memory, int me, int p, int64_t room, const int *places)
{
    size_t box = sizeof(cc_box) + room;
    cc_mail *mail = calloc(1, sizeof *mail + p * sizeof(cc_peer));
    int local = 0;
    if (!mail)
        return NULL;
    pthread_mutex_init(&mail->lock, NULL);
    mail->me = me;
    mail->p = p;
    mail->room = room;
    for (int i = 0; i < p; ++i)
        local += places[i] >= 0;
    for (int i = 0; i < p; ++i) {
        cc_peer *peer = &mail->peers[i];
        peer->mail = mail;
        peer->rank = i;
        if (places[i] >= 0) {
            peer->out = (cc_box *)(memory + ((size_t)places[me] * local + places[i]) * box);
            peer->in = (cc_box *)(memory + ((size_t)places[i] * local + places[me]) * box);
        }
        cc_letters_open(&peer->asked);
        cc_letters_open(&peer->coming);
        cc_letters_open(&peer->offered);
        cc_letters_open(&peer->flowing);
        peer->waiting_end = &peer->waiting;
        peer->early_end = &peer->early;
    }
    return mail;
}

/* Free a list whose members begin with the address of the next one. */
static void cc_free_all(void *first)
{
    while (first) {
        void *next;
        memcpy(&next, first, sizeof next);
        free(first);
        first = next;
    }
}

void cc_mail_close(cc_mail *mail)
{
    cc_wire_close(mail);
    for (int i = 0; i < mail->p; ++i) {
        cc_free_all(mail->peers[i].early);
        cc_free_all(mail->peers[i].held);
    }
    cc_free_all(mail->spare);
    cc_free_all(mail->contexts);
    pthread_mutex_destroy(&mail->lock);
    free(mail);
}

/* -- sending ------------------------------------------------------------------------------------- */

/* Return the bytes from which on a message is offered first, which are also those of a piece. */
static int64_t cc_mail_most(const cc_mail *mail)
{
    return mail->room / 4 - sizeof(cc_wire_header);
}

/* Write the first frame of a letter: the message, its offer, or the answer to an offer. */
static int cc_letter_begins(cc_letter *letter)
{
    cc_mail *mail = letter->mail;
    cc_peer *peer = &mail->peers[letter->peer];
    cc_wire_header header = {
        .kind = CC_ACCEPT,
        .tag = letter->tag,
        .context = letter->context,
        .total = letter->nbytes,
        .what = letter->what,
        .from = letter->number,
        .to = letter->theirs,
    };
    int is_whole = letter->nbytes <= cc_mail_most(mail);
    if (letter->is_send) {
        header.kind = is_whole ? CC_MESSAGE : CC_OFFER;
        header.nbytes = is_whole ? letter->nbytes : 0;
    } else if (letter->is_done) {
        header.total = -1;
    }
    if (!cc_box_write(mail->room, peer->out, &header, letter->data))
        return 0;
    letter->waits = 0;
    if (letter->is_send && is_whole)
        cc_letter_ends(letter, 0);
    else if (letter->is_send)
        cc_letters_add(&peer->offered, letter);
    return 1;
}

/* Write that frame, or queue it behind those before it; between hosts, send the message. */
static void cc_letter_out(cc_letter *letter)
{
    cc_peer *peer = &letter->mail->peers[letter->peer];
    if (!peer->out) {
        cc_wire_send(letter);
        return;
    }
    if (!peer->waiting && cc_letter_begins(letter))
        return;
    letter->waits = 1;
    letter->next_out = NULL;
    *peer->waiting_end = letter;
    peer->waiting_end = &letter->next_out;
}

static void cc_peer_out(cc_mail *mail, cc_peer *peer)
{
    while (peer->waiting) {
        cc_letter *next = peer->waiting->next_out;
        if (!cc_letter_begins(peer->waiting))
            break;
        peer->waiting = next;
        if (!next)
            peer->waiting_end = &peer->waiting;
    }
    /* Messages take turns, piece by piece. */
    while (peer->flowing.first) {
        cc_letter *letter = peer->flowing.first;
        int64_t rest = letter->nbytes - letter->moved;
        int64_t most = cc_mail_most(mail);
        cc_wire_header header = {
            .kind = CC_PIECE,
            .nbytes = rest < most ? rest : most,
            .from = letter->number,
            .to = letter->theirs,
        };
        if (!cc_box_write(mail->room, peer->out, &header, letter->data + letter->moved))
            return;
        letter->moved += header.nbytes;
        cc_letters_take(&peer->flowing, letter);
        if (letter->moved < letter->nbytes)
            cc_letters_add(&peer->flowing, letter);
        else
            letter->is_done = 1;
    }
}

/* -- receiving ----------------------------------------------------------------------------------- */

/* Answer an offer. */
static void cc_letter_accepts(cc_letter *letter, const cc_wire_header *header)
{
    if (cc_letter_fits(letter, header))
        cc_letters_add(&letter->mail->peers[letter->peer].coming, letter);
    cc_letter_out(letter);
}

/* Take one frame out of a box. Return 0, or -1 without memory: then it stays there. */
static int cc_frame_in(cc_mail *mail, cc_peer *peer, const cc_wire_header *header, uint64_t at)
{
    cc_letter *letter;
    at += sizeof *header;
    if (header->kind == CC_ACCEPT) {
        letter = cc_letters_find(&peer->offered, header->to);
        if (letter) {
            cc_letters_take(&peer->offered, letter);
            letter->theirs = header->from;
            letter->heard = header->what;
            if (header->total < 0)
                cc_letter_ends(letter, header->what == letter->what ? CC_MAIL_TRUNCATED : CC_MAIL_OTHER);
            else
                cc_letters_add(&peer->flowing, letter);
        }
        return 0;
    }
    if (header->kind == CC_PIECE) {
        letter = cc_letters_find(&peer->coming, header->to);
        if (letter) {
            cc_box_get(mail->room, peer->in, at, letter->data + letter->moved, header->nbytes);
            letter->moved += header->nbytes;
            if (letter->moved == letter->nbytes) {
                cc_letters_take(&peer->coming, letter);
                letter->is_done = 1;
            }
        }
        return 0;
    }
    if (header->context == CC_NOTICES) {
        cc_mail_hears(peer, header->tag);
        return 0;
    }
    letter = cc_peer_asks(peer, header);
    if (!letter) {
        cc_early *early = malloc(sizeof *early + header->nbytes);
        if (!early)
            return -1;
        early->next = NULL;
        early->remote = NULL;
        early->header = *header;
        cc_box_get(mail->room, peer->in, at, early->data, header->nbytes);
        *peer->early_end = early;
        peer->early_end = &early->next;
        return 0;
    }
    if (header->kind == CC_OFFER) {
        cc_letter_accepts(letter, header);
    } else if (cc_letter_fits(letter, header)) {
        cc_box_get(mail->room, peer->in, at, letter->data, header->nbytes);
        letter->is_done = 1;
    }
    return 0;
}

static void cc_peer_in(cc_mail *mail, cc_peer *peer)
{
    cc_box *box = peer->in;
    uint64_t tail = box->tail;
    uint64_t head = __atomic_load_n(&box->head, __ATOMIC_ACQUIRE);
    cc_wire_header header;
    while (tail != head) {
        cc_box_get(mail->room, box, tail, &header, sizeof header);
        if (cc_frame_in(mail, peer, &header, tail))
            return;
        tail += sizeof header + ((header.nbytes + 7) & ~(int64_t)7);
        __atomic_store_n(&box->tail, tail, __ATOMIC_RELEASE);
    }
}

/* Read and write all boxes as far as they go, and advance UCX; the lock is held. */
static void cc_mail_moves(cc_mail *mail)
{
    for (int i = 0; i < mail->p; ++i)
        if (mail->peers[i].out) {
            cc_peer_in(mail, &mail->peers[i]);
            cc_peer_out(mail, &mail->peers[i]);
        }
    if (mail->worker)
        cc_ucp.worker_progress(mail->worker);
}

void cc_mail_turn(cc_mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    cc_mail_moves(mail);
    pthread_mutex_unlock(&mail->lock);
}

/* -- endings ------------------------------------------------------------------------------------- */

/* Send a notice, without a wait for its completion. */
void cc_mail_tell(cc_mail *mail, cc_peer *peer, int tag)
{
    cc_letter *letter = cc_letter_new(mail, CC_NOTICES, NULL, 0, peer->rank, tag, 0);
    if (letter) {
        letter->is_send = letter->is_forsaken = 1;
        cc_letter_out(letter);
    }
}

/* Note that a rank has died, and tell all others if it was not known. */
void cc_peer_dies(cc_peer *peer)
{
    cc_mail *mail = peer->mail;
    if (!cc_peer_is_lost(peer, CC_DIED))
        return;
    for (int i = 0; i < mail->p && mail->worker; ++i)
        if (i != mail->me && mail->peers[i].state == CC_PRESENT)
            cc_mail_tell(mail, &mail->peers[i], peer->rank);
}

/* Take a notice: a greeting, the end of its sender, or the death of another rank. */
void cc_mail_hears(cc_peer *from, int tag)
{
    if (tag == CC_GREETING) {
        cc_wire_connect(from);
    } else if (tag == from->rank) {
        (void)cc_peer_is_lost(from, CC_LEFT);
        if (!from->out)
            cc_wire_ends(from);
    } else if (tag >= 0 && tag < from->mail->p && tag != from->mail->me) {
        (void)cc_peer_is_lost(&from->mail->peers[tag], CC_DIED);
    }
}

/* -- letters ------------------------------------------------------------------------------------- */

cc_letter *cc_mail_send(const cc_context *context, const void *data, int64_t nbytes, int peer, int tag,
                        uint64_t what)
{
    cc_letter *letter;
    pthread_mutex_lock(&context->mail->lock);
    letter = cc_letter_new(context->mail, context->id, (char *)data, nbytes, context->ranks[peer], tag, what);
    if (letter) {
        letter->is_send = 1;
        cc_letter_out(letter);
    }
    pthread_mutex_unlock(&context->mail->lock);
    return letter;
}

cc_letter *cc_mail_recv(const cc_context *context, void *data, int64_t nbytes, int peer, int tag, uint64_t what)
{
    cc_peer *from = &context->mail->peers[context->ranks[peer]];
    cc_letter *letter;
    pthread_mutex_lock(&context->mail->lock);
    letter = cc_letter_new(context->mail, context->id, data, nbytes, from->rank, tag, what);
    if (letter) {
        cc_early **at = &from->early;
        while (*at && !cc_is_for(letter, &(*at)->header))
            at = &(*at)->next;
        if (*at) {
            cc_early *early = *at;
            *at = early->next;
            if (from->early_end == &early->next)
                from->early_end = at;
            if (!from->out) {
                cc_wire_give_early(letter, early);
            } else if (early->header.kind == CC_OFFER) {
                cc_letter_accepts(letter, &early->header);
            } else if (cc_letter_fits(letter, &early->header)) {
                memcpy(data, early->data, early->header.nbytes);
                letter->is_done = 1;
            }
            free(early);
        } else if (from->out || cc_wire_connect(from)) {
            cc_letters_add(&from->asked, letter);
        } else {
            cc_letter_ends(letter, CC_MAIL_LOST);
        }
    }
    pthread_mutex_unlock(&context->mail->lock);
    return letter;
}

int cc_letter_test(cc_letter *letter, cc_mail_status *status)
{
    cc_mail *mail = letter->mail;
    int ended;
    pthread_mutex_lock(&mail->lock);
    cc_mail_moves(mail);
    ended = cc_letter_ended(letter);
    if (ended)
        cc_letter_close(letter, status);
    pthread_mutex_unlock(&mail->lock);
    return ended;
}

int cc_letter_drop(cc_letter *letter)
{
    cc_mail *mail = letter->mail;
    cc_peer *peer = &mail->peers[letter->peer];
    int is_flying;
    pthread_mutex_lock(&mail->lock);
    is_flying = letter->is_flying;
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
    letter->is_forsaken = 1;
    if (!is_flying)
        cc_letter_free(letter);
    pthread_mutex_unlock(&mail->lock);
    return is_flying;
}

/* -- contexts ------------------------------------------------------------------------------------ */

static int cc_peer_has(const cc_peer *peer, uint64_t context, int tag)
{
    for (const cc_early *each = peer->early; each; each = each->next)
        if (each->header.context == context && each->header.tag == tag)
            return 1;
    return 0;
}

int cc_mail_sender(const cc_context *context, int first, int end, int tag)
{
    int found = -1;
    pthread_mutex_lock(&context->mail->lock);
    cc_mail_moves(context->mail);
    for (int i = first; i < end && found < 0; ++i)
        if (cc_peer_has(&context->mail->peers[context->ranks[i]], context->id, tag))
            found = i;
    pthread_mutex_unlock(&context->mail->lock);
    return found;
}

int cc_mail_state(const cc_context *context, int rank)
{
    return __atomic_load_n(&context->mail->peers[context->ranks[rank]].state, __ATOMIC_RELAXED);
}

int cc_mail_is_unreached(const cc_context *context, int rank)
{
    cc_peer *peer = &context->mail->peers[context->ranks[rank]];
    int found;
    pthread_mutex_lock(&context->mail->lock);
    found = peer->is_unreached;
    pthread_mutex_unlock(&context->mail->lock);
    return found;
}

void cc_mail_give_up(const cc_context *context, const char *text, int64_t nbytes)
{
    cc_mail *mail = context->mail;
    char *copy = malloc(nbytes);
    if (!copy)
        return;
    memcpy(copy, text, nbytes);
    pthread_mutex_lock(&mail->lock);
    for (int i = 0; i < context->size; ++i) {
        cc_peer *peer = &mail->peers[context->ranks[i]];
        cc_letter *letter = NULL;
        if (!peer->out && peer->state == CC_PRESENT)
            letter = cc_letter_new(mail, context->id, copy, nbytes, peer->rank, CC_GAVE_UP, 0);
        if (letter) {
            letter->is_send = letter->is_forsaken = 1;
            cc_letter_out(letter);
        }
    }
    pthread_mutex_unlock(&mail->lock);
}

int cc_mail_words(const cc_context *context, char *text, int64_t room, int64_t *nbytes)
{
    int rank = cc_mail_sender(context, 0, context->size, CC_GAVE_UP);
    if (rank < 0)
        return -1;
    pthread_mutex_lock(&context->mail->lock);
    for (const cc_early *each = context->mail->peers[context->ranks[rank]].early; each; each = each->next)
        if (each->header.context == context->id && each->header.tag == CC_GAVE_UP) {
            *nbytes = each->remote ? 0 : each->header.nbytes < room ? each->header.nbytes : room;
            memcpy(text, each->data, *nbytes);
            break;
        }
    pthread_mutex_unlock(&context->mail->lock);
    return rank;
}

void cc_mail_lose(const cc_context *context, int rank)
{
    pthread_mutex_lock(&context->mail->lock);
    cc_peer_dies(&context->mail->peers[context->ranks[rank]]);
    pthread_mutex_unlock(&context->mail->lock);
}

cc_context *cc_context_new(cc_mail *mail, uint64_t id, int size, const int *ranks)
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

/* -- the transport ------------------------------------------------------------------------------- */

static int cc_mail_post_send(uint64_t comm, const void *data, int nbytes, int peer, int tag, void *requests, int slot,
                             uint64_t what)
{
    cc_letter *letter = cc_mail_send((const cc_context *)(uintptr_t)comm, data, nbytes, peer, tag, what);
    ((cc_letter **)requests)[slot] = letter;
    return letter ? 0 : CC_MAIL_NO_MEMORY;
}

static int cc_mail_post_recv(uint64_t comm, void *data, int nbytes, int peer, int tag, void *requests, int slot,
                             uint64_t what)
{
    cc_letter *letter = cc_mail_recv((const cc_context *)(uintptr_t)comm, data, nbytes, peer, tag, what);
    ((cc_letter **)requests)[slot] = letter;
    return letter ? 0 : CC_MAIL_NO_MEMORY;
}

static void cc_mail_clear(void *requests, int n)
{
    memset(requests, 0, n * sizeof(cc_letter *));
}

static int cc_mail_poll(void *requests, int n, int *count, int *done, void *statuses)
{
    cc_letter **letters = requests;
    cc_mail_status *status = statuses;
    cc_mail *mail = NULL;
    int error = 0;
    *count = 0;
    for (int i = 0; i < n; ++i) {
        if (!letters[i])
            continue;
        if (!mail) {
            mail = letters[i]->mail;
            pthread_mutex_lock(&mail->lock);
            cc_mail_moves(mail);
        }
        if (!cc_letter_ended(letters[i]))
            continue;
        cc_letter_close(letters[i], status);
        if (status->error)
            error = CC_MAIL_IN_STATUS;
        ++status;
        done[(*count)++] = i;
        letters[i] = NULL;
    }
    if (mail)
        pthread_mutex_unlock(&mail->lock);
    return error;
}

static void cc_mail_nudge(uint64_t comm)
{
    cc_mail_turn(((const cc_context *)(uintptr_t)comm)->mail);
}

static int cc_mail_is_pending(const void *requests, int slot)
{
    return ((cc_letter *const *)requests)[slot] != NULL;
}

static int cc_mail_length(const void *status)
{
    return (int)((const cc_mail_status *)status)->nbytes;
}

static uint64_t cc_mail_heard(const void *status)
{
    return ((const cc_mail_status *)status)->heard;
}

static void cc_mail_drop(void *requests, int slot, int is_send)
{
    cc_letter **letter = (cc_letter **)requests + slot;
    (void)is_send;
    if (*letter)
        (void)cc_letter_drop(*letter); /* the executor keeps the memory of dropped messages */
    *letter = NULL;
}

static int cc_mail_rank(uint64_t comm)
{
    return ((const cc_context *)(uintptr_t)comm)->rank;
}

static int cc_mail_size(uint64_t comm)
{
    return ((const cc_context *)(uintptr_t)comm)->size;
}

static int cc_mail_error_class(int error, int *kind)
{
    *kind = error;
    return 0;
}

static int cc_mail_error_string(int error, char *text, int *length)
{
    strcpy(text, error == CC_MAIL_TRUNCATED ? "a message is longer than the place for it"
                 : error == CC_MAIL_OTHER   ? "a message is not the one that is due"
                 : error == CC_MAIL_LOST    ? "the connection is lost"
                                            : "no memory for a message");
    *length = (int)strlen(text);
    return 0;
}

const cc_transport cc_mail_transport = {
    .handle_size = sizeof(cc_letter *),
    .send = cc_mail_post_send,
    .recv = cc_mail_post_recv,
    .clear = cc_mail_clear,
    .poll = cc_mail_poll,
    .nudge = cc_mail_nudge,
    .is_pending = cc_mail_is_pending,
    .length = cc_mail_length,
    .drop = cc_mail_drop,
    .rank = cc_mail_rank,
    .size = cc_mail_size,
    .status_size = sizeof(cc_mail_status),
    .error_offset = offsetof(cc_mail_status, error),
    .err_in_status = CC_MAIL_IN_STATUS,
    .err_truncate = CC_MAIL_TRUNCATED,
    .err_other = CC_MAIL_OTHER,
    .heard = cc_mail_heard,
    .error_class = cc_mail_error_class,
    .error_string = cc_mail_error_string,
};
