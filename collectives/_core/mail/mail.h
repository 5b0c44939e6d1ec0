/* Messages between ranks that no MPI launcher started (mail.c). */
#ifndef COLLECTIVES_MAIL_H
#define COLLECTIVES_MAIL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "../executor/transport.h"

/* Error codes like those of MPI: of a message that is too long for its receive, of missing memory, of
 * several messages, whose statuses have their codes, of a lost peer, and of a message whose word is not
 * that of its receive. */
enum { CC_MAIL_TRUNCATED = 1, CC_MAIL_NO_MEMORY = 2, CC_MAIL_IN_STATUS = 3, CC_MAIL_LOST = 4, CC_MAIL_OTHER = 5 };

/* The known state of a rank. */
enum { CC_PRESENT, CC_LEFT, CC_DIED };

typedef struct cc_letter cc_letter;
typedef struct cc_mail cc_mail;

typedef struct {
    cc_letter *first;
    cc_letter **end;
} cc_letters;

typedef struct {
    cc_mail *mail;
    int rank;
    int state;        /* CC_PRESENT, CC_LEFT or CC_DIED */
    int is_unreached; /* whether UCX failed before any message of the peer arrived */
    struct cc_box *out, *in; /* NULL for a rank of another host, which UCX reaches */
    char *address;
    void *endpoint;
    uint64_t sent, come; /* messages by UCX, which are numbered because they may overtake others */
    struct cc_early *held; /* messages that have overtaken others */
    cc_letters asked;    /* receives without a message so far */
    cc_letters coming;   /* receives that have accepted an offer */
    cc_letters offered;  /* sends whose offers were not accepted yet */
    cc_letters flowing;  /* sends whose offers were accepted */
    cc_letter *waiting, **waiting_end; /* frames that wait for room in the box */
    struct cc_early *early, **early_end;
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
    cc_mail *mail;
    uint64_t id;
    int rank, size;
    int ranks[]; /* in the job */
} cc_context;

struct cc_mail {
    pthread_mutex_t lock;
    int me, p;
    int64_t room; /* bytes of a box */
    uint64_t numbers;
    cc_letter *spare;
    cc_context *contexts;
    void *library, *worker; /* of UCX */
    int32_t token;          /* of this job, in its messages */
    cc_peer peers[];
};

/* Return the bytes of the boxes of p ranks, each with `room` for frames, a power of two. */
size_t cc_mail_bytes(int p, int64_t room);
/* Return NULL without memory. `memory` is zero before the first write; `places` has for each rank its
 * number among those that share it, or -1. */
cc_mail *cc_mail_open(char *memory, int me, int p, int64_t room, const int *places);
void cc_mail_close(cc_mail *mail);
/* Read and write as far as it goes. */
void cc_mail_turn(cc_mail *mail);
cc_letter *cc_mail_send(const cc_context *context, const void *data, int64_t nbytes, int peer, int tag,
                        uint64_t what);
cc_letter *cc_mail_recv(const cc_context *context, void *data, int64_t nbytes, int peer, int tag, uint64_t what);
/* Advance messages, and return whether a letter has ended; then it is freed, and *status is set. */
int cc_letter_test(cc_letter *letter, cc_mail_status *status);
/* Forget a letter that is not waited for any more. Return whether its memory may still be used. */
int cc_letter_drop(cc_letter *letter);
/* Return a rank, from `first` up to one before `end`, whose message with this tag has come without a
 * receive, or -1. */
int cc_mail_sender(const cc_context *context, int first, int end, int tag);
/* Return the known state of a rank. */
int cc_mail_state(const cc_context *context, int rank);
/* Return whether the connection to a rank failed before any message of the rank arrived. */
int cc_mail_is_unreached(const cc_context *context, int rank);
/* Tell the ranks of other hosts that this one has given up. The text stays in memory, because UCX may
 * read it later. */
void cc_mail_give_up(const cc_context *context, const char *text, int64_t nbytes);
/* Return a rank of another host that has given up, or -1, and up to `room` bytes of its text. */
int cc_mail_words(const cc_context *context, char *text, int64_t room, int64_t *nbytes);
/* Note that a rank has died, which shared memory shows, and tell the others. */
void cc_mail_lose(const cc_context *context, int rank);
/* Return NULL without memory. The context lives as long as the mail. */
cc_context *cc_context_new(cc_mail *mail, uint64_t id, int size, const int *ranks);

extern const cc_transport cc_mail_transport;

#endif
