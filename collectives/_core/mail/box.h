/* Boxes: rings of bytes in shared memory with one writer and one reader, and the frames in them. */
#ifndef COLLECTIVES_BOX_H
#define COLLECTIVES_BOX_H

#include <stdint.h>
#include <string.h>

typedef struct {
    _Alignas(128) uint64_t head; /* bytes ever written */
    _Alignas(128) uint64_t tail; /* bytes ever read */
    _Alignas(128) char data[];
} cc_box;

enum { CC_MESSAGE, CC_OFFER, CC_ACCEPT, CC_PIECE };

typedef struct {
    int32_t kind;
    int32_t tag;
    uint64_t context;
    int64_t nbytes; /* behind this header */
    int64_t total;  /* of the whole message; -1 in an ACCEPT: the receiver has no room for it */
    uint64_t what;  /* a word that tells the dtype and the call of the message; 0 for bytes */
    uint64_t from;  /* the number of the letter of this frame, at its sender ... */
    uint64_t to;    /* ... and at its receiver */
} cc_frame;

static void cc_box_put(int64_t room, cc_box *box, uint64_t at, const void *data, int64_t nbytes)
{
    int64_t start = at & (room - 1);
    int64_t first = nbytes < room - start ? nbytes : room - start;
    memcpy(box->data + start, data, first);
    memcpy(box->data, (const char *)data + first, nbytes - first);
}

static void cc_box_get(int64_t room, const cc_box *box, uint64_t at, void *data, int64_t nbytes)
{
    int64_t start = at & (room - 1);
    int64_t first = nbytes < room - start ? nbytes : room - start;
    memcpy(data, box->data + start, first);
    memcpy((char *)data + first, box->data, nbytes - first);
}

/* Write a frame if there is room for all of it; return whether there was. */
static int cc_box_write(int64_t room, cc_box *box, const cc_frame *frame, const void *data)
{
    uint64_t head = box->head;
    uint64_t used = head - __atomic_load_n(&box->tail, __ATOMIC_ACQUIRE);
    int64_t whole = sizeof *frame + ((frame->nbytes + 7) & ~(int64_t)7);
    if (room - (int64_t)used < whole)
        return 0;
    cc_box_put(room, box, head, frame, sizeof *frame);
    if (frame->nbytes)
        cc_box_put(room, box, head + sizeof *frame, data, frame->nbytes);
    __atomic_store_n(&box->head, head + whole, __ATOMIC_RELEASE);
    return 1;
}

#endif
