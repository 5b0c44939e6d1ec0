/* The executor's transport for messages of a mail, like that of calls.h for MPI's. */
#ifndef COLLECTIVES_MAIL_TRANSPORT_H
#define COLLECTIVES_MAIL_TRANSPORT_H

#include "mail.h"

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

static const cc_transport cc_mail_transport = {
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

#endif
