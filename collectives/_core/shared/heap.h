/* A heap of this process, whose arrays other ranks can map: memory for NumPy, from CC_LEAST bytes on. */
#ifndef COLLECTIVES_HEAP_H
#define COLLECTIVES_HEAP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
#if defined(__x86_64__)
    CC_PAGE = 4096,  /* bytes: a multiple of the kernel's pages, ... */
#else
    CC_PAGE = 65536, /* ... which have 4, 16 or 64 KiB on aarch64 */
#endif
    CC_LEAST = 16 << 10, /* bytes of an array from which on it is in the heap */
    CC_KINDS = 100       /* sizes of blocks */
};

typedef struct cc_heap {
    char *base;
    size_t nbytes;
    int file;                     /* -1 once it is closed */
    uint64_t inode, device;
    unsigned char *kinds, *states; /* for each page */
    uint32_t *next;
    uint32_t top;                 /* pages from here on were never given out; page 0 never is */
    uint32_t kept[CC_KINDS];      /* free blocks that keep their pages */
    uint32_t clean[CC_KINDS];     /* free blocks that are zero */
    size_t kept_bytes[CC_KINDS];
    size_t all_kept, used, limit; /* bytes */
    char *copies;                 /* of lent blocks, during a fork */
    size_t copied;
    pthread_mutex_t lock;
    struct cc_heap *older;        /* the heap of the parent when it forked this process */
} cc_heap;

extern cc_heap *cc_heaps;        /* the newest first; only this one may be open */
extern size_t cc_heap_limit;     /* of a new heap; 0: none may be made */
extern int cc_heap_error;        /* the reason why there is none, as errno */

static inline cc_heap *cc_heap_now(void)
{
    cc_heap *h = __atomic_load_n(&cc_heaps, __ATOMIC_ACQUIRE);
    return h && h->file >= 0 ? h : NULL;
}

/* Return the heap, open or closed, that has some memory, or NULL. */
static inline cc_heap *cc_heap_of(const void *data)
{
    cc_heap *h = __atomic_load_n(&cc_heaps, __ATOMIC_ACQUIRE);
    while (h && (size_t)((const char *)data - h->base) >= h->nbytes)
        h = h->older;
    return h;
}

/* Return the heap of this process, made with this limit if necessary; NULL if that fails. */
cc_heap *cc_heap_open(size_t limit);
/* Return memory for an array, or NULL if it cannot be in the heap. */
void *cc_heap_malloc(size_t nbytes, int zero);
void cc_free_block(cc_heap *h, void *data);
/* Return the bytes of the block of an array, and of a block for an array of this length. */
size_t cc_room_of(const cc_heap *h, const void *data);
size_t cc_room_for(size_t nbytes);
/* Return whether memory is in the heap and may be lent; if so, it counts as lent from now on. */
int cc_heap_lends(const char *data, size_t nbytes);

#endif
