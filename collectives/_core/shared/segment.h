/* Shared memory of the ranks of one host: its words, their writers and readers, and their order.
 *
 * The segment has, for each rank, a row of *lanes*, and a ring of memory for payloads. A lane holds the
 * publications of the rank in one *page*: the run of one segment of an operation through its program.
 * Pages are numbered from 0 as operations start, alike on all ranks; page g has the lane g % lanes. A
 * lane has a line for each publication, with the number of its page, the fingerprint of the rank's call,
 * and the place of the payload: in the line itself if it is short, otherwise in the ring (ring.h).
 *
 * Every word has one writer. A rank writes payload and line, then the line's `seq` (a release); a rank
 * that has seen it (an acquire) may read the payload. When a rank has run a page to its end, it needs no
 * data of it any more, and counts it in its `progress`: the number of pages that it has finished, the
 * lowest first. No rank writes to a lane before all ranks have finished the page that it held, nor to
 * the ring before they have finished the pages that had the memory.
 * So `seq` and `progress` are the only words on which ranks wait, and they only grow.
 */
#ifndef COLLECTIVES_SEGMENT_H
#define COLLECTIVES_SEGMENT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "distance.h"
#include "heap.h"
#include "reading.h"
#include "ring.h"

enum {
    CC_INLINE = 80,  /* bytes of payload in a line */
    CC_CALLS = 16,   /* recorded calls of a rank; a power of two */
    CC_TEXT = 1536,  /* bytes of the text of a rank that gives up */
    CC_LINE = 128,   /* bytes: processors fetch lines of 64 bytes by pairs */
    CC_TO = 48,      /* bits of the number of a round trip; above them is 1 + the other rank */
    CC_PAYLOADS = 1, /* ways to store blocks: payloads past the cache, results past the cache, ... */
    CC_RESULTS = 2,
    CC_LENDS = 4,        /* ... and private arrays lent: their readers ask the kernel for them */
    CC_BY_LIBRARY = 8,   /* ... and copies to the cache made by memcpy: kernels/copies.h */
    CC_WINDOWS = 4096,
    CC_HEAP = 0x7FFE, /* in place of the number of a window: the heap of the rank (heap.h) */
    CC_HEAPS = 64,    /* ranks of a host whose heaps others map */
    CC_KERNEL = 0x7FFF, /* in place of the number: an address of the rank's process */
    CC_OFFSET_BITS = 48
};

/* A *reference* is an address for all ranks of the host: an offset in a window, whose number is above
 * CC_OFFSET_BITS. In a line, its highest bit is set if there is an aside. No payload is at the offset 0
 * of window 0. */
#define CC_OFFSET ((UINT64_C(1) << CC_OFFSET_BITS) - 1)
#define CC_KERNEL_REFERENCE ((uint64_t)CC_KERNEL << CC_OFFSET_BITS)
#define CC_HAS_ASIDE (UINT64_C(1) << 63)

/* One publication. */
typedef struct {
    uint64_t seq;      /* its page + 1 */
    uint64_t what[3];  /* the fingerprint of the call */
    uint64_t where;    /* the reference of the payload */
    uint64_t nbytes;   /* of the payload; above CC_OFFSET_BITS the mark of the writer (Sharing.mark) */
    char payload[CC_INLINE];
} cc_publication;

/* An aside takes the place of a payload that is elsewhere, if CC_HAS_ASIDE is set. */
typedef struct {
    uint64_t output;  /* the reference of the owner's output, if others can write to it, or 0 */
    uint64_t way;     /* 1 if its input and output are apart, 2 if they are the same array */
    uint64_t pushed;  /* bits: the ranks of the host that have the result in their outputs already */
    uint64_t event;   /* on a device: the owner's event after which the payload is complete, or 0 */
} cc_aside;

/* The call of a rank: a checksum of the calls before it, and its fingerprint. */
typedef struct {
    uint64_t history;
    uint64_t what[3];
} cc_called;

typedef struct {
    _Alignas(CC_LINE) uint64_t progress;
    _Alignas(CC_LINE) uint64_t started; /* calls that have begun */
    uint64_t ended;                     /* 1 + the last call that the rank has left */
    int64_t core;                       /* of the beginning of its last call, if ranks share cores */
    int64_t pid;
    uint64_t space;                     /* the namespace of `pid`; 0 if it is not known */
    uint64_t began;                     /* when the process began, in ticks since the boot */
    int64_t gone;                       /* whether the rank has left in good order */
    int64_t reads;                      /* 1 if it may read the memory of all others; see probe() */
    uint64_t starts;                    /* nonblocking calls of the program */
    uint64_t waits;                     /* the message that it has waited long for; see show_wait() */
    _Alignas(CC_LINE) uint64_t heap_bytes; /* of the rank's heap, if others may map it; written last */
    uint64_t heap_file, heap_inode;        /* its descriptor in the process, and its inode */
    uint64_t maps;                         /* bits: the ranks whose heaps this one has mapped */
    _Alignas(CC_LINE) cc_called calls[CC_CALLS];
    _Alignas(CC_LINE) uint64_t ping; /* the partner of a round trip, from bit CC_TO on, and its number */
    _Alignas(CC_LINE) uint64_t pong; /* the same for the last round trip that was answered */
} cc_rank_area;

typedef struct {
    unsigned char token[16];  /* identifies this segment */
    uint64_t nbytes;
    _Alignas(CC_LINE) uint64_t given_up; /* 0, or 1 + the rank that was first to give up */
    uint64_t heaps;                      /* the number of ranks that have offered their heaps */
    uint64_t writes;                     /* 0, 1 + the rank that writes the last calls, or all bits: done */
    _Alignas(CC_LINE) uint64_t why;      /* the kind of end; when it is set, the text is complete */
    uint64_t call;                       /* the number of the call */
    char text[CC_TEXT];
} cc_shared;

/* A window of shared memory in this process: window 0 is the segment, the others are those of callers;
 * `mine` is the part of this rank. */
typedef struct {
    char *base;
    char *mine;
    size_t nbytes; /* of `mine` */
} cc_window;

/* The view of one process of a segment. */
typedef struct {
    cc_shared *shared;
    cc_rank_area *ranks;
    char *lines;
    char *memory; /* of this rank's ring */
    size_t nbytes;
    int p, me;
    int nlines;          /* of a lane */
    int reads;           /* 1 if each rank may read the memory of all others, 2 to have it do so */
    int64_t lane_bytes;  /* of the ring for a page, if the ring is shared by CC_LANES pages */
    cc_ring ring;
    cc_distance distance; /* of the ranks that read what this one publishes */
    uint64_t next;       /* the page that the next operation starts with */
    uint64_t calls;      /* calls so far */
    uint64_t history;    /* a checksum of their fingerprints */
    uint64_t floor;      /* all ranks are known to have finished the pages below */
    uint64_t finished;   /* pages above `progress` that this rank has finished, as bits */
    int lock;
    cc_board *boards;
    int is_populated;    /* whether the memory of the rings is allocated */
    cc_window *windows;
    int nwindows;
    char *heaps[CC_HEAPS]; /* the heaps of ranks that this process has mapped, and its own */
    uint64_t heaps_seen;   /* the number of offers that it has processed */
    int heap_is_mapped;    /* whether all ranks have mapped the heap of this one */
} cc_segment;

/* ---- words that others read or write -------------------------------------------------------- */

#ifdef CC_STRESS
/* A build for tests: ranks pause at random wherever another rank could interleave. */
#include <sched.h>
static __thread uint64_t cc_dice;
static void cc_dawdle(void)
{
    if (!cc_dice) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        cc_dice = (uint64_t)t.tv_nsec * 2654435761u + (uintptr_t)&cc_dice + 1;
    }
    cc_dice ^= cc_dice << 13, cc_dice ^= cc_dice >> 7, cc_dice ^= cc_dice << 17;
    if (cc_dice % 64 == 0) { /* once in 64 times, others may advance far */
        struct timespec nap = {0, (long)(cc_dice >> 32) % (cc_dice % 4096 ? 40000 : 2000000)};
        nanosleep(&nap, NULL);
    } else if (cc_dice % 8 == 0) {
        sched_yield();
    }
}
#else
static inline void cc_dawdle(void) {}
#endif

static inline uint64_t cc_read(const uint64_t *word)
{
    uint64_t value;
    cc_dawdle();
    value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    cc_dawdle();
    return value;
}

static inline void cc_write(uint64_t *word, uint64_t value)
{
    cc_dawdle();
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    cc_dawdle();
}

/* Order writes before this for all ranks before reads after it. */
static inline void cc_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void cc_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static inline void cc_fence_streams(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

/* ---- layout ---------------------------------------------------------------------------------- */

static size_t cc_rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static size_t cc_lines_at(int p)
{
    return cc_rounded(sizeof(cc_shared), CC_LINE) + p * cc_rounded(sizeof(cc_rank_area), CC_LINE);
}

static size_t cc_rings_at(int p, int nlines)
{
    return cc_rounded(cc_lines_at(p) + (size_t)p * CC_LANES * nlines * CC_LINE, CC_PAGE);
}

static size_t cc_boards_at(int p, int nlines, int64_t lane_bytes)
{
    return cc_rounded(cc_rings_at(p, nlines) + (size_t)p * CC_LANES * lane_bytes, CC_PAGE);
}

static size_t cc_segment_bytes(int p, int nlines, int64_t lane_bytes)
{
    return cc_boards_at(p, nlines, lane_bytes) + CC_BOARDS * sizeof(cc_board);
}

/* Return the bytes after which a ring is used again: half of the private cache of a core, since a reader
 * also goes through its own array, its own ring and its result. On 2 cores of an EPYC with
 * 512 KiB each, an allreduce of 64 KiB took 10.1 us near and 11.9 us far with 256 KiB, 14.3 and 15.3
 * with 1 MiB; one of 8 KiB 2.7 and 3.5, 3.0 and 3.7; one of 512 KiB 82.1 and 79.0, 80.4 and 81.7
 * (throw-away program, 2026-11-22). */
static int64_t cc_ring_width(void)
{
    int64_t cache = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return (cache > 0 ? cache : 1 << 20) / 2;
}

/* Return 0, or -1 without memory. */
static int cc_segment_open(cc_segment *s, void *memory, int p, int me, int nlines, int64_t lane_bytes)
{
    char *base = (char *)memory;
    memset(s, 0, sizeof *s);
    s->shared = (cc_shared *)base;
    s->ranks = (cc_rank_area *)(base + cc_rounded(sizeof(cc_shared), CC_LINE));
    s->lines = base + cc_lines_at(p);
    s->memory = base + cc_rings_at(p, nlines) + (size_t)me * CC_LANES * lane_bytes;
    s->boards = (cc_board *)(base + cc_boards_at(p, nlines, lane_bytes));
    cc_ring_open(&s->ring, CC_LANES * lane_bytes, cc_ring_width());
    s->nbytes = cc_segment_bytes(p, nlines, lane_bytes);
    s->p = p;
    s->me = me;
    s->nlines = nlines;
    s->lane_bytes = lane_bytes;
    s->windows = (cc_window *)calloc(CC_WINDOWS, sizeof *s->windows);
    if (!s->windows)
        return -1;
    s->windows[0].base = base;
    s->nwindows = 1;
    return 0;
}

/* Return the window of the ring of a rank, if rings are in the memory of devices. */
static inline int cc_ring_window(int rank) { return 1 + rank; }

/* Move the rings of all ranks to other addresses of this process, in the memory of devices, where soon
 * using memory again gains nothing. */
static void cc_segment_move_rings(cc_segment *s, char *const *rings, int64_t lane_bytes)
{
    for (int r = 0; r < s->p; ++r)
        s->windows[cc_ring_window(r)].base = rings[r];
    s->nwindows = 1 + s->p;
    s->memory = rings[s->me];
    s->lane_bytes = lane_bytes;
    cc_ring_open(&s->ring, CC_LANES * lane_bytes, CC_LANES * lane_bytes);
}

/* Allocate the memory of all rings before calls are timed. Otherwise, each page of it is cleared and
 * mapped in the first lap, by its writer and by each reader: a reduce_scatter of 8 KiB takes 4.1 us
 * instead of 1.3. */
static void cc_segment_populate(cc_segment *s)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    char *const rings = s->windows[0].base + cc_rings_at(s->p, s->nlines);
    for (int r = 0; r < s->p && !s->is_populated; ++r)
        madvise(rings + (size_t)r * CC_LANES * s->lane_bytes, (size_t)s->ring.width, MADV_POPULATE_WRITE);
    s->is_populated = 1;
#endif
}

static void cc_segment_close(cc_segment *s) { free(s->windows); }

/* Return the window in which this rank owns some memory, or 0. */
static inline int cc_window_of(const cc_segment *s, const char *data, size_t nbytes)
{
    for (int i = s->nwindows - 1; i > 0; --i) {
        const cc_window *w = &s->windows[i];
        if (data >= w->mine && data + nbytes <= w->mine + w->nbytes)
            return i;
    }
    return 0;
}

static inline cc_publication *cc_line_of(const cc_segment *s, int rank, uint64_t page, int publication)
{
    const size_t lane = (size_t)rank * CC_LANES + page % CC_LANES;
    return (cc_publication *)(s->lines + (lane * s->nlines + publication) * CC_LINE);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Return whether all ranks have finished the pages below `page`. */
static inline int cc_all_finished(cc_segment *s, uint64_t page)
{
    uint64_t floor = UINT64_MAX;
    if (page <= __atomic_load_n(&s->floor, __ATOMIC_ACQUIRE))
        return 1;
    for (int r = 0; r < s->p; ++r) {
        const uint64_t progress = cc_read(&s->ranks[r].progress);
        floor = progress < floor ? progress : floor;
    }
    __atomic_store_n(&s->floor, floor, __ATOMIC_RELEASE);
    return page <= floor;
}

/* Note that this rank has finished a page. The lock is for its own threads. */
static inline void cc_finish(cc_segment *s, uint64_t page)
{
    uint64_t *progress = &s->ranks[s->me].progress;
    uint64_t next;
    while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE))
        cc_pause();
    next = *progress;
    s->finished |= (uint64_t)1 << (page - next);
    while (s->finished & 1) {
        s->finished >>= 1;
        ++next;
    }
    cc_write(progress, next);
    __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
}

/* Return the line of a publication, or NULL if it is not there. */
static inline const cc_publication *cc_published(const cc_segment *s, int rank, uint64_t page, int publication)
{
    const cc_publication *line = cc_line_of(s, rank, page, publication);
    return cc_read(&line->seq) == page + 1 ? line : NULL;
}

/* Return the reference to an address in a window. */
static inline uint64_t cc_reference(const cc_segment *s, int window, const char *address)
{
    return (uint64_t)window << CC_OFFSET_BITS | (uint64_t)(address - s->windows[window].base);
}

/* Return the address of a rank's reference in this process; NULL if it has none. */
static inline char *cc_address(const cc_segment *s, int rank, uint64_t reference)
{
    const unsigned kind = (unsigned)((reference & ~CC_HAS_ASIDE) >> CC_OFFSET_BITS);
    char *base;
    if (kind == CC_KERNEL)
        return NULL;
    base = kind == CC_HEAP ? s->heaps[rank] : s->windows[kind].base;
    return base ? base + (reference & CC_OFFSET) : NULL;
}

/* Return the bytes of a payload. */
static inline int64_t cc_length(const cc_publication *line) { return (int64_t)(line->nbytes & CC_OFFSET); }

static inline const char *cc_payload(const cc_segment *s, int rank, const cc_publication *line)
{
    return cc_length(line) <= CC_INLINE ? line->payload : cc_address(s, rank, line->where);
}

/* Return the aside of a line, or NULL. */
static inline const cc_aside *cc_aside_of(const cc_publication *line)
{
    return line->where & CC_HAS_ASIDE ? (const cc_aside *)line->payload : NULL;
}

/* Publish `nbytes`, with a mark, whose payload is in its place. `aside` is NULL, or the line's contents
 * in place of the payload. Nothing else may be written to the line before, since the stores to it are
 * timed. */
static inline void cc_publish(cc_segment *s, cc_publication *line, uint64_t page, const uint64_t *what,
                              uint64_t where, uint64_t nbytes, const cc_aside *aside)
{
    const uint64_t length = nbytes & CC_OFFSET;
    const int is_due = length > CC_INLINE && cc_is_due(page, length); /* else the line is in its cache */
    const uint64_t start = is_due ? cc_begin_stores() : 0;
    line->what[0] = what[0];
    line->what[1] = what[1];
    line->what[2] = what[2];
    line->where = aside ? where | CC_HAS_ASIDE : where;
    line->nbytes = nbytes;
    if (aside)
        *(cc_aside *)line->payload = *aside;
    cc_write(&line->seq, page + 1);
    if (is_due)
        cc_end_stores(&s->distance, start);
}

static inline int cc_same(const uint64_t *a, const uint64_t *b)
{
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2])) == 0;
}

static inline uint64_t cc_mixed(uint64_t sum, uint64_t value)
{
    return (sum ^ value) * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint64_t cc_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- heaps ------------------------------------------------------------------------------------- */

/* Return whether all ranks have mapped the heap of this one; offer it to them before. */
static inline int cc_heap_is_mapped(cc_segment *s, const cc_heap *h)
{
    cc_rank_area *mine = &s->ranks[s->me];
    if (s->heap_is_mapped || s->p > CC_HEAPS)
        return s->heap_is_mapped;
    if (!mine->heap_bytes) {
        s->heaps[s->me] = h->base;
        mine->heap_file = (uint64_t)h->file;
        mine->heap_inode = h->inode;
        cc_write(&mine->heap_bytes, h->nbytes);
        __atomic_fetch_add(&s->shared->heaps, 1, __ATOMIC_ACQ_REL);
        return 0;
    }
    for (int r = 0; r < s->p; ++r)
        if (r != s->me && !(cc_read(&s->ranks[r].maps) >> s->me & 1))
            return 0;
    s->heap_is_mapped = 1;
    return 1;
}

/* Return the reference to memory of this rank's heap; 0 if it is not there, or may not be lent. */
static inline uint64_t cc_heap_reference(const char *data, size_t nbytes)
{
    if (!nbytes || !cc_heap_lends(data, nbytes))
        return 0;
    return (uint64_t)CC_HEAP << CC_OFFSET_BITS | (uint64_t)(data - cc_heap_now()->base);
}

/* ---- recorded calls -------------------------------------------------------------------------- */

/* Record a call. Its publications have the fingerprint `said`, whose options are mixed with those of
 * earlier calls: if no rank waits in a call, only a later call shows that ranks differed in it. */
static inline void cc_begin_call(cc_segment *s, const uint64_t *what, uint64_t *said)
{
    cc_rank_area *mine = &s->ranks[s->me];
    cc_called *call = &mine->calls[s->calls % CC_CALLS];
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a reader of a new word sees that the call before began */
    __atomic_store_n(&call->what[0], what[0], __ATOMIC_RELAXED);
    __atomic_store_n(&call->what[1], what[1], __ATOMIC_RELAXED);
    __atomic_store_n(&call->what[2], what[2], __ATOMIC_RELAXED);
    __atomic_store_n(&call->history, s->history, __ATOMIC_RELAXED);
    if (mine->gone) /* the program goes on, after all */
        mine->gone = 0;
    cc_write(&mine->started, ++s->calls);
    said[0] = what[0];
    said[1] = what[1];
    said[2] = what[2] ^ (s->history >> 32 << 32);
    s->history = cc_mixed(cc_mixed(cc_mixed(s->history, what[0]), what[1]), what[2]);
}

static inline void cc_end_call(cc_segment *s, uint64_t number)
{
    cc_write(&s->ranks[s->me].ended, number + 1);
}

/* The same for a nonblocking call, which counts unless another one has begun. */
static inline void cc_leave_call(cc_segment *s, uint64_t number)
{
    if (number + 1 == s->calls)
        cc_end_call(s, number);
}

/* Get the call `number` of a rank. Return 1 if it is known, 0 if the rank has not begun it, or -1 if
 * the rank is so far ahead that the record is gone. */
static inline int cc_call_of(const cc_segment *s, int rank, uint64_t number, uint64_t *what)
{
    const cc_rank_area *area = &s->ranks[rank];
    const cc_called *call = &area->calls[number % CC_CALLS];
    if (cc_read(&area->started) <= number)
        return 0;
    for (int i = 0; i < 3; ++i)
        what[i] = __atomic_load_n(&call->what[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return cc_read(&area->started) <= number + CC_CALLS - 1 ? 1 : -1;
}

/* Return whether a rank's calls before the call `number` are known to differ from those of this rank,
 * which has begun it. */
static inline int cc_history_differs(const cc_segment *s, int rank, uint64_t number)
{
    uint64_t what[3];
    const uint64_t mine = s->ranks[s->me].calls[number % CC_CALLS].history;
    const uint64_t theirs = __atomic_load_n(&s->ranks[rank].calls[number % CC_CALLS].history, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return mine != theirs && number + CC_CALLS >= s->calls && cc_call_of(s, rank, number, what) == 1;
}

/* ---- round trips of a flag --------------------------------------------------------------------- */

/* The content of a ping or a pong: the number of a round trip, and the rank that it is for. */
static inline uint64_t cc_flag(int rank, uint64_t number)
{
    return (uint64_t)(rank + 1) << CC_TO | (number & (((uint64_t)1 << CC_TO) - 1));
}

/* Poll a flag until it has a value (or with `leaves`, has it no more), at most `looks` times. Return
 * whether that happened. Bits below `lowest` are ignored. */
static inline int cc_flag_comes(const uint64_t *flag, uint64_t value, int lowest, int leaves, int looks)
{
    for (int i = 0; i < looks; ++i, cc_pause())
        if (((cc_read(flag) ^ value) >> lowest != 0) == leaves)
            return 1;
    return 0;
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* Return whether this rank is the first to ask, and is to write the last calls of all to a file. */
static int cc_is_to_write(cc_segment *s)
{
    uint64_t nobody = 0;
    return __atomic_compare_exchange_n(&s->shared->writes, &nobody, s->me + 1, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* Note that the last calls are in the file, and return whether they are. */
static void cc_have_written(cc_segment *s) { cc_write(&s->shared->writes, UINT64_MAX); }
static int cc_are_written(const cc_segment *s) { return cc_read(&s->shared->writes) == UINT64_MAX; }

/* Tell the other ranks the reason why this one gives up; the first rank's text counts. */
static void cc_give_up(cc_segment *s, uint64_t why, uint64_t call, const char *text)
{
    uint64_t nobody = 0;
    if (!__atomic_compare_exchange_n(&s->shared->given_up, &nobody, s->me + 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    strncpy(s->shared->text, text, CC_TEXT - 1);
    s->shared->call = call;
    cc_write(&s->shared->why, why);
}

#endif
