/* The functions by which the executor sends and receives: those of MPI or of the mail. */
#ifndef COLLECTIVES_TRANSPORT_H
#define COLLECTIVES_TRANSPORT_H

#include <stdint.h>

/* A transport for the executor. Handles are passed in 64 bits; requests are an array with `handle_size`
 * bytes each, and statuses one with `status_size`. Functions return an error code, of which MPI's are an
 * example, unless a comment says otherwise. */
typedef struct {
    int handle_size;
    int (*send)(uint64_t comm, const void *data, int nbytes, int peer, int tag, void *requests, int slot,
                uint64_t what);
    int (*recv)(uint64_t comm, void *data, int nbytes, int peer, int tag, void *requests, int slot,
                uint64_t what);
    void (*clear)(void *requests, int n);
    int (*poll)(void *requests, int n, int *count, int *done, void *statuses);
    void (*nudge)(uint64_t comm);
    int64_t (*probe)(uint64_t comm, int peer, int tag); /* bytes of a message that has come, or -1 */
    int (*is_pending)(const void *requests, int slot);
    int (*length)(const void *status);
    void (*drop)(void *requests, int slot, int is_send);
    int (*rank)(uint64_t comm);
    int (*size)(uint64_t comm);
    int status_size;
    int error_offset;  /* of the error code in a status */
    int err_in_status; /* the code of an error whose codes are in the statuses */
    int overruns;      /* whether messages that are too long are written behind the end of their receive; ...
                        * ... only then is `probe` used */
    int err_truncate;  /* the class of errors of too long messages */
    int err_other;     /* the class of errors of messages whose word differs, if messages have one ... */
    uint64_t (*heard)(const void *status); /* ... and the word of such a message; otherwise NULL */
    int (*error_class)(int error, int *kind);
    int (*error_string)(int error, char *text, int *length);
} cc_transport;

#endif
