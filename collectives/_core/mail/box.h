/* Boxes: rings of bytes in shared memory with one writer and one reader, and the frames in them. */
#ifndef COLLECTIVES_BOX_H
#define COLLECTIVES_BOX_H

#include <stdint.h>
#include <string.h>

typedef struct cc_box {
    _Alignas(128) uint64_t head; /* bytes ever written */
    _Alignas(128) uint64_t tail; /* bytes ever read */
    _Alignas(128) char data[];
} cc_box;

enum { CC_MESSAGE, CC_OFFER, CC_ACCEPT, CC_PIECE };

/* The header of a frame in a box, and of a message between hosts. */
typedef struct {
    union {
        int32_t kind;    /* in a box */
        int32_t token;   /* between hosts: of the job */
    };
    int32_t tag;
    uint64_t context;
    int64_t nbytes;      /* behind this header */
    int64_t total;       /* of the whole message; -1 in an ACCEPT: the receiver has no room for it */
    uint64_t what;       /* a word that tells the dtype and the call of the message; 0 for bytes */
    union {
        uint64_t from;   /* in a box: the number of the letter, at its sender ... */
        uint64_t number; /* between hosts: of the message, among those of its sender to its receiver */
    };
    union {
        uint64_t to;     /* ... and at its receiver */
        uint64_t sender; /* between hosts */
    };
} cc_wire_header;

static inline void cc_box_put(int64_t room, cc_box *box, uint64_t at, const void *data, int64_t nbytes)
{
    int64_t start = at & (room - 1);
    int64_t first = nbytes < room - start ? nbytes : room - start;
    memcpy(box->data + start, data, first);
    memcpy(box->data, (const char *)data + first, nbytes - first);
}

static inline void cc_box_get(int64_t room, const cc_box *box, uint64_t at, void *data, int64_t nbytes)
{
    int64_t start = at & (room - 1);
    int64_t first = nbytes < room - start ? nbytes : room - start;
    memcpy(data, box->data + start, first);
    memcpy((char *)data + first, box->data, nbytes - first);
}

/* Write a frame if there is room for all of it; return whether there was. */
static inline int cc_box_write(int64_t room, cc_box *box, const cc_wire_header *header, const void *data)
{
    uint64_t head = box->head;
    uint64_t used = head - __atomic_load_n(&box->tail, __ATOMIC_ACQUIRE);
    int64_t whole = sizeof *header + ((header->nbytes + 7) & ~(int64_t)7);
    if (room - (int64_t)used < whole)
        return 0;
    cc_box_put(room, box, head, header, sizeof *header);
    if (header->nbytes)
        cc_box_put(room, box, head + sizeof *header, data, header->nbytes);
    __atomic_store_n(&box->head, head + whole, __ATOMIC_RELEASE);
    return 1;
}

#endif
