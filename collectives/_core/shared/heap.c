/* A heap of this process, whose arrays other ranks can map: memory for NumPy, from CC_LEAST bytes on.
 *
 * It is a file without a name, as long as the addresses that are reserved for it; memory is used only
 * by touched pages. Blocks are whole pages, of four sizes for each doubling. A block that is
 * freed keeps its pages for the next one of its size, up to CC_HEAP_KEPT bytes of all blocks; then holes are
 * punched, which are zero again. The data on blocks is outside of them: `kinds` has the size of the block
 * that begins at a page, `next` its list.
 *
 * A fork: parent and child must not see each other's later writes to arrays. Blocks that calls have
 * never lent become private to this process just before (`cc_detach`): mapped anew, so that no thread
 * can lose a write, and every page copied from the file, which then drops it. From there on they are
 * copied on write as all memory is, and lent no more. Blocks that have been lent may be in use by others
 * at any time. They stay, and the child has copies in their place. In the child the heap is closed:
 * its blocks are freed and never given out again, and the next array makes a heap of the child's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"

#ifndef MFD_CLOEXEC /* glibc before 2.27 */
#define MFD_CLOEXEC 1u
#endif

enum {
    CC_LOOKED = 128 << 10, /* bytes from which on asking for zero pages is faster than writing them */
    CC_IN_USE = 128,       /* a bit of `kinds`, above 1 + the kind */
    CC_HEAP_LENT = 1,      /* states of pages: of an array that was lent since its block was given out */
    CC_PRIVATE = 2,        /* of a block that a fork has made private */
    CC_RETIRED = 3,        /* the same, with holes: a child may share them with the file */
    CC_HEAP_PIECE = 16 << 20,   /* bytes that are made private at a time */
    CC_HEAP_LEAP = 4096         /* bytes: the smallest page of any kernel */
};

#define CC_HEAP_KEPT ((size_t)256 << 20)
#define CC_HEAP_RESERVED ((size_t)256 << 30)
#define CC_HEAP_SMALLEST ((size_t)1 << 30)

cc_heap *cc_heaps;
size_t cc_heap_limit;
int cc_heap_error;

/* ---- sizes ------------------------------------------------------------------------------------ */

/* Return the kind of blocks for an array, and their number of pages. */
static int cc_kind_of(size_t nbytes, size_t *pages)
{
    const size_t last = (nbytes + CC_PAGE - 1) / CC_PAGE - 1;
    const int bits = 64 - __builtin_clzll(last | 1);
    const int shift = bits > 3 ? bits - 3 : 0;
    *pages = ((last >> shift) + 1) << shift;
    return 4 * bits + (int)(last >> shift & 3) - 8;
}

static size_t cc_pages_of(int kind)
{
    const int bits = (kind + 8) / 4, shift = bits > 3 ? bits - 3 : 0;
    const size_t first = bits > 2 ? 4 : 0;
    return (first + (size_t)(kind & 3) + 1) << shift;
}

/* ---- holes ------------------------------------------------------------------------------------- */

/* Return the file, or -1 if the program has closed it: another file may have its number. Then no page is
 * known to be zero, and no block can be made private. */
static int cc_file_of(const cc_heap *h)
{
    struct stat about;
    return fstat(h->file, &about) == 0 && about.st_ino == h->inode && about.st_dev == h->device ? h->file : -1;
}

/* Find the next written part of a range of the file. Return whether there is one. */
static int cc_written(const cc_heap *h, size_t *start, size_t *stop, size_t end)
{
    const int file = cc_file_of(h);
    const off_t first = file < 0 ? (off_t)*start : lseek(file, (off_t)*start, SEEK_DATA);
    off_t hole;
    if (first < 0 || (size_t)first >= end)
        return 0;
    hole = file < 0 ? -1 : lseek(file, first, SEEK_HOLE);
    *start = (size_t)first;
    *stop = hole < 0 || (size_t)hole > end ? end : (size_t)hole;
    return 1;
}

static int cc_punch(const cc_heap *h, size_t start, size_t nbytes)
{
    const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(cc_file_of(h), how, (off_t)start, (off_t)nbytes);
}

static void cc_zero(const cc_heap *h, char *data, size_t nbytes)
{
    size_t start = (size_t)(data - h->base), stop, end = start + nbytes;
    if (nbytes < CC_LOOKED) {
        memset(data, 0, nbytes);
        return;
    }
    for (; start < end && cc_written(h, &start, &stop, end); start = stop)
        memset(h->base + start, 0, stop - start);
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Free the pages of kept blocks, of the kind that has most, while there are too many. */
static void cc_give_back(cc_heap *h)
{
    while (h->all_kept > CC_HEAP_KEPT || (h->all_kept && h->used + h->all_kept > h->limit)) {
        uint32_t page;
        size_t nbytes;
        int most = 0;
        for (int k = 1; k < CC_KINDS; ++k)
            if (h->kept_bytes[k] > h->kept_bytes[most])
                most = k;
        page = h->kept[most];
        nbytes = cc_pages_of(most) * CC_PAGE;
        /* MPI's caches of registered memory intercept this call. */
        if (madvise(h->base + (size_t)page * CC_PAGE, nbytes, MADV_REMOVE))
            return;
        h->kept[most] = h->next[page];
        h->next[page] = h->clean[most];
        h->clean[most] = page;
        h->kept_bytes[most] -= nbytes;
        h->all_kept -= nbytes;
    }
}

/* Return a block for an array, or NULL if there is no room; set `is_zero` if it is known to be zero. */
static void *cc_take_block(cc_heap *h, size_t nbytes, int *is_zero)
{
    size_t pages;
    const int kind = cc_kind_of(nbytes, &pages);
    const size_t room = pages * CC_PAGE;
    uint32_t page = 0;
    *is_zero = 1;
    if (kind >= CC_KINDS)
        return NULL;
    pthread_mutex_lock(&h->lock);
    if (room <= h->limit && h->used <= h->limit - room) {
        if (h->kept[kind]) {
            page = h->kept[kind];
            h->kept[kind] = h->next[page];
            h->kept_bytes[kind] -= room;
            h->all_kept -= room;
            *is_zero = 0;
        } else if (h->clean[kind]) {
            page = h->clean[kind];
            h->clean[kind] = h->next[page];
        } else if (pages <= h->nbytes / CC_PAGE - h->top) {
            page = h->top;
            h->top += (uint32_t)pages;
        }
    }
    if (page) {
        h->kinds[page] = (unsigned char)(CC_IN_USE | (kind + 1));
        h->used += room;
        cc_give_back(h);
    }
    pthread_mutex_unlock(&h->lock);
    return page ? h->base + (size_t)page * CC_PAGE : NULL;
}

/* Set the state of pages, which `cc_heap_lends` reads without the lock. */
static void cc_mark(cc_heap *h, size_t page, size_t pages, unsigned char state)
{
    for (size_t i = 0; i < pages; ++i)
        __atomic_store_n(&h->states[page + i], state, __ATOMIC_RELAXED);
}

/* Make pages mere addresses: no part of the file, and no memory. */
static void cc_let_go(cc_heap *h, size_t page, size_t end)
{
    if (page < end)
        mmap(h->base + page * CC_PAGE, (end - page) * CC_PAGE, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Make a private block shared again. Return whether others may use it. */
static int cc_attach(cc_heap *h, uint32_t page, size_t room)
{
    char *at = h->base + (size_t)page * CC_PAGE;
    if (h->states[page] == CC_RETIRED || h->file < 0) {
        cc_let_go(h, page, page + room / CC_PAGE);
        return 0;
    }
    return mmap(at, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, cc_file_of(h),
                (off_t)page * CC_PAGE) == at;
}

void cc_free_block(cc_heap *h, void *data)
{
    const uint32_t page = (uint32_t)(((char *)data - h->base) / CC_PAGE);
    const int kind = (h->kinds[page] & ~CC_IN_USE) - 1;
    const size_t pages = cc_pages_of(kind), room = pages * CC_PAGE;
    pthread_mutex_lock(&h->lock);
    h->used -= room;
    h->kinds[page] = (unsigned char)(kind + 1);
    if (h->states[page] >= CC_PRIVATE || h->file < 0) {
        if (cc_attach(h, page, room)) {
            h->next[page] = h->clean[kind];
            h->clean[kind] = page;
        }
    } else {
        h->next[page] = h->kept[kind];
        h->kept[kind] = page;
        h->kept_bytes[kind] += room;
        h->all_kept += room;
        cc_give_back(h);
    }
    cc_mark(h, page, pages, 0);
    pthread_mutex_unlock(&h->lock);
}

size_t cc_room_of(const cc_heap *h, const void *data)
{
    const size_t page = (size_t)((const char *)data - h->base) / CC_PAGE;
    return cc_pages_of((h->kinds[page] & ~CC_IN_USE) - 1) * CC_PAGE;
}

size_t cc_room_for(size_t nbytes)
{
    size_t pages;
    cc_kind_of(nbytes, &pages);
    return pages * CC_PAGE;
}

int cc_heap_lends(const char *data, size_t nbytes)
{
    cc_heap *h = cc_heap_now();
    unsigned char *state;
    if (!h || (size_t)(data - h->base) >= h->nbytes || nbytes > h->nbytes - (size_t)(data - h->base))
        return 0;
    state = &h->states[(size_t)(data - h->base) / CC_PAGE];
    if (__atomic_load_n(state, __ATOMIC_RELAXED) == 0) {
        pthread_mutex_lock(&h->lock); /* a fork may be about to make it private */
        if (*state == 0)
            __atomic_store_n(state, CC_HEAP_LENT, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&h->lock);
    }
    return __atomic_load_n(state, __ATOMIC_RELAXED) == CC_HEAP_LENT;
}

/* ---- forks ------------------------------------------------------------------------------------- */

/* Return the pages of the block that begins at a page; set whether it is in use, and its state. */
static size_t cc_block_at(const cc_heap *h, uint32_t page, int *in_use, int *state)
{
    const int kind = (h->kinds[page] & ~CC_IN_USE) - 1;
    const size_t pages = cc_pages_of(kind);
    *in_use = h->kinds[page] & CC_IN_USE;
    *state = h->states[page];
    for (size_t i = 1; *state == 0 && i < pages; ++i)
        *state = h->states[page + i];
    return pages;
}

/* Copy the pages of a private mapping, by a write to each that changes nothing: it fails only if
 * another thread has written. 1 GiB takes 0.5 s in one call, 1.3 with a fault for each page, and 0.7
 * when it is written first (throw-away program; Sapphire Rapids in a virtual machine, 2026-11-25). */
static void cc_own_pages(char *data, size_t nbytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(data, nbytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t i = 0; i < nbytes; i += CC_HEAP_LEAP) {
        char was = *(volatile char *)(data + i);
        __atomic_compare_exchange_n(data + i, &was, was, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

/* Make a block private to this process. Return 0, or -1 if that fails. */
static int cc_detach(cc_heap *h, uint32_t page, size_t pages)
{
    const size_t begin = (size_t)page * CC_PAGE, end = begin + pages * CC_PAGE;
    char *at = h->base + begin;
    size_t start = begin, stop, data = 0;
    if (mmap(at, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
             cc_file_of(h), (off_t)begin) != at)
        return -1;
    for (; start < end && cc_written(h, &start, &stop, end); start = stop) {
        stop = stop - start > CC_HEAP_PIECE ? start + CC_HEAP_PIECE : stop;
        cc_own_pages(h->base + start, stop - start);
        cc_punch(h, start, stop - start);
        data += stop - start;
    }
    cc_mark(h, page, pages, data == end - begin ? CC_PRIVATE : CC_RETIRED);
    return 0;
}

/* Copy all lent blocks, or put copies in their place. Return their bytes. */
static size_t cc_each_lent(cc_heap *h, int moves)
{
    size_t total = 0, pages, start, stop, begin, end;
    int in_use, state;
    for (uint32_t page = 1; page < h->top; page += (uint32_t)pages) {
        pages = cc_block_at(h, page, &in_use, &state);
        begin = (size_t)page * CC_PAGE;
        end = begin + pages * CC_PAGE;
        if (!in_use || state >= CC_PRIVATE)
            continue;
        if (h->copies && !moves)
            for (start = begin; start < end && cc_written(h, &start, &stop, end); start = stop)
                memcpy(h->copies + total + (start - begin), h->base + start, stop - start);
        if (h->copies && moves)
            mremap(h->copies + total, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED,
                   h->base + begin);
        total += end - begin;
    }
    return total;
}

static void cc_before_fork(void)
{
    cc_heap *h = cc_heap_now();
    size_t pages;
    int in_use, state;
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    for (uint32_t page = 1; page < h->top; page += (uint32_t)pages) {
        pages = cc_block_at(h, page, &in_use, &state);
        if (in_use && state == 0)
            cc_detach(h, page, pages);
    }
    h->copies = NULL;
    h->copied = cc_each_lent(h, 0);
    if (!h->copied)
        return;
    h->copies = (char *)mmap(NULL, h->copied, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (h->copies == MAP_FAILED) {
        h->copies = NULL;
        fprintf(stderr, "collectives: no memory to copy %zu bytes of shared arrays for a forked child, "
                "which shares them with its parent\n", h->copied);
    }
    if (h->copies)
        madvise(h->copies, h->copied, MADV_HUGEPAGE);
    cc_each_lent(h, 0);
}

static void cc_fork_in_parent(void)
{
    cc_heap *h = cc_heap_now();
    if (!h)
        return;
    if (h->copies)
        munmap(h->copies, h->copied);
    h->copies = NULL;
    pthread_mutex_unlock(&h->lock);
}

static void cc_fork_in_child(void)
{
    cc_heap *h = cc_heap_now();
    size_t unused = 0, pages; /* the first of some pages that are in no block in use */
    int in_use = 0, state;
    if (!h)
        return;
    if (h->copies)
        cc_each_lent(h, 1);
    for (uint32_t page = 1; page < h->top; page += (uint32_t)pages) {
        pages = cc_block_at(h, page, &in_use, &state);
        if (in_use) {
            cc_let_go(h, unused, page);
            unused = page + pages;
        }
    }
    cc_let_go(h, unused, h->nbytes / CC_PAGE);
    close(cc_file_of(h));
    h->file = -1;
    pthread_mutex_init(&h->lock, NULL);
}

/* ---- a new heap --------------------------------------------------------------------------------- */

static void *cc_reserved(size_t nbytes, int file)
{
    const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *made = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, file, 0);
    return made == MAP_FAILED ? NULL : made;
}

/* Allocate the memory of an empty heap. Return 0, or errno. */
static int cc_heap_fill(cc_heap *h, size_t limit)
{
    struct stat about;
    char *tables = NULL;
    memset(h, 0, sizeof *h);
    h->file = (int)syscall(SYS_memfd_create, "collectives-arrays", MFD_CLOEXEC); /* no function before glibc 2.27 */
    if (h->file < 0 || fstat(h->file, &about))
        return errno;
    h->inode = about.st_ino;
    h->device = about.st_dev;
    for (h->nbytes = CC_HEAP_RESERVED; h->nbytes >= CC_HEAP_SMALLEST; h->nbytes /= 2) {
        const size_t pages = h->nbytes / CC_PAGE;
        h->base = ftruncate(h->file, (off_t)h->nbytes) ? NULL : (char *)cc_reserved(h->nbytes, h->file);
        tables = h->base ? (char *)cc_reserved(pages * 6, -1) : NULL;
        if (tables) {
            h->next = (uint32_t *)tables;
            h->kinds = (unsigned char *)(tables + pages * 4);
            h->states = h->kinds + pages;
            break;
        }
        if (h->base)
            munmap(h->base, h->nbytes);
    }
    if (!tables) {
        close(h->file);
        return ENOMEM;
    }
    madvise(h->base, h->nbytes, MADV_DONTDUMP);
    h->top = 1;
    h->limit = limit;
    pthread_mutex_init(&h->lock, NULL);
    return 0;
}

static cc_heap *cc_heap_had(void)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    static int watches;
    cc_heap *h = cc_heap_now();
    if (h || !__atomic_load_n(&cc_heap_limit, __ATOMIC_RELAXED)
        || __atomic_load_n(&cc_heap_error, __ATOMIC_RELAXED))
        return h;
    if (pthread_mutex_trylock(&opening)) /* other threads get ordinary memory in the meantime */
        return NULL;
    h = cc_heap_now();
    if (!h && !cc_heap_error) {
        int error;
        h = malloc(sizeof *h);
        error = h ? cc_heap_fill(h, cc_heap_limit) : ENOMEM;
        if (!error && !watches)
            error = pthread_atfork(cc_before_fork, cc_fork_in_parent, cc_fork_in_child);
        __atomic_store_n(&cc_heap_error, error, __ATOMIC_RELAXED);
        if (!error) {
            watches = 1;
            h->older = cc_heaps;
            __atomic_store_n(&cc_heaps, h, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&opening);
    return cc_heap_now();
}

cc_heap *cc_heap_open(size_t limit)
{
    __atomic_store_n(&cc_heap_limit, limit, __ATOMIC_RELAXED);
    return cc_heap_had();
}

/* ---- functions for NumPy ------------------------------------------------------------------------ */

void *cc_heap_malloc(size_t nbytes, int zero)
{
    cc_heap *h;
    void *made;
    int is_zero;
    if (nbytes < CC_LEAST || !(h = cc_heap_had()))
        return NULL;
    made = cc_take_block(h, nbytes, &is_zero);
    if (made && zero && !is_zero)
        cc_zero(h, (char *)made, nbytes);
    return made;
}
